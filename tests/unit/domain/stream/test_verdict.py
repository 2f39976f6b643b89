"""The verdict on a stream: equal, different by its input with the identities that make the difference, or diverged."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.market.arrivals import Arrival, arrival_log
from domain.market.faults import NO_FAULTS, FaultKind, random_schedule
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec, parse_flow
from domain.market.lanes import LaneValues
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent
from domain.stream.collected import Collected
from domain.stream.publication import records_of
from domain.stream.verdict import IDENTITIES_MAX, VerdictKind, verdict
from domain.stream.worker_core import ACCEPTED, StreamCore, Treatment
from tests.support.market_strategies import events, flow
from tests.unit.domain.market.test_arrivals import AS_OF, SNAPSHOT, fixture_events, fixture_log

PARTITIONS = 4


def streamed(
    of: FlowSpec, arrivals: tuple[Arrival, ...]
) -> tuple[FeatureBatch, list[MarketEvent], list[tuple[str, int]]]:
    """The stream's batch over the arrivals, what it accepted, and what came too late."""
    core, collected = StreamCore(of, PARTITIONS), Collected()
    accepted: list[MarketEvent] = []
    late: list[tuple[str, int]] = []
    for record in records_of(arrivals, "load", PARTITIONS):
        treated = core.process(record)
        if treated.event is not None and treated.treatment in ACCEPTED:
            accepted.append(treated.event)
        if treated.event is not None and treated.treatment is Treatment.LATE:
            late.append((treated.event.event_id, treated.event.revision))
        collected.take(core)
    core.finish()
    collected.take(core)
    return collected.batch(of), accepted, late


def fixture_flow() -> FlowSpec:
    return parse_flow(flow(instruments=("fixture.fx-0",)))


def test_the_fixture_equals_the_batch() -> None:
    """With all seven faults: nothing of the selected instrument is lost, late or revised."""
    batch, accepted, late = streamed(fixture_flow(), fixture_log().arrivals)
    found = verdict(fixture_flow(), accepted, batch, fixture_events(), late)
    assert found.kind is VerdictKind.EQUAL_TO_BATCH_GOLDEN
    assert (found.accepted, found.source) == (6, 6)
    assert (found.lost.count, found.late.count, found.revised.count, found.extra.count) == (0, 0, 0, 0)


CLOCKS = st.sampled_from([{"kind": "event"}, {"kind": "interval", "length_seconds": 7}])


@given(events(revisions_max=1), st.integers(0, 2**32), st.floats(0, 0.6), CLOCKS)
def test_whatever_the_faults_a_stream_is_the_batch_over_what_it_accepted(
    made: list[MarketEvent], seed: int, rate: float, clock: dict[str, Any]
) -> None:
    """Never DIVERGED; equal where nothing differs, and where it differs an identity says why."""
    of = parse_flow(flow(instruments=("A", "B"), clock=clock))
    ordered = sorted(made, key=lambda event: (event.event_time, event.event_id, event.revision))
    schedule = random_schedule(seed, dict.fromkeys(FaultKind, rate), dict.fromkeys(e.event_id for e in ordered))
    batch, accepted, late = streamed(of, arrival_log(ordered, AS_OF, schedule, SNAPSHOT).arrivals)
    found = verdict(of, accepted, batch, ordered, late)
    differing = found.lost.count + found.late.count + found.revised.count + found.extra.count
    assert found.kind in (VerdictKind.EQUAL_TO_BATCH_GOLDEN, VerdictKind.DIFFERS_BY_INPUT)
    assert not found.diverged
    equal = batch.encode() == execute_events(of, ordered).encode()
    assert (found.kind is VerdictKind.EQUAL_TO_BATCH_GOLDEN) == equal
    if not equal:
        assert differing
    assert found.extra.count == 0
    gone = {fault.event for fault in schedule.faults if fault.kind is FaultKind.GAP}
    assert {identity.event_id for identity in found.lost.first} <= gone
    assert {identity.event_id for identity in found.late.first} <= {event_id for event_id, _ in late}


def at(second: int, revision: int = 0, close: float | None = None, instrument: str = "A") -> MarketEvent:
    """An event of a second."""
    micros = second * 1_000_000
    return MarketEvent(
        event_id=f"e{second}",
        instrument=instrument,
        event_time=micros,
        available_at=micros,
        revision=revision,
        values={"close": float(second) if close is None else close},
    )


SOURCE = [at(second) for second in range(6)]
OF = parse_flow(flow())


def judged(accepted: list[MarketEvent], late: tuple[tuple[str, int], ...] = ()) -> tuple[str, Counter[str]]:
    """The verdict on a faithful stream over these, and who differs how."""
    found = verdict(OF, accepted, execute_events(OF, accepted), SOURCE, late)
    who = Counter(
        f"{name} {identity.event_id}"
        for name in ("lost", "late", "revised", "extra")
        for identity in getattr(found, name).first
    )
    return found.kind.value, who


@pytest.mark.parametrize(
    ("accepted", "late", "kind", "who"),
    [
        (SOURCE, (), "EQUAL_TO_BATCH_GOLDEN", []),
        (SOURCE, (("e2", 0), ("e3", 1)), "EQUAL_TO_BATCH_GOLDEN", []),
        (SOURCE[:5], (), "DIFFERS_BY_INPUT", ["lost e5"]),
        (SOURCE[:5], (("e5", 0),), "DIFFERS_BY_INPUT", ["late e5"]),
        ([*SOURCE, at(2, 1, 9.0)], (), "DIFFERS_BY_INPUT", ["revised e2"]),
        ([*SOURCE, at(2, 1)], (), "EQUAL_TO_BATCH_GOLDEN", []),
        ([*SOURCE, at(7)], (), "DIFFERS_BY_INPUT", ["extra e7"]),
        ([*SOURCE, at(7, instrument="B")], (), "EQUAL_TO_BATCH_GOLDEN", []),
    ],
)
def test_identities_say_what_makes_the_difference(
    accepted: list[MarketEvent], late: tuple[tuple[str, int], ...], kind: str, who: list[str]
) -> None:
    """Lost, late, revised, extra; what was late but makes no difference is not named, nor is another instrument."""
    assert judged(accepted, late) == (kind, Counter(who))


def test_a_source_that_is_not_known() -> None:
    """Then no more is said than that the values are those of the batch over what was accepted."""
    found = verdict(OF, SOURCE, execute_events(OF, SOURCE), None)
    assert (found.kind, found.source) == (VerdictKind.EQUAL_TO_ACCEPTED, None)


def test_anything_else_is_diverged_and_says_where() -> None:
    """One value in the last bit: a bug, whatever the source says."""
    batch = execute_events(OF, SOURCE)
    (lane,) = batch.lanes
    outputs = {name: column.copy() for name, column in lane.outputs.items()}
    outputs["out0"][3] += 2**-50
    altered = FeatureBatch(
        batch.flow, batch.schema, (LaneValues(lane.instrument, lane.event_times, lane.event_ids, outputs),)
    )
    for source in (SOURCE, None):
        found = verdict(OF, SOURCE, altered, source)
        assert found.kind is VerdictKind.DIVERGED
        (parity,) = found.diverged
        assert parity.first is not None
        assert (parity.mismatched, parity.first.event_id) == (1, "e3")


def test_a_verdict_names_so_many_and_counts_all() -> None:
    """The first of them in clock order."""
    source = [at(second) for second in range(IDENTITIES_MAX + 5)]
    found = verdict(OF, [], execute_events(OF, []), source)
    assert (found.lost.count, len(found.lost.first)) == (IDENTITIES_MAX + 5, IDENTITIES_MAX)
    assert found.lost.first[0].event_id == "e0"


def test_no_faults_no_difference() -> None:
    """The fixture as it is."""
    log = arrival_log(fixture_events(), AS_OF, NO_FAULTS, SNAPSHOT)
    batch, accepted, late = streamed(fixture_flow(), log.arrivals)
    assert verdict(fixture_flow(), accepted, batch, fixture_events(), late).kind is VerdictKind.EQUAL_TO_BATCH_GOLDEN
