"""The compiled reader of a chunk's lines: canonical lines of known columns, and nothing else.

It walks the bytes once, expecting each line to have the members of the snapshot in canonical order. What must stay true: what it
takes, the strict reader takes with the same result; at the first byte that is not as expected (an escape, another member, white
space) it gives up, and the caller reads the chunk line by line. Decimals of up to 18 digits are read here, rounded once and
correctly; of other numbers, and of those that stand next to the middle between two binary64, it says where they stand, and they
are read by `float`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from domain.canonical import canonical
from domain.market.compiled import Bytes, Floats, Ints, compiled
from domain.market.instant_reader import parse_instant_bytes
from domain.market.records import FIELDS
from domain.market.text_columns import Texts

_TEXT, _INSTANT, _INTEGER, _FLOAT = 0, 1, 2, 3
_KINDS: Final = {
    "available_at": _INSTANT,
    "event_id": _TEXT,
    "event_time": _INSTANT,
    "instrument": _TEXT,
    "revision": _INTEGER,
}
DIGITS_MAX: Final = 18
"""Significant digits that are read here: what they make fits into 64 bits."""

SCALE_MAX: Final = 22
"""Places behind the point, at most: greater powers of ten are no binary64."""

POWERS: Final = np.array([10.0**k for k in range(23)], dtype=np.float64)


LAYOUTS_MAX: Final = 256
"""Value columns whose lines' fixed bytes are remembered."""


@dataclass(frozen=True)
class Lines:
    """What stands in the lines, by column."""

    texts: dict[str, Texts]
    integers: dict[str, Ints]
    values: dict[str, Floats]


def read_lines(data: bytes, rows: int, columns: Sequence[str]) -> Lines | None:
    """The `rows` lines of a chunk, or None if they are not plain canonical lines with exactly those value columns."""
    names, kinds, fixed, bounds = _layout(tuple(columns))
    numbers = np.zeros((len(names), rows), dtype=np.int64)
    sizes = np.zeros((len(names), rows), dtype=np.int64)
    values = np.zeros((len(names), rows), dtype=np.float64)
    raw = np.frombuffer(data, dtype=np.uint8)
    if not _read(raw, fixed, bounds, kinds, POWERS, numbers, sizes, values):
        return None
    found = Lines({}, {}, {})
    for index, name in enumerate(names):
        if kinds[index] == _TEXT:
            found.texts[name] = Texts(raw, numbers[index], sizes[index])
        elif kinds[index] == _FLOAT:
            found.values[name] = completed(data, numbers[index], sizes[index], values[index]) + 0.0
        else:
            found.integers[name] = numbers[index]
    return found


@lru_cache(maxsize=LAYOUTS_MAX)
def _layout(columns: tuple[str, ...]) -> tuple[list[str], Ints, Bytes, Ints]:
    """Members in order, their kinds, the bytes before each and behind the last, and where each of these begins; then the end."""
    names = sorted([*FIELDS, *columns])
    fixed, begins, quote = b"", [0], b"{"
    for name in names:
        text = _KINDS.get(name, _FLOAT) in (_TEXT, _INSTANT)
        fixed += quote + canonical(name) + b":" + (b'"' if text else b"")
        begins.append(len(fixed))
        quote = b'",' if text else b","
    fixed += quote[:-1] + b"}\n"
    kinds = np.array([_KINDS.get(name, _FLOAT) for name in names], dtype=np.int64)
    bounds = np.array([*begins, len(fixed)], dtype=np.int64)
    return names, kinds, np.frombuffer(fixed, dtype=np.uint8), bounds


def completed(data: bytes, starts: Ints, sizes: Ints, values: Floats) -> Floats:
    """The values, with those that the kernel left (their size is not zero) read from the text."""
    left = np.flatnonzero(sizes)
    if len(left):
        bounds = zip(starts[left].tolist(), (starts[left] + sizes[left]).tolist(), strict=True)
        read = np.array([float(data[start:end]) for start, end in bounds], dtype=np.float64)
        values[left] = np.where(np.isfinite(read), read, np.nan)
    return values


@compiled
def _read(
    data: Bytes, fixed: Bytes, bounds: Ints, kinds: Ints, powers: Floats, numbers: Any, sizes: Any, values: Any
) -> bool:
    at, end = 0, data.shape[0]
    for row in range(numbers.shape[1]):
        for column in range(kinds.shape[0]):
            at = expect_bytes(data, at, fixed, bounds[column], bounds[column + 1])
            if at < 0:
                return False
            start = at
            if kinds[column] == 3:
                at, size, value = read_float(data, at, end, powers)
                numbers[column, row], sizes[column, row], values[column, row] = start, size, value
            elif kinds[column] == 2:
                at, number = _integer(data, at, end)
                numbers[column, row] = number
            else:
                while at < end and data[at] != 34 and data[at] != 92 and data[at] >= 32:
                    at += 1
                numbers[column, row], sizes[column, row] = start, at - start
                if kinds[column] == 1:
                    micros, said = parse_instant_bytes(data, start, at, True)
                    numbers[column, row] = micros
                    if said != 0:
                        return False
            if at < 0 or at >= end:
                return False
        at = expect_bytes(data, at, fixed, bounds[kinds.shape[0]], bounds[kinds.shape[0] + 1])
        if at < 0:
            return False
    return bool(at == end)


@compiled
def expect_bytes(data: Bytes, at: int, fixed: Bytes, start: int, end: int) -> int:
    """The place behind the fixed bytes, or -1 if they don't stand there."""
    if at + (end - start) > data.shape[0]:
        return -1
    for j in range(start, end):
        if data[at] != fixed[j]:
            return -1
        at += 1
    return at


@compiled
def _integer(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The place behind a canonical integer of up to 18 digits, and the integer; -1 if there is none."""
    start, number = at, 0
    while at < end and data[at] >= 48 and data[at] <= 57:
        number = number * 10 + (int(data[at]) - 48)
        at += 1
    if at == start or at - start > 18 or (data[start] == 48 and at - start > 1):
        return -1, 0
    return at, number


@compiled
def read_float(data: Bytes, at: int, end: int, powers: Floats) -> tuple[int, int, float]:
    """The place behind a JSON number or null (-1: there is none), its size if it is to be read elsewhere, else 0, and its value."""
    start = at
    if at + 4 < end and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return at + 4, 0, np.nan
    if data[at] == 45:
        at += 1
    at, mantissa, scale, digits = _decimal(data, at, end)
    if at < 0:
        return -1, 0, 0.0
    if at < end and (data[at] == 101 or data[at] == 69):
        at = _exponent(data, at + 1, end)
        return at, at - start, 0.0
    if digits > DIGITS_MAX or scale > SCALE_MAX:
        return at, at - start, 0.0
    if digits <= 15:
        value = mantissa / powers[scale]  # both are exact, and a division rounds once
    else:
        value, sure = _quotient(mantissa, powers[scale])
        if not sure:
            return at, at - start, 0.0
    return at, 0, -value if data[start] == 45 else value


@compiled
def _decimal(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The place behind a decimal's digits (-1: they are none), its digits as an integer, how many stand behind the point, how many
    count. More than `DIGITS_MAX` are not all in the integer."""
    first, mantissa, scale, digits = at, 0, 0, 0
    while at < end and data[at] >= 48 and data[at] <= 57:
        if digits < DIGITS_MAX:
            mantissa = mantissa * 10 + (int(data[at]) - 48)
        digits += 1 if mantissa > 0 else 0
        at += 1
    if at == first or (data[first] == 48 and at - first > 1):
        return -1, 0, 0, 0
    if at < end and data[at] == 46:
        at += 1
        point = at
        while at < end and data[at] >= 48 and data[at] <= 57:
            if digits < DIGITS_MAX:
                mantissa = mantissa * 10 + (int(data[at]) - 48)
                scale += 1
            digits += 1 if mantissa > 0 else 0
            at += 1
        if at == point:
            return -1, 0, 0, 0
    return at, mantissa, scale, digits


@compiled
def _quotient(mantissa: int, power: float) -> tuple[float, bool]:
    """The binary64 nearest to mantissa / power (mantissa below 2**63, power exact), and whether that is sure.

    The quotient is taken with its remainder: `high * power` is known exactly as a sum of two binary64 (Dekker), so what is lacking
    is known to some 2**-100 of the quotient. It decides the rounding, except next to the middle between two numbers, and where the
    distance between numbers changes: there nothing is said.
    """
    rounded = float(mantissa)
    left = float(mantissa - int(rounded))
    high = rounded / power
    product = high * power
    split = 134217729.0 * high
    high_1 = split - (split - high)
    high_2 = high - high_1
    split = 134217729.0 * power
    power_1 = split - (split - power)
    power_2 = power - power_1
    error = ((high_1 * power_1 - product) + high_1 * power_2 + high_2 * power_1) + high_2 * power_2
    low = (((rounded - product) - error) + left) / power
    value = high + low
    missing = low - (value - high)
    fraction, exponent = math.frexp(value)
    unit = math.ldexp(1.0, exponent - 53)
    near_middle = abs(abs(missing) - unit / 2) < unit * 1e-9
    return value, not near_middle and fraction != 0.5


@compiled
def _exponent(data: Bytes, at: int, end: int) -> int:
    """The place behind an exponent's sign and digits, or -1."""
    if at < end and (data[at] == 43 or data[at] == 45):
        at += 1
    first = at
    while at < end and data[at] >= 48 and data[at] <= 57:
        at += 1
    return at if at > first else -1
