"""The stream worker's core: the fixture's figures, the table of treatments, watermarks, parity with the batch, restored state."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployment.fixture_files import fixture_path
from domain.canonical import address_of, canonical, parse
from domain.instants import format_instant, from_micros
from domain.market.arrivals import Arrival, arrival_log, partition_of
from domain.market.errors import StateInvalidError
from domain.market.faults import FaultKind, random_schedule
from domain.market.flow import FlowSpec, parse_flow
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent, encode_event
from domain.stream.identities import LOADS_MAX, Identities
from domain.stream.records import StreamRecord
from domain.stream.watermark import GAPS_MAX, NEVER, PartitionWatermark
from domain.stream.worker_core import ACCEPTED, StreamCore, StreamLimits, Treated, Treatment
from tests.unit.domain.market.test_arrivals import SNAPSHOT, fixture_log, random_events

GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"
PARTITIONS = 4
SECOND = 1_000_000
INSTRUMENT = "fixture.fx-0"


def fixture_flow() -> FlowSpec:
    """EMA of length 3 over the close of fx-0."""
    return parse_flow(parse(fixture_path("flows/01_A_feature.json").read_bytes()))


def topic_of(
    arrivals: Sequence[Arrival], load: str, offsets: Counter[int], partitions: int = PARTITIONS
) -> list[StreamRecord]:
    """The records that publishing the arrivals makes, in order, behind those that are there already."""
    records = []
    for arrival in arrivals:
        key = arrival.instrument.encode()
        partition = partition_of(key, partitions)
        headers = {"load_id": load.encode(), "index": str(arrival.index).encode(), "kind": arrival.kind.encode()}
        record = StreamRecord(
            partition=partition, offset=offsets[partition], key=key, value=arrival.value, headers=headers
        )
        offsets[partition] += 1
        records.append(record)
    return records


class Sink:
    """What a core released, collected."""

    def __init__(self) -> None:
        self.ticks: dict[str, list[tuple[int, str, tuple[float | None, ...]]]] = {}

    def take(self, core: StreamCore) -> None:
        for instrument, parts in core.drain().items():
            rows = self.ticks.setdefault(instrument, [])
            for lane in parts:
                columns = [
                    [None if v != v else v for v in lane.outputs[name].tolist()] for name in sorted(lane.outputs)
                ]
                rows += list(zip(lane.event_times.tolist(), lane.event_ids, zip(*columns, strict=True), strict=True))


def batch_of(flow: FlowSpec, events: Sequence[MarketEvent]) -> dict[str, list[Any]]:
    """What a batch over these events gives, in the sink's form."""
    ticks: dict[str, list[Any]] = {}
    for lane in execute_events(flow, events).lanes:
        columns = [[None if v != v else v for v in lane.outputs[name].tolist()] for name in sorted(lane.outputs)]
        rows = list(zip(lane.event_times.tolist(), lane.event_ids, zip(*columns, strict=True), strict=True))
        if rows:
            ticks[lane.instrument] = rows
    return ticks


def counts(core: StreamCore) -> tuple[int, int, int, int]:
    """consumed, filtered, omitted, duplicates_skipped"""
    wanted = (Treatment.CONSUMED, Treatment.FILTERED, Treatment.OMITTED, Treatment.DUPLICATE)
    return tuple(core.counts[treatment] for treatment in wanted)  # type: ignore[return-value]


@pytest.mark.parametrize(("loads", "expected"), [(1, (6, 15, 1, 1)), (13, (6, 195, 13, 85))])
def test_the_fixture_gives_its_figures_and_the_golden(loads: int, expected: tuple[int, ...]) -> None:
    """23 records or 299, partitions 0 and 3 at 78 and 221; the same values, through however many loads."""
    core, sink, offsets = StreamCore(fixture_flow(), PARTITIONS), Sink(), Counter[int]()
    for load in range(loads):
        for record in topic_of(fixture_log().arrivals, f"load-{load}", offsets):
            core.process(record)
            sink.take(core)
    core.finish()
    sink.take(core)
    assert counts(core) == expected
    assert sum(offsets.values()) == 23 * loads
    assert (offsets[0], offsets[3]) == (6 * loads, 17 * loads)
    assert address_of([values[0] for _, _, values in sink.ticks[INSTRUMENT]]) == GOLDEN


def event(number: int, time: int, revision: int = 0, instrument: str = INSTRUMENT, **values: Any) -> MarketEvent:
    """An event at so many seconds."""
    return MarketEvent(
        event_id=f"e{number}",
        instrument=instrument,
        event_time=time * SECOND,
        available_at=time * SECOND,
        revision=revision,
        values={"close": float(number)} | values,
    )


def record(content: MarketEvent | bytes | None, **changes: Any) -> StreamRecord:
    """A record of the selected instrument, in its partition."""
    value = encode_event(content) if isinstance(content, MarketEvent) else content
    key = (content.instrument if isinstance(content, MarketEvent) else INSTRUMENT).encode()
    fields = {"partition": partition_of(key, PARTITIONS), "offset": 0, "key": key, "value": value, "headers": {}}
    return StreamRecord(**(fields | changes))


def treated(*records: StreamRecord) -> Treated:
    """The treatment of the last one."""
    core = StreamCore(fixture_flow(), PARTITIONS)
    return [core.process(one) for one in records][-1]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record(event(1, 100, instrument="other"))], Treatment.FILTERED),
        ([record(b"garbage", key=b"other")], Treatment.FILTERED),
        ([record(None)], Treatment.OMITTED),
        ([record(b"garbage")], Treatment.OMITTED),
        ([record(b"\xff")], Treatment.OMITTED),
        ([record(b"{}")], Treatment.OMITTED),
        ([record(event(1, 100), key=None)], Treatment.OMITTED),
        ([record(event(1, 100, instrument="other"), key=INSTRUMENT.encode())], Treatment.OMITTED),
        ([record(event(1, 100), partition=1)], Treatment.OMITTED),
        ([record(event(1, 100)), record(event(1, 101))], Treatment.OMITTED),
        ([record(event(1, 100)), record(event(1, 100))], Treatment.DUPLICATE),
        ([record(event(1, 100, 1)), record(event(1, 100, 0))], Treatment.DUPLICATE),
        ([record(event(1, 100)), record(event(1, 100, 1))], Treatment.REVISED),
        ([record(event(1, 100)), record(event(2, 200)), record(event(1, 100, 1))], Treatment.LATE),
        ([record(event(1, 100)), record(event(2, 94))], Treatment.LATE),
        ([record(event(1, 100)), record(event(2, 95))], Treatment.CONSUMED),
        ([record(event(1, 100, close=None))], Treatment.CONSUMED),
    ],
)
def test_each_row_of_the_table(records: list[StreamRecord], expected: Treatment) -> None:
    """One treatment each, by the first row that fits; the default lateness is five seconds."""
    assert treated(*records).treatment is expected


def test_an_event_from_the_future_is_omitted_and_moves_no_watermark() -> None:
    """event_time beyond available_at plus the bound."""
    core = StreamCore(fixture_flow(), PARTITIONS)
    odd = MarketEvent(event_id="f", instrument=INSTRUMENT, event_time=10**15, available_at=0, revision=0, values={})
    before = core.watermarks
    assert core.process(record(odd)).treatment is Treatment.OMITTED
    assert core.watermarks == before
    assert core.process(record(event(1, 1))).treatment is Treatment.CONSUMED


def test_a_filtered_record_shows_how_far_its_partition_has_come() -> None:
    """So that a quiet instrument's ticks are released by its neighbours in the partition."""
    core, sink = StreamCore(fixture_flow(), PARTITIONS), Sink()
    neighbour = "fixture.fx-2"
    core.process(record(event(1, 100)))
    sink.take(core)
    assert sink.ticks == {}
    core.process(record(event(2, 200, instrument=neighbour)))
    sink.take(core)
    assert [row[1] for row in sink.ticks[INSTRUMENT]] == ["e1"]


def test_the_same_identity_with_other_content_raises_an_alert_and_the_first_wins() -> None:
    """Skipped like any copy; an honest copy raises nothing, whenever it arrived."""
    assert treated(record(event(1, 100)), record(event(1, 100, close=9.0))).alert
    copy = MarketEvent(
        event_id="e1",
        instrument=INSTRUMENT,
        event_time=100 * SECOND,
        available_at=101 * SECOND,
        revision=0,
        values={"close": 1.0},
    )
    assert not treated(record(event(1, 100)), record(copy)).alert


def test_a_repeated_load_index_is_skipped_and_a_retried_record_is_not_one() -> None:
    """(load id, index) only grows in a partition; a quarantined record that is retried is judged as arriving now."""
    first, second = event(1, 100), event(2, 101)
    headers = {"load_id": b"a", "index": b"5"}
    core = StreamCore(fixture_flow(), PARTITIONS)
    assert core.process(record(first, headers=headers)).treatment is Treatment.CONSUMED
    assert core.process(record(second, headers=headers)).treatment is Treatment.DUPLICATE
    assert core.process(record(b"x", headers=headers)).treatment is Treatment.OMITTED
    assert core.retry(record(second, headers=headers)).treatment is Treatment.CONSUMED
    assert core.counts[Treatment.OMITTED] == 0
    assert core.process(record(event(3, 102), headers=headers | {"index": b"6"})).treatment is Treatment.CONSUMED


def test_identities_are_forgotten_behind_the_horizon_and_copies_are_late_then() -> None:
    """The memory is bounded by the horizon, and what was forgotten can never come in again."""
    limits = StreamLimits(lateness_micros=0, horizon_micros=10 * SECOND)
    core, sink = StreamCore(fixture_flow(), PARTITIONS, limits), Sink()
    for number in range(1000):
        core.process(record(event(number, number)))
        sink.take(core)
        assert len(core._identities[3]) <= 12
    assert core.process(record(event(1, 1))).treatment is Treatment.LATE
    assert core.process(record(event(995, 995))).treatment is Treatment.DUPLICATE
    assert core.buffered <= 1


def announcement(kind: str, seconds: int | None = None, key: str = INSTRUMENT) -> StreamRecord:
    """An in-band announcement."""
    instant = {} if seconds is None else {"instant": format_instant(from_micros(seconds * SECOND)).encode()}
    return record(None, key=key.encode(), headers={"kind": kind.encode(), **instant})


def test_silence_moves_nothing_and_announcements_do_what_they_say() -> None:
    """IDLE_CONFIRMED raises the watermark to its instant, GAP_OPEN holds it, GAP_CLOSED lets it go on; it never goes back."""
    limits = StreamLimits(lateness_micros=0)
    core = StreamCore(fixture_flow(), PARTITIONS, limits)

    def at() -> int:
        return core.watermarks[3] // SECOND

    core.process(record(event(1, 100)))
    assert at() == 100
    core.process(announcement("IDLE_CONFIRMED", 150))
    assert at() == 150
    core.process(announcement("IDLE_CONFIRMED", 120))
    assert at() == 150
    core.process(announcement("GAP_OPEN", 500))
    core.process(record(event(2, 300)))
    assert at() == 150
    core.process(announcement("GAP_CLOSED"))
    assert at() == 300
    core.process(announcement("GAP_OPEN", 400))
    core.process(record(event(3, 450)))
    assert at() == 450
    core.process(announcement("PAUSE"))
    assert at() == 450
    assert core.counts[Treatment.OMITTED] == 6


@given(
    steps=st.lists(st.tuples(st.sampled_from(["event", "idle", "open", "close"]), st.integers(0, 40)), max_size=30),
    lateness=st.integers(0, 5),
)
@example(steps=[("event", 10), ("open", 20), ("idle", 30)], lateness=2)
@example(steps=[("event", 10), ("open", 20), ("idle", 15), ("close", 0)], lateness=2)
def test_a_source_that_falls_silent_inside_a_gap_holds_nothing_for_ever(
    steps: list[tuple[str, int]], lateness: int
) -> None:
    """A confirmed instant is event time that has passed: it ends gaps that it reaches, and is not lost while another is open."""
    mark, passed, before = PartitionWatermark(lateness), NEVER, NEVER
    for what, instant in steps:
        if what == "event":
            mark.see(instant)
            passed = max(passed, instant - lateness)
        elif what == "idle":
            mark.confirm_idle(instant)
            passed = max(passed, instant)
        elif what == "open":
            mark.open_gap("a", instant)
        else:
            mark.close_gap("a")
        assert before <= mark.at <= passed
        before = mark.at
        again = PartitionWatermark(lateness)
        again.restore(mark.state_document())
        again.close_gap("a")
        assert again.at == passed
    mark.confirm_idle(50)
    assert mark.at == 50


def test_the_end_of_a_partition_releases_its_rest() -> None:
    """In-band, for that partition."""
    core, sink = StreamCore(fixture_flow(), PARTITIONS), Sink()
    core.process(record(event(1, 100)))
    core.process(announcement("END_OF_BOUNDED_SOURCE"))
    sink.take(core)
    assert [row[1] for row in sink.ticks[INSTRUMENT]] == ["e1"]


# ------------------------------------------------------------------------------------------------ properties


def flow_over(instruments: Sequence[str], interval: bool) -> FlowSpec:
    """EMA and SMA of each instrument's close."""
    nodes, outputs = [], []
    for number, instrument in enumerate(instruments):
        for op in ("ema", "sma"):
            inputs = [{"column": "close", "instrument": instrument}]
            nodes.append({"id": f"{op}{number}", "op": op, "inputs": inputs, "parameters": {"length": 2}})
            outputs.append({"name": f"{op}{number}", "node": f"{op}{number}"})
    clock: dict[str, Any] = {"kind": "interval", "length_seconds": 3} if interval else {"kind": "event"}
    return parse_flow(
        {
            "version": 1,
            "name": "all",
            "source": {"instruments": list(instruments)},
            "clock": clock,
            "nodes": nodes,
            "outputs": outputs,
        }
    )


def interleaved(records: Sequence[StreamRecord], dice: random.Random) -> list[StreamRecord]:
    """The records in another interleaving of the partitions; the order within each is kept."""
    queues: dict[int, list[StreamRecord]] = {}
    for one in records:
        queues.setdefault(one.partition, []).append(one)
    mixed = []
    while queues:
        partition = dice.choice(sorted(queues))
        mixed.append(queues[partition].pop(0))
        if not queues[partition]:
            del queues[partition]
    return mixed


def streamed(
    flow: FlowSpec, records: Sequence[StreamRecord], limits: StreamLimits, cuts: set[int] = frozenset()
) -> tuple[dict[str, list[Any]], list[MarketEvent], Counter[Treatment]]:
    """Ticks, accepted events and counts of a worker that is killed and restored after the records in `cuts`."""
    core, sink, accepted = StreamCore(flow, PARTITIONS, limits), Sink(), []
    for number, one in enumerate(records):
        outcome = core.process(one)
        sink.take(core)
        if outcome.treatment in ACCEPTED and outcome.event is not None:
            accepted.append(outcome.event)
        if number in cuts:
            written = canonical(core.state_document())
            core = StreamCore(flow, PARTITIONS, limits)
            core.restore(parse(written))
            assert canonical(core.state_document()) == written
    core.finish()
    sink.take(core)
    return sink.ticks, accepted, core.counts


RATES = st.dictionaries(st.sampled_from(list(FaultKind)), st.floats(0, 0.6))


@given(
    random_events(),
    st.integers(0, 2**32),
    RATES,
    st.integers(0, 30),
    st.booleans(),
    st.sets(st.integers(0, 60), max_size=4),
)
def test_the_stream_equals_the_batch_over_what_it_accepted(
    events: list[MarketEvent], seed: int, rates: dict[FaultKind, float], lateness: int, interval: bool, cuts: set[int]
) -> None:
    """Whatever the faults, the interleaving of partitions, and wherever it is killed and restored: to the bit."""
    ids = list(dict.fromkeys(e.event_id for e in events))
    log = arrival_log(events, 10**15, random_schedule(seed, rates, ids), SNAPSHOT)
    flow = flow_over(sorted({e.instrument for e in events}), interval)
    limits = StreamLimits(lateness_micros=lateness * SECOND, horizon_micros=20 * SECOND)
    records = topic_of(log.arrivals, "a", Counter())
    ticks, accepted, seen = streamed(flow, records, limits)
    assert ticks == batch_of(flow, accepted)
    dice = random.Random(seed)
    for _ in range(2):
        again, others, counted = streamed(flow, interleaved(records, dice), limits, cuts)
        assert (again, counted) == (ticks, seen)
        assert sorted(e.event_id for e in others) == sorted(e.event_id for e in accepted)
    twice = records + topic_of(log.arrivals, "a", Counter(one.partition for one in records))
    assert streamed(flow, twice, limits)[0] == ticks


def test_resume_does_not_take_the_high_water_mark_over_accepted_but_unreleased_events_and_forgets_no_identity() -> None:
    """A system before this one failed here: after a restart one duplicate was accepted again and bent the average."""
    records = topic_of(fixture_log().arrivals, "a", Counter())
    for cut in range(len(records)):
        core, sink = StreamCore(fixture_flow(), PARTITIONS), Sink()
        for one in records[: cut + 1]:
            core.process(one)
        sink.take(core)
        successor = StreamCore(fixture_flow(), PARTITIONS)
        successor.restore(parse(canonical(core.state_document())))
        for one in [*records[cut + 1 :], *records]:
            successor.process(one)
        successor.finish()
        sink.take(successor)
        assert address_of([values[0] for _, _, values in sink.ticks[INSTRUMENT]]) == GOLDEN


@pytest.mark.parametrize("part", ["watermarks", "identities", "lanes", "counts", "flow", "limits", "schema"])
def test_a_state_that_does_not_fit_is_refused(part: str) -> None:
    """Another plan, a part missing, a part of another form: typed, before anything is taken over."""
    core = StreamCore(fixture_flow(), PARTITIONS)
    core.process(record(event(1, 100)))
    state = parse(canonical(core.state_document()))
    for damage in (None, "x", [], {}, [{}] * PARTITIONS):
        with pytest.raises(StateInvalidError):
            StreamCore(fixture_flow(), PARTITIONS).restore(state | {part: damage})
    with pytest.raises(StateInvalidError):
        StreamCore(fixture_flow(), PARTITIONS + 1).restore(state)


def test_what_a_partition_remembers_of_loads_and_gaps_is_bounded() -> None:
    """The load longest unheard of is forgotten; gaps beyond the limit are not opened, and close by their deadlines anyway."""
    identities = Identities(SECOND)
    for number in range(LOADS_MAX + 1):
        identities.add_load((f"load-{number}", 5))
    assert not identities.is_repeated(("load-0", 5))
    assert identities.is_repeated(("load-1", 5))
    assert len(identities.state_document()["loads"]) == LOADS_MAX
    mark = PartitionWatermark(0)
    for number in range(GAPS_MAX + 1):
        mark.open_gap(f"i{number}", 10 * SECOND)
    assert len(mark.state_document()["gaps"]) == GAPS_MAX
    mark.see(10 * SECOND)
    assert mark.at == 10 * SECOND
