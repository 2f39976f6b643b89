"""What a name made by a user looks like, as a regular expression for the OpenAPI document.

The rule is `domain.identity.checked_name`: NFC, no control characters. Text is surely NFC if each of its characters is allowed in
NFC by itself and composes with nothing before it (the quick check of UAX 15); the pattern says that, so it refuses some names that
are accepted: those with combining marks that have no composed form. What must stay true: whatever matches is accepted.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final

_LAST: Final = 0x2FA1F
"""Behind the compatibility ideographs, nothing composes, combines or decomposes."""

_HANGUL_VOWELS: Final = range(0x1161, 0x1176)
_HANGUL_TAILS: Final = range(0x11A8, 0x11C3)
_SURROGATES: Final = range(0xD800, 0xE000)


@cache
def name_pattern() -> str:
    """The expression: 1 or more characters, none of those that could make the text something else than NFC."""
    return f"^[^{''.join(_escaped(first, last) for first, last in _ranges())}]+$"


def _ranges() -> Iterator[tuple[int, int]]:
    excluded = _composing()
    start: int | None = None
    for code in range(_LAST + 2):
        inside = code <= _LAST and (code in excluded or _is_refused(code))
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            yield start, code - 1
            start = None


def _is_refused(code: int) -> bool:
    """Whether the character is never part of an NFC name, or has to be looked at together with its neighbours."""
    if code in _SURROGATES:
        return False  # not text at all, and no expression can name them
    character = chr(code)
    return (
        unicodedata.category(character) == "Cc"
        or unicodedata.combining(character) != 0
        or not unicodedata.is_normalized("NFC", character)
    )


def _composing() -> frozenset[int]:
    """Characters that compose with the one before them."""
    found = {*_HANGUL_VOWELS, *_HANGUL_TAILS}
    for code in range(_LAST + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found.add(int(parts[1], 16))
    return frozenset(found)


def _escaped(first: int, last: int) -> str:
    return _character(first) if first == last else f"{_character(first)}-{_character(last)}"


def _character(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else chr(code)
