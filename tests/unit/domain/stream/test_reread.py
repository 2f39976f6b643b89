"""The second look at a topic: accepted is what the table of section 11 says, given what the journal says."""

import pytest

from domain.errors import FinazError
from domain.market.flow import parse_flow
from domain.market.records import MarketEvent, encode_event
from domain.stream import reread
from domain.stream.records import StreamRecord
from domain.stream.reread import Places, Reread
from domain.stream.worker_core import DEFAULT_LIMITS
from tests.support.market_strategies import flow

OF = parse_flow(flow())
NOBODY: Places = frozenset()


def record(
    offset: int, number: int, revision: int = 0, close: float = 1.0, load: str = "", key: str = "A"
) -> StreamRecord:
    """A record of event `e<number>` in the one partition."""
    event = MarketEvent(
        event_id=f"e{number}",
        instrument=key,
        event_time=number,
        available_at=number,
        revision=revision,
        values={"close": close},
    )
    headers = {"load_id": load.encode(), "index": str(number).encode()} if load else {}
    return StreamRecord(partition=0, offset=offset, key=key.encode(), value=encode_event(event), headers=headers)


def accepted(
    *records: StreamRecord, omitted: Places = NOBODY, late: Places = NOBODY, retried: Places = NOBODY
) -> list[tuple[str, int, float | None]]:
    """What a second look accepts."""
    looked = Reread(OF, 1, DEFAULT_LIMITS, omitted, late, retried)
    for one in records:
        looked.take(one)
    assert not looked.unexplained
    return sorted((event.event_id, event.revision, event.values["close"]) for event in looked.accepted())


def test_the_highest_revision_of_each_event_is_accepted() -> None:
    """Of equal ones the first; a lower one that comes later is a copy."""
    assert accepted(record(0, 1), record(1, 2), record(2, 1, 2, 5.0), record(3, 1, 1, 9.0)) == [
        ("e1", 2, 5.0),
        ("e2", 0, 1.0),
    ]
    assert accepted(record(0, 1, close=1.0), record(1, 1, close=2.0)) == [("e1", 0, 1.0)]


def test_other_instruments_and_tombstones_are_no_concern() -> None:
    """Nor is what the journal calls omitted or late."""
    tombstone = StreamRecord(partition=0, offset=1, key=b"A", value=None)
    records = (record(0, 1, key="B"), tombstone, record(2, 2), record(3, 3))
    assert accepted(*records, omitted={(0, 2)}, late={(0, 3)}) == []


def test_a_repeated_load_and_index_is_a_copy() -> None:
    """Whatever it says; another load's index is not."""
    assert accepted(record(0, 1, load="l"), record(1, 1, 1, 9.0, load="l")) == [("e1", 0, 1.0)]
    assert accepted(record(0, 1, load="l"), record(1, 1, 1, 9.0, load="m")) == [("e1", 1, 9.0)]


def test_what_was_retried_came_after_what_was_not() -> None:
    """It is judged as arriving then: no copy of its load, behind those that came in between, unless it was late by then."""
    records = (record(0, 1, close=7.0, load="l"), record(1, 1, close=8.0), record(2, 2))
    assert accepted(*records, retried={(0, 0)}) == [("e1", 0, 8.0), ("e2", 0, 1.0)]
    assert accepted(records[0], records[2], retried={(0, 0)}) == [("e1", 0, 7.0), ("e2", 0, 1.0)]
    assert accepted(records[0], records[2], retried={(0, 0)}, late={(0, 0)}) == [("e2", 0, 1.0)]


@pytest.mark.parametrize("key", [b"A", b"\xff", None])
def test_a_record_that_should_have_been_omitted_is_named(key: bytes | None) -> None:
    """One of the flow's instruments, or of none that can be read, that is no market record."""
    looked = Reread(OF, 1, DEFAULT_LIMITS, NOBODY, NOBODY, NOBODY)
    looked.take(StreamRecord(partition=0, offset=4, key=key, value=b"{"))
    assert [place[:2] for place in looked.unexplained] == [(0, 4)]


def test_a_second_look_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reached, and one more is refused."""
    monkeypatch.setattr(reread, "EVENTS_MAX", 2)
    assert len(accepted(record(0, 1), record(1, 2))) == 2
    with pytest.raises(FinazError) as caught:
        accepted(record(0, 1), record(1, 2), record(2, 3))
    assert caught.value.code == "RUN_TOO_LARGE"
