"""The quick reader of records says what the long one says, or nothing."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import FinazError
from domain.market import record_reader
from domain.market.record_reader import LAYOUTS_MAX, quick_event
from domain.market.records import MarketEvent, encode_event, parse_event
from tests.support.market_strategies import ANY_VALUES, NAMES, events


def long_way(data: bytes) -> MarketEvent | None:
    """What `parse_event` gives; None where it refuses."""
    try:
        return parse_event(data)
    except FinazError:
        return None


def exactly(event: MarketEvent | None) -> Any:
    """Everything of an event, values to the bit."""
    return None if event is None else (event, {name: repr(value) for name, value in event.values.items()})


def agree(data: bytes) -> None:
    """The quick way gives nothing, or the same."""
    quick = quick_event(data)
    assert quick is None or exactly(quick) == exactly(long_way(data))


PLAIN = {"event_id": "e1", "instrument": "A", "event_time": "2026-01-05T09:00:00Z", "revision": 0}
TEXTS = st.sampled_from(
    [
        "2026-01-05T09:00:00Z",
        "2026-01-05T09:00:59.25Z",
        "2026-01-05T09:00:60Z",
        "2026-01-05T09:00:00.1234567Z",
        "2026-01-05T09:00:00.1234560Z",
        "2026-01-05T09:00:00.Z",
        "2026-01-05T09:00:00.٣Z",
        "2026-01-05T09:00:0_Z",
        "2026-01-05T09:00: 1Z",
        "2026-01-05T09:00:00+00:00",
        "2026-01-05t09:00:00z",
        "2026-02-30T09:00:00Z",
        "2026-W01-1T09:00:00Z",
        "0001-01-01T00:00:00Z",
        "",
        "Z",
    ]
)
RAW = st.one_of(
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e400", "-0", "-0.0", "1E5", "1e-400", "01", "1.", "true", '""']),
    st.sampled_from(["[]", "{}", "null", '"x"', "[1]", '{"a":1}', str(2**63), str(2**64), str(10**40), "9" * 500]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.from_regex(r"-?[0-9]{1,40}\.[0-9]{1,40}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@given(events(revisions_max=2, columns=("close", "volume"), values=ANY_VALUES))
def test_what_is_written_canonically_is_read_quickly(made: list[MarketEvent]) -> None:
    """Every event that we write ourselves comes out, to the bit."""
    for event in made:
        data = encode_event(event)
        assert exactly(quick_event(data)) == exactly(parse_event(data))


@given(st.permutations(["event_id", "instrument", "event_time", "available_at", "revision", "x", "y"]), st.data())
def test_any_text_gives_the_same_or_nothing(order: list[str], data: st.DataObject) -> None:
    """Odd numbers, odd instants, odd names, members missing or twice, in any order, with any white space."""
    parts = []
    for name in order:
        if data.draw(st.integers(0, 15)) == 0:
            continue
        raw = data.draw(RAW)
        if name in ("event_time", "available_at"):
            raw = json.dumps(data.draw(TEXTS), ensure_ascii=data.draw(st.booleans()))
        elif name in ("event_id", "instrument"):
            raw = json.dumps(data.draw(NAMES | st.text(max_size=3)), ensure_ascii=data.draw(st.booleans()))
        elif name == "revision" and data.draw(st.integers(0, 3)):
            raw = str(data.draw(st.integers(0, 2**63)))
        again = 1 + (data.draw(st.integers(0, 15)) == 0)
        space = data.draw(st.sampled_from(["", " ", "\n"]))
        parts += [f"{json.dumps(name)}{space}:{space}{raw}"] * again
    agree(("{" + ",".join(parts) + "}" + data.draw(st.sampled_from(["", " ", "x"]))).encode("utf-8", "surrogatepass"))


@given(RAW)
def test_any_number_is_the_same_to_the_bit(raw: str) -> None:
    """However many digits it has."""
    agree(json.dumps(PLAIN | {"available_at": "2026-01-05T09:00:00Z"})[:-1].encode() + f',"x":{raw}}}'.encode())


@given(st.binary(max_size=40))
def test_any_bytes_give_the_same_or_nothing(data: bytes) -> None:
    """No exception either."""
    agree(data)
    agree(b'{"event_id":"' + data + b'"}')


def test_what_is_remembered_is_bounded() -> None:
    """Layouts beyond the limit are forgotten, and read anew."""
    for number in range(LAYOUTS_MAX + 5):
        document = PLAIN | {"available_at": "2026-01-05T09:00:00Z", f"column{number}": 1.0}
        event = quick_event(json.dumps(document).encode())
        assert event is not None
        assert event.values == {f"column{number}": 1.0}
    assert len(record_reader._layouts) <= LAYOUTS_MAX


@pytest.mark.parametrize("value", [math.pi, 5e-324, 1.7976931348623157e308, -0.0, 0.1, 2.0**53 + 2])
def test_known_numbers(value: float) -> None:
    """The ends of binary64, and minus zero, which is zero."""
    data = json.dumps(PLAIN | {"available_at": "2026-01-05T09:00:00Z", "x": value}).encode()
    event = quick_event(data)
    assert event is not None
    assert repr(event.values["x"]) == repr(value + 0.0)


@pytest.mark.parametrize(
    "bad", [b"[" * 100_000, b'{"a":' * 100_000, b'{"event_id":' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
def test_what_is_nested_too_deeply_is_left_to_the_long_way(bad: bytes) -> None:
    """However deep: nothing, and no exception of the interpreter's."""
    assert quick_event(bad) is None
    assert long_way(bad) is None
