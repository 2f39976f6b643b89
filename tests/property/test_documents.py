"""Structs written by msgspec alone have the same bytes as the long way over plain values."""

from datetime import timedelta, timezone
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical
from domain.documents import canonical_struct, plain_bytes
from domain.errors import CanonicalError


class Colour(Enum):
    """An enumeration whose values need care."""

    RED = "red"
    QUOTED = 'a "quoted" value'


class Level(IntEnum):
    """An enumeration of integers."""

    LOW = 1


class Inner(msgspec.Struct, frozen=True):
    """A struct within; fields out of order on purpose."""

    zeta: Any
    alpha: Any = None


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are `Any`: nothing at run time checks that an annotation is true."""

    name: Any
    amount: Any = 0
    Upper: Any = ()
    inner: Any = None


class Tagged(msgspec.Struct, frozen=True, tag="tagged", tag_field="kind"):
    """msgspec writes the tag first, wherever it sorts."""

    a: int = 1


class Renamed(msgspec.Struct, frozen=True, rename={"a": "z"}):
    """msgspec sorts by one name or the other; never mind which."""

    a: int = 1
    b: int = 2


ZONES = st.integers(-1000, 1000).map(lambda minutes: timezone(timedelta(minutes=minutes)))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.sampled_from([1e16, 1e-4, 9.999e-5, 9999999999999998.0, -0.0, 5e-324, 1e22, 123456789.125])
    | st.text(max_size=20)
    | st.text(st.characters(codec="ascii"), max_size=20)
    | st.datetimes(timezones=st.none() | ZONES)
    | st.uuids()
    | st.sampled_from([*Colour, *Level])
    | st.just(Tagged())
    | st.just(Renamed())
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.builds(Inner, inner, inner)
        | st.builds(Outer, name=inner, amount=inner, Upper=inner, inner=inner)
    ),
    max_leaves=20,
)


def outcome(write: Any, value: Any) -> Any:
    """The bytes, or the refusal in full."""
    try:
        return write(value)
    except CanonicalError as error:
        return (error.code, str(error))


@given(st.builds(Outer, name=VALUES, amount=VALUES, Upper=VALUES, inner=VALUES))
def test_both_ways_give_the_same_bytes_or_the_same_refusal(value: Outer) -> None:
    """Whatever the fields hold at run time, whatever was annotated."""
    assert outcome(canonical_struct, value) == outcome(lambda x: canonical(msgspec.to_builtins(x)), value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_is_written_as_python_writes_it(value: float) -> None:
    """The shortest form, with Python's exponents."""
    assert canonical_struct(Inner(value)) == b'{"alpha":null,"zeta":' + repr(value).encode() + b"}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\x00", "\ud800"])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    """msgspec would write null, or the escape."""
    with pytest.raises(CanonicalError):
        canonical_struct(Inner(value))


def test_what_is_nested_without_end_is_refused() -> None:
    """The short way never looks deeper than its bound."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises((CanonicalError, RecursionError)):
        canonical_struct(Inner(endless))


def test_identifiers_are_text() -> None:
    """As msgspec writes them in either way."""
    identifier = UUID(int=7)
    assert canonical_struct(Inner(identifier)) == b'{"alpha":null,"zeta":"' + str(identifier).encode() + b'"}'


@given(st.lists(st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_characters="\x00", codec="utf-8"))))
def test_plain_columns_have_their_canonical_bytes(values: list[int | str]) -> None:
    """Whatever characters the texts have."""
    assert plain_bytes(values) == canonical(values)
