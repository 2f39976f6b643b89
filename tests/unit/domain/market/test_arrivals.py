"""Fault schedules and the arrival log: the fixture's figures, the rules of each fault, and what is refused."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.fixture_files import fixture_path
from domain.canonical import parse
from domain.instants import parse_instant, to_micros
from domain.market.arrivals import ArrivalLog, arrival_log, log_lines, murmur2, partition_of
from domain.market.errors import ScheduleInvalidError
from domain.market.faults import (
    COPIES_MAX,
    NO_FAULTS,
    PARAMETERS,
    Fault,
    FaultKind,
    FaultSchedule,
    parse_schedule,
    random_schedule,
    schedule_address,
    schedule_body,
)
from domain.market.records import REVISION_MAX, MarketEvent, parse_event

AS_OF = to_micros(parse_instant("2026-01-06T00:00:00Z"))
SNAPSHOT = "sha256:" + "5" * 64
SECOND = 1_000_000


def fixture_events() -> list[MarketEvent]:
    """The events of the fixture snapshot, in its order."""
    lines = fixture_path("snapshots/fixture.snapshot.01.jsonl").read_bytes().splitlines()
    return [parse_event(line) for line in lines]


def fixture_schedule() -> FaultSchedule:
    """The schedule of seven faults."""
    return parse_schedule(parse(fixture_path("schedules/fixture.faults.01.json").read_bytes()))


def fixture_log() -> ArrivalLog:
    """The fixture's arrival log."""
    return arrival_log(fixture_events(), AS_OF, fixture_schedule(), SNAPSHOT)


def test_the_fixture_log_has_23_arrivals_and_7_faults_applied() -> None:
    """8, 6 and 9 records of the three instruments; every fault says what it did."""
    log = fixture_log()
    assert len(log.arrivals) == 23
    assert Counter(arrival.instrument for arrival in log.arrivals) == {
        "fixture.fx-0": 8,
        "fixture.fx-1": 6,
        "fixture.fx-2": 9,
    }
    assert [applied.fault for applied in log.applied] == list(fixture_schedule().faults)
    effects = {applied.fault.kind: (len(applied.records), applied.removed) for applied in log.applied}
    assert effects == {
        FaultKind.DUPLICATE: (1, 0),
        FaultKind.DELAY: (1, 0),
        FaultKind.GAP: (0, 1),
        FaultKind.REVISION: (1, 0),
        FaultKind.PAUSE: (1, 0),
        FaultKind.BURST: (2, 0),
        FaultKind.SOURCE_FAILURE: (1, 0),
    }


def test_the_fixture_log_has_one_hash() -> None:
    """Pinned: the same on every machine and with every later version of the code."""
    assert fixture_log().log_hash == fixture_log().log_hash
    assert fixture_log().log_hash == "sha256:56a693ce96550fc16b280122c35e2108a44af3f99f2bf0e20747050c58143ddd"


def test_each_fault_does_what_its_row_says() -> None:
    """Announcements before their event, copies right behind it, a delay of 2 s, a revision 120 s later with its own close."""
    log = fixture_log()
    of = {}
    for arrival in log.arrivals:
        name = arrival.event.event_id if arrival.event else arrival.kind
        of.setdefault(name, []).append(arrival)
    duplicate = of["fixture.event.0.2"]
    assert [d.index - duplicate[0].index for d in duplicate] == [0, 1]
    assert duplicate[0].event == duplicate[1].event
    (delayed,) = of["fixture.event.0.3"]
    assert delayed.event is not None
    assert delayed.at == delayed.event.available_at == delayed.event.event_time + 250_000 + 2 * SECOND
    assert "fixture.event.1.1" not in of
    first, revised = of["fixture.event.2.2"]
    assert first.event is not None
    assert revised.event is not None
    assert (revised.event.revision, revised.event.values["close"]) == (1, 23.5)
    assert (first.event.event_time, revised.at - first.at) == (revised.event.event_time, 120 * SECOND)
    (pause,) = of["PAUSE"]
    assert (pause.value, pause.milliseconds, pause.instrument) == (None, 100, "fixture.fx-0")
    assert log.arrivals[pause.index + 1].event == of["fixture.event.0.4"][0].event
    assert [b.index - of["fixture.event.2.4"][0].index for b in of["fixture.event.2.4"]] == [0, 1, 2]
    (failure,) = of["SOURCE_FAILURE"]
    assert failure.milliseconds == 300
    assert log.arrivals[failure.index + 1].event == of["fixture.event.1.4"][0].event


def test_keys_go_to_the_partitions_that_the_java_client_gives_them() -> None:
    """murmur2, as the fixture's figures demand: fx-1 to 0, the others to 3 of 4; and values of the reference implementation."""
    assert [partition_of(f"fixture.fx-{n}".encode(), 4) for n in range(3)] == [3, 0, 3]
    assert [murmur2(data) for data in (b"", b"21", b"foobar", b"a-little-bit-long-string")] == [
        275646681,
        (-973932308) % 2**32,
        (-790332482) % 2**32,
        (-985981536) % 2**32,
    ]


def test_only_what_was_available_takes_part_before_faults() -> None:
    """As of 09:02 only the first minutes are there; a fault of a later event names something unknown."""
    as_of = to_micros(parse_instant("2026-01-05T09:02:00Z"))
    log = arrival_log(fixture_events(), as_of, NO_FAULTS, SNAPSHOT)
    assert len(log.arrivals) == 6
    with pytest.raises(ScheduleInvalidError) as refused:
        arrival_log(fixture_events(), as_of, fixture_schedule(), SNAPSHOT)
    assert refused.value.at == "$.faults[0].event"


@pytest.mark.parametrize("kind", [FaultKind.DELAY, FaultKind.REVISION])
@pytest.mark.parametrize(("revision", "left"), [(0, 0), (0, 5 * SECOND), (REVISION_MAX, 5 * SECOND)])
def test_no_fault_makes_what_no_record_can_be(kind: FaultKind, revision: int, left: int) -> None:
    """At the end of time and of revisions, a fault gives a log whose records can be read, or a schedule that is refused."""
    last = to_micros(parse_instant("9999-12-31T23:59:59.999999Z"))
    event = MarketEvent(
        event_id="e", instrument="a", event_time=0, available_at=last - left, revision=revision, values={"close": 1.0}
    )
    parameters: dict[str, Any] = {"seconds": 5} | ({"values": {}} if kind is FaultKind.REVISION else {})
    schedule = FaultSchedule(seed=1, faults=(Fault(event="e", kind=kind, parameters=parameters),))
    possible = left >= 5 * SECOND and (kind is FaultKind.DELAY or revision < REVISION_MAX)
    if not possible:
        with pytest.raises(ScheduleInvalidError) as refused:
            arrival_log([event], last, schedule, SNAPSHOT)
        assert refused.value.at == "e"
        return
    log = arrival_log([event], last, schedule, SNAPSHOT)
    assert [parse_event(arrival.value) for arrival in log.arrivals if arrival.value] == [
        arrival.event for arrival in log.arrivals
    ]


def body(*faults: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A schedule document."""
    return {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 7, "faults": list(faults)} | changes


def fault(kind: str, event: str = "e", **parameters: Any) -> dict[str, Any]:
    """A fault document."""
    return {"event": event, "kind": kind, "parameters": parameters}


@pytest.mark.parametrize(
    ("document", "at"),
    [
        (body(format="V2"), "$.format"),
        (body(seed=-1), "$.seed"),
        (body(seed=1.0), "$.seed"),
        (body(surprise=1), "$.surprise"),
        (body(fault("LOST")), "$.faults[0].kind"),
        (body(fault("DELAY")), "$.faults[0].parameters.seconds"),
        (body(fault("DELAY", seconds=-1)), "$.faults[0].parameters.seconds"),
        (body(fault("GAP", seconds=1)), "$.faults[0].parameters.seconds"),
        (body(fault("BURST", copies=1)), "$.faults[0].parameters.copies"),
        (body(fault("BURST", copies=COPIES_MAX + 1)), "$.faults[0].parameters.copies"),
        (body(fault("REVISION", seconds=1, values={"event_time": 1})), "$.faults[0].parameters.values.event_time"),
        (body(fault("REVISION", seconds=1, values={"close": "x"})), "$.faults[0].parameters.values.close"),
        (body(fault("REVISION", seconds=1, values=[])), "$.faults[0].parameters.values"),
        (body(fault("GAP"), fault("DELAY", seconds=1)), "$.faults[1]"),
        (body(fault("DUPLICATE"), fault("GAP")), "$.faults[1]"),
        (body(fault("DUPLICATE"), fault("BURST", copies=3)), "$.faults[1]"),
        (body(fault("DELAY", seconds=1), fault("DELAY", seconds=2)), "$.faults[1]"),
        ([], "$"),
    ],
)
def test_a_schedule_that_is_wrong_or_contradicts_itself_is_refused_with_its_place(document: Any, at: str) -> None:
    """As a whole, before anything is made of it."""
    with pytest.raises(Exception) as refused:
        parse_schedule(document)
    assert refused.value.at == at  # type: ignore[attr-defined]


@st.composite
def random_events(draw: st.DrawFn) -> list[MarketEvent]:
    """Events of a few instruments, some with revisions, in snapshot order."""
    events = []
    for number in range(draw(st.integers(1, 12))):
        time = draw(st.integers(0, 20)) * SECOND
        events += [
            MarketEvent(
                event_id=f"e{number}",
                instrument=f"i{number % 3}",
                event_time=time,
                available_at=time + draw(st.integers(0, 5)) * SECOND,
                revision=revision,
                values={"close": float(number)},
            )
            for revision in range(draw(st.integers(1, 2)))
        ]
    return sorted(events, key=lambda e: (e.event_time, e.event_id, e.revision))


RATES = st.dictionaries(st.sampled_from(list(FaultKind)), st.floats(0, 1))


@given(random_events(), st.integers(0, 2**63 - 1), RATES)
def test_random_schedules_are_legal_and_their_logs_keep_the_rules(
    events: list[MarketEvent], seed: int, rates: dict[FaultKind, float]
) -> None:
    """Legal, the same again, every fault applied; ordered by arrival; event times untouched; nothing lost but the gaps."""
    ids = list(dict.fromkeys(event.event_id for event in events))
    schedule = random_schedule(seed, rates, ids)
    assert parse_schedule(schedule_body(schedule)) == schedule == random_schedule(seed, rates, ids)
    assert schedule_address(schedule) == schedule_address(random_schedule(seed, rates, ids))
    log = arrival_log(events, 10**15, schedule, SNAPSHOT)
    assert log == arrival_log(events, 10**15, schedule, SNAPSHOT)
    assert len(log.applied) == len(schedule.faults)
    assert [a.at for a in log.arrivals] == sorted(a.at for a in log.arrivals)
    assert [a.index for a in log.arrivals] == list(range(len(log.arrivals)))
    times = {event.event_id: event.event_time for event in events}
    arrived = {a.event.event_id for a in log.arrivals if a.event is not None}
    gaps = {fault.event for fault in schedule.faults if fault.kind is FaultKind.GAP}
    assert arrived == set(ids) - gaps
    assert all(a.event is None or a.event.event_time == times[a.event.event_id] for a in log.arrivals)
    assert all(parse(line) for line in log_lines(log.arrivals, 0, schedule, SNAPSHOT))


@given(random_events(), st.integers(0, 2**31), st.integers(0, 2**31))
def test_another_seed_schedule_or_snapshot_is_another_log(events: list[MarketEvent], one: int, other: int) -> None:
    """The hash covers its inputs."""
    hashes = {arrival_log(events, 10**15, FaultSchedule(seed=seed), SNAPSHOT).log_hash for seed in (one, other)}
    assert len(hashes) == len({one, other})
    first = arrival_log(events, 10**15, NO_FAULTS, SNAPSHOT).log_hash
    assert first != arrival_log(events, 10**15, NO_FAULTS, SNAPSHOT[:-1] + "6").log_hash
    duplicate = FaultSchedule(seed=0, faults=(Fault(event=events[0].event_id, kind=FaultKind.DUPLICATE),))
    assert first != arrival_log(events, 10**15, duplicate, SNAPSHOT).log_hash


def test_every_kind_has_its_parameters() -> None:
    """The table is complete."""
    assert set(PARAMETERS) == set(FaultKind)
