"""Columns of text, and the compiled conversions between them and numbers that canonical JSON asks for.

A `Texts` is a column of UTF-8 texts in one buffer. What must stay true: a number written here has the bytes that `canonical`
writes (floats as CPython's `repr`, instants as `format_instant`), and an instant read here is the one `parse_instant` reads.
Floats of up to 15 significant digits in fixed notation are written by the kernel, whose quotient test proves the digits; all
others go through `repr` itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from domain.instants import EPOCH, to_micros
from domain.market.compiled import Bytes, Floats, Ints, compiled

FLOAT_WIDTH: Final = 24
INSTANT_WIDTH: Final = 27
INTEGER_WIDTH: Final = 20
"""The longest texts: -2.2250738585072014e-308, 2026-01-05T09:00:00.000001Z, -9223372036854775807."""

EARLIEST: Final = to_micros(EPOCH.replace(year=1, month=1, day=1))
LATEST: Final = to_micros(
    EPOCH.replace(year=9999, month=12, day=31, hour=23, minute=59, second=59, microsecond=999_999)
)
"""The instants that have a text, in microseconds since the epoch."""

OK, NAIVE, BAD, TOO_FINE = 0, 1, 2, 3
"""What `parse_instants` says of one text: with a zone; right but without one; no instant; finer than a microsecond."""

_POWERS: Final = np.array([10.0**k for k in range(23)], dtype=np.float64)


@dataclass(frozen=True)
class Texts:
    """n texts: `data[starts[i] : starts[i] + sizes[i]]` is the UTF-8 of the i-th."""

    data: Bytes
    starts: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, part: slice) -> "Texts":
        """Some of the texts, without copying their bytes."""
        return Texts(self.data, self.starts[part], self.sizes[part])

    def strings(self) -> list[str]:
        """The texts as Python strings."""
        data = self.data.tobytes()
        pairs = zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        return [data[start:end].decode("utf-8") for start, end in pairs]


def texts_of(strings: Sequence[str]) -> Texts:
    """The column of some strings (without lone surrogates)."""
    joined = "".join(strings)
    if joined.isascii():
        data = joined.encode("ascii")
        sizes = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
    else:
        encoded = [string.encode("utf-8") for string in strings]
        data = b"".join(encoded)
        sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(strings))
    return Texts(np.frombuffer(data, dtype=np.uint8), np.cumsum(sizes) - sizes, sizes)


def texts_from_offsets(data: Bytes, offsets: Ints) -> Texts:
    """The column whose i-th text lies between `offsets[i]` and `offsets[i + 1]`."""
    return Texts(data, np.ascontiguousarray(offsets[:-1]), np.diff(offsets))


def _fixed(data: Bytes, width: int, sizes: Ints) -> Texts:
    return Texts(data, np.arange(len(sizes), dtype=np.int64) * width, sizes)


def float_texts(values: Floats) -> Texts:
    """Canonical JSON of floats; NaN is `null`. Infinities have none and must not come here."""
    data = np.empty(len(values) * FLOAT_WIDTH, dtype=np.uint8)
    sizes = np.empty(len(values), dtype=np.int64)
    if _format_floats(values, _POWERS, data, sizes):
        for index in np.flatnonzero(sizes < 0).tolist():
            text = repr(float(values[index])).encode("ascii")
            start = index * FLOAT_WIDTH
            data[start : start + len(text)] = np.frombuffer(text, dtype=np.uint8)
            sizes[index] = len(text)
    return _fixed(data, FLOAT_WIDTH, sizes)


def instant_texts(micros: Ints) -> Texts:
    """`format_instant` of each, without quotes. All between `EARLIEST` and `LATEST`."""
    data = np.empty(len(micros) * INSTANT_WIDTH, dtype=np.uint8)
    sizes = np.empty(len(micros), dtype=np.int64)
    _format_instants(micros, data, sizes)
    return _fixed(data, INSTANT_WIDTH, sizes)


def integer_texts(values: Ints) -> Texts:
    """Decimal digits of each; none negative."""
    data = np.empty(len(values) * INTEGER_WIDTH, dtype=np.uint8)
    sizes = np.empty(len(values), dtype=np.int64)
    _format_integers(values, data, sizes)
    return _fixed(data, INTEGER_WIDTH, sizes)


def parse_instants(texts: Texts, *, strict: bool) -> tuple[Ints, Bytes]:
    """Microseconds since the epoch, and what is to be said of each (`OK`, `NAIVE`, `BAD`, `TOO_FINE`).

    `strict` takes only what `parse_instant` takes. Otherwise also a date alone, a space for the `T`, a time without seconds or
    without a zone: such texts are `NAIVE` and their microseconds are those of the same reading in UTC.
    """
    micros = np.zeros(len(texts), dtype=np.int64)
    said = np.zeros(len(texts), dtype=np.uint8)
    _parse_instants(texts.data, texts.starts, texts.sizes, strict, micros, said)
    return micros, said


def json_escaped(texts: Texts) -> Texts:
    """The texts as they stand between the quotes of a JSON string. Control characters must not occur."""
    if not _any_special(texts.data, texts.starts, texts.sizes):
        return texts
    return texts_of([string.replace("\\", "\\\\").replace('"', '\\"') for string in texts.strings()])


def join_rows(parts: Sequence[tuple[bytes, Texts]], end: bytes) -> bytes:
    """One row per index: each part's fixed bytes and its text, then `end`; all rows joined."""
    rows = len(parts[0][1])
    widths = np.full(rows, len(end) + sum(len(fixed) for fixed, _ in parts), dtype=np.int64)
    for _, texts in parts:
        widths += texts.sizes
    cursors = np.cumsum(widths) - widths
    out = np.empty(int(widths.sum()), dtype=np.uint8)
    for fixed, texts in parts:
        _place(out, cursors, np.frombuffer(fixed, dtype=np.uint8), texts.data, texts.starts, texts.sizes)
    _place_fixed(out, cursors, np.frombuffer(end, dtype=np.uint8))
    return out.tobytes()


# ---------------------------------------------------------------------------------------------------------------- kernels


@compiled
def _any_special(data: Bytes, starts: Ints, sizes: Ints) -> bool:
    """Whether a quote or a backslash occurs."""
    for i in range(starts.shape[0]):
        for j in range(starts[i], starts[i] + sizes[i]):
            if data[j] == 34 or data[j] == 92:
                return True
    return False


@compiled
def _place(out: Bytes, cursors: Ints, fixed: Bytes, data: Bytes, starts: Ints, sizes: Ints) -> None:
    for i in range(cursors.shape[0]):
        at = cursors[i]
        for j in range(fixed.shape[0]):
            out[at + j] = fixed[j]
        at += fixed.shape[0]
        start = starts[i]
        for j in range(sizes[i]):
            out[at + j] = data[start + j]
        cursors[i] = at + sizes[i]


@compiled
def _place_fixed(out: Bytes, cursors: Ints, fixed: Bytes) -> None:
    for i in range(cursors.shape[0]):
        for j in range(fixed.shape[0]):
            out[cursors[i] + j] = fixed[j]
        cursors[i] += fixed.shape[0]


@compiled
def _digits(out: Bytes, at: int, value: int, count: int) -> None:
    for j in range(count - 1, -1, -1):
        out[at + j] = 48 + value % 10
        value = value // 10


@compiled
def _count_digits(value: int) -> int:
    count = 1
    while value >= 10:
        value = value // 10
        count += 1
    return count


@compiled
def _format_integers(values: Ints, data: Bytes, sizes: Ints) -> None:
    for i in range(values.shape[0]):
        count = _count_digits(values[i])
        _digits(data, i * 20, values[i], count)
        sizes[i] = count


@compiled
def _format_floats(values: Floats, powers: Floats, data: Bytes, sizes: Ints) -> bool:
    """Writes what it can prove; -1 in `sizes` marks the others. Returns whether there are any."""
    rest = False
    for i in range(values.shape[0]):
        x, at = values[i], i * 24
        if x != x:
            data[at], data[at + 1], data[at + 2], data[at + 3] = 110, 117, 108, 108  # null
            sizes[i] = 4
            continue
        magnitude = abs(x)
        scale = -1
        scaled = 0.0
        if magnitude < 1e15 and magnitude >= 1e-4:
            for k in range(16):
                scaled = np.rint(magnitude * powers[k])
                if scaled >= 1e15:
                    break
                if scaled / powers[k] == magnitude:
                    scale = k
                    break
        elif magnitude == 0.0:
            scale = 0
        if scale < 0:
            sizes[i] = -1
            rest = True
            continue
        start = at
        if math.copysign(1.0, x) < 0.0:
            data[at] = 45
            at += 1
        whole = int(scaled)
        divisor = int(powers[scale])
        left, right = whole // divisor, whole % divisor
        count = _count_digits(left)
        _digits(data, at, left, count)
        at += count
        data[at] = 46
        count = max(scale, 1)
        _digits(data, at + 1, right, count)
        sizes[i] = at + 1 + count - start
    return rest


@compiled
def _format_instants(micros: Ints, data: Bytes, sizes: Ints) -> None:
    for i in range(micros.shape[0]):
        at = i * 27
        days = micros[i] // 86_400_000_000
        rest = micros[i] - days * 86_400_000_000
        # Days to a date of the proleptic Gregorian calendar, in eras of 400 years from 0000-03-01 on.
        shifted = days + 719_468
        era = shifted // 146_097
        of_era = shifted - era * 146_097
        year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
        of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        month_from_march = (5 * of_year + 2) // 153
        day = of_year - (153 * month_from_march + 2) // 5 + 1
        month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
        year = year_of_era + era * 400 + (1 if month <= 2 else 0)
        seconds = rest // 1_000_000
        fraction = rest - seconds * 1_000_000
        _digits(data, at, year, 4)
        data[at + 4] = 45
        _digits(data, at + 5, month, 2)
        data[at + 7] = 45
        _digits(data, at + 8, day, 2)
        data[at + 10] = 84
        _digits(data, at + 11, seconds // 3600, 2)
        data[at + 13] = 58
        _digits(data, at + 14, seconds // 60 % 60, 2)
        data[at + 16] = 58
        _digits(data, at + 17, seconds % 60, 2)
        size = 19
        if fraction:
            data[at + 19] = 46
            count = 6
            while fraction % 10 == 0:
                fraction = fraction // 10
                count -= 1
            _digits(data, at + 20, fraction, count)
            size = 20 + count
        data[at + size] = 90
        sizes[i] = size + 1


@compiled
def _number(data: Bytes, at: int, count: int, end: int) -> int:
    """`count` decimal digits, or -1."""
    if at + count > end:
        return -1
    value = 0
    for j in range(at, at + count):
        digit = int(data[j]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@compiled
def _days(year: int, month: int, day: int) -> int:
    """Days from the epoch to a date, or a number below any if there is no such date."""
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 31:
        return -1_000_000
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day == 31 and (month == 4 or month == 6 or month == 9 or month == 11):
        return -1_000_000
    if month == 2 and day > (29 if leap else 28):
        return -1_000_000
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    year_of_era = shifted - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + of_year - 719_468


@compiled
def _zone(data: Bytes, at: int, end: int) -> int:
    """Minutes east of UTC, or 10000 where the rest is no zone."""
    if end - at == 1 and (data[at] == 90 or data[at] == 122):
        return 0
    if end - at != 6 or (data[at] != 43 and data[at] != 45) or data[at + 3] != 58:
        return 10_000
    hours, minutes = _number(data, at + 1, 2, end), _number(data, at + 4, 2, end)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return 10_000
    return hours * 60 + minutes if data[at] == 43 else -(hours * 60 + minutes)


@compiled
def _fraction(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Microseconds of the digits from `at` on, where they end, and what is to be said of them."""
    micros, unit, first, said = 0, 100_000, at, 0
    while at < end and data[at] >= 48 and data[at] <= 57:
        digit = int(data[at]) - 48
        micros += digit * unit
        if unit == 0 and digit != 0:
            said = 3
        unit = unit // 10
        at += 1
    return micros, at, 2 if at == first or at - first > 9 else said


@compiled
def _time_of_day(data: Bytes, at: int, end: int, strict: bool) -> tuple[int, int, int]:
    """Microseconds of `THH:MM:SS.ffffff`, where it ends, and what is to be said of it."""
    hours, minutes = _number(data, at + 1, 2, end), _number(data, at + 4, 2, end)
    separated = data[at] == 84 or data[at] == 116 or (data[at] == 32 and not strict)
    if not separated or hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or data[at + 3] != 58:
        return 0, end, 2
    at += 6
    micros = (hours * 60 + minutes) * 60_000_000
    if at == end or data[at] != 58:
        return micros, at, 2 if strict else 0
    seconds = _number(data, at + 1, 2, end)
    if seconds < 0 or seconds > 59:
        return 0, end, 2
    micros += seconds * 1_000_000
    at += 3
    if at < end and data[at] == 46:
        fraction, at, said = _fraction(data, at + 1, end)
        return micros + fraction, at, said
    return micros, at, 0


@compiled
def _parse_instant(data: Bytes, at: int, end: int, strict: bool) -> tuple[int, int]:
    if end - at < 10 or data[at + 4] != 45 or data[at + 7] != 45:
        return 0, 2
    days = _days(_number(data, at, 4, end), _number(data, at + 5, 2, end), _number(data, at + 8, 2, end))
    if days <= -1_000_000:
        return 0, 2
    micros = days * 86_400_000_000
    at += 10
    said = 0
    if at < end:
        of_day, at, said = _time_of_day(data, at, end, strict)
        micros += of_day
    if said == 2:
        return 0, 2
    if at == end:
        return micros, 2 if strict else max(said, 1)
    offset = _zone(data, at, end)
    if offset == 10_000:
        return 0, 2
    return micros - offset * 60_000_000, said


@compiled
def _parse_instants(data: Bytes, starts: Ints, sizes: Ints, strict: bool, micros: Ints, said: Bytes) -> None:
    for i in range(starts.shape[0]):
        value, verdict = _parse_instant(data, starts[i], starts[i] + sizes[i], strict)
        if value < -62_135_596_800_000_000 or value > 253_402_300_799_999_999:
            verdict = 2
        micros[i] = value
        said[i] = verdict
