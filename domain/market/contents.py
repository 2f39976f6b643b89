"""What copies of an event must share beside their identity: the value columns, by name, each value to the bit.

Few values are their own content, as the names and the bits; many have a digest. What must stay true: different values never have
one content, but for digests, of which a million million would have to be forged to meet another's; the content of a row of many
is that of its event alone. Pure.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from domain.market.compiled import Floats

DIGEST_BYTES: Final = 12
"""Bytes of a digest."""

COLUMNS_MAX: Final = 4
"""Value columns from which on a digest is shorter."""

_BITS: Final = 16  # hexadecimal digits of a binary64
_NULL: Final = float("nan")


def content_of(values: Mapping[str, float | None]) -> str:
    """The content of an event's values, whose columns stand sorted."""
    if not _are_few(values):
        return digest_of(values)
    numbers = [_NULL if value is None else value for value in values.values()]
    return _head(values) + struct.pack(f"<{len(numbers)}d", *numbers).hex()


def contents_of(columns: Sequence[str], values: Floats) -> list[str]:
    """The contents of rows with these columns, which stand sorted; NaN is null."""
    if not _are_few(columns):
        rows = [[None if value != value else value for value in row] for row in values.tolist()]
        return [digest_of(dict(zip(columns, row, strict=True))) for row in rows]
    bits = np.where(np.isnan(values), _NULL, values).astype("<f8").tobytes().hex()
    head, width = _head(columns), _BITS * len(columns)
    return [head + bits[start : start + width] for start in range(0, len(bits), width)]


def is_of(content: str, values: Mapping[str, float | None]) -> bool:
    """Whether the values, whose columns stand sorted, have this content; it may be a digest where there are few of them."""
    return content == (content_of(values) if ":" in content else digest_of(values))


def digest_of(values: Mapping[str, float | None]) -> str:
    """A digest of columns and values; every content was one up to schema 2."""
    return hashlib.blake2b(repr(dict(values)).encode("utf-8"), digest_size=DIGEST_BYTES).hexdigest()


def _are_few(columns: Mapping[str, object] | Sequence[str]) -> bool:
    """Whether the names, joined by commas, can be told apart, and are few."""
    return len(columns) <= COLUMNS_MAX and not any("," in name for name in columns)


def _head(columns: Mapping[str, object] | Sequence[str]) -> str:
    return ",".join(columns) + ":"
