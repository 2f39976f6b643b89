"""Market records: one event as it stands in a file, a chunk or a topic, and the one rule for missing values.

A record is a flat JSON object: `event_id`, `instrument`, `event_time`, `available_at`, `revision`, and every other member is a
value column. What must stay true: values become binary64 once, here, at the edge, whatever the mode; what is missing in one mode
is missing in all. Absent, null, NaN, infinities and numbers too large for binary64 are null and mean GAP; a number is itself
(integers rounded to the nearest binary64, minus zero to zero); anything else is unreadable.
"""

import json
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.errors import InstantInvalidError, NameInvalidError
from domain.identity import NAME_BYTES_MAX, checked_name
from domain.instants import format_instant, from_micros, parse_instant, to_micros
from domain.market.errors import RecordInvalidError, ValueUnreadableError

FIELDS: Final = ("available_at", "event_id", "event_time", "instrument", "revision")
"""Members of a record that are no value columns, in canonical order."""

REVISION_MAX: Final = 2**63 - 1
"""The highest revision: what 64 bits hold."""

COLUMNS_MAX: Final = 256
"""Value columns that a record may have."""

_DIGITS_MAX: Final = 400  # an integer of more digits is beyond binary64, whatever they are
_INFINITY: Final = float("inf")


class MarketEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One revision of one event. Times are microseconds since the UTC epoch; a value of None is a GAP."""

    event_id: str
    instrument: str
    event_time: int
    available_at: int
    revision: int
    values: dict[str, float | None]


def to_value(raw: Any, *, at: str) -> float | None:
    """The one rule: a finite float, or None for a missing value. `ValueUnreadableError` at `at` for anything that is no number."""
    if raw is None:
        return None
    kind = type(raw)
    if kind is float:
        return raw + 0.0 if raw - raw == 0.0 else None
    if kind is int:
        try:
            return float(raw)
        except OverflowError:
            return None
    raise ValueUnreadableError(f"a {_KINDS.get(kind, kind.__name__)} is no value", at=at, expected="a number or null")


def event_document(event: MarketEvent) -> dict[str, Any]:
    """The event as the JSON object that stands in chunks and topics."""
    document: dict[str, Any] = dict(event.values)
    document["available_at"] = format_instant(from_micros(event.available_at))
    document["event_id"] = event.event_id
    document["event_time"] = format_instant(from_micros(event.event_time))
    document["instrument"] = event.instrument
    document["revision"] = event.revision
    return document


def encode_event(event: MarketEvent) -> bytes:
    """The canonical bytes of one event, without a line end."""
    return canonical(event_document(event))


def parse_event(data: bytes | str, *, at: str = "$") -> MarketEvent:
    """Read one record.

    Raises `ValueUnreadableError` naming event and column for a value column that holds no number, `RecordInvalidError` naming
    the place for everything else that is wrong: no JSON object, a field missing or of the wrong type, a key given twice.
    """
    members = parse_members(data, at)
    name = members.get("event_id")
    place = f"{at} ({name})" if isinstance(name, str) and len(name) <= NAME_BYTES_MAX else at
    event_id, instrument = (_text(members, field, place) for field in ("event_id", "instrument"))
    event_time, available_at = (_instant(members, field, place) for field in ("event_time", "available_at"))
    revision = members.get("revision")
    if type(revision) is not int or not 0 <= revision <= REVISION_MAX:
        raise RecordInvalidError("no revision", at=f"{place}.revision", expected=f"an integer in 0..{REVISION_MAX}")
    columns = members.keys() - set(FIELDS)
    if len(columns) > COLUMNS_MAX:
        raise RecordInvalidError(f"{len(columns)} value columns", at=place, expected=f"at most {COLUMNS_MAX}")
    values = {column: to_value(members[column], at=f"{place}.{column}") for column in sorted(columns)}
    return MarketEvent(
        event_id=event_id,
        instrument=instrument,
        event_time=event_time,
        available_at=available_at,
        revision=revision,
        values=values,
    )


def parse_members(data: bytes | str, at: str) -> dict[str, Any]:
    """The members of one JSON object: keys that are names, each once; NaN and infinities as floats. Raises `RecordInvalidError`."""
    try:
        members = _DECODER.decode(data.decode("utf-8") if isinstance(data, bytes) else data)
    except UnicodeDecodeError as error:
        raise RecordInvalidError("not UTF-8", at=f"{at}, byte {error.start}", expected="UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise RecordInvalidError(
            f"not JSON: {error.msg}", at=f"{at}, column {error.colno}", expected="one object"
        ) from None
    except RecursionError:
        raise RecordInvalidError("nested too deeply", at=at, expected="a flat object") from None
    except _TwiceError as twice:
        raise RecordInvalidError(f"the key {twice.key[:64]!r} stands twice", at=at, expected="each key once") from None
    if type(members) is not dict:
        raise RecordInvalidError("no object", at=at, expected="a JSON object")
    for key in members:
        _name(key, f"{at}.{key[:64]}")
    return members


def fast_checked_name(name: str, *, at: str) -> str:
    """`checked_name`, quick for the plain ASCII that most names are."""
    if 0 < len(name) <= NAME_BYTES_MAX and name.isascii() and name.isprintable():
        return name
    return checked_name(name, at=at)


_KINDS: Final[dict[type, str]] = {bool: "bool", str: "string", list: "list", dict: "object"}


def _text(members: dict[str, Any], field: str, at: str) -> str:
    text = members.get(field)
    if type(text) is not str:
        raise RecordInvalidError(f"no {field}", at=f"{at}.{field}", expected="a string")
    return _name(text, f"{at}.{field}")


def _name(text: str, at: str) -> str:
    try:
        return fast_checked_name(text, at=at)
    except NameInvalidError as error:
        raise RecordInvalidError(
            error.detail, at=at.encode("utf-8", "replace").decode(), expected=error.expected
        ) from None


def _instant(members: dict[str, Any], field: str, at: str) -> int:
    text = members.get(field)
    if type(text) is not str:
        raise RecordInvalidError(f"no {field}", at=f"{at}.{field}", expected="an RFC 3339 string with a zone")
    try:
        return to_micros(parse_instant(text, at=f"{at}.{field}"))
    except InstantInvalidError as error:
        raise RecordInvalidError(error.detail, at=error.at, expected=error.expected) from None


class _TwiceError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise _TwiceError(key)
        members[key] = value
    return members


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS_MAX else _INFINITY


def _constant(name: str) -> float:
    return float(name)  # NaN, Infinity, -Infinity: missing in a value column, of the wrong type anywhere else


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_integer, strict=True)
