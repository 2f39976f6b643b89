"""One record read quickly: the plain way in which nearly all are written, and nothing else.

`quick_event` gives what `domain.market.records.parse_event` gives, or None, which says nothing but "read it the long way": only
that one refuses. What must stay true: wherever an event comes out, it is the same event, to the bit; a property test holds it.

Why it is right: without a backslash, each quote delimits a string, so their number tells whether msgspec, which keeps the last of
two equal keys, has dropped one. Pure, but for remembering layouts that were found right.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from domain.instants import EPOCH
from domain.market.records import COLUMNS_MAX, FIELDS, REVISION_MAX, MarketEvent

LAYOUTS_MAX: Final = 256
"""Orders of members that are remembered with their value columns."""

_NAME_CHARACTERS_MAX: Final = 255
_WHOLE: Final = 20  # characters with seconds and `Z`
_FRACTION_DIGITS_MAX: Final = 6

_decode: Final = msgspec.json.Decoder().decode
_layouts: dict[tuple[str, ...], tuple[str, ...]] = {}


def quick_event(data: bytes) -> MarketEvent | None:
    """The event of a record that is written plainly; None for any other, right or wrong."""
    if b"\\" in data:
        return None
    try:
        members = _decode(data)
        event_id, instrument, revision = members["event_id"], members["instrument"], members["revision"]
        time_text, available_text = members["event_time"], members["available_at"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        return None
    columns = _layouts.get(layout := tuple(members)) or _columns_of(layout)
    if columns is None or type(revision) is not int or not 0 <= revision <= REVISION_MAX:
        return None
    if not (_is_plain(event_id) and _is_plain(instrument)):
        return None
    if type(time_text) is not str or type(available_text) is not str:
        return None
    if data.count(b'"') != 2 * (len(members) + len(FIELDS) - 1):  # all keys, and the fields that are texts
        return None
    values: dict[str, float | None] = {}
    for column in columns:
        value = members[column]
        kind = type(value)
        if kind is float:
            values[column] = value + 0.0
        elif kind is int and -REVISION_MAX <= value <= REVISION_MAX:
            values[column] = float(value)
        elif value is None:
            values[column] = None
        else:
            return None
    event_time, available_at = _micros(time_text), _micros(available_text)
    if event_time is None or available_at is None:
        return None
    return MarketEvent(
        event_id=event_id,
        instrument=instrument,
        event_time=event_time,
        available_at=available_at,
        revision=revision,
        values=values,
    )


def _is_plain(name: Any) -> bool:
    return type(name) is str and 0 < len(name) <= _NAME_CHARACTERS_MAX and name.isascii() and name.isprintable()


def _columns_of(layout: tuple[str, ...]) -> tuple[str, ...] | None:
    """The value columns of members in this order, sorted; None where the long way must look at them."""
    if not all(map(_is_plain, layout)) or len(layout) > COLUMNS_MAX:
        return None
    columns = tuple(sorted(set(layout) - set(FIELDS)))
    if not columns:
        return None
    if len(_layouts) >= LAYOUTS_MAX:
        _layouts.clear()
    _layouts[layout] = columns
    return columns


def _micros(text: str) -> int | None:
    """The instant of `2026-01-05T09:00:00Z` or with up to six decimals; None for any other."""
    try:
        if text[-1] != "Z" or text[10] != "T" or text[7] != "-" or text[16] != ":":
            return None
        size = len(text)
        if size != _WHOLE and (text[_WHOLE - 1] != "." or not _WHOLE + 1 < size <= _WHOLE + 1 + _FRACTION_DIGITS_MAX):
            return None
        since = datetime.fromisoformat(text) - EPOCH
    except (ValueError, IndexError):
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
