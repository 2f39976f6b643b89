"""Which appends go together, without a database."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.events import Metadata
from services.ports import Fence, Tracking
from services.store import committer, reader
from services.store.committer import AppendTicket, take
from services.store.group import Ticket
from services.store.prepared import EventRow, Prepared


def ticket(
    streams: str, guard: str | None = None, lease: str | None = None, tracking: str | None = None
) -> AppendTicket:
    rows: list[EventRow] = [(stream, 1, "0" * 32, "t", "{}") for stream in streams]
    prepared = Prepared(
        rows, Fence(guard, "A", 1) if guard else None, Tracking(tracking, 1) if tracking else None, Metadata(), None
    )
    if lease is not None:
        prepared.writes.add(("lease", lease))
    return Ticket(prepared, None)


tickets = st.builds(
    ticket,
    st.text("abc", max_size=2).map(lambda text: "".join(sorted(set(text)))),
    st.none() | st.sampled_from("rs"),
    st.none() | st.sampled_from("rs"),
    st.none() | st.sampled_from("tu"),
)


def depend(one: Prepared, other: Prepared) -> bool:
    return bool(one.writes & other.writes or one.read in other.writes or other.read in one.writes)


@given(st.lists(tickets, max_size=12))
def test_groups_hold_no_dependent_appends_and_keep_their_order(given_tickets: list[AppendTicket]) -> None:
    """Everything is taken once; no two appends of a group depend on each other; of two that do, the earlier goes first."""
    queue = deque(given_tickets)
    groups: list[list[AppendTicket]] = []
    while queue:
        groups.append(take(queue))
        assert groups[-1]
    place = {id(t): number for number, group in enumerate(groups) for t in group}
    assert len(place) == sum(map(len, groups)) == len(given_tickets)
    for index, earlier in enumerate(given_tickets):
        for later in given_tickets[index + 1 :]:
            if depend(earlier.request, later.request):
                assert place[id(earlier)] < place[id(later)]


def test_an_independent_append_overtakes_a_dependent_one() -> None:
    """A crowd at one stream holds up nobody else, and goes on in its order."""
    crowd = [ticket("a") for _ in range(3)]
    other = ticket("b")
    queue = deque([*crowd, other])
    assert take(queue) == [crowd[0], other]
    assert list(queue) == crowd[1:]


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [("GROUP_APPENDS_MAX", 3, 3), ("GROUP_EVENTS_MAX", 2, 2), ("GROUP_BYTES_MAX", 5, 2), ("GROUP_EVENTS_MAX", 0, 1)],
)
def test_groups_have_limits(monkeypatch: pytest.MonkeyPatch, name: str, limit: int, expected: int) -> None:
    """Appends, events and bytes of a group are bounded; an append beyond the bound goes alone."""
    monkeypatch.setattr(committer, name, limit)
    queue = deque(ticket(stream) for stream in "abcdef")
    assert len(take(queue)) == expected
    assert len(queue) == 6 - expected


def test_the_search_for_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the crowd at one stream, a search steps over a bounded number of appends."""
    monkeypatch.setattr(committer, "DEFERRED_MAX", 4)
    queue = deque([*(ticket("a") for _ in range(6)), ticket("b")])
    assert len(take(queue)) == 1
    assert len(queue) == 6


def test_groups_of_reads_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of one round trip are bounded; a request beyond the bound goes alone."""
    monkeypatch.setattr(reader, "GROUP_STREAMS_MAX", 3)
    queue: deque[reader.ReadTicket] = deque(Ticket(streams, None) for streams in (["a", "b"], ["c"], ["d"] * 5, ["e"]))
    assert [len(reader.take(queue)) for _ in range(3)] == [2, 1, 1]
