"""Chunks of a snapshot: canonical JSON Lines, written from columns and read back into columns.

What must stay true: `encode_columns` writes the bytes that `canonical` would write, line by line; `read_chunk` accepts what the
strict reader of single records accepts and nothing else. The compiled reader takes plain chunks (ours are); whatever it does not
take, the strict one reads line by line, and names the event and the column of what it refuses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from domain.canonical import canonical
from domain.errors import NameInvalidError
from domain.identity import NAME_BYTES_MAX
from domain.market.compiled import Floats, Ints
from domain.market.errors import RecordInvalidError, SnapshotInvalidError
from domain.market.line_reader import read_lines
from domain.market.records import FIELDS, MarketEvent, fast_checked_name, parse_event
from domain.market.snapshot import ChunkRef, Manifest
from domain.market.text_columns import (
    Texts,
    float_texts,
    instant_texts,
    integer_texts,
    join_rows,
    json_escaped,
    texts_of,
)

ENCODE_ROWS: Final = 8192
"""Rows encoded at a time: few enough to stay in the processor's cache."""


@dataclass(frozen=True)
class EventColumns:
    """Events by column, in snapshot order. NaN in a value column is null."""

    event_ids: Texts
    instruments: Texts
    event_times: Ints
    available_at: Ints
    revisions: Ints
    values: dict[str, Floats]


@dataclass(frozen=True)
class Rows:
    """Events of one chunk as read, in its order. NaN in a value column is null."""

    ids: list[str]
    instruments: list[str]
    event_times: Ints
    available_at: Ints
    revisions: Ints
    values: dict[str, Floats]


def encode_columns(events: EventColumns) -> bytes:
    """The chunk's canonical JSON Lines: one event per line, every value column on every line, missing values `null`."""
    rows = len(events.event_times)
    return b"".join(_encode_slice(events, slice(start, start + ENCODE_ROWS)) for start in range(0, rows, ENCODE_ROWS))


def _encode_slice(events: EventColumns, rows: slice) -> bytes:
    quoted = {
        "available_at": instant_texts(events.available_at[rows]),
        "event_id": json_escaped(events.event_ids.rows(rows)),
        "event_time": instant_texts(events.event_times[rows]),
        "instrument": json_escaped(events.instruments.rows(rows)),
    }
    parts: list[tuple[bytes, Texts]] = []
    before = b"{"
    for name in sorted([*FIELDS, *events.values]):
        quote = b'"' if name in quoted else b""
        if name in quoted:
            texts = quoted[name]
        elif name == "revision":
            texts = integer_texts(events.revisions[rows])
        else:
            texts = float_texts(events.values[name][rows])
        parts.append((before + canonical(name) + b":" + quote, texts))
        before = quote + b","
    return join_rows(parts, before[:-1] + b"}\n")


def read_chunk(data: bytes, ref: ChunkRef, manifest: Manifest) -> Rows:
    """The events of one chunk, checked against its reference and the manifest.

    Raises `ValueUnreadableError` naming event and column; `RecordInvalidError` for a line that is no event;
    `SnapshotInvalidError` where rows, times, columns, instruments or the order are not what the manifest says.
    """
    rows = _read_fast(data, ref.rows, manifest.columns)
    if rows is None:
        rows = _read_strictly(data, manifest.columns)
    at = ref.address
    if len(rows.ids) != ref.rows:
        raise SnapshotInvalidError(f"{len(rows.ids)} events", at=at, expected=f"{ref.rows}, as the manifest says")
    if (rows.event_times[0], rows.event_times[-1]) != (ref.first_event_time, ref.last_event_time):
        raise SnapshotInvalidError("the times do not fit", at=at, expected="first and last event_time of the manifest")
    unknown = set(rows.instruments).difference(manifest.instruments)
    if unknown:
        raise SnapshotInvalidError(f"instrument {min(unknown)!r}", at=at, expected="only instruments of the manifest")
    _check_order(rows, at)
    return rows


def _check_order(rows: Rows, at: str) -> None:
    steps = np.diff(rows.event_times)
    ties = np.flatnonzero(steps == 0)
    wrong = np.flatnonzero(steps < 0).tolist()[:1]
    if len(ties) and not wrong:
        ids, revisions, instruments = rows.ids, rows.revisions, rows.instruments
        for i in ties.tolist():
            if ids[i] < ids[i + 1]:
                continue
            if ids[i] > ids[i + 1] or revisions[i] >= revisions[i + 1] or instruments[i] != instruments[i + 1]:
                wrong = [i]
                break
    if wrong:
        expected = "events in order of (event_time, event_id, revision), each once, an event_id with one instrument"
        raise SnapshotInvalidError(f"line {wrong[0] + 2} is out of place", at=at, expected=expected)


# ------------------------------------------------------------------------------------------------ the fast reader


class _Names(dict[str, str]):
    """Names, each checked once and kept as one string."""

    def __missing__(self, name: str) -> str:
        self[name] = fast_checked_name(name, at="$")
        return name


def _read_fast(data: bytes, expected: int, columns: tuple[str, ...]) -> Rows | None:
    """The rows of a plain chunk, or None where anything in it calls for the strict reader."""
    lines = read_lines(data, expected, columns)
    if lines is None:
        return None
    try:
        ids, names = lines.texts["event_id"].strings(), _Names()
        instruments = [names[name] for name in lines.texts["instrument"].strings()]
        if not _plain(ids):
            ids = [fast_checked_name(name, at="$") for name in ids]
    except (UnicodeDecodeError, NameInvalidError):
        return None
    return Rows(
        ids=ids,
        instruments=instruments,
        event_times=lines.integers["event_time"],
        available_at=lines.integers["available_at"],
        revisions=lines.integers["revision"],
        values={column: lines.values[column] for column in columns},
    )


def _plain(names: Sequence[str]) -> bool:
    joined = "".join(names)
    return (
        joined.isascii()
        and joined.isprintable()
        and min(map(len, names)) > 0
        and max(map(len, names)) <= NAME_BYTES_MAX
    )


# ------------------------------------------------------------------------------------------------ the strict reader


def _read_strictly(data: bytes, columns: tuple[str, ...]) -> Rows:
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    events = [parse_event(line, at=f"line {number}") for number, line in enumerate(lines, start=1)]
    known = set(columns)
    for number, event in enumerate(events, start=1):
        unknown = event.values.keys() - known
        if unknown:
            place = f"line {number} ({event.event_id}).{min(unknown)}"
            raise RecordInvalidError("not a column of the snapshot", at=place, expected=", ".join(columns)[:200])
    return rows_of(events, columns)


def events_of(rows: Rows, columns: Sequence[str]) -> Iterator[MarketEvent]:
    """The rows as events, in their order, each with all the columns (of which the rows have at least these)."""
    values = [rows.values[column].tolist() for column in columns]
    per_event = zip(*values, strict=True) if values else repeat(())
    times, available, revisions = rows.event_times.tolist(), rows.available_at.tolist(), rows.revisions.tolist()
    for event_id, instrument, time, at, revision, mine in zip(
        rows.ids, rows.instruments, times, available, revisions, per_event, strict=False
    ):
        yield MarketEvent(
            event_id=event_id,
            instrument=instrument,
            event_time=time,
            available_at=at,
            revision=revision,
            values={column: None if x != x else x for column, x in zip(columns, mine, strict=True)},
        )


def encoded_events(rows: Rows) -> list[bytes]:
    """The canonical bytes of each row, without a line end: `encode_event` of what `events_of` gives with all columns."""
    columns = EventColumns(
        texts_of(rows.ids), texts_of(rows.instruments), rows.event_times, rows.available_at, rows.revisions, rows.values
    )
    return encode_columns(columns).split(b"\n")[:-1]


def rows_of(events: Sequence[MarketEvent], columns: Sequence[str]) -> Rows:
    """Events as columns; an event without one of the columns has null there."""
    return Rows(
        ids=[event.event_id for event in events],
        instruments=[event.instrument for event in events],
        event_times=np.array([event.event_time for event in events], dtype=np.int64),
        available_at=np.array([event.available_at for event in events], dtype=np.int64),
        revisions=np.array([event.revision for event in events], dtype=np.int64),
        values={
            column: np.array([event.values.get(column) for event in events], dtype=np.float64) for column in columns
        },
    )
