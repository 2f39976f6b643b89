"""The verdict on stream runs that have ended: from the topic, read a second time, or honestly not."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.canonical import address
from domain.errors import BlobMissingError, FinazError
from domain.instants import parse_instant, to_micros
from domain.market.arrivals import arrival_log
from domain.market.faults import FaultKind, random_schedule
from domain.market.records import encode_event
from domain.runs.aggregate import RunState
from domain.runs.messages import Mode
from domain.stream.records import StreamRecord
from domain.stream.verdict import VerdictKind
from services.batch_execution import FlowComputation
from services.recomputation import Recomputation
from services.stream_documents import StreamDocuments
from services.stream_parity import Judgement, StreamParity, TopicLook, source_events
from services.stream_parts import StreamEvent
from tests.support.fixture_market import AS_OF, events
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import TOPIC, StreamRig, fixture_log, publish_log
from tests.unit.services.test_stream_worker import batch_run

INSTANT = parse_instant(AS_OF)


@pytest.fixture
def rig() -> StreamRig:
    return StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())


def ended(rig: StreamRig, loads: int = 1, **spec: Any) -> str:
    """A run over the fixture's topic that has SUCCEEDED."""
    publish_log(rig.broker, TOPIC, fixture_log(), loads)
    run_id = rig.request(**spec)
    assert rig.work(run_id).state is RunState.SUCCEEDED
    return run_id


def judged(rig: StreamRig, run_id: str) -> Judgement:
    return StreamParity(rig.log, rig.blobs, lambda: rig.broker).judge(run_id)


@pytest.mark.parametrize("loads", [1, 13])
def test_the_fixture_is_equal_to_the_batch_golden(rig: StreamRig, loads: int) -> None:
    """One load or thirteen; every record of the topic was looked at again."""
    run_id = ended(rig, loads, snapshot=rig.snapshot(), as_of=INSTANT)
    found = judged(rig, run_id)
    assert found.verdict.kind is VerdictKind.EQUAL_TO_BATCH_GOLDEN
    assert found.findings.agrees
    assert found.findings.records == 23 * loads
    assert (found.verdict.accepted, found.verdict.source) == (6, 6)


def test_a_source_that_is_not_known(rig: StreamRig) -> None:
    """Then the run is held to what it accepted, and no more is said."""
    assert judged(rig, ended(rig)).verdict.kind is VerdictKind.EQUAL_TO_ACCEPTED


@pytest.mark.parametrize("how", ["retention", "deleted", "made again", "away", "none", "partitions"])
def test_a_topic_that_cannot_be_read_again_is_said(rig: StreamRig, how: str) -> None:
    """The verdict is over what the run recorded; that the topic was not looked into stands beside it, with the reason."""
    run_id = ended(rig, snapshot=rig.snapshot(), as_of=INSTANT)
    broker = rig.broker
    assert isinstance(broker, MemoryBroker)
    parity = StreamParity(rig.log, rig.blobs, None if how == "none" else lambda: broker)
    if how == "retention":
        broker.delete_records(TOPIC, 3, 2)
    elif how == "deleted":
        broker.delete(TOPIC)
    elif how == "made again":
        broker.delete(TOPIC)
        publish_log(broker, TOPIC, fixture_log(), 20)
    elif how == "away":
        broker.available = False
    elif how == "partitions":
        broker.add_partitions(TOPIC, 6)
    found = parity.judge(run_id)
    assert found.findings.look is TopicLook.COULD_NOT_CHECK
    assert not found.findings.agrees
    code = {"retention": "RECOVERY_BLOCKED", "away": "BROKER_UNAVAILABLE", "partitions": "PARTITIONS_CHANGED"}
    assert found.findings.reason.startswith(code.get(how, "TOPIC_MISSING"))
    assert found.verdict.kind is VerdictKind.EQUAL_TO_BATCH_GOLDEN


def test_a_stream_behind_a_batch_is_judged_with_what_the_batch_took(rig: StreamRig) -> None:
    """It opens at the marks: the batch's events were never in what it read, and are accepted all the same."""
    broker = rig.broker
    assert isinstance(broker, MemoryBroker)
    broker.create(TOPIC, 4, {})
    mine = [event for event in events() if event.instrument == "fixture.fx-0"]
    for event in mine[:2]:
        broker.append(TOPIC, 3, b"fixture.fx-0", encode_event(event), {})
    published = False

    def publish_the_rest(event: StreamEvent) -> None:
        nonlocal published
        if event.name != "stream.reading" or published:
            return
        published = True
        for one in (mine[3], *mine[4:]):  # the first of them is a copy of what the batch took
            broker.append(TOPIC, 3, b"fixture.fx-0", encode_event(one), {})
        for partition in range(4):
            kind = {"kind": b"END_OF_BOUNDED_SOURCE"}
            broker.append(TOPIC, partition, b"fixture.fx-0", None, kind)

    rig.happenings.on = publish_the_rest
    run_id = rig.request(bounded=False, continues=batch_run(rig, 4), snapshot=rig.snapshot(), as_of=INSTANT)
    assert rig.work(run_id).state is RunState.SUCCEEDED
    found = judged(rig, run_id)
    assert found.findings.agrees
    assert (found.verdict.kind, found.verdict.accepted) == (VerdictKind.EQUAL_TO_BATCH_GOLDEN, 6)
    run = rig.run(run_id)
    assert run.spec is not None
    documents = StreamDocuments(rig.log, rig.blobs)(run_id, run.spec)
    assert address(documents[1]) == run.results[0].artifact


def altered(rig: StreamRig, value: bytes | None) -> None:
    """The first record of the selected instrument, as if it had been another one."""
    broker = rig.broker
    assert isinstance(broker, MemoryBroker)
    slots = broker.topic(TOPIC).partitions[3].slots
    place = next(n for n, slot in enumerate(slots) if slot is not None and slot.key == b"fixture.fx-0")
    held = slots[place]
    assert isinstance(held, StreamRecord)
    assert held.value is not None
    new = held.value.replace(b'"close":1.0', b'"close":99.0') if value is None else value
    slots[place] = msgspec.structs.replace(held, value=new)


def test_a_topic_that_says_something_else_is_found(rig: StreamRig) -> None:
    """A worker that had misread a record would be: topic and record disagree, and the values are not those of the topic."""
    run_id = ended(rig, snapshot=rig.snapshot(), as_of=INSTANT)
    altered(rig, None)
    found = judged(rig, run_id)
    assert found.findings.differing == ("fixture.event.0.0",)
    assert not found.findings.agrees
    assert found.verdict.kind is VerdictKind.DIVERGED


def test_a_record_that_should_have_been_set_aside_is_found(rig: StreamRig) -> None:
    """It cannot be read, and the quarantine doesn't have it."""
    run_id = ended(rig)
    altered(rig, b"{}")
    found = judged(rig, run_id)
    assert found.findings.differing == ("fixture.event.0.0",)
    (line,) = found.findings.unexplained
    assert line.startswith("partition 3, offset 0: RECORD_INVALID")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.floats(0.0, 0.7), chunk=st.integers(1, 20))
def test_whatever_the_faults_the_second_look_agrees(seed: int, rate: float, chunk: int) -> None:
    """Random schedules, any interval of checkpoints: never DIVERGED, topic and record agree, lost are those of a GAP."""
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    schedule = random_schedule(seed, dict.fromkeys(FaultKind, rate), [event.event_id for event in events()])
    ordered = sorted(events(), key=lambda event: (event.event_time, event.event_id))
    publish_log(rig.broker, TOPIC, arrival_log(ordered, to_micros(INSTANT), schedule, "sha256:" + "5" * 64), 2)
    run_id = rig.request(snapshot=rig.snapshot(), as_of=INSTANT)
    assert rig.work(run_id, checkpoint_records=chunk).state is RunState.SUCCEEDED
    found = judged(rig, run_id)
    assert found.findings.agrees
    assert found.verdict.kind in (VerdictKind.EQUAL_TO_BATCH_GOLDEN, VerdictKind.DIFFERS_BY_INPUT)
    gone = {fault.event for fault in schedule.faults if fault.kind is FaultKind.GAP}
    assert {identity.event_id for identity in found.verdict.lost.first} <= gone


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_what_a_stream_stored_can_be_made_again(rig: StreamRig, chunk: int) -> None:
    """From its checkpoints alone, however many there were: the very documents that its result names."""
    publish_log(rig.broker, TOPIC, fixture_log(), 2)
    run_id = rig.request(snapshot=rig.snapshot(), as_of=INSTANT)
    rig.work(run_id, checkpoint_records=chunk)
    run = rig.run(run_id)
    assert run.spec is not None
    read, artifact = StreamDocuments(rig.log, rig.blobs)(run_id, run.spec)
    assert (address(read), address(artifact)) == (run.results[0].inputs[-1], run.results[0].artifact)
    again = Recomputation(FlowComputation(rig.blobs, 10**6, 10**6), StreamDocuments(rig.log, rig.blobs))
    assert again(run_id, run.spec) == (read, artifact)
    again.close()
    with pytest.raises(BlobMissingError):
        StreamDocuments(rig.log, rig.blobs)(rig.request(), run.spec)
    alone = Recomputation(FlowComputation(rig.blobs, 10**6, 10**6))
    with pytest.raises(BlobMissingError):
        alone(run_id, run.spec)
    alone.close()


def test_only_stream_runs_that_ended_are_judged(rig: StreamRig) -> None:
    """No run, another mode, nothing published: each is an error of its own."""
    queued = rig.request()
    batch = rig.request(mode=Mode.BATCH)
    for run_id, code in (("run_" + "0" * 64, "RUN_NOT_FOUND"), (batch, "NOT_FOUND"), (queued, "RUN_NOT_READY")):
        with pytest.raises(FinazError) as caught:
            judged(rig, run_id)
        assert caught.value.code == code


def test_the_events_of_a_source_are_those_that_were_there_and_are_selected(rig: StreamRig) -> None:
    """As of an instant, of the flow's instruments."""
    early = to_micros(parse_instant("2026-01-05T09:02:30Z"))
    found: Iterator[str] = (e.event_id for e in source_events(rig.blobs, rig.snapshot(), early, rig.flow))
    assert list(found) == ["fixture.event.0.0", "fixture.event.0.1", "fixture.event.0.2"]
