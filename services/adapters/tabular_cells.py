"""From a source's cells to typed columns: names, instants, integers and values, each refused with its row and column.

What must stay true: the same datum gives the same event whatever the format it came in; the one rule for missing values holds
(`domain.market.records.to_value`), text cells of a CSV included: a cell among `missing`, NaN or an infinity is null, a decimal
number is itself, anything else is refused. The first bad cell is the one of the lowest row, then of the first column looked at.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NoReturn
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from domain.errors import NameInvalidError
from domain.identity import NAME_BYTES_MAX, checked_name
from domain.instants import EPOCH, from_micros, to_micros
from domain.market.compiled import Floats, Ints
from domain.market.errors import ImportInvalidError, ValueUnreadableError
from domain.market.fingerprints import unplain
from domain.market.instant_reader import BAD, NAIVE, OK, TOO_FINE, parse_instants
from domain.market.records import REVISION_MAX, to_value
from domain.market.text_columns import EARLIEST, LATEST, Texts
from services.import_options import UNITS, ImportOptions

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[+-]?(nan|inf|infinity)\Z", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"\d{1,19}\Z", re.ASCII)
_ARROW_ZONES_END: Final = to_micros(EPOCH.replace(year=2037))
"""Arrow knows no daylight saving time after 2037."""

_NANOS: Final[dict[str, int]] = dict(UNITS)


class BadCellError(Exception):
    """A cell that cannot be taken: its index in the batch, what is wrong, what would be right."""

    def __init__(self, index: int, column: str, detail: str, expected: str) -> None:
        super().__init__(detail)
        self.index = index
        self.column = column
        self.detail = detail
        self.expected = expected

    def named(self, first_row: int) -> ImportInvalidError:
        """The error for the caller, with the row as a person would find it."""
        at = f"row {first_row + self.index}, column {self.column}"
        return ImportInvalidError(self.detail, at=at, expected=self.expected)


def texts_of_array(array: Any) -> Texts:
    """An arrow column of strings (no nulls) as `Texts`, without copying its bytes."""
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    return Texts(data, offsets[:-1].copy(), np.diff(offsets))


def names_of(array: Any, column: str) -> Any:
    """A column of names (NFC, 1 to 255 bytes, no controls) as strings; whole numbers are taken as their digits."""
    kind = array.type
    if pa.types.is_dictionary(kind) or pa.types.is_integer(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.string())
    if not pa.types.is_string(array.type):
        _refuse_first(array, column, f"a {kind} is no name", "text")
    _refuse_nulls(array, column, "a name")
    array.validate(full=True)
    for index in unplain(texts_of_array(array), NAME_BYTES_MAX).tolist():
        try:
            checked_name(array[index].as_py(), at=column)
        except NameInvalidError as error:
            raise BadCellError(index, column, error.detail, error.expected or "a name") from None
    return array


def instants_of(array: Any, column: str, options: ImportOptions) -> Ints:
    """A column of times as microseconds since the epoch: ISO text, timestamps, dates, or integers of `time_unit`."""
    kind = array.type
    if pa.types.is_dictionary(kind) or pa.types.is_large_string(kind):
        array, kind = array.cast(pa.string()), pa.string()
    _refuse_nulls(array, column, "a time")
    if pa.types.is_string(kind) and options.time_unit is not None:
        array = _integers(array, column)
        kind = array.type
    if pa.types.is_string(kind):
        return _from_text(array, column, options)
    if pa.types.is_integer(kind):
        if options.time_unit is None:
            _refuse_first(
                array, column, f"{array[0]} is no instant", "RFC 3339, or the unit of integer times to be given"
            )
        return _in_range(_to_micros(array.cast(pa.int64()), _NANOS[options.time_unit], column), column)
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms" if kind == pa.date64() else "s"))
        kind = array.type
    if not pa.types.is_timestamp(kind):
        _refuse_first(array, column, f"a {kind} is no instant", "an instant")
    micros = _in_range(_to_micros(array.cast(pa.int64()), _NANOS[kind.unit], column), column)
    if kind.tz is not None:
        return micros
    return _zoned(micros, np.ones(len(micros), dtype=bool), column, options.zone)


def revisions_of(array: Any, column: str) -> Ints:
    """A column of revisions: integers from 0 on."""
    _refuse_nulls(array, column, "a revision")
    if pa.types.is_string(array.type):
        array = _integers(array, column)
    if not pa.types.is_integer(array.type):
        _refuse_first(array, column, f"a {array.type} is no revision", "an integer")
    try:
        numbers = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        numbers = np.array([min(number, REVISION_MAX + 1) for number in array.to_pylist()], dtype=object)
    wrong = np.flatnonzero((numbers < 0) | (numbers > REVISION_MAX))
    if len(wrong):
        index = int(wrong[0])
        raise BadCellError(index, column, f"{array[index]} is no revision", f"an integer in 0..{REVISION_MAX}")
    whole: Ints = numbers.astype(np.int64)
    return whole


def values_of(array: Any, column: str, missing: Sequence[str], *, text: bool) -> Floats:
    """A value column as binary64, NaN for null. `text`: cells of a CSV, whose numbers are written out."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.cast(kind.value_type), kind.value_type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if text:
        return _values_of_text(array, column, missing)
    if pa.types.is_decimal(kind):  # arrow's own cast rounds twice
        return _values_of_text(array.cast(pa.string()).fill_null(""), column, ("",))
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        index = next((index for index, cell in enumerate(array) if cell.is_valid), None)
        if index is None:
            return np.full(len(array), np.nan)
        raise BadCellError(index, column, f"a {kind} is no value", "a number or null")
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return _finite(numbers)


def _values_of_text(array: Any, column: str, missing: Sequence[str]) -> Floats:
    nulls = compute.is_in(array, value_set=pa.array(missing, type=pa.string()))
    try:
        filled = compute.if_else(nulls, None, array)
        return _finite(filled.cast(pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        cells = array.to_pylist()
        return np.array([_cell(cell, index, column, missing) for index, cell in enumerate(cells)], dtype=np.float64)


def _cell(cell: str, index: int, column: str, missing: Sequence[str]) -> float:
    text = cell.strip(" \t")
    if text in missing or _NOT_FINITE.match(text):
        return float("nan")
    if not _NUMBER.match(text):
        raise BadCellError(index, column, f"{cell[:64]!r} is no value", "a number or an empty cell")
    try:
        value = to_value(float(text), at=column)
    except ValueUnreadableError as error:
        raise BadCellError(index, column, error.detail, error.expected or "a number") from None
    return float("nan") if value is None else value


def _finite(numbers: Floats) -> Floats:
    return np.where(np.isfinite(numbers), numbers, np.nan) + 0.0


def _integers(array: Any, column: str) -> Any:
    """Digits as 64-bit integers; a sign is allowed, nothing else."""
    try:
        plain = compute.match_substring_regex(array, r"^-?[0-9]{1,19}$")
        if compute.all(plain).as_py():
            return array.cast(pa.int64())
    except pa.ArrowInvalid:
        pass
    for index, cell in enumerate(array.to_pylist()):
        if not _WHOLE.match(cell.removeprefix("-")) or not -(2**63) <= int(cell) < 2**63:
            raise BadCellError(index, column, f"{cell[:64]!r} is no integer", "an integer of 64 bits")
    return array.cast(pa.int64())


def _from_text(array: Any, column: str, options: ImportOptions) -> Ints:
    micros, said = parse_instants(texts_of_array(array), strict=False)
    wrong = np.flatnonzero((said == BAD) | (said == TOO_FINE))
    if len(wrong):
        index = int(wrong[0])
        detail = "is no instant" if said[index] == BAD else "is finer than a microsecond"
        expected = "an ISO 8601 date or time" if said[index] == BAD else "at most six decimals"
        raise BadCellError(index, column, f"{array[index].as_py()[:64]!r} {detail}", expected)
    if np.all(said == OK):
        return micros
    return _zoned(micros, said == NAIVE, column, options.zone)


def _to_micros(array: Any, nanos: int, column: str) -> Ints:
    numbers: Ints = array.to_numpy(zero_copy_only=False).astype(np.int64)
    if nanos == 1:
        wrong = np.flatnonzero(numbers % 1000)
        if len(wrong):
            raise BadCellError(int(wrong[0]), column, "finer than a microsecond", "whole microseconds")
        return numbers // 1000
    factor = nanos // 1000
    wrong = np.flatnonzero((numbers < EARLIEST // factor) | (numbers > LATEST // factor))
    if len(wrong):
        raise BadCellError(int(wrong[0]), column, "no real instant", "a time of the years 1 to 9999")
    return numbers * factor


def _in_range(micros: Ints, column: str) -> Ints:
    wrong = np.flatnonzero((micros < EARLIEST) | (micros > LATEST))
    if len(wrong):
        raise BadCellError(int(wrong[0]), column, "no real instant", "a time of the years 1 to 9999")
    return micros


@lru_cache(maxsize=8)
def known_zone(zone: str) -> ZoneInfo | None:
    """The zone of that name, if there is one."""
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return None


def _zoned(micros: Ints, naive: Any, column: str, zone: str | None) -> Ints:
    """Naive readings as instants of the declared zone."""
    index = int(np.flatnonzero(naive)[0])
    if zone is None:
        raise BadCellError(index, column, "the time has no zone", "a zone, in the cell or declared for the import")
    if zone == "UTC":
        return micros
    if np.any(micros[naive] >= _ARROW_ZONES_END):
        return _in_range(_zoned_singly(micros, naive, column, zone), column)
    local = pa.array(np.where(naive, micros, 0)).cast(pa.timestamp("us"))
    try:
        moved = compute.assume_timezone(local, zone).cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # some reading is not one instant, or arrow has no zones here: one by one
        moved = _zoned_singly(micros, naive, column, zone)
    return _in_range(np.where(naive, moved, micros), column)


def _zoned_singly(micros: Ints, naive: Any, column: str, zone: str) -> Ints:
    """The same with Python's zones; refuses the first reading that means no instant or two."""
    known = known_zone(zone)
    moved = micros.copy()
    for index in np.flatnonzero(naive).tolist():
        local = from_micros(int(micros[index])).replace(tzinfo=known)
        earlier, later = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
        if earlier is None or earlier != later:
            raise BadCellError(index, column, f"no or two instants of {zone} read so", "a time with a zone")
        moved[index] -= earlier // timedelta(microseconds=1)
    return moved


def _refuse_nulls(array: Any, column: str, expected: str) -> None:
    if array.null_count:
        index = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadCellError(index, column, "an empty cell", expected)


def _refuse_first(array: Any, column: str, detail: str, expected: str) -> NoReturn:
    raise BadCellError(0, column, detail, expected)
