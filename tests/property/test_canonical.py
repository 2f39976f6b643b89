"""Canonical JSON under arbitrary values: round trip, equal values, equal bytes."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, canonical, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, at every level: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right) and repr(left) == repr(right)


@given(VALUES)
def test_parsing_canonical_bytes_gives_the_value_back(value: Any) -> None:
    """parse(canonical(x)) is x, in value and type."""
    assert same(parse(canonical(value)), value)


@given(VALUES, st.integers(0, 4), st.booleans())
def test_white_space_escapes_and_key_order_never_change_the_address(value: Any, indent: int, ascii_only: bool) -> None:
    """However a value was written, it has one address."""

    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shuffled(item[key]) for key in reversed(list(item))}
        return [shuffled(member) for member in item] if isinstance(item, list) else item

    written = json.dumps(shuffled(value), indent=indent, ensure_ascii=ascii_only)
    assert address_of(parse(written)) == address_of(value)


@given(VALUES, VALUES)
def test_different_values_have_different_bytes(left: Any, right: Any) -> None:
    """The format is injective: no two values share bytes."""
    assert (canonical(left) == canonical(right)) is same(left, right)


@given(st.binary())
def test_any_bytes_are_a_value_or_a_typed_error(data: bytes) -> None:
    """Nothing but `CanonicalError` comes out, and what is accepted is canonical at the second pass."""
    from domain.errors import CanonicalError

    try:
        value = parse(data)
    except CanonicalError:
        return
    assert parse(canonical(value)) == value
