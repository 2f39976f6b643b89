"""A FeatureBatch by column, slice by slice, for whoever wants one output's rows and not the whole batch in memory.

What must stay true: the columns hold exactly what `parse_feature_batch` reads from the same bytes, in clock order, whatever lanes
stand between; beside the artifact's own bytes no more than one slice is in memory. The bytes were verified against their address
by whoever fetched them; what is no FeatureBatch all the same is refused with the byte at which it stops being one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from domain.canonical import canonical, parse
from domain.errors import CanonicalError, NotFoundError
from domain.market.compiled import Bytes, Floats, Ints, compiled
from domain.market.errors import SnapshotInvalidError
from domain.market.feature_batch import FORMAT, HEADS_MAX, OutputSchema, parse_feature_batch
from domain.market.instant_reader import parse_instant_bytes
from domain.market.line_reader import POWERS, completed, expect_bytes, read_float
from domain.market.text_columns import Texts, join_rows, texts_of

SLICE_ROWS: Final = 65_536
"""Rows of one slice."""

TICK_BYTES_MIN: Final = 60
"""Bytes of the shortest tick there can be: so many rows are left at most."""

_TICKS: Final = b',"ticks":['
_EVENT_ID: Final = b'{"event_id":"'
_EVENT_TIME: Final = b'","event_time":"'
_VALUES: Final = b'","values":{'


@dataclass(frozen=True)
class OutputColumns:
    """Ticks that carry one output: instants in microseconds since the epoch, ids, and values (NaN is null)."""

    event_times: Ints
    event_ids: Texts
    values: Floats

    def __len__(self) -> int:
        return len(self.event_times)


def first_difference(one: OutputColumns, event_times: Ints, event_ids: Texts, values: Floats) -> int | None:
    """The first row at which columns differ from others, to the bit but for the bits of NaN; None where they are equal."""
    rows = min(len(one), len(event_times))
    same = one.event_times[:rows] == event_times[:rows]
    mine, others = one.values[:rows], values[:rows]
    same &= ((mine == others) & (np.signbit(mine) == np.signbit(others))) | (np.isnan(mine) & np.isnan(others))
    same &= one.event_ids.sizes[:rows] == event_ids.sizes[:rows]
    first = rows if same.all() else int(np.argmin(same))
    part = slice(0, first)
    if _joined(one.event_ids.rows(part)) != _joined(event_ids.rows(part)):
        pairs = zip(*(ids.rows(part).strings("surrogateescape") for ids in (one.event_ids, event_ids)), strict=True)
        return next(row for row, (my_id, other_id) in enumerate(pairs) if my_id != other_id)
    return first if first < rows or len(one) != len(event_times) else None


def _joined(texts: Texts) -> bytes:
    return join_rows([(b"", texts)], b"")


def output_schema(data: bytes, output: str) -> OutputSchema:
    """What an artifact says of one output. `SnapshotInvalidError` if it is no FeatureBatch, `NotFoundError` for no such output."""
    for described in _schema_of(data[: _ticks_at(data)]):
        if described.name == output:
            return described
    raise NotFoundError(f"no output {output[:64]!r}", at="output", expected="one that the artifact's schema names")


@lru_cache(maxsize=HEADS_MAX)
def _schema_of(head: bytes) -> tuple[OutputSchema, ...]:
    """The schema in what stands before the ticks; the runs of one flow have it in common."""
    return parse_feature_batch(head + b"]}").schema


def output_columns(data: bytes, output: str, rows_max: int = SLICE_ROWS) -> Iterator[OutputColumns]:
    """The ticks of an output, at most `rows_max` at a time. Raises `SnapshotInvalidError` at bytes that are no ticks."""
    at = _ticks_at(data)
    if data[at:] == b"]}":
        return
    raw = np.frombuffer(data, dtype=np.uint8)
    fixed = np.frombuffer(_EVENT_ID + _EVENT_TIME + _VALUES, dtype=np.uint8)
    bounds = np.cumsum([0, len(_EVENT_ID), len(_EVENT_TIME), len(_VALUES)]).astype(np.int64)
    key = np.frombuffer(canonical(output), dtype=np.uint8)
    while at < len(data) - 1:
        room = min(rows_max, (len(data) - at) // TICK_BYTES_MIN + 1)
        numbers = np.empty((4, room), dtype=np.int64)  # event_time, id's start and size, the size of a value left over
        values, starts = np.empty(room, dtype=np.float64), np.empty(room, dtype=np.int64)
        after, rows, escaped = _read_ticks(raw, at, fixed, bounds, key, POWERS, numbers, starts, values)
        if after < 0:
            raise SnapshotInvalidError("no tick of a FeatureBatch", at=f"byte {-after - 1}", expected=FORMAT)
        at = after
        if rows:
            ids = Texts(raw, numbers[1, :rows], numbers[2, :rows])
            times = numbers[0, :rows]
            found = completed(data, starts[:rows], numbers[3, :rows], values[:rows])
            yield OutputColumns(times, _unescaped(ids) if escaped else ids, found)
    if data[at:] != b"}":
        raise SnapshotInvalidError("the ticks do not end the artifact", at=f"byte {at}", expected="its end")


def _ticks_at(data: bytes) -> int:
    """Where the first tick stands. These bytes stand nowhere before it: in a string, their quotes would be escaped."""
    at = data.find(_TICKS)
    if at < 0:
        raise SnapshotInvalidError("no FeatureBatch: it has no ticks", at="$", expected=FORMAT)
    return at + len(_TICKS)


def _unescaped(texts: Texts) -> Texts:
    """Ids among which some have escapes, as the texts that they stand for."""
    try:
        return texts_of([parse(b'"' + text.encode() + b'"') for text in texts.strings()])
    except (CanonicalError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SnapshotInvalidError(f"an event_id cannot be read: {error}", at="$.ticks", expected=FORMAT) from None


@compiled
def _read_ticks(
    data: Bytes,
    at: int,
    fixed: Bytes,
    bounds: Ints,
    key: Bytes,
    powers: Floats,
    numbers: Ints,
    starts: Ints,
    values: Floats,
) -> tuple[int, int, bool]:
    """Where the reading ended, how many rows of the output were read, and whether an id has escapes.

    It ends behind the last tick's `]`, or where the arrays are full; at a byte that is no tick it returns -(that place) - 1.
    """
    end, rows, escaped = data.shape[0], 0, False
    while rows < values.shape[0]:
        start = at
        at = expect_bytes(data, at, fixed, bounds[0], bounds[1])
        if at < 0:
            return -start - 1, rows, escaped
        id_start = at
        at, has_escape = _text(data, at, end)
        id_size = at - id_start
        at = expect_bytes(data, at, fixed, bounds[1], bounds[2])
        if at < 0:
            return -start - 1, rows, escaped
        time_start = at
        at, _ = _text(data, at, end)
        micros, said = parse_instant_bytes(data, time_start, at, True)
        at = expect_bytes(data, at, fixed, bounds[2], bounds[3])
        if at < 0 or said != 0:
            return -start - 1, rows, escaped
        at, found, value_start, size, value = _member(data, at, end, key, powers)
        if at < 0 or at + 1 >= end or data[at] != 125 or (data[at + 1] != 44 and data[at + 1] != 93):
            return -start - 1, rows, escaped
        if found:
            numbers[0, rows], numbers[1, rows], numbers[2, rows], numbers[3, rows] = micros, id_start, id_size, size
            starts[rows], values[rows] = value_start, value
            escaped = escaped or has_escape
            rows += 1
        at += 2
        if data[at - 1] == 93:
            return at, rows, escaped
    return at, rows, escaped


@compiled
def _text(data: Bytes, at: int, end: int) -> tuple[int, bool]:
    """The place of the quote that ends a string, and whether something in it is escaped."""
    escaped = False
    while at < end and data[at] != 34:
        if data[at] == 92:
            escaped = True
            at += 1
        at += 1
    return at, escaped


@compiled
def _member(data: Bytes, at: int, end: int, key: Bytes, powers: Floats) -> tuple[int, bool, int, int, float]:
    """The place behind the values of a tick (-1: they are none), and of the wanted one whether it is there, and its number."""
    found, start, size, value = False, 0, 0, 0.0
    while at < end and data[at] == 34:
        key_start = at
        at, _ = _text(data, at + 1, end)
        wanted = at + 1 - key_start == key.shape[0]
        if wanted:
            for j in range(key.shape[0]):
                if data[key_start + j] != key[j]:
                    wanted = False
        at += 2
        if at >= end or data[at - 1] != 58:
            return -1, False, 0, 0, 0.0
        number_start = at
        at, number_size, number = read_float(data, at, end, powers)
        if at < 0 or at >= end:
            return -1, False, 0, 0, 0.0
        if wanted:
            found, start, size, value = True, number_start, number_size, number
        at += 1
        if data[at - 1] == 125:
            return at, found, start, size, value
        if data[at - 1] != 44:
            return -1, False, 0, 0, 0.0
    return -1, False, 0, 0, 0.0
