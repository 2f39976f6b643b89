"""Reading instants from columns of text, compiled.

What must stay true: in strict mode exactly those texts are taken that `domain.instants.parse_instant` takes, with the same result.
"""

import numpy as np

from domain.market.compiled import Bytes, Ints, compiled
from domain.market.text_columns import Texts

OK, NAIVE, BAD, TOO_FINE = 0, 1, 2, 3
"""What `parse_instants` says of one text: with a zone; right but without one; no instant; finer than a microsecond."""


def parse_instants(texts: Texts, *, strict: bool) -> tuple[Ints, Bytes]:
    """Microseconds since the epoch, and what is to be said of each (`OK`, `NAIVE`, `BAD`, `TOO_FINE`).

    `strict` takes only what `parse_instant` takes. Otherwise also a date alone, a space for the `T`, a time without seconds or
    without a zone: such texts are `NAIVE` and their microseconds are those of the same reading in UTC.
    """
    micros = np.zeros(len(texts), dtype=np.int64)
    said = np.zeros(len(texts), dtype=np.uint8)
    _parse_instants(texts.data, texts.starts, texts.sizes, strict, micros, said)
    return micros, said


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
def parse_instant_bytes(data: Bytes, at: int, end: int, strict: bool) -> tuple[int, int]:
    """Microseconds of the text between two places, and what is to be said of it; see `parse_instants`."""
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
    micros -= offset * 60_000_000
    if micros < -62_135_596_800_000_000 or micros > 253_402_300_799_999_999:
        return 0, 2
    return micros, said


@compiled
def _parse_instants(data: Bytes, starts: Ints, sizes: Ints, strict: bool, micros: Ints, said: Bytes) -> None:
    for i in range(starts.shape[0]):
        micros[i], said[i] = parse_instant_bytes(data, starts[i], starts[i] + sizes[i], strict)
