"""Events as arrow tables: a source's rows brought to the fields of a market event, and handed on as columns of a chunk.

The form in between, `EVENT_FIELDS` and one column per value column (prefixed, so that none can be mistaken for a field), is what
is sorted and spilled. What must stay true: a row is taken whole or the import is refused with its row and column.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from domain.identity import NAME_BYTES_MAX, checked_name
from domain.market.chunks import EventColumns
from domain.market.compiled import Ints
from domain.market.errors import ImportInvalidError
from domain.market.records import COLUMNS_MAX, FIELDS
from domain.market.text_columns import LATEST, Texts, instant_texts, join_rows
from services.adapters.tabular import RawBatch
from services.adapters.tabular_cells import BadCellError, instants_of, names_of, revisions_of, texts_of_array, values_of
from services.import_options import ImportOptions

KEYS: Final = ("event_time", "event_id", "revision")
"""The order of a snapshot."""

EVENT_FIELDS: Final = (*KEYS, "instrument", "available_at", "row")
VALUE_PREFIX: Final = "value:"


@dataclass(frozen=True)
class SourceMap:
    """Which source column is what; None where the source has none and the options say what stands for it."""

    instrument: str | None
    event_time: str
    event_id: str | None
    available_at: str | None
    revision: str | None


def source_map(names: Sequence[str], options: ImportOptions) -> SourceMap:
    """What the columns of a source are. `ImportInvalidError` for one told of that isn't there, or one that must be."""
    found: dict[str, str | None] = {}
    for field in FIELDS:
        told: str | None = getattr(options, field)
        if told is not None and told not in names:
            raise ImportInvalidError(f"no column {told!r}", at="the header", expected=_listed(names))
        found[field] = told if told is not None else (field if field in names else None)
    if options.instrument_constant is not None:
        found["instrument"] = None
    elif found["instrument"] is None:
        raise ImportInvalidError(
            "no column for the instrument", at="the header", expected="one, or a constant instrument"
        )
    event_time = found["event_time"]
    if event_time is None:
        raise ImportInvalidError("no column for the event's time", at="the header", expected=_listed(names))
    return SourceMap(found["instrument"], event_time, found["event_id"], found["available_at"], found["revision"])


def value_columns(names: Sequence[str], mapped: SourceMap, options: ImportOptions, *, ragged: bool) -> dict[str, str]:
    """Value column → source column. `ImportInvalidError` for one that isn't there (rows may be `ragged`) or has a field's name."""
    if options.values is None:
        taken = {mapped.instrument, mapped.event_time, mapped.event_id, mapped.available_at, mapped.revision}
        values = {name: name for name in names if name not in taken}
    else:
        values = options.values
        missing = sorted(set(values.values()).difference(names))
        if missing and not ragged:
            raise ImportInvalidError(f"no column {missing[0]!r}", at="the header", expected=_listed(names))
        values = {name: source for name, source in values.items() if source in names}
    for name in values:
        checked_name(name, at=f"column {name[:64]}")
        if name in FIELDS:
            raise ImportInvalidError(
                f"{name!r} is no name for a value column", at="the header", expected="another name"
            )
    if len(values) > COLUMNS_MAX:
        raise ImportInvalidError(f"{len(values)} value columns", at="the header", expected=f"at most {COLUMNS_MAX}")
    return values


def event_table(raw: RawBatch, mapped: SourceMap, options: ImportOptions) -> pa.RecordBatch:
    """A batch of source rows as events, in the source's order. `ImportInvalidError` names the first bad row and its column."""
    table, rows = raw.table, raw.table.num_rows
    bad: list[BadCellError] = []

    def read(convert: Callable[[], Any]) -> Any:
        try:
            return convert()
        except BadCellError as cell:
            bad.append(cell)
            return None

    def cells(name: str) -> Any:
        if name not in table.schema.names:
            raise BadCellError(0, name, "no such column in this part of the source", "it in every row")
        return table.column(name)

    times = read(lambda: instants_of(cells(mapped.event_time), mapped.event_time, options))
    instruments = read(lambda: _instruments(table, mapped, options))
    available = read(lambda: _available(cells, mapped, options, times))
    revisions = np.zeros(rows, dtype=np.int64)
    if mapped.revision is not None:
        column = mapped.revision
        revisions = read(lambda: revisions_of(cells(column), column))
    ids = read(lambda: _ids(cells, mapped, instruments, times))
    columns = {}
    for name, source in value_columns(table.schema.names, mapped, options, ragged=raw.kind == "jsonl").items():
        convert = partial(values_of, cells(source), source, options.missing, text=raw.kind == "csv")
        columns[VALUE_PREFIX + name] = read(convert)
    if bad:
        raise min(bad, key=lambda cell: cell.index).named(raw.first_row)
    fields = {
        "event_time": times,
        "event_id": ids,
        "revision": revisions,
        "instrument": instruments,
        "available_at": available,
        "row": np.arange(raw.first_row, raw.first_row + rows, dtype=np.int64),
    }
    return pa.RecordBatch.from_pydict({**fields, **columns})


def to_columns(table: pa.Table, columns: Sequence[str]) -> EventColumns:
    """Sorted events as the columns of a chunk; a value column that the table lacks is null."""
    rows = table.num_rows

    def numbers(name: str) -> Any:
        return np.ascontiguousarray(table.column(name).combine_chunks().to_numpy(zero_copy_only=False))

    def floats(name: str) -> Any:
        if VALUE_PREFIX + name not in table.schema.names:
            return np.full(rows, np.nan)
        column = table.column(VALUE_PREFIX + name).combine_chunks()
        return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)

    return EventColumns(
        event_ids=texts_of_array(whole(table.column("event_id"))),
        instruments=texts_of_array(whole(table.column("instrument"))),
        event_times=numbers("event_time"),
        available_at=numbers("available_at"),
        revisions=numbers("revision"),
        values={name: floats(name) for name in columns},
    )


def whole(column: Any) -> Any:
    """A chunked column as one array."""
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)


def _instruments(table: pa.RecordBatch, mapped: SourceMap, options: ImportOptions) -> Any:
    if mapped.instrument is None:
        return pa.repeat(pa.scalar(options.instrument_constant, type=pa.string()), table.num_rows)
    return names_of(table.column(mapped.instrument), mapped.instrument)


def _available(cells: Any, mapped: SourceMap, options: ImportOptions, times: Ints | None) -> Ints | None:
    if mapped.available_at is not None:
        return instants_of(cells(mapped.available_at), mapped.available_at, options)
    if times is None:
        return None
    late = np.flatnonzero(times > LATEST - options.delay_millis * 1000)
    if len(late):
        raise BadCellError(int(late[0]), mapped.event_time, "no real instant with the delay added", "an earlier time")
    return times + options.delay_millis * 1000


def _ids(cells: Any, mapped: SourceMap, instruments: Any, times: Ints | None) -> Any:
    if mapped.event_id is not None:
        return names_of(cells(mapped.event_id), mapped.event_id)
    if times is None or instruments is None:
        return None
    return _derived_ids(texts_of_array(instruments), times, mapped.instrument or "instrument")


def _derived_ids(instruments: Texts, times: Ints, column: str) -> Any:
    """`AAPL@2000-03-01T00:00:00Z`: one event per instrument and time."""
    instants = instant_texts(times)
    sizes = instruments.sizes + instants.sizes + 1
    long = np.flatnonzero(sizes > NAME_BYTES_MAX)
    if len(long):
        raise BadCellError(int(long[0]), column, "too long to make an event_id of", "a shorter name")
    data = join_rows([(b"", instruments), (b"@", instants)], b"") if len(times) else b""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(times), pa.py_buffer(offsets.tobytes()), pa.py_buffer(data))


def _listed(names: Sequence[str]) -> str:
    return "one of " + ", ".join(names[:16]) + (", …" if len(names) > 16 else "")
