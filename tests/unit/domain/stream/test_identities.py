"""Identities in blocks: the same whether written whole or packed, and a commit writes only the blocks that have changed."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address, canonical, parse
from domain.market.contents import content_of, contents_of, digest_of, is_of
from domain.market.errors import StateInvalidError
from domain.market.records import MarketEvent
from domain.stream.identities import BLOCK_MICROS_MIN, BLOCKS, Identities, differs

SECOND = 1_000_000
HORIZON = 640 * SECOND


def event(number: int, time: int, revision: int = 0, **values: float | None) -> MarketEvent:
    """An event at so many seconds."""
    return MarketEvent(
        event_id=f"e{number}",
        instrument="i",
        event_time=time * SECOND,
        available_at=0,
        revision=revision,
        values=values or {"close": 1.0},
    )


def expanded(packed: dict[str, Any], blocks: dict[str, bytes]) -> dict[str, Any]:
    """A packed state with its blocks in their places."""
    return packed | {"blocks": [parse(blocks[name]) for name in packed["blocks"]]}


@given(st.integers(0, 2**32))
def test_packed_and_whole_are_one_state_whatever_happened(seed: int) -> None:
    """Events new and revised, in any order, forgotten as the watermark rises, packed now and then, restored now and then."""
    dice = random.Random(seed)
    identities, blocks, watermark = Identities(HORIZON), dict[str, bytes](), -(2**62)
    for number in range(dice.randrange(1, 60)):
        watermark = max(watermark, dice.randrange(3000) * SECOND if dice.random() < 0.3 else watermark)
        known = event(dice.randrange(number + 1), dice.randrange(3000), dice.randrange(3))
        found = identities.find(known.event_id, watermark)
        if found is None:
            identities.add(known)
        elif found.revision < known.revision:
            identities.add(event(int(known.event_id[1:]), found.event_time // SECOND, known.revision, close=0.5))
        if dice.random() < 0.3:
            packed = identities.packed_state(blocks)
            assert expanded(packed, blocks) == identities.state_document()
        if dice.random() < 0.1:
            document = parse(canonical(identities.state_document()))
            identities = Identities(HORIZON)
            identities.restore(document)
            assert identities.state_document() == document
    assert expanded(identities.packed_state(blocks), blocks) == identities.state_document()
    assert all(address(data) == name and canonical(parse(data)) == data for name, data in blocks.items())
    assert len(identities) == sum(len(parse(blocks[name])["ids"]) for name in identities.packed_state({})["blocks"])


def test_only_blocks_that_have_changed_are_written_again() -> None:
    """A new event writes its block, a forgotten one its own, and nothing writes the others."""
    identities = Identities(HORIZON)
    for number in range(640):
        identities.add(event(number, number))
    first: dict[str, bytes] = {}
    assert len(identities.packed_state(first)["blocks"]) == len(first) == BLOCKS
    again: dict[str, bytes] = {}
    identities.packed_state(again)
    assert again == {}
    identities.add(event(1000, 333))
    identities.packed_state(again)
    assert len(again) == 1
    again.clear()
    assert identities.find("e5", HORIZON + 5 * SECOND) is not None
    identities.packed_state(again)
    assert len(again) == 1
    assert identities.find("e5", HORIZON + 6 * SECOND) is None


def test_a_block_has_a_least_width_and_times_may_be_negative() -> None:
    """A horizon of nothing does not make a block per microsecond; events before 1970 have blocks too."""
    identities = Identities(0)
    for number in range(10):
        identities.add(msgspec.structs.replace(event(number, 0), event_time=-number))
    assert len(identities.packed_state({})["blocks"]) == 2
    assert BLOCK_MICROS_MIN == SECOND


def test_contents_differ_by_values_alone_before_and_after_a_restore() -> None:
    """To the bit, nulls and columns included; when an event was available does not matter."""
    identities = Identities(HORIZON)
    identities.add(event(1, 1, close=1.0, volume=None))
    restored = Identities(HORIZON)
    restored.restore(parse(canonical(identities.state_document())))
    for held in (identities, restored):
        known = held.find("e1", 0)
        assert known is not None
        assert not differs(known, event(1, 1, close=1.0, volume=None))
        for other in ({"close": 1.0}, {"close": 1.5, "volume": None}, {"close": 1.0, "volume": 0.0}):
            assert differs(known, event(1, 1, **other))


def test_a_state_of_schema_2_is_gone_on_with() -> None:
    """Its rows stood one by one, with a digest for a content: what is known of them is found, and copies are told apart."""
    held = [[f"e{number}", "i", number * SECOND, 0, digest_of({"close": float(number)})] for number in range(30)]
    identities = Identities(HORIZON)
    identities.restore({"blocks": [held[:10], held[10:]], "loads": [["l", 3]]})
    assert len(identities) == len(held)
    known = identities.find("e7", 0)
    assert known is not None
    assert not differs(known, event(7, 7, close=7.0))
    assert differs(known, event(7, 7, close=7.5))
    assert identities.is_repeated(("l", 3))
    again = Identities(HORIZON)
    again.restore(parse(canonical(identities.state_document())))
    assert again.state_document() == identities.state_document()


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["close", "volume", "a,b", "a", "b", "c", "b,c"]),
            st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
            min_size=1,
        ),
        min_size=1,
        max_size=2,
    )
)
def test_contents_are_equal_where_values_are(made: list[dict[str, float | None]]) -> None:
    """By one or by many, few columns or more: equal columns and bits have one content, others have others."""
    ordered = [dict(sorted(values.items())) for values in made]
    contents = [content_of(values) for values in ordered]
    for values, content in zip(ordered, contents, strict=True):
        rows = np.array([list(values.values())], dtype=np.float64)
        assert contents_of(tuple(values), rows) == [content]
        assert is_of(content, values)
        assert is_of(digest_of(values), values)
    assert (repr(ordered[0]) == repr(ordered[-1])) == (contents[0] == contents[-1])


@pytest.mark.parametrize(
    "bad",
    [
        {
            "blocks": [{"ids": ["e"], "instruments": ["i"], "times": [0], "revisions": [], "contents": ["x"]}],
            "loads": [],
        },
        {"blocks": [{"ids": ["e"]}], "loads": []},
        {"blocks": [[["e", "i", 0, 0, "x"]], [["e", "i", 0, 0, "x"]]], "loads": []},
        {"blocks": [[["e", "i", 0, 0, {}]]], "loads": []},
        {"blocks": [[["e", "i", "0", 0, "x"]]], "loads": []},
        {"blocks": [[[1, "i", 0, 0, "x"]]], "loads": []},
        {"blocks": ["sha256:x"], "loads": []},
        {"blocks": [], "loads": [["a", "1"]]},
        {"blocks": []},
        {"events": [], "loads": []},
    ],
)
def test_what_is_no_state_is_refused(bad: Any) -> None:
    """An identity twice, values instead of their digest, wrong types, a block that was not put in its place."""
    with pytest.raises(StateInvalidError):
        Identities(HORIZON).restore(bad)
