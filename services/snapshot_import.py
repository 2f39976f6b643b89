"""Importing market events: from a file to a snapshot in the blob store.

Read in batches, each row brought to the form of an event; sorted outside memory; written as chunks; the manifest last. What must
stay true: memory does not grow with the file; equal data under equal options gives the same address, whatever the format or order
of the file; what cannot be read whole is refused, with the row and column, and a refused or interrupted import leaves at most
chunks that no manifest names (harmless, and found again by the next attempt) and no temporary file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from domain.errors import ImportInvalidError
from domain.identity import checked_name
from domain.market.chunks import encode_columns
from domain.market.snapshot import CHUNK_EVENTS_MAX, INSTRUMENTS_MAX, ChunkRef, encode_manifest, make_manifest
from services.adapters.event_tables import VALUE_PREFIX, event_table, source_map, to_columns
from services.adapters.identity_check import IdentityCheck
from services.adapters.spill import SortedSpill, concatenated
from services.adapters.tabular import open_table
from services.adapters.tabular_cells import known_zone
from services.import_options import DELAY_MILLIS_MAX, ImportOptions, ImportProgress, Progress
from services.ports import BlobStore

CHUNK_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of one chunk: events of many columns or long names give chunks of fewer rows."""

_FIELD_BYTES: Final = 200
_VALUE_BYTES: Final = 24


def no_progress(progress: ImportProgress) -> None:
    """For callers that don't watch."""


def import_snapshot(
    source: Path,
    blobs: BlobStore,
    options: ImportOptions,
    progress: Progress = no_progress,
    *,
    temporary: Path | None = None,
) -> str:
    """Import one file; returns the address of the snapshot's manifest.

    `temporary` is where runs are spilled (about as many bytes as the file has uncompressed); None is the system's folder.
    Raises `ImportInvalidError` with row and column for the first bad cell, for rows that repeat or contradict each other, and
    for a file that cannot be read to its end; `NameInvalidError` for options that aren't names.
    """
    _check(options)
    with SortedSpill(temporary) as spill:
        rows, seen = _read(source, options, spill, progress)
        if not rows:
            raise ImportInvalidError("no rows", at=source.name, expected="at least one")
        chunks = []
        written = 0
        for table in _chunks(_distinct(spill.merged()), chunk_rows(len(seen.columns))):
            for ref in _store(table, seen.columns, blobs):
                chunks.append(ref)
                written += ref.rows
                progress(ImportProgress("writing", written, written, rows))
    manifest = make_manifest(options.name, options.attribution, seen.columns, seen.instruments, chunks)
    return blobs.put(encode_manifest(manifest))


class _Seen:
    """What the rows had: instruments and value columns."""

    def __init__(self) -> None:
        self.instruments: set[str] = set()
        self.columns: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self.instruments.update(compute.unique(batch.column("instrument")).to_pylist())
        if len(self.instruments) > INSTRUMENTS_MAX:
            raise ImportInvalidError("too many instruments", at="the source", expected=f"at most {INSTRUMENTS_MAX}")
        names = {name.removeprefix(VALUE_PREFIX) for name in batch.schema.names if name.startswith(VALUE_PREFIX)}
        self.columns = sorted(names.union(self.columns))


def _read(source: Path, options: ImportOptions, spill: SortedSpill, progress: Progress) -> tuple[int, _Seen]:
    """Bring all rows to the form of events and into the spill; returns how many, and what they had."""
    seen = _Seen()
    rows = 0
    mapped = None
    total = source.stat().st_size if source.exists() else 0
    with open_table(source, options) as batches:
        check = IdentityCheck(spill.folder)
        for raw in batches:
            if mapped is None:
                mapped = source_map(raw.table.schema.names, options)
            batch = event_table(raw, mapped, options)
            seen.add(batch)
            if mapped.event_id is not None:
                check.add(batch)
            spill.add(batch)
            rows += batch.num_rows
            progress(ImportProgress("reading", rows, raw.done, total))
        if mapped is not None and mapped.event_id is not None:
            check.finish(mapped.event_id)
    return rows, seen


def _distinct(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same tables, once it is sure that no event and revision stands twice, and that none contradicts its neighbour."""
    last = None
    for table in tables:
        both = table if last is None else concatenated([last, table])
        _check_neighbours(both)
        last = table.slice(table.num_rows - 1)
        yield table


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


def chunk_rows(columns: int) -> int:
    """Events in a chunk, by the number of value columns: a function of the data alone, as the snapshot's address must be."""
    return max(1, min(CHUNK_EVENTS_MAX, CHUNK_BYTES_MAX // (_FIELD_BYTES + _VALUE_BYTES * columns)))


def _chunks(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
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
    yield ChunkRef(address=blobs.put(data), rows=table.num_rows, first_event_time=first, last_event_time=last)


def _check(options: ImportOptions) -> None:
    """Refuse options that could not give a snapshot before anything is read."""
    checked_name(options.name, at="name")
    if options.instrument_constant is not None:
        checked_name(options.instrument_constant, at="instrument_constant")
    if not 0 <= options.delay_millis <= DELAY_MILLIS_MAX:
        raise ImportInvalidError("no delay", at="delay_millis", expected=f"0 to {DELAY_MILLIS_MAX}")
    if len(options.delimiter) != 1 or not options.delimiter.isascii():
        raise ImportInvalidError("no delimiter", at="delimiter", expected="one ASCII character")
    if options.zone is not None and known_zone(options.zone) is None:
        raise ImportInvalidError(
            f"no zone {options.zone[:64]!r}", at="zone", expected="an IANA name such as Europe/Madrid"
        )
    make_manifest(options.name, options.attribution, (), (), ())
