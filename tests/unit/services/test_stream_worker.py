"""The stream worker on a log, a broker and blobs in memory: what it does to the end, and what it does when something goes wrong."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import (
    BlobMissingError,
    FinazError,
    InputError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    StoreUnavailableError,
)
from domain.identity import journal_stream, lease_stream, run_stream
from domain.leases.aggregate import Lease
from domain.leases.messages import LeaseGranted, LeaseReleased
from domain.runs.aggregate import RunState
from domain.runs.messages import Mode, ResultPublished, RunCancellationRequested, RunFailed, RunHandedOff
from domain.stream.backpressure import PressureLimits, Threshold
from domain.stream.errors import (
    BrokerUnavailableError,
    CheckpointInvalidError,
    PartitionsChangedError,
    RecoveryBlockedError,
    StreamFenceStaleError,
    StreamLeaseHeldError,
    TopicMissingError,
)
from domain.stream.journal import Journal, decide
from domain.stream.messages import (
    BoundedSourceEnded,
    Place,
    Pressure,
    PressureEntered,
    RecordsOmitted,
    RecordsRetried,
    RequestRetry,
    SourceOpened,
    StreamHandedOff,
)
from domain.stream.records import HEADER_KIND, Announcement
from services import faultpoints
from services.leases import fold_lease
from services.ports import Append, NewEvent
from services.stream_claim import CLAIM_TRIES_MAX, LEASE_FOLD
from services.stream_parts import ATTEMPTS_MAX, EVENT_NAMES, StreamEnd, StreamEvent
from tests.support.fixture_market import GOLDEN
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker, MemorySource
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import FIXTURE_COUNTS, THIRTEEN_COUNTS, TOPIC, StreamRig, fixture_log, publish_log

TTL = 30.0


class Crash(BaseException):
    """The process dies here: nothing that handles exceptions sees it."""


@pytest.fixture
def rig() -> StreamRig:
    return StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())


@pytest.fixture
def thirteen(rig: StreamRig) -> StreamRig:
    """The topic has thirteen loads of the fixture's arrivals: 299 records."""
    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    return rig


def memory(rig: StreamRig) -> MemoryLog:
    assert isinstance(rig.log, MemoryLog)
    return rig.log


def topic(rig: StreamRig) -> MemoryBroker:
    assert isinstance(rig.broker, MemoryBroker)
    return rig.broker


def expire(rig: StreamRig) -> None:
    """Whoever holds a lease holds it no more."""
    memory(rig).advance(TTL + 1)


def golden(rig: StreamRig, run_id: str, counts: dict[str, int], token: int = 1) -> None:
    """The run published once, under the token, the golden values; every record is accounted for."""
    published = rig.of(run_id, ResultPublished)
    assert [(event.token, event.result.values_hash) for event in published] == [(token, GOLDEN)]
    assert rig.counts(run_id) == counts
    assert rig.run(run_id).state is RunState.SUCCEEDED


@contextmanager
def crashing(rig: StreamRig, at: str, nth: int = 1) -> Iterator[None]:
    """The process dies when it tells of the nth happening of that name."""
    seen = Counter[str]()

    def on(event: StreamEvent) -> None:
        seen[event.name] += 1
        if event.name == at and seen[at] == nth:
            raise Crash

    rig.happenings.on = on
    try:
        with pytest.raises(Crash):
            yield
    finally:
        rig.happenings.on = lambda event: None


# ------------------------------------------------------------------------------------------------ to the end


@pytest.mark.parametrize(("loads", "counts"), [(1, FIXTURE_COUNTS), (13, THIRTEEN_COUNTS)])
@pytest.mark.parametrize("every", [1, 7, 100_000])
def test_the_fixture_reaches_the_golden(rig: StreamRig, loads: int, counts: dict[str, int], every: int) -> None:
    """However often it commits: one load 6/15/1/1, thirteen 6/195/13/85, and the golden values."""
    publish_log(rig.broker, TOPIC, fixture_log(), loads)
    run_id = rig.request(snapshot=rig.snapshot())
    outcome = rig.work(run_id, checkpoint_records=every, checkpoint_seconds=3600.0)
    assert (outcome.end, outcome.token, outcome.results[0].values_hash) == (StreamEnd.FINISHED, 1, GOLDEN)
    golden(rig, run_id, counts)
    (opened,) = rig.of(run_id, SourceOpened)
    (ended,) = rig.of(run_id, BoundedSourceEnded)
    last = rig.of(run_id, CheckpointCommitted)[-1]
    assert opened.marks == ended.marks == last.next_offsets
    assert len(rig.of(run_id, LeaseReleased)) == 1
    assert set(rig.happenings.names()) <= EVENT_NAMES


def test_the_end_is_one_append(thirteen: StreamRig) -> None:
    """The last cut, the results, the run's end and the release stand at positions that follow each other."""
    run_id = thirteen.request()
    thirteen.work(run_id)
    last = thirteen.topics(run_id)[-5:]
    assert last == [
        "journal.bounded_source_ended.v1",
        "checkpoint.committed.v1",
        "lease.released.v1",
        "run.result_published.v1",
        "run.succeeded.v1",
    ]


def test_records_behind_the_captured_marks_are_not_the_runs(thirteen: StreamRig) -> None:
    """What is published after the run opened its source changes nothing of it."""
    run_id = thirteen.request()
    assert thirteen.work(run_id, total_records=100).end is StreamEnd.TOTAL_REACHED
    publish_log(thirteen.broker, TOPIC, fixture_log(), 2)
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2)


def test_an_empty_topic_is_an_empty_result(rig: StreamRig) -> None:
    """Low and high equal: there is nothing to wait for."""
    topic(rig).create(TOPIC, 4, {})
    run_id = rig.request()
    outcome = rig.work(run_id)
    assert [(r.rows, outcome.state) for r in outcome.results] == [(0, RunState.SUCCEEDED)]


def test_offsets_without_a_record_are_absent(rig: StreamRig) -> None:
    """Markers at the end of a log and compacted records are counted once, and the marks are reached."""
    publish_log(rig.broker, TOPIC, fixture_log())
    topic(rig).append_absent(TOPIC, 3, 2)
    topic(rig).append_absent(TOPIC, 1, 1)
    topic(rig).compact(TOPIC, 0, [0, 1])
    run_id = rig.request()
    rig.work(run_id, checkpoint_records=3)
    golden(rig, run_id, {**FIXTURE_COUNTS, "filtered": 13, "absent": 5})


def test_an_endless_run_ends_when_every_partition_says_so(rig: StreamRig) -> None:
    """END_OF_BOUNDED_SOURCE in-band in all partitions: the rest is released and published."""
    publish_log(rig.broker, TOPIC, fixture_log())
    kind = {HEADER_KIND: Announcement.END_OF_BOUNDED_SOURCE.value.encode()}
    for partition in range(4):
        topic(rig).append(TOPIC, partition, b"fixture.fx-0", None, kind)
    run_id = rig.request(bounded=False)
    assert rig.work(run_id).state is RunState.SUCCEEDED
    golden(rig, run_id, {**FIXTURE_COUNTS, "omitted": 5})
    assert rig.of(run_id, SourceOpened)[0].marks is None


def test_an_endless_run_goes_on_until_it_is_stopped(rig: StreamRig) -> None:
    """What comes in is committed; SIGTERM's event commits the rest and gives the lease back; nothing is published."""
    publish_log(rig.broker, TOPIC, fixture_log())
    run_id = rig.request(bounded=False)
    stop = threading.Event()
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(rig.worker().run(run_id, stop)))
    thread.start()
    rig.happenings.wait_for("stream.committed")
    publish_log(rig.broker, TOPIC, fixture_log())
    rig.happenings.wait_for("stream.committed", 2)
    stop.set()
    thread.join(20)
    assert [outcome.end for outcome in outcomes] == [StreamEnd.STOPPED]
    assert rig.run(run_id).state is RunState.RUNNING
    assert rig.topics(run_id)[-1] == "lease.released.v1"
    assert rig.of(run_id, ResultPublished) == []
    assert sum(rig.counts(run_id).values()) == 46


def test_a_total_is_reached_exactly_resumes_included(thirteen: StreamRig) -> None:
    """`--once-n` counts what the run has journalled: 100, then 150 in all; below the marks nothing is published."""
    run_id = thirteen.request()
    for total in (100, 100, 150):
        assert thirteen.work(run_id, total_records=total, checkpoint_records=40).end is StreamEnd.TOTAL_REACHED
        assert sum(thirteen.counts(run_id).values()) == total
    assert thirteen.of(run_id, ResultPublished) == []
    thirteen.work(run_id, total_records=299)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=4)


def test_a_pace_is_kept(thirteen: StreamRig) -> None:
    """Records are taken in slices; the result is the same."""
    run_id = thirteen.request()
    thirteen.work(run_id, pace=2000.0, checkpoint_records=50)
    golden(thirteen, run_id, THIRTEEN_COUNTS)


# ------------------------------------------------------------------------------------------------ who may work on it


def test_only_a_stream_run_that_is_there_can_be_worked_on(rig: StreamRig) -> None:
    """An unknown run and one of another mode are refused, and nothing is written."""
    with pytest.raises(RunNotFoundError):
        rig.work("run_" + "0" * 64)
    run_id = rig.request(mode=Mode.BATCH)
    with pytest.raises(InputError, match="a BATCH run"):
        rig.work(run_id)
    assert rig.topics(run_id) == ["run.requested.v1"]


def test_an_intruder_is_refused_and_leaves_no_trace(thirteen: StreamRig) -> None:
    """While the lease is live: `STREAM_LEASE_OCUPADO`, and no event."""
    run_id = thirteen.request()
    with crashing(thirteen, "stream.committed"):
        thirteen.work(run_id, checkpoint_records=50)
    before = thirteen.topics(run_id)
    with pytest.raises(StreamLeaseHeldError) as refused:
        thirteen.work(run_id)
    assert refused.value.code == "STREAM_LEASE_OCUPADO"
    assert thirteen.topics(run_id) == before


def test_a_stand_by_takes_over_when_the_lease_is_over(thirteen: StreamRig) -> None:
    """It waits while the lease is live, and goes on from the last commit under the next token."""
    run_id = thirteen.request()
    with crashing(thirteen, "stream.committed", 2):
        thirteen.work(run_id, checkpoint_records=50)
    worker = thirteen.worker(standby=True, standby_look_seconds=0.01)
    thread = threading.Thread(target=worker.run, args=(run_id, threading.Event()))
    thread.start()
    thirteen.happenings.wait_for("stream.waiting", 3)
    assert len(thirteen.of(run_id, LeaseGranted)) == 1
    expire(thirteen)
    thread.join(20)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2)


def test_a_stand_by_outlives_an_absence_of_its_store(thirteen: StreamRig) -> None:
    """It looks again; the run is taken when the lease is over."""
    run_id = thirteen.request()
    with crashing(thirteen, "stream.committed"):
        thirteen.work(run_id, checkpoint_records=50)
    read = memory(thirteen).read_state_blocking
    away = [True]

    def reading(stream: str, fold: Any) -> Any:
        if stream == lease_stream(run_id) and away[0]:
            away[0] = False
            expire(thirteen)
            raise StoreUnavailableError("away")
        return read(stream, fold)

    memory(thirteen).read_state_blocking = reading  # type: ignore[method-assign]
    thirteen.work(run_id, standby=True, standby_look_seconds=0.01)
    assert "stream.away" in thirteen.happenings.names()
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2)


def test_a_lease_is_known_from_its_snapshot(thirteen: StreamRig) -> None:
    """What the stand-by's cheap look keeps of a lease is the lease."""
    run_id = thirteen.request()
    thirteen.work(run_id)
    lease = fold_lease(run_id, thirteen.log.read_streams_blocking([lease_stream(run_id)]).streams[lease_stream(run_id)])
    for one in (lease, Lease(run_id)):
        assert LEASE_FOLD.from_document(LEASE_FOLD.to_document(one)) == one
    assert thirteen.log.read_state_blocking(lease_stream(run_id), LEASE_FOLD).state == lease


def test_a_stand_by_that_is_told_to_stop_stops(thirteen: StreamRig) -> None:
    """Without having touched the run."""
    run_id = thirteen.request()
    with crashing(thirteen, "stream.committed"):
        thirteen.work(run_id, checkpoint_records=50)
    before = thirteen.topics(run_id)
    stop = threading.Event()
    stop.set()
    assert thirteen.worker(standby=True).run(run_id, stop).end is StreamEnd.STOPPED
    assert thirteen.topics(run_id) == before


def test_the_handoff_manifest_says_from_whom_to_whom_and_from_where(thirteen: StreamRig) -> None:
    """Both owners, both tokens, the checkpoint and its offsets; without a checkpoint, the start's."""
    run_id = thirteen.request()
    with crashing(thirteen, "stream.reading"):
        thirteen.work(run_id)
    for nth in (1, 2):
        expire(thirteen)
        with crashing(thirteen, "stream.committed", nth):
            thirteen.work(run_id, checkpoint_records=50)
    expire(thirteen)
    thirteen.work(run_id)
    first, second, third = thirteen.of(run_id, StreamHandedOff)
    commits = thirteen.of(run_id, CheckpointCommitted)
    assert (first.epoch, first.manifest, first.next_offsets) == (0, "", {str(p): 0 for p in range(4)})
    for handoff, token, committed in ((second, 3, commits[0]), (third, 4, commits[2])):
        assert (handoff.previous_token, handoff.token) == (token - 1, token)
        assert (handoff.previous_owner, handoff.owner) == (f"owner-{token - 1}", f"owner-{token}")
        assert handoff.epoch == committed.epoch
        assert handoff.manifest_hash == committed.manifest_hash
        assert handoff.next_offsets == committed.next_offsets
    assert [event.token for event in thirteen.of(run_id, RunHandedOff)] == [2, 3, 4]
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=4)


def test_an_owner_that_was_overtaken_writes_nothing(thirteen: StreamRig) -> None:
    """A sleeps after a commit; B takes over and ends the run; A wakes: `STREAM_FENCE_OBSOLETO`, and no event of A."""
    run_id = thirteen.request()

    def asleep(event: StreamEvent) -> None:
        if event.name == "stream.committed" and event.token == 1:
            thirteen.happenings.on = lambda event: None
            expire(thirteen)
            thirteen.work(run_id)

    thirteen.happenings.on = asleep
    with pytest.raises(StreamFenceStaleError) as refused:
        thirteen.work(run_id, checkpoint_records=50)
    assert refused.value.code == "STREAM_FENCE_OBSOLETO"
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2)
    events = [recorded.event for recorded in thirteen.events(run_id)]
    taken = next(n for n, event in enumerate(events) if isinstance(event, LeaseGranted) and event.token == 2)
    assert [event for event in events[taken:] if getattr(event, "token", 2) == 1] == []


def test_an_expired_lease_is_lost_even_if_nobody_took_it(thirteen: StreamRig) -> None:
    """The last owner of a lease that has run out cannot commit either."""
    run_id = thirteen.request()
    thirteen.happenings.on = lambda event: expire(thirteen) if event.name == "stream.committed" else None
    with pytest.raises(StreamFenceStaleError):
        thirteen.work(run_id, checkpoint_records=50)
    assert len(thirteen.of(run_id, CheckpointCommitted)) == 1


def test_owners_that_die_without_a_checkpoint_exhaust_the_attempts(thirteen: StreamRig) -> None:
    """Five in a row: the run ends FAILED, the item is delivered, and the last word of an owner is kept."""
    run_id = thirteen.request()
    for _ in range(ATTEMPTS_MAX):
        with crashing(thirteen, "stream.reading"):
            thirteen.work(run_id)
        expire(thirteen)
    with pytest.raises(RunFailedError, match="ATTEMPTS_EXHAUSTED"):
        thirteen.work(run_id)
    (failed,) = thirteen.of(run_id, RunFailed)
    assert failed.error.code == "ATTEMPTS_EXHAUSTED"
    with pytest.raises(RunFailedError):
        thirteen.work(run_id)


def test_a_checkpoint_makes_the_attempts_count_anew(thirteen: StreamRig) -> None:
    """Twice as many crashes as attempts, each behind a checkpoint of its own: the run goes on."""
    run_id = thirteen.request()
    for _ in range(2 * ATTEMPTS_MAX):
        with crashing(thirteen, "stream.committed"):
            thirteen.work(run_id, checkpoint_records=20)
        expire(thirteen)
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2 * ATTEMPTS_MAX + 1)


def test_owners_that_hand_back_are_no_failures(thirteen: StreamRig) -> None:
    """An orderly end is nobody's attempt, even without progress."""
    run_id = thirteen.request()
    for _ in range(2 * ATTEMPTS_MAX):
        thirteen.work(run_id, total_records=0)
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2 * ATTEMPTS_MAX + 1)


# ------------------------------------------------------------------------------------------------ faults at every effect


def passes(rig: StreamRig, run_id: str, **settings: Any) -> Counter[str]:
    """How often each fault point is passed by a run that nothing happens to."""
    seen = Counter[str]()
    with faultpoints.armed(lambda name: seen.update([name])):
        rig.work(run_id, **settings)
    return seen


@pytest.mark.parametrize("what", ["kill", "error"])
def test_a_crash_or_a_lost_answer_at_every_effect_changes_nothing(what: str) -> None:
    """The process dies, or is told nothing, before and after each of its effects in turn: golden, one publication, counts right."""
    settings: dict[str, Any] = {"checkpoint_records": 100, "checkpoint_seconds": 3600.0, "away_seconds_max": 5.0}

    def fresh() -> tuple[StreamRig, str]:
        rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
        publish_log(rig.broker, TOPIC, fixture_log(), 13)
        return rig, rig.request(snapshot=rig.snapshot())

    total = passes(*fresh(), **settings)
    assert {name.partition(".")[0] for name in total} >= {"append", "cas_write", "publish"}
    for name, times in sorted(total.items()):
        for nth in sorted({1, 2, times // 2, times - 1, times} & set(range(1, times + 1))):
            rig, run_id = fresh()
            seen = Counter[str]()

            def strike(point: str, name: str = name, nth: int = nth, seen: Counter[str] = seen) -> None:
                seen[point] += 1
                if (point, seen[point]) == (name, nth):
                    raise Crash if what == "kill" else StoreUnavailableError("away, this once")

            with faultpoints.armed(strike):
                try:
                    rig.work(run_id, **settings)
                except Crash:
                    expire(rig)
            if rig.run(run_id).state is not RunState.SUCCEEDED:
                rig.work(run_id, **settings)
            golden(rig, run_id, THIRTEEN_COUNTS, token=rig.run(run_id).token)


def test_a_claim_whose_answer_is_lost_is_one_claim(thirteen: StreamRig) -> None:
    """The same append again is the same append; it is tried a limited number of times."""
    run_id = thirteen.request()
    seen = Counter[str]()

    def lose(point: str) -> None:
        seen[point] += 1
        if point == faultpoints.APPEND_AFTER and seen[point] == 1:
            raise StoreUnavailableError("the answer was lost")

    with faultpoints.armed(lose):
        thirteen.work(run_id)
    assert len(thirteen.of(run_id, LeaseGranted)) == 1

    def away(point: str) -> None:
        seen[point] += 1
        raise StoreUnavailableError("away")

    seen.clear()
    with faultpoints.armed(away), pytest.raises(StoreUnavailableError):
        thirteen.work(thirteen.request())
    assert seen[faultpoints.APPEND_BEFORE] == CLAIM_TRIES_MAX


# ------------------------------------------------------------------------------------------------ what stops it


def blocked(rig: StreamRig, run_id: str, error: type[FinazError], **settings: Any) -> None:
    """The worker stops with the error; why is recorded, the lease given back, the run goes on when it is put right."""
    with pytest.raises(error):
        rig.work(run_id, **settings)
    word = rig.of(run_id, PressureEntered)[-1]
    assert word.state is Pressure.RECOVERY_BLOCKED
    assert word.reason.startswith(f"{error.code}: ")
    assert rig.topics(run_id)[-1] == "lease.released.v1"
    assert rig.run(run_id).state is RunState.RUNNING


def stopped_at(rig: StreamRig, total: int = 100) -> str:
    """A run that has read so many records and was handed back."""
    run_id = rig.request()
    rig.work(run_id, total_records=total, checkpoint_records=50)
    return run_id


def test_another_number_of_partitions_stops_the_worker(thirteen: StreamRig) -> None:
    """`PARTITIONS_CHANGED`: keys may have moved, so no order can be promised."""
    run_id = stopped_at(thirteen)
    topic(thirteen).add_partitions(TOPIC, 5)
    blocked(thirteen, run_id, PartitionsChangedError)


def test_a_partition_added_under_a_running_worker_stops_it(rig: StreamRig) -> None:
    """What was read is not committed on; the checkpoint before stands."""
    publish_log(rig.broker, TOPIC, fixture_log())
    run_id = rig.request(bounded=False)
    added = threading.Event()

    def add(event: StreamEvent) -> None:
        if event.name == "stream.committed" and not added.is_set():
            added.set()
            topic(rig).add_partitions(TOPIC, 6)

    rig.happenings.on = add
    blocked(rig, run_id, PartitionsChangedError)


def test_a_hole_that_retention_made_stops_the_worker(thirteen: StreamRig) -> None:
    """`RECOVERY_BLOCKED`: offsets that the checkpoint needs are gone; nothing jumps over them."""
    run_id = stopped_at(thirteen)
    needed = thirteen.of(run_id, CheckpointCommitted)[-1].next_offsets
    topic(thirteen).delete_records(TOPIC, 3, needed["3"] + 1)
    blocked(thirteen, run_id, RecoveryBlockedError)
    assert thirteen.of(run_id, CheckpointCommitted)[-1].next_offsets == needed


def test_retention_that_has_emptied_what_was_read_blocks_nothing(rig: StreamRig) -> None:
    """Low and high equal, and the checkpoint just there: the run goes on with what comes next."""
    publish_log(rig.broker, TOPIC, fixture_log())
    run_id = rig.request(bounded=False)
    rig.work(run_id, total_records=23)
    for partition, marks in rig.broker.source(TOPIC).marks().items():
        topic(rig).delete_records(TOPIC, partition, marks.high)
    publish_log(rig.broker, TOPIC, fixture_log())
    rig.work(run_id, total_records=46)
    assert sum(rig.counts(run_id).values()) == 46


def test_a_broker_that_lost_data_stops_the_worker(thirteen: StreamRig) -> None:
    """The journal is ahead of the log: `RECOVERY_BLOCKED`, and not a silent start over."""
    run_id = stopped_at(thirteen, 290)
    topic(thirteen).lose(TOPIC, 3, 100)
    blocked(thirteen, run_id, RecoveryBlockedError)


def remade(rig: StreamRig) -> None:
    """The topic is deleted, made again, and has more records than any run has read."""
    topic(rig).delete(TOPIC)
    publish_log(rig.broker, TOPIC, fixture_log(), 20)


def test_a_topic_made_again_between_owners_stops_the_next(thirteen: StreamRig) -> None:
    """`RECOVERY_BLOCKED`: its offsets are other records, though it has them all."""
    run_id = stopped_at(thirteen)
    before = thirteen.topics(run_id).count(CheckpointCommitted.topic)
    remade(thirteen)
    blocked(thirteen, run_id, RecoveryBlockedError)
    assert thirteen.topics(run_id).count(CheckpointCommitted.topic) == before


@pytest.mark.parametrize("bounded", [True, False])
def test_a_topic_made_again_under_a_worker_is_not_committed(rig: StreamRig, bounded: bool) -> None:
    """What was read of the topic that took the name goes neither into a checkpoint nor into a result."""
    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    run_id = rig.request(bounded=bounded)
    done = threading.Event()

    def remake(event: StreamEvent) -> None:
        if event.name == "stream.committed" and not done.is_set():
            done.set()
            remade(rig)

    rig.happenings.on = remake
    blocked(rig, run_id, RecoveryBlockedError, checkpoint_records=50)
    assert rig.topics(run_id).count(CheckpointCommitted.topic) == 1
    assert not rig.of(run_id, ResultPublished)


def test_a_broker_that_tells_no_topics_apart_stops_nothing(
    thirteen: StreamRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the beginning nor from some owner on."""
    run_id = stopped_at(thirteen)
    monkeypatch.setattr(MemorySource, "identity", lambda source: "")
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, 2)
    run_id = thirteen.request()
    thirteen.work(run_id, total_records=100)
    monkeypatch.undo()
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, 2)


def test_a_topic_that_is_not_there_is_not_made(rig: StreamRig) -> None:
    """`TOPIC_MISSING`; once it is created the run goes on."""
    run_id = rig.request()
    blocked(rig, run_id, TopicMissingError)
    assert topic(rig).describe(TOPIC) is None
    publish_log(rig.broker, TOPIC, fixture_log())
    rig.work(run_id)
    golden(rig, run_id, FIXTURE_COUNTS, token=2)


def test_a_checkpoint_that_is_lost_stops_the_worker_and_is_never_guessed_around(thirteen: StreamRig) -> None:
    """A blob of it is gone: the run stops by name; put back, it goes on."""
    run_id = stopped_at(thirteen)
    assert isinstance(thirteen.blobs, MemoryBlobs)
    address = thirteen.of(run_id, CheckpointCommitted)[-1].manifest
    kept = thirteen.blobs.blobs.pop(address)
    blocked(thirteen, run_id, BlobMissingError)
    thirteen.blobs.put(kept)
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=3)


def test_a_flow_that_is_gone_fails_the_run(thirteen: StreamRig) -> None:
    """That is the input's fault: FAILED at once, no loop."""
    run_id = thirteen.request()
    spec = thirteen.run(run_id).spec
    assert spec is not None
    assert isinstance(thirteen.blobs, MemoryBlobs)
    del thirteen.blobs.blobs[spec.flow]
    with pytest.raises(RunFailedError, match="BLOB_MISSING"):
        thirteen.work(run_id)


def test_a_state_of_another_plan_is_refused(thirteen: StreamRig) -> None:
    """Other limits mean other values: `CHECKPOINT_INVALID`."""
    from domain.stream.worker_core import StreamLimits

    run_id = stopped_at(thirteen)
    with pytest.raises(CheckpointInvalidError):
        thirteen.work(run_id, limits=StreamLimits(lateness_micros=1))


def test_a_broker_that_is_away_is_waited_for(thirteen: StreamRig) -> None:
    """Away when it is opened, and away in the middle: nothing is lost, and the worker says so."""
    run_id = thirteen.request()
    topic(thirteen).available = False

    def back(event: StreamEvent) -> None:
        if event.name == "stream.away":
            topic(thirteen).available = True
        if event.name == "stream.committed" and event.epoch == 2:
            topic(thirteen).available = False

    thirteen.happenings.on = back
    thirteen.work(run_id, checkpoint_records=50)
    assert len(thirteen.happenings.of("stream.away")) >= 2
    golden(thirteen, run_id, THIRTEEN_COUNTS)


def test_a_broker_that_stays_away_ends_the_ownership_and_not_the_run(thirteen: StreamRig) -> None:
    """After the limit the worker gives up and says why in the journal; its lease runs out, and the next goes on."""
    run_id = thirteen.request()
    topic(thirteen).available = False
    with pytest.raises(BrokerUnavailableError):
        thirteen.work(run_id, away_seconds_max=0.2)
    assert thirteen.of(run_id, PressureEntered)[-1].reason.startswith("BROKER_UNAVAILABLE: ")
    assert thirteen.of(run_id, LeaseReleased) == []
    topic(thirteen).available = True
    expire(thirteen)
    thirteen.work(run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS, token=2)


def test_a_cancellation_is_honoured_and_nothing_is_published(thirteen: StreamRig) -> None:
    """Asked while it runs: CANCELLED at the next look, the lease given back."""
    run_id = thirteen.request(bounded=False)

    def cancel(event: StreamEvent) -> None:
        if event.name == "stream.committed" and event.epoch == 1:
            asked = RunCancellationRequested(run_id=run_id, principal="ana")
            version = len(thirteen.log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)])
            thirteen.log.append_blocking(Append(events=(NewEvent(run_stream(run_id), version + 1, asked, uuid4()),)))

    thirteen.happenings.on = cancel
    with pytest.raises(RunCancelledError):
        thirteen.work(run_id, checkpoint_records=50)
    assert thirteen.run(run_id).state is RunState.CANCELLED
    assert thirteen.of(run_id, ResultPublished) == []
    assert len(thirteen.of(run_id, LeaseReleased)) == 1


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_a_deadline_ends_the_run(thirteen: StreamRig, when: str) -> None:
    """Past it the run is FAILED with `DEADLINE_EXCEEDED`, whether somebody works on it or it is taken over too late."""
    run_id = thirteen.request(bounded=False, deadline_seconds=600)
    if when == "running":
        passing = threading.Event()

        def late(event: StreamEvent) -> None:
            if event.name == "stream.committed" and not passing.is_set():
                passing.set()
                memory(thirteen).advance(601)

        thirteen.happenings.on = late
        settings: dict[str, Any] = {"lease_ttl_seconds": 3600.0}
    else:
        with crashing(thirteen, "stream.committed"):
            thirteen.work(run_id, checkpoint_records=50)
        memory(thirteen).advance(601)
        settings = {}
    with pytest.raises(RunFailedError, match="DEADLINE_EXCEEDED"):
        thirteen.work(run_id, checkpoint_records=50, **settings)


# ------------------------------------------------------------------------------------------------ the quarantine


def unreadable(rig: StreamRig, value: bytes = b'{"event_id":') -> None:
    """A record of the selected instrument that cannot be read."""
    topic(rig).append(TOPIC, 3, b"fixture.fx-0", value, {})


def ask_for_retry(rig: StreamRig, run_id: str, *places: tuple[int, int]) -> None:
    """An operator asks that records be judged again."""
    from domain.stream.journal import evolve

    stream = journal_stream(run_id)
    events = rig.log.read_streams_blocking([stream]).streams[stream]
    journal = Journal(run_id)
    for recorded in events:
        journal = evolve(journal, recorded.event)
    items = tuple(Place(partition=partition, offset=offset) for partition, offset in places)
    wanted = decide(journal, RequestRetry(principal="ana", items=items))
    news = [NewEvent(stream, len(events) + n, event, uuid4()) for n, event in enumerate(wanted, 1)]
    rig.log.append_blocking(Append(events=tuple(news)))


def test_an_unreadable_record_is_set_aside_and_asked_for_while_the_worker_runs(rig: StreamRig) -> None:
    """A truncated value stops nothing; an operator's request is settled by the next checkpoint, and counts stay right."""
    publish_log(rig.broker, TOPIC, fixture_log())
    unreadable(rig)
    run_id = rig.request(bounded=False)
    stop = threading.Event()
    thread = threading.Thread(target=rig.worker().run, args=(run_id, stop))
    thread.start()
    rig.happenings.wait_for("stream.committed")
    while not any(not item.terminal for event in rig.of(run_id, RecordsOmitted) for item in event.items):
        rig.happenings.wait_for("stream.committed", len(rig.happenings.of("stream.committed")) + 1)
    ask_for_retry(rig, run_id)
    rig.happenings.wait_for("stream.retried")
    stop.set()
    thread.join(20)
    (retried,) = rig.of(run_id, RecordsRetried)
    assert [(item.partition, item.treatment.value) for item in retried.items] == [(3, "omitted")]
    assert rig.counts(run_id) == {**FIXTURE_COUNTS, "omitted": 2}


def test_the_quarantine_is_tried_again_on_resume(rig: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fix of the reader the next owner reads what the first could not: omitted becomes what it is now, once."""
    from domain.stream import worker_core
    from domain.stream.records import UnreadableError, readable_event

    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    readable: Callable[..., Any] = readable_event

    def broken(record: Any, *rest: Any) -> Any:
        if record.offset < 9:
            raise UnreadableError("the reader is broken", at="here")
        return readable(record, *rest)

    monkeypatch.setattr(worker_core, "readable_event", broken)
    run_id = rig.request()
    rig.work(run_id, total_records=95, checkpoint_records=95, checkpoint_seconds=3600.0)
    before = rig.counts(run_id)
    assert before["omitted"] > 1
    monkeypatch.setattr(worker_core, "readable_event", readable)
    rig.work(run_id)
    after = rig.counts(run_id)
    assert sum(after.values()) == 299
    assert after["omitted"] == 13
    assert rig.run(run_id).state is RunState.SUCCEEDED


# ------------------------------------------------------------------------------------------------ pressure


def states(rig: StreamRig, run_id: str) -> list[str]:
    return [event.state.value for event in rig.of(run_id, PressureEntered)]


def test_uncommitted_records_pause_the_source_until_they_are_committed(thirteen: StreamRig) -> None:
    """The threshold is reached before a checkpoint is due: pause, commit, go on; both are recorded."""
    run_id = thirteen.request()
    limits = PressureLimits(uncommitted_records=Threshold(100, 0))
    thirteen.work(run_id, pressure=limits, poll_records=50, checkpoint_seconds=3600.0)
    assert states(thirteen, run_id) == ["SOURCE_PAUSED", "FLOWING"] * 2
    golden(thirteen, run_id, THIRTEEN_COUNTS)


def test_received_bytes_pause_the_source_until_they_are_committed(thirteen: StreamRig) -> None:
    """As above, by bytes."""
    run_id = thirteen.request()
    limits = PressureLimits(uncommitted_bytes=Threshold(10_000, 0))
    thirteen.work(run_id, pressure=limits, poll_records=50, checkpoint_seconds=3600.0)
    assert states(thirteen, run_id)[:2] == ["SOURCE_PAUSED", "FLOWING"]
    golden(thirteen, run_id, THIRTEEN_COUNTS)


def test_a_full_disk_pauses_the_source(thirteen: StreamRig) -> None:
    """Below the threshold nothing is read; above the upper one it goes on."""
    run_id = thirteen.request()
    free = [10, 10, 150, 250]
    worker = thirteen.worker(
        disk_free=lambda: free.pop(0) if len(free) > 1 else free[0],
        pressure=PressureLimits(disk_free_bytes=Threshold(200, 100)),
        look_seconds=0.0,
    )
    worker.run(run_id, threading.Event())
    assert thirteen.happenings.names().index("stream.pressure") < thirteen.happenings.names().index("stream.committed")
    assert states(thirteen, run_id) == ["SOURCE_PAUSED", "FLOWING"]
    golden(thirteen, run_id, THIRTEEN_COUNTS)


def test_retention_that_overtakes_the_last_checkpoint_is_said_and_a_commit_made(
    rig: StreamRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restart would need has gone, though this owner has read it: RECOVERY_BLOCKED, a commit at once, FLOWING again."""
    publish_log(rig.broker, TOPIC, fixture_log(), 2)
    run_id = rig.request(bounded=False)
    poll = MemorySource.poll

    def polled(source: MemorySource, limit: int, timeout_seconds: float) -> Any:
        found = poll(source, limit, timeout_seconds)
        if found.records:
            topic(rig).delete_records(TOPIC, 3, found.next_offsets[3])
        return found

    monkeypatch.setattr(MemorySource, "poll", polled)
    stop = threading.Event()
    worker = rig.worker(checkpoint_seconds=3600.0, retention_look_seconds=0.0)
    thread = threading.Thread(target=worker.run, args=(run_id, stop))
    thread.start()
    rig.happenings.wait_for("stream.pressure", 2)
    stop.set()
    thread.join(20)
    assert states(rig, run_id) == ["RECOVERY_BLOCKED", "FLOWING"]
    assert rig.topics(run_id)[4:7] == [
        "journal.pressure_entered.v1",
        "journal.records_omitted.v1",
        "checkpoint.committed.v1",
    ]


def test_a_full_buffer_pauses_all_but_the_minimum(thirteen: StreamRig) -> None:
    """Events that wait for their watermark fill the buffer: the worker still comes to the end, and to the golden."""
    run_id = thirteen.request()
    limits = PressureLimits(buffered_events=Threshold(1, 0))
    thirteen.work(run_id, pressure=limits, poll_records=3)
    assert "PROCESS_PAUSED" in states(thirteen, run_id)
    golden(thirteen, run_id, THIRTEEN_COUNTS)


def test_a_buffer_that_grows_for_ever_ends_the_run_and_not_the_process(rig: StreamRig) -> None:
    """A watermark that does not move while events come in: FAILED with `RUN_TOO_LARGE` at a stated limit."""
    from domain.market.records import MarketEvent, encode_event
    from tests.support.fixture_market import START

    topic(rig).create(TOPIC, 4, {})
    for number in range(40):
        event = MarketEvent(
            event_id=f"e{number}",
            instrument="fixture.fx-0",
            event_time=START,
            available_at=START,
            revision=0,
            values={"close": 1.0},
        )
        topic(rig).append(TOPIC, 3, b"fixture.fx-0", encode_event(event), {})
    run_id = rig.request()
    with pytest.raises(RunFailedError, match="RUN_TOO_LARGE"):
        rig.work(run_id, pressure=PressureLimits(buffered_events=Threshold(2, 1)), poll_records=1)


def test_progress_keeps_the_lease_and_a_standstill_does_not(thirteen: StreamRig) -> None:
    """The keeper renews while the loop gets on, and says that it leaves a renewal out when it does not."""
    run_id = thirteen.request(bounded=False)
    stop = threading.Event()
    worker = thirteen.worker(lease_ttl_seconds=0.3)
    thread = threading.Thread(target=worker.run, args=(run_id, stop))
    thread.start()
    thirteen.happenings.wait_for("stream.renewed", 3)
    stuck = threading.Event()

    def stick(event: StreamEvent) -> None:
        if event.name == "stream.committed":
            stuck.wait(20)

    thirteen.happenings.on = stick
    publish_log(thirteen.broker, TOPIC, fixture_log())
    thirteen.happenings.wait_for("stream.stalled")
    renewed = len(thirteen.happenings.of("stream.renewed"))
    stuck.set()
    thirteen.happenings.wait_for("stream.renewed", renewed + 1)
    stop.set()
    thread.join(20)


# ------------------------------------------------------------------------------------------------ behind a batch


def batch_run(rig: StreamRig, rows: int) -> str:
    """A BATCH run over the first events of the fixture that has published; its id."""
    from domain.canonical import parse
    from domain.instants import parse_instant
    from domain.market.flow import flow_address
    from domain.market.pipeline import execute
    from domain.market.snapshot import parse_manifest
    from domain.runs.messages import ResultRef, RunStarted, RunSucceeded
    from tests.support.fixture_market import AS_OF, store_snapshot

    snapshot = store_snapshot(rig.blobs, rows)
    run_id = rig.request(mode=Mode.BATCH, snapshot=snapshot, as_of=parse_instant(AS_OF), topic="")
    manifest = parse_manifest(rig.blobs.get(snapshot))
    chunks = [rig.blobs.get(ref.address) for ref in manifest.chunks]
    batch = execute(rig.flow, manifest, chunks, 2**60)
    assert parse(rig.blobs.get(snapshot))
    result = ResultRef(
        output="ema",
        artifact=rig.blobs.put(batch.encode()),
        values_hash=batch.values_hash("ema"),
        rows=rows,
        schema="FEATURE_BATCH_V1",
        flow=flow_address(rig.flow),
        inputs=(snapshot,),
    )
    events = (
        RunStarted(run_id=run_id, owner="b", token=1, attempt=1),
        ResultPublished(run_id=run_id, token=1, result=result),
        RunSucceeded(run_id=run_id, token=1),
    )
    stream = run_stream(run_id)
    news = tuple(NewEvent(stream, version, event, uuid4()) for version, event in enumerate(events, 2))
    rig.log.append_blocking(Append(events=news))
    return run_id


@pytest.mark.parametrize("crash", [None, "stream.opened", "stream.reading", "stream.committed"])
def test_a_stream_goes_on_behind_a_batch(rig: StreamRig, crash: str | None) -> None:
    """It opens at the marks, knows what the batch took, and its result is that of a batch over both; whatever crashes."""
    from domain.market.records import encode_event
    from tests.support.fixture_market import events

    arrivals = [event for event in events() if event.instrument == "fixture.fx-0"]

    def publish(*numbers: int) -> None:
        for number in numbers:
            topic(rig).append(TOPIC, 3, b"fixture.fx-0", encode_event(arrivals[number]), {})

    topic(rig).create(TOPIC, 4, {})
    publish(0, 1, 2, 3)
    run_id = rig.request(bounded=False, continues=batch_run(rig, 4))

    def on(event: StreamEvent) -> None:
        if event.name == "stream.reading":
            publish(3, 4, 1, 5)
            kind = {HEADER_KIND: Announcement.END_OF_BOUNDED_SOURCE.value.encode()}
            for partition in range(4):
                topic(rig).append(TOPIC, partition, b"fixture.fx-0", None, kind)
            rig.happenings.on = lambda event: None

    if crash is not None:
        with crashing(rig, crash):
            rig.work(run_id)
        expire(rig)
    rig.happenings.on = on
    rig.work(run_id)
    golden(rig, run_id, {"consumed": 2, "duplicates_skipped": 2, "omitted": 4}, token=1 if crash is None else 2)
    assert [event.start_offsets["3"] for event in rig.of(run_id, SourceOpened)] == [4]


def test_an_event_at_or_before_the_batchs_last_tick_is_late(rig: StreamRig) -> None:
    """One that the batch never saw, too: what was published is not rewritten."""
    from domain.market.records import MarketEvent, encode_event
    from tests.support.fixture_market import START

    topic(rig).create(TOPIC, 4, {})
    run_id = rig.request(bounded=False, continues=batch_run(rig, 4))

    def on(event: StreamEvent) -> None:
        if event.name == "stream.reading":
            for name, minute in (("new.1", 1), ("new.3", 3), ("new.4", 4)):
                made = MarketEvent(
                    event_id=name,
                    instrument="fixture.fx-0",
                    event_time=START + minute * 60_000_000,
                    available_at=START + minute * 60_000_000,
                    revision=0,
                    values={"close": 7.0},
                )
                topic(rig).append(TOPIC, 3, b"fixture.fx-0", encode_event(made), {})
            kind = {HEADER_KIND: Announcement.END_OF_BOUNDED_SOURCE.value.encode()}
            for partition in range(4):
                topic(rig).append(TOPIC, partition, b"fixture.fx-0", None, kind)

    rig.happenings.on = on
    rig.work(run_id)
    assert rig.counts(run_id) == {"consumed": 1, "late": 2, "omitted": 4}
    assert rig.batch(run_id).values("ema") == [None, None, 2.0, 3.0, 5.0]
