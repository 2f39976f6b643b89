"""Parameters of operations: declared once, read strictly, and documented from the same declaration.

What must stay true: the constraint that the OpenAPI document states is the one that is enforced, since both come from here; an
unknown or repeated query parameter is refused by name, so a misspelt filter never means "everything".
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from domain.errors import FinazError, InputError
from domain.identity import NAME_BYTES_MAX, checked_name
from domain.instants import parse_instant

QUERY_BYTES_MAX: Final = 8192
"""Bytes of one query string."""

REPEATED_MAX: Final = 32
"""How often a repeatable query parameter may stand in one query."""

NAME_CHARACTERS_MAX: Final = NAME_BYTES_MAX
"""Characters of a name that is looked up."""

POSITION_MAX: Final = 2**63 - 1
"""The largest position, and the largest version, that can be asked about."""

WAIT_SECONDS_MAX: Final = 30
"""How long a read may wait for a position."""

CURSOR_CHARACTERS_MAX: Final = 200
"""Characters of a cursor, where it holds no more than a place in a list."""

_PIECE_CHARACTERS: Final = NAME_BYTES_MAX // 4  # fit into the limit of bytes, whatever they are
_INTEGER = re.compile(r"(?:0|-?[1-9][0-9]{0,18})\Z", re.ASCII)


class Place(Enum):
    """Where a parameter stands in a request."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter: its JSON schema for the document, and `read(text, at)` that converts it or raises a typed error."""

    name: str
    place: Place
    description: str
    schema: dict[str, Any]
    read: Callable[[str, str], Any]
    required: bool = False
    repeated: bool = False
    repeated_max: int = REPEATED_MAX
    default: Any = None
    example: Any = None


def integer(
    name: str, description: str, *, minimum: int, maximum: int, default: int | None = None, place: Place = Place.QUERY
) -> Parameter:
    """An integer in decimal digits, `minimum` to `maximum`."""

    def read(text: str, at: str) -> int:
        if not _INTEGER.match(text) or not minimum <= int(text) <= maximum:
            raise InputError(f"{text[:40]!r} is not allowed", at=at, expected=f"an integer {minimum} to {maximum}")
        return int(text)

    schema: dict[str, Any] = {"type": "integer", "minimum": minimum, "maximum": maximum}
    if default is not None:
        schema["default"] = default
    return Parameter(name=name, place=place, description=description, schema=schema, read=read, default=default)


def choice(
    name: str, description: str, values: Iterable[str], *, repeated: bool = False, default: str | None = None
) -> Parameter:
    """One of the given words; `repeated`: any of several."""
    words = tuple(values)

    def read(text: str, at: str) -> str:
        if text not in words:
            raise InputError(f"{text[:40]!r} is not allowed", at=at, expected=f"one of {', '.join(words)}")
        return text

    schema: dict[str, Any] = {"type": "string", "enum": list(words)}
    if default is not None:
        schema["default"] = default
    return Parameter(
        name=name,
        place=Place.QUERY,
        description=description,
        schema=schema,
        read=read,
        repeated=repeated,
        default=default,
    )


def known_name(name: str, description: str, values: Iterable[str], error: type[FinazError]) -> Parameter:
    """One of the given words in the path; anything else is `error`."""
    words = tuple(values)

    def read(text: str, at: str) -> str:
        if text not in words:
            raise error(f"{text[:80]!r} is not one", at=at, expected=f"one of {', '.join(words)}")
        return text

    schema = {"type": "string", "enum": list(words)}
    return Parameter(name=name, place=Place.PATH, description=description, schema=schema, read=read, required=True)


def pattern(
    name: str, description: str, expression: str, error: type[FinazError], *, place: Place, required: bool = False
) -> Parameter:
    """Text that matches the regular expression as a whole; anything else is `error`. In a path it is required anyway."""
    compiled = re.compile(expression.removesuffix("$") + r"\Z", re.ASCII)

    def read(text: str, at: str) -> str:
        if not compiled.match(text):
            raise error(f"{text[:80]!r} is not one", at=at, expected=f"text that matches {expression}")
        return text

    return Parameter(
        name=name,
        place=place,
        description=description,
        schema={"type": "string", "pattern": expression},
        read=read,
        required=required or place is Place.PATH,
    )


def looked_up_name(
    name: str,
    description: str,
    *,
    repeated: bool = False,
    repeated_max: int = REPEATED_MAX,
    place: Place = Place.QUERY,
) -> Parameter:
    """A name that something is looked up by: as names are made, but counted in characters. One of too many bytes finds nothing."""

    def read(text: str, at: str) -> str:
        if not text or len(text) > NAME_CHARACTERS_MAX:
            raise InputError("too short or too long", at=at, expected=f"1 to {NAME_CHARACTERS_MAX} characters")
        for start in range(0, len(text), _PIECE_CHARACTERS):  # parts of NFC text are NFC
            checked_name(text[start : start + _PIECE_CHARACTERS], at=at)
        return text

    return Parameter(
        name=name,
        place=place,
        description=description,
        schema={"$ref": "#/components/schemas/Name"},
        read=read,
        repeated=repeated,
        repeated_max=repeated_max,
        required=place is Place.PATH,
    )


def any_text(name: str, description: str, *, place: Place) -> Parameter:
    """Any text; what it names is there or not."""
    return Parameter(
        name=name,
        place=place,
        description=description,
        schema={"type": "string", "minLength": 1},
        read=lambda text, at: text,
        required=place is Place.PATH,
    )


def instant(name: str, description: str) -> Parameter:
    """An RFC 3339 instant with a zone."""
    return Parameter(
        name=name,
        place=Place.QUERY,
        description=f"{description} (RFC 3339 with a zone, to the microsecond)",
        schema={"type": "string", "format": "date-time"},
        read=lambda text, at: parse_instant(text, at=at),
    )


def position(
    name: str, description: str, *, minimum: int = 0, default: int | None = None, place: Place = Place.QUERY
) -> Parameter:
    """A position of the log, or a version of a stream."""
    return integer(name, description, minimum=minimum, maximum=POSITION_MAX, default=default, place=place)


def cursor(*, characters_max: int = CURSOR_CHARACTERS_MAX) -> Parameter:
    """Where to go on in a list, as its page before said it; only the list itself can read it."""
    expression = f"^[A-Za-z0-9_=-]{{1,{characters_max}}}$"
    return pattern("cursor", "Where the page before ended.", expression, InputError, place=Place.QUERY)


def position_cursor() -> Parameter:
    """Where to go on in a list whose places are positions or versions."""
    return position("cursor", "Where the page before ended.")


def limit(what: str, *, maximum: int, default: int) -> Parameter:
    """How many (`what`, in the plural) stand in one page."""
    return integer("limit", f"{what} in one page.", minimum=1, maximum=maximum, default=default)


def own_write(reader: str) -> tuple[Parameter, Parameter]:
    """Parameters `position` and `timeout_seconds`: have `reader` wait until it has seen what the caller wrote."""
    return (
        position(
            "position",
            f"Wait until {reader} has seen this position of the log (a submission's answer has its own): read your own write.",
            default=0,
        ),
        integer(
            "timeout_seconds",
            "How long to wait for it; then 409 `WAIT_TIMEOUT`.",
            minimum=0,
            maximum=WAIT_SECONDS_MAX,
            default=5,
        ),
    )


def read_query(declared: Mapping[str, Parameter], query: bytes) -> dict[str, Any]:
    """The values of a query string by name: defaults filled in, a tuple for a repeatable parameter.

    Raises `InputError` for a parameter that isn't declared, stands twice, is required and isn't there, or isn't UTF-8, and whatever
    its `read` raises.
    """
    values = _read_given(declared, query)
    for name, parameter in declared.items():
        if parameter.required and values[name] in (None, ()):
            raise InputError("the parameter is missing", at=f"query.{name}", expected="it to be given")
    return values


def _read_given(declared: Mapping[str, Parameter], query: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {name: () if p.repeated else p.default for name, p in declared.items()}
    if len(query) > QUERY_BYTES_MAX:
        raise InputError("the query is too long", at="query", expected=f"at most {QUERY_BYTES_MAX} bytes")
    seen: set[str] = set()
    for part in query.split(b"&"):
        if not part:
            continue
        raw_name, _, raw_value = part.partition(b"=")
        name = _text(raw_name, "query")
        parameter = declared.get(name)
        if parameter is None:
            wanted = f"one of {', '.join(declared)}" if declared else "no query"
            raise InputError(f"there is no parameter {name[:80]!r}", at="query", expected=wanted)
        at = f"query.{name}"
        value = parameter.read(_text(raw_value, at), at)
        if not parameter.repeated and name in seen:
            raise InputError("the parameter stands twice", at=at, expected="it once")
        seen.add(name)
        if parameter.repeated:
            if len(values[name]) >= parameter.repeated_max:
                raise InputError(
                    "the parameter stands too often", at=at, expected=f"at most {parameter.repeated_max} times"
                )
            values[name] = (*values[name], value)
        else:
            values[name] = value
    return values


def _text(raw: bytes, at: str) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("not UTF-8", at=at, expected="percent-encoded UTF-8") from None
