"""The canonical document of a struct, written by msgspec alone where its bytes are the canonical ones.

msgspec is ten times faster than the way over plain values, but its format differs from ours in exponents, escapes, NaN and the
place of tags (see `domain.canonical`). So a value is looked at first: exact types only, floats whose shortest form has no
exponent, no dicts, no tags; and what came out must hold no escape. Everything else goes the long way, which is also the one that
refuses. What must stay true: `canonical_struct(x) == canonical(msgspec.to_builtins(x))`, or both raise the same; a property
test holds it. Pure.
"""

from datetime import datetime
from enum import Enum
from types import NoneType
from typing import Any, Final
from uuid import UUID

import msgspec

from domain.canonical import canonical

_DIRECT: Final = msgspec.json.Encoder(order="sorted")
_PLAIN: Final = msgspec.json.Encoder()
_LEAVES: Final = frozenset({str, NoneType, bool, datetime, UUID})
_INTEGER_MAX: Final = 2**63
_WITHOUT_EXPONENT: Final = (1e-4, 1e16)  # where CPython's repr, like everybody's, writes plain digits

_DEPTH_MAX: Final = 8
"""Levels of structs and lists that are looked at; what is nested deeper goes the long way, which has its own bound."""

_FIELDS: dict[type, tuple[str, ...]] = {}  # per type: its fields; none for what msgspec writes in its own way


def canonical_struct(value: msgspec.Struct) -> bytes:
    """The canonical bytes of a struct. Raises `CanonicalError` for what has no canonical form."""
    if _is_plain(value):
        try:
            written = _DIRECT.encode(value)
        except UnicodeEncodeError:  # a lone surrogate
            written = b"\\"
        if b"\\" not in written:
            return written
    return canonical(msgspec.to_builtins(value))


def plain_bytes(values: Any) -> bytes:
    """The canonical bytes of lists, or sorted objects, of checked texts and 64-bit integers.

    They are msgspec's, unless a text needs an escape. For long columns whose parts were looked at before: nothing is checked here,
    so floats and U+0000 must not come in.
    """
    written = _PLAIN.encode(values)
    return canonical(values) if b"\\" in written else written


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether msgspec writes the value as we would, text that needs escapes aside."""
    kind: type = type(value)
    if kind in _LEAVES:
        return True
    if kind is int:
        return bool(-_INTEGER_MAX <= value < _INTEGER_MAX)
    if kind is float:
        return bool(value == 0.0 or _WITHOUT_EXPONENT[0] <= abs(value) < _WITHOUT_EXPONENT[1])
    if depth == _DEPTH_MAX:
        return False
    if kind is tuple or kind is list:
        items = value
    else:
        fields = _FIELDS.get(kind) or _remember_fields(kind)
        if not fields:
            return False
        items = [getattr(value, field) for field in fields]
    for item in items:  # noqa: SIM110 - a generator would double the price of the hottest line of the write path
        if type(item) not in _LEAVES and not _is_plain(item, depth + 1):
            return False
    return True


def _remember_fields(kind: type) -> tuple[str, ...]:
    fields = _FIELDS[kind] = _plain_fields(kind)
    return fields


def _plain_fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, Enum):
        return ("value",)
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        renamed = kind.__struct_fields__ != kind.__struct_encode_fields__
        if config.tag is None and not renamed and not config.array_like and not config.omit_defaults:
            return kind.__struct_fields__
    return ()
