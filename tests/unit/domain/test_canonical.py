"""Canonical JSON: the rules of `FINAZ_JSON_V1`, each refusal, and the golden address."""

import json

import pytest

from domain.canonical import DEPTH_MAX, INTEGER_DIGITS_MAX, address, address_of, canonical, is_address, parse
from domain.errors import CanonicalError

GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"


def test_the_golden_address_of_the_whole_system() -> None:
    """Every mode must reach this address; it was computed elsewhere."""
    assert address_of([None, None, 2.0, 3.0, 4.0, 5.0]) == GOLDEN
    assert address(b"[null,null,2.0,3.0,4.0,5.0]") == GOLDEN
    assert is_address(GOLDEN)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"\U0001f600": 1, "\uffff": 2, "é": 3, "z": 4}, '{"z":4,"é":3,"\uffff":2,"\U0001f600":1}'),
        ([1e16, 1.5e-07, 1e-05, 0.0001, 2.0, -0.0, 1e22, 5e-324], "[1e+16,1.5e-07,1e-05,0.0001,2.0,-0.0,1e+22,5e-324]"),
        ([2**53 + 1, -(2**63), 10**40], f"[{2**53 + 1},{-(2**63)},{10**40}]"),
        ('"\\/\b\f\n\r\t\x01\x1f\x7f\u2028é', '"\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u2028é"'),
        ([True, False, None, "", [], {}], '[true,false,null,"",[],{}]'),
        ("\\u0000", '"\\\\u0000"'),
    ],
)
def test_the_bytes_of_a_value(value: object, text: str) -> None:
    """Code point order, CPython's floats, exact integers, no more escapes than JSON demands."""
    assert canonical(value) == text.encode()
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("NaN", "$"),
        ("[Infinity]", "$"),
        ("-Infinity", "$"),
        ("1e400", "$"),
        ('{"a":{"b":1,"b":1}}', ".b"),
        (r'"\u0000"', "$"),
        (r'{"k":["x\u0000y"]}', "$.k[0]"),
        (r'{"\u0000":1}', "$"),
        (r'{"a":"\ud800"}', "$.a"),
        (r'"\udc00\ud800"', "$"),
        ("{", "line 1, column 2"),
        ("[1] 2", "line 1, column 5"),
        ("\ufeff1", "line 1, column 1"),
        ('"a\nb"', "line 1, column 3"),
        ("'a'", "line 1, column 1"),
        ("01", "line 1, column 2"),
        ("[1 2]", "line 1, column 4"),
        ("", "line 1, column 1"),
        (b'"\xff"', "byte 1"),
        (b'"\xed\xa0\x80"', "byte 1"),
        ("9" * (INTEGER_DIGITS_MAX + 1), "$"),
        ("[" * 100_000, "$"),
    ],
)
def test_what_has_no_canonical_form_is_refused_on_the_way_in(text: str | bytes, at: str) -> None:
    """A typed error that names the place; never another value in its stead."""
    with pytest.raises(CanonicalError) as refused:
        parse(text)
    assert refused.value.at == at
    assert refused.value.code == "JSON_INVALID"


class Text(str):
    """A subclass may encode in surprising ways, so exact types only."""


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (float("nan"), "$"),
        ([1.0, float("inf")], "$[1]"),
        ({"a": [float("-inf")]}, "$.a[0]"),
        ({1: 2}, "$"),
        ({"a": {None: 1}}, "$.a"),
        ("\ud800", "$"),
        (["\x00"], "$[0]"),
        ({1, 2}, "$"),
        (b"bytes", "$"),
        (Text("x"), "$"),
    ],
)
def test_what_has_no_canonical_form_is_refused_on_the_way_out(value: object, at: str) -> None:
    """The same refusals for values that never were text."""
    with pytest.raises(CanonicalError) as refused:
        canonical(value)
    assert refused.value.at == at


def nested(levels: int) -> object:
    """A list within a list, so many levels deep."""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_the_limits_are_reached_exactly() -> None:
    """The last accepted and the first refused, for depth and digits."""
    assert parse(canonical(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(CanonicalError):
        canonical(nested(DEPTH_MAX + 1))
    with pytest.raises(CanonicalError):
        parse(json.dumps(nested(DEPTH_MAX + 1)))
    longest = 10**INTEGER_DIGITS_MAX - 1
    assert parse(canonical([longest, -longest])) == [longest, -longest]
    for digits in (longest + 1, -longest - 1):
        with pytest.raises(CanonicalError):
            canonical(digits)


def test_a_tuple_and_a_list_are_one_value() -> None:
    """Frozen structs hold tuples; their address is that of the list."""
    assert address_of((1, (2.5, "x"))) == address_of([1, [2.5, "x"]])
