"""Columns of text, and the compiled conversions between them and numbers that canonical JSON asks for.

A `Texts` is a column of UTF-8 texts in one buffer. What must stay true: a number written here has the bytes that `canonical`
writes (floats as CPython's `repr`, instants as `format_instant`).
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

    def strings(self, errors: str = "strict") -> list[str]:
        """The texts as Python strings. Raises `UnicodeDecodeError`, unless `errors` says what becomes of bytes that are no text."""
        data = self.data.tobytes()
        pairs = zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        if data.isascii():
            text = data.decode("ascii")
            return [text[start:end] for start, end in pairs]
        return [data[start:end].decode("utf-8", errors) for start, end in pairs]


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
        left = np.flatnonzero(sizes < 0)
        texts = [repr(value) for value in values[left].tolist()]
        padded = "".join([text.ljust(FLOAT_WIDTH) for text in texts]).encode("ascii")
        data.reshape(-1, FLOAT_WIDTH)[left] = np.frombuffer(padded, dtype=np.uint8).reshape(-1, FLOAT_WIDTH)
        sizes[left] = [len(text) for text in texts]
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
