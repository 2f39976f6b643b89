"""A stream of sorted event tables: what it had, that nothing stands in it twice, and cutting it into chunks."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from domain.market.chunks import encode_columns
from domain.market.errors import ImportInvalidError
from domain.market.snapshot import CHUNK_EVENTS_MAX, INSTRUMENTS_MAX, ChunkRef
from services import effects
from services.adapters.event_tables import VALUE_PREFIX, to_columns
from services.adapters.spill import concatenated
from services.ports import BlobStore

CHUNK_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of one chunk: events of many columns or long names give chunks of fewer rows."""

_FIELD_BYTES: Final = 200
_VALUE_BYTES: Final = 24


class Seen:
    """What the rows of a source had: how many, which instruments, which value columns."""

    def __init__(self) -> None:
        self.rows = 0
        self.instruments: set[str] = set()
        self.columns: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take note of a batch of events."""
        self.rows += batch.num_rows
        self.instruments.update(compute.unique(batch.column("instrument")).to_pylist())
        if len(self.instruments) > INSTRUMENTS_MAX:
            raise ImportInvalidError("too many instruments", at="the source", expected=f"at most {INSTRUMENTS_MAX}")
        names = {name.removeprefix(VALUE_PREFIX) for name in batch.schema.names if name.startswith(VALUE_PREFIX)}
        self.columns = sorted(names.union(self.columns))


def distinct(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same tables, once it is sure that no event and revision stands twice, and that none contradicts its neighbour."""
    last = None
    for table in tables:
        _check_neighbours(table if last is None else concatenated([last, table]))
        last = table.slice(table.num_rows - 1)
        yield table


def store_chunks(tables: Iterator[pa.Table], columns: list[str], blobs: BlobStore) -> Iterator[ChunkRef]:
    """Write sorted events as chunks of the snapshot."""
    for table in _cut(tables, chunk_rows(len(columns))):
        yield from _store(table, columns, blobs)


def chunk_rows(columns: int) -> int:
    """Events in a chunk, by the number of value columns: a function of the data alone, as the snapshot's address must be."""
    return max(1, min(CHUNK_EVENTS_MAX, CHUNK_BYTES_MAX // (_FIELD_BYTES + _VALUE_BYTES * columns)))


def _check_neighbours(table: pa.Table) -> None:
    times = table.column("event_time").to_numpy()
    ties = np.flatnonzero(times[1:] == times[:-1])
    if not len(ties):
        return
    left, right = table.take(pa.array(ties)), table.take(pa.array(ties + 1))
    same_id = compute.equal(left.column("event_id"), right.column("event_id")).to_numpy()
    if not same_id.any():
        return
    same_revision = left.column("revision").to_numpy() == right.column("revision").to_numpy()
    other_instrument = compute.not_equal(left.column("instrument"), right.column("instrument")).to_numpy()
    for wrong, detail, column in (
        (same_id & same_revision, "is the same event and revision", "event_id"),
        (same_id & other_instrument, "has this event_id with another instrument", "instrument"),
    ):
        for index in np.flatnonzero(wrong).tolist()[:1]:
            event_id = left.column("event_id")[index].as_py()
            rows = sorted((left.column("row")[index].as_py(), right.column("row")[index].as_py()))
            raise ImportInvalidError(
                f"row {rows[0]} {detail}: {event_id!r}", at=f"row {rows[1]}, column {column}", expected="each once"
            )


def _cut(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of `rows` each, the last smaller."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= rows:
            joined = concatenated(held)
            yield joined.slice(0, rows)
            held, count = [joined.slice(rows)], count - rows
    if count:
        yield concatenated(held)


def _store(table: pa.Table, columns: list[str], blobs: BlobStore) -> Iterator[ChunkRef]:
    """Write a table as one chunk, or as two halves (and so on) where it would be too large."""
    events = to_columns(table, columns)
    data = encode_columns(events)
    if len(data) > CHUNK_BYTES_MAX and table.num_rows > 1:
        half = table.num_rows // 2
        yield from _store(table.slice(0, half), columns, blobs)
        yield from _store(table.slice(half), columns, blobs)
        return
    first, last = int(events.event_times[0]), int(events.event_times[-1])
    yield ChunkRef(
        address=effects.store_blob(blobs, data), rows=table.num_rows, first_event_time=first, last_event_time=last
    )
