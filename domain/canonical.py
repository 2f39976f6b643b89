"""Canonical JSON (`FINAZ_JSON_V1`) and content addresses.

Equal values have equal bytes, and therefore one address, on every machine: this is what makes admission idempotent, artifacts
shareable and three modes comparable by one hash. The format: UTF-8; object keys sorted by code point; separators `,` and `:`;
no white space; integers exact; floats as CPython's `repr` writes them (shortest form that round-trips, `.0` kept); strings
escaped no more than JSON demands.

What must stay true: `parse(canonical(x)) == x` with equal types, and whatever has no canonical form is refused with a typed
error that names the place, on the way in and on the way out. Nothing here touches the outside, so a crash leaves nothing.

Why the standard library and not a faster parser: msgspec and orjson write `1e16` for `1e+16`, keep the last of two duplicate
keys and turn NaN into null. CPython's own encoder and decoder are in C and agree with the rule to the byte.
"""

import hashlib
import json
import re
from typing import Any, Final, NoReturn

from domain.errors import CanonicalError

FORMAT: Final = "FINAZ_JSON_V1"

DEPTH_MAX: Final = 100
"""Levels of nesting accepted; deeper documents are refused rather than left to the interpreter's recursion limit."""

INTEGER_DIGITS_MAX: Final = 4300
"""Decimal digits of one integer; CPython's own bound against quadratic conversions, stated here as ours."""

_ADDRESS = re.compile(r"sha256:[0-9a-f]{64}\Z")
_INTEGER_BITS_MAX: Final = 14_284  # the bits that INTEGER_DIGITS_MAX nines need; a cheap test before the exact one


def canonical(value: Any) -> bytes:
    """The canonical bytes of `value` (None, bool, int, float, str, list, tuple, dict with str keys, nested at will).

    Raises `CanonicalError` naming the place for NaN, infinities, lone surrogates, U+0000, non-string keys, other types,
    nesting beyond `DEPTH_MAX` and integers beyond `INTEGER_DIGITS_MAX` digits.
    """
    _check(value, "$", 0)
    return _ENCODER.encode(value).encode("utf-8")


def parse(data: bytes | str) -> Any:
    """The value that JSON text stands for; the text need not be canonical, but must have a canonical form.

    Raises `CanonicalError` naming the place for text that isn't JSON or UTF-8, duplicate keys, NaN, infinities (also numbers
    that overflow to one, such as `1e400`), lone surrogates, U+0000, and anything beyond the limits above.
    """
    text = _decode(data) if isinstance(data, bytes) else data
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise CanonicalError(
            "the document is nested too deeply", at="$", expected=f"at most {DEPTH_MAX} levels"
        ) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CanonicalError(f"not JSON: {error.msg}", at=place, expected="one JSON document") from None
    # Without JSON's own escapes no decoded text can hide a lone surrogate or U+0000, and few brackets cannot nest too deeply.
    if not isinstance(data, bytes) or "\\u" in text or text.count("[") + text.count("{") > DEPTH_MAX:
        _check(value, "$", 0)
    return value


def address(data: bytes) -> str:
    """The content address of bytes: `sha256:` and the lower-case hexadecimal digest."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def address_of(value: Any) -> str:
    """The content address of a value: that of its canonical bytes. Raises `CanonicalError` as `canonical` does."""
    return address(canonical(value))


def is_address(text: str) -> bool:
    """Whether `text` has the form of a content address."""
    return _ADDRESS.match(text) is not None


def _check(value: Any, at: str, depth: int) -> None:
    """Refuse what has no canonical form. Exact types only: subclasses (enums, numpy scalars) may encode in surprising ways."""
    kind = type(value)
    if kind is str:
        _check_text(value, at)
    elif kind is float:
        if value - value != 0.0:
            raise CanonicalError(f"{value!r} has no canonical form", at=at, expected="a finite number")
    elif kind is int:
        _check_integer(value, at)
    elif kind is list or kind is tuple:
        _check_depth(depth, at)
        for index, item in enumerate(value):
            if type(item) is not float or item - item != 0.0:
                _check(item, f"{at}[{index}]", depth + 1)
    elif kind is dict:
        _check_depth(depth, at)
        for key, item in value.items():
            if type(key) is not str:
                raise CanonicalError(f"the key {key!r} is not a string", at=at, expected="string keys only")
            _check_text(key, at)
            _check(item, f"{at}.{key}", depth + 1)
    elif value is not None and kind is not bool:
        raise CanonicalError(
            f"{kind.__name__} has no canonical form", at=at, expected="null, bool, int, float, str, list or dict"
        )


def _check_text(text: str, at: str) -> None:
    if "\x00" in text:
        raise CanonicalError("U+0000 is not allowed in text", at=at, expected="text without U+0000")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise CanonicalError("lone surrogate in text", at=at, expected="valid Unicode text") from None


def _check_depth(depth: int, at: str) -> None:
    if depth >= DEPTH_MAX:
        raise CanonicalError("nested too deeply", at=at, expected=f"at most {DEPTH_MAX} levels")


def _check_integer(value: int, at: str) -> None:
    if value.bit_length() >= _INTEGER_BITS_MAX and abs(value) >= 10**INTEGER_DIGITS_MAX:
        raise CanonicalError("integer too long", at=at, expected=f"at most {INTEGER_DIGITS_MAX} digits")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CanonicalError("not UTF-8", at=f"byte {error.start}", expected="UTF-8 text") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise CanonicalError(
                    f"the key {key!r} stands twice in one object", at=f".{key}", expected="each key once"
                )
            seen.add(key)
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise CanonicalError(f"{name} has no canonical form", at="$", expected="a finite number")


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise CanonicalError(f"{text[:40]} overflows binary64", at="$", expected="a finite number")
    return value


def _integer(text: str) -> int:
    if len(text) > INTEGER_DIGITS_MAX and len(text.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise CanonicalError("integer too long", at="$", expected=f"at most {INTEGER_DIGITS_MAX} digits")
    return int(text)


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_integer, strict=True
)
