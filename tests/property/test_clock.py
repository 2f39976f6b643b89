"""Clocks and lanes: fed in any order, released at any watermark, restored anywhere: the same ticks as all at once."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical, parse
from domain.market.clock import Clock, Ticks
from domain.market.errors import ClockGapTooLongError, ClockOrderError
from domain.market.event_runs import events_of, joined_runs, run_of
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec, IntervalClock, parse_flow
from domain.market.lanes import Lane, LaneValues, lanes_of
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent
from tests.support.market_strategies import ANY_VALUES, START, events, flow

CLOCKS: list[dict[str, Any]] = [
    {"kind": "event"},
    {"kind": "interval", "length_seconds": 1, "empty_cells_max": 1000},
    {"kind": "interval", "length_seconds": 7, "empty_cells_max": 1000},
]


def shown(batch: FeatureBatch) -> list[tuple[int, str, list[str]]]:
    """Ticks of all lanes, exactly."""
    return [row for lane in batch.lanes for row in rows_of(lane)]


def rows_of(lane: LaneValues) -> list[tuple[int, str, list[str]]]:
    """Ticks of one lane, exactly."""
    columns = [[repr(value) for value in column.tolist()] for column in lane.outputs.values()]
    return [
        (time, event_id, [column[index] for column in columns])
        for index, (time, event_id) in enumerate(zip(lane.event_times.tolist(), lane.event_ids, strict=True))
    ]


@given(st.data(), st.sampled_from(CLOCKS), st.sampled_from(["ema", "sma", "returns"]))
def test_a_lane_fed_event_by_event_equals_the_batch(data: st.DataObject, clock: dict[str, Any], op: str) -> None:
    """Arrivals shuffled within what the watermark allows, releases and restarts anywhere: equal ticks and values to the bit.

    So for events that come as a run, in whatever order.
    """
    spec = parse_flow(flow(op, clock=clock))
    made = data.draw(events(instruments=("A",), revisions_max=2))
    expected = shown(execute_events(spec, made))
    (plan,) = lanes_of(spec)
    lane, found = Lane(plan), []
    waiting = data.draw(st.permutations(sorted(made, key=lambda event: event.event_time)))
    while waiting:
        count = data.draw(st.integers(1, len(waiting)))
        if data.draw(st.booleans()):
            lane.accept_run(joined_runs([run_of(event) for event in waiting[:count]]))
        else:
            lane.accept_all(waiting[:count])
        held = len(lane)
        assert lane.waiting(START + 10**12) == 0
        assert lane.waiting(START) == held
        waiting = waiting[count:]
        bound = min((event.event_time for event in waiting), default=START)
        found += rows_of(lane.release(bound - data.draw(st.integers(0, 5_000_000))))
        if data.draw(st.booleans()):
            stored = canonical(lane.state_document())
            lane = Lane(plan)
            lane.restore(parse(stored))
            assert canonical(lane.state_document()) == stored
    found += rows_of(lane.finish())
    assert found == expected
    assert len(lane) == 0


@given(st.lists(events(instruments=("A",), columns=("close", "volume"), values=ANY_VALUES), min_size=1, max_size=3))
def test_a_run_is_its_events(parts: list[list[MarketEvent]]) -> None:
    """Joined, cut and picked from: the same events, to the bit, in the same order; in order is what stands in order."""
    made = [event for part in parts for event in part]
    if not made:
        return
    run = joined_runs([joined_runs([run_of(event) for event in part]) for part in parts if part])
    assert repr(list(run)) == repr(made) == repr(list(events_of([run])))
    middle = len(made) // 2
    assert list(events_of([run.rows(0, middle), *made[middle:]])) == made
    places = list(range(len(made) - 1, -1, -2))
    assert list(run.picked(np.array(places))) == [made[place] for place in places]
    keys = [(event.event_time, event.event_id) for event in made]
    assert run.in_order == all(one < other for one, other in pairwise(keys))


@given(events(instruments=("A", "B", "C")), st.sampled_from(CLOCKS))
def test_an_instrument_is_not_touched_by_the_others(made: list[MarketEvent], clock: dict[str, Any]) -> None:
    """A flow over three instruments gives each what a flow over it alone gives."""
    names = ("A", "B", "C")
    together = execute_events(parse_flow(flow(instruments=names, clock=clock)), made)
    for index, name in enumerate(names):
        alone = execute_events(parse_flow(flow(instruments=(name,), clock=clock)), made)
        assert together.values(f"out{index}") == alone.values("out0")
        assert together.values_hash(f"out{index}") == alone.values_hash("out0")


@given(events(instruments=("A", "B"), revisions_max=1), st.sampled_from(CLOCKS), st.data())
def test_the_order_of_events_changes_nothing(
    made: list[MarketEvent], clock: dict[str, Any], data: st.DataObject
) -> None:
    """Equal events in any order give an artifact of equal bytes."""
    spec = parse_flow(flow(instruments=("A", "B"), clock=clock))
    shuffled = data.draw(st.permutations(made))
    assert execute_events(spec, made).encode() == execute_events(spec, shuffled).encode()


def event(seconds: float, close: float | None = 1.0, event_id: str | None = None, revision: int = 0) -> MarketEvent:
    """An event of A."""
    time = int(START + seconds * 1_000_000)
    return MarketEvent(
        event_id=event_id or f"e{seconds}",
        instrument="A",
        event_time=time,
        available_at=time,
        revision=revision,
        values={"close": close},
    )


def interval(**changes: int) -> IntervalClock:
    """Cells of ten seconds."""
    return IntervalClock(**{"length_seconds": 10, "empty_cells_max": 2, **changes})


def closes(ticks: Ticks) -> list[float | None]:
    """The values of a clock's ticks."""
    return [None if value != value else value for value in ticks.columns["close"].tolist()]


def test_cells_are_half_open_and_end_at_the_tick() -> None:
    """An event on the border belongs to the later cell; the last value speaks; the tick stands at the cell's end."""
    clock = Clock(interval(), "A", ["close"])
    for seconds, close in ((0, 1.0), (9.999999, 2.0), (10, 3.0)):
        clock.accept(event(seconds, close))
    assert len(clock.release(START + 9_999_999)) == 0
    first = clock.release(START + 10_000_000)
    assert closes(first) == [2.0]
    assert first.event_times.tolist() == [START + 10_000_000]
    assert first.event_ids == ["A@2026-01-05T09:00:10Z"]
    assert closes(clock.finish()) == [3.0]


def test_empty_cells_appear_when_a_later_one_closes() -> None:
    """Two empty cells are gaps, but only once the fourth closes: no gap is invented ahead."""
    clock = Clock(interval(), "A", ["close"])
    clock.accept(event(0, 1.0))
    assert closes(clock.release(START + 35_000_000)) == [1.0]
    clock.accept(event(36, 4.0))
    assert len(clock.release(START + 39_000_000)) == 0
    assert closes(clock.release(START + 40_000_000)) == [None, None, 4.0]


def test_too_many_empty_cells_end_the_run() -> None:
    """One more than the flow allows is a typed error, in the stream and in the batch."""
    clock = Clock(interval(), "A", ["close"])
    clock.accept(event(0))
    clock.accept(event(40))
    with pytest.raises(ClockGapTooLongError) as caught:
        clock.finish()
    assert "3 empty cells from 2026-01-05T09:00:10Z" in str(caught.value)
    spec = parse_flow(flow(clock={"kind": "interval", "length_seconds": 10, "empty_cells_max": 2}))
    with pytest.raises(ClockGapTooLongError):
        execute_events(spec, [event(0), event(40)])


def test_the_last_event_of_a_cell_speaks_even_if_it_is_null() -> None:
    """A null is a value that is missing, not an event that is: the cell is a gap."""
    clock = Clock(interval(), "A", ["close"])
    for seconds, close in ((1, 5.0), (2, None)):
        clock.accept(event(seconds, close))
    assert closes(clock.finish()) == [None]


def test_ticks_of_one_time_stand_by_id_as_bytes() -> None:
    """Ids are compared as UTF-8: an uppercase Z before a, a before é, é before a character beyond the basic plane."""
    from domain.market.flow import EventClock

    clock = Clock(EventClock(), "A", ["close"])
    for name in ("\U0001f600", "é", "a", "Z", "\uffee"):
        clock.accept(event(0, event_id=name))
    names = clock.finish().event_ids
    assert names == ["Z", "a", "é", "\uffee", "\U0001f600"] == sorted(names, key=lambda name: name.encode())


def test_a_clock_refuses_what_comes_behind_its_last_tick() -> None:
    """Letting a late event through is a defect of the caller, told as such; `has_passed` says so beforehand."""
    from domain.market.flow import EventClock

    clock = Clock(EventClock(), "A", ["close"])
    clock.accept(event(5))
    clock.release(START + 6_000_000)
    assert clock.has_passed(START + 5_000_000, "e5")
    assert not clock.has_passed(START + 5_000_000, "e6")
    with pytest.raises(ClockOrderError):
        clock.accept(event(4))


def test_a_higher_revision_replaces_a_held_event_and_none_else_does() -> None:
    """One tick per event_id, with the values of the highest revision accepted before its release; of equal ones, the first."""
    from domain.market.flow import EventClock

    clock = Clock(EventClock(), "A", ["close"])
    for revision, close in ((1, 2.0), (0, 1.0), (3, 4.0), (2, 3.0), (3, 5.0)):
        clock.accept(event(0, close, event_id="e", revision=revision))
    assert len(clock) == 1
    assert closes(clock.finish()) == [4.0]


def test_the_limit_of_ticks_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short cells over sparse events end in a typed error, not in an exhausted memory."""
    from domain.market import clock as module
    from domain.market.errors import RunTooLargeError

    monkeypatch.setattr(module, "TICKS_MAX", 3)
    spec: FlowSpec = parse_flow(flow(clock={"kind": "interval", "length_seconds": 1}))
    with pytest.raises(RunTooLargeError):
        execute_events(spec, [event(0), event(3)])
