"""The batch worker on a log in memory: every way in which an attempt can end, and what it leaves in the log."""

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from domain.canonical import address_of, canonical
from domain.errors import (
    BlobMissingError,
    InfrastructureError,
    RunCancelledError,
    RunFailedError,
    UndecodableEventError,
    VersionConflictError,
)
from domain.identity import lease_stream, run_stream
from domain.instants import to_micros
from domain.leases.messages import LeaseGranted
from domain.runs.aggregate import ATTEMPTS_MAX, REQUEUE_DELAY_SECONDS, RunState
from domain.runs.messages import RunCancellationRequested
from services.batch_execution import FlowComputation
from services.batch_parts import EVENT_NAMES, WorkerEvent
from services.batch_run import CONFLICT_RETRIES_MAX
from services.batch_worker import CLAIM_TRIES_MAX
from services.ports import Append, NewEvent, StreamsRead, Vacant
from services.runs import Runs
from tests.support.fixture_market import flow, store_snapshot
from tests.support.memory_log import MemoryLog
from tests.support.memory_queue import MemoryQueue
from tests.support.worker_rig import STAGES, Rig


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def rig(log: MemoryLog, tmp_path: Path) -> Rig:
    return Rig(log, MemoryQueue(log), tmp_path / "cas")


async def topics(rig: Rig, run_id: str) -> list[str]:
    return await rig.topics(run_stream(run_id), lease_stream(run_id))


STARTED = ["run.requested.v1", "lease.granted.v1", "run.started.v1"]


# ------------------------------------------------------------------------------------------------ the good end


async def test_a_run_is_executed_to_its_published_result(rig: Rig) -> None:
    """Seven facts in order: requested, leased and started, published, succeeded and released; and the artifact is in CAS."""
    (run_id,) = await rig.request()
    assert await rig.worker().run_once() == 1
    ended = ["lease.released.v1", "run.result_published.v1", "run.succeeded.v1"]
    assert await topics(rig, run_id) == [*STARTED, *ended]
    view = await Runs(rig.log).get(run_id, "ana")
    assert (view.state, view.run_revision, view.attempts, view.token) == (RunState.SUCCEEDED, 2, 1, 1)
    (result,) = view.results
    assert result.values_hash == address_of([None, None, 2.0])
    assert rig.blobs.has(result.artifact)
    assert (result.fence_token, result.run_id, result.published_at) == (1, run_id, view.finished_at)


async def test_an_empty_queue_is_nothing_to_do(rig: Rig) -> None:
    """Nothing is executed, `run_one` gives None."""
    assert await rig.worker().run_once() == 0
    assert await rig.worker().run_one() is None


async def test_one_run_at_a_time_gives_its_result(rig: Rig) -> None:
    """`run_one` executes exactly one, in queue order, and returns what was published."""
    first, second = await rig.request(2)
    result = await rig.worker().run_one()
    assert result is not None
    assert result.run_id == first
    assert (await rig.run(second)).state is RunState.QUEUED


async def test_stages_are_passed_in_order(rig: Rig) -> None:
    """Each stage is entered once, in order, under the run's token."""
    await rig.request()
    await rig.worker().run_once()
    assert [event.stage for event in rig.happenings.of("run.stage")] == list(STAGES)


async def test_priority_goes_first(rig: Rig) -> None:
    """A round takes candidates in the queue's order: priority, then age."""
    (low,) = await rig.request(priority=-1)
    (high,) = await rig.request(priority=5)
    result = await rig.worker().run_one()
    assert result is not None
    assert result.run_id == high
    assert low != high


async def test_a_worker_takes_only_its_lanes(rig: Rig) -> None:
    """Runs of another mode stay where they are."""
    await rig.request()
    assert await rig.worker(lanes=("REPLAY",)).run_once() == 0
    assert await rig.worker(lanes=("REPLAY", "BATCH")).run_once() == 1


# ------------------------------------------------------------------------------------------------ races


async def test_the_loser_of_a_race_lets_go(rig: Rig, log: MemoryLog) -> None:
    """A second worker that had read the same head gets neither lease nor start, and executes nothing."""
    (run_id,) = await rig.request()
    first, second = rig.worker(), rig.worker()
    stale = await second._read_heads([run_id])
    assert await first.run_once() == 1
    assert await second._start(stale[0], None) is None
    assert rig.computation.computed == ["flow-0"]
    assert rig.happenings.names(run_id)[-1] == "run.lost_race"


async def test_a_live_lease_is_left_alone(rig: Rig, log: MemoryLog) -> None:
    """A queued run whose lease somebody holds is not touched; when the lease has run out it is taken under the next token."""
    (run_id,) = await rig.request()
    granted = LeaseGranted(resource=run_id, owner="somebody", token=1, ttl_seconds=30.0)
    await log.append(Append(events=(NewEvent(lease_stream(run_id), 1, granted, uuid4()),), guard=Vacant(run_id, 0)))
    assert await rig.worker().run_once() == 0
    log.advance(60)
    assert await rig.worker().run_once() == 1
    assert (await rig.run(run_id)).token == 2


# ------------------------------------------------------------------------------------------------ cancellation and deadline


async def test_a_run_cancelled_while_queued_is_never_executed(rig: Rig) -> None:
    """It ended when it was asked for; no worker sees it."""
    (run_id,) = await rig.request()
    await Runs(rig.log).cancel(run_id, "ana")
    assert await rig.worker().run_once() == 0
    assert await topics(rig, run_id) == ["run.requested.v1", "run.cancelled.v1"]


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancellation_is_honoured_at_the_next_border(
    rig: Rig, log: MemoryLog, stage: str, thread: bool
) -> None:
    """Asked at any border, nothing is published and the lease is given back; what was asked before a stage prevents it."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9 if thread else 1

    def cancel(event: WorkerEvent) -> None:
        if event.stage == stage:
            version = len(log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)]) + 1
            asked = RunCancellationRequested(run_id=run_id, principal="ana")
            log.append_blocking(Append(events=(NewEvent(run_stream(run_id), version, asked, uuid4()),)))

    rig.happenings.on = cancel
    await rig.worker().run_once()
    ended = ["run.cancellation_requested.v1", "lease.released.v1", "run.cancelled.v1"]
    assert await topics(rig, run_id) == [*STARTED, *ended]
    passed = [event.stage for event in rig.happenings.of("run.stage")]
    reads_at_ops = thread  # on the event loop nothing can be read between clock and ops: the next border does
    assert passed[-1] == (stage if stage != "ops" or reads_at_ops else "persist")


async def test_a_cancellation_that_comes_with_the_publication_wins_or_loses_whole(rig: Rig, log: MemoryLog) -> None:
    """Appended between the decision to publish and its append, it refuses the append, and the run is decided again."""
    (run_id,) = await rig.request()
    append = log.append

    async def overtaken(wanted: Append) -> Any:
        if any(new.event.topic == "run.succeeded.v1" for new in wanted.events):
            log.append = append  # type: ignore[method-assign]
            await Runs(rig.log).cancel(run_id, "ana")
        return await append(wanted)

    log.append = overtaken  # type: ignore[method-assign]
    await rig.worker(border_read_seconds=60.0).run_once()
    assert (await rig.run(run_id)).state is RunState.CANCELLED
    assert (await rig.run(run_id)).results == ()


async def test_a_deadline_that_passed_while_queued_ends_the_run_unstarted(rig: Rig, log: MemoryLog) -> None:
    """FAILED with `DEADLINE_EXCEEDED`, no attempt, no lease."""
    (run_id,) = await rig.request(deadline_seconds=10)
    log.advance(11)
    await rig.worker().run_once()
    run = await rig.run(run_id)
    assert (run.state, run.attempts, run.errors[0].code) == (RunState.FAILED, 0, "DEADLINE_EXCEEDED")
    assert await topics(rig, run_id) == ["run.requested.v1", "run.failed.v1"]


@pytest.mark.parametrize("stage", STAGES)
async def test_a_deadline_that_passes_meanwhile_ends_the_run_at_a_border(rig: Rig, log: MemoryLog, stage: str) -> None:
    """Nothing is published after the deadline by the database's clock, wherever it passed."""
    (run_id,) = await rig.request(deadline_seconds=10)

    def pass_time(event: WorkerEvent) -> None:
        if event.stage == stage:
            log.advance(11)

    rig.happenings.on = pass_time
    worker = rig.worker(lease_ttl_seconds=100.0)
    worker._tools.clock.micros = lambda: to_micros(log.now())  # type: ignore[method-assign]
    await worker.run_once()
    run = await rig.run(run_id)
    assert (run.state, run.errors[0].code, run.results) == (RunState.FAILED, "DEADLINE_EXCEEDED", ())
    assert (await topics(rig, run_id))[-2:] == ["lease.released.v1", "run.failed.v1"]


# ------------------------------------------------------------------------------------------------ failure


async def test_a_fault_of_the_input_ends_the_run_at_once(rig: Rig) -> None:
    """FAILED with code, message and place; delivered; no loop."""
    (run_id,) = await rig.request()

    def missing(spec: Any) -> None:
        raise BlobMissingError("no blob is stored under this address", at=spec.snapshot, expected="a stored blob")

    rig.computation.on_prepare = missing
    assert await rig.worker().run_once() == 1
    run = await rig.run(run_id)
    (error,) = run.errors
    assert (run.state, error.code, error.attempt) == (RunState.FAILED, "BLOB_MISSING", 1)
    assert error.at == run.spec.snapshot if run.spec else False
    assert (await topics(rig, run_id))[-2:] == ["lease.released.v1", "run.failed.v1"]
    assert await rig.worker().run_once() == 0


async def test_a_fault_of_the_infrastructure_is_tried_again_later_and_later(rig: Rig, log: MemoryLog) -> None:
    """Requeued with growing delay, `ATTEMPTS_MAX` attempts in all; then FAILED with `ATTEMPTS_EXHAUSTED` and the last error."""
    (run_id,) = await rig.request()

    def away(spec: Any) -> None:
        raise InfrastructureError("the bucket is away")

    rig.computation.on_prepare = away
    worker = rig.worker()
    for attempt, delay in enumerate(REQUEUE_DELAY_SECONDS, 1):
        assert await worker.run_once() == 1
        run = await rig.run(run_id)
        assert (run.state, run.failures, run.errors[-1].attempt) == (RunState.QUEUED, attempt, attempt)
        log.advance(delay - 0.01)
        assert await worker.run_once() == 0
        log.advance(0.02)
    await worker.run_once()
    run = await rig.run(run_id)
    assert (run.state, run.attempts, run.token) == (RunState.FAILED, ATTEMPTS_MAX, ATTEMPTS_MAX)
    assert run.errors[-1].code == "ATTEMPTS_EXHAUSTED"
    assert "the bucket is away" in run.errors[-1].message
    assert rig.happenings.names(run_id).count("run.requeued") == ATTEMPTS_MAX - 1


async def test_a_requeued_run_can_still_succeed(rig: Rig, log: MemoryLog) -> None:
    """The second attempt is under the next token; errors of the first stay on record."""
    (run_id,) = await rig.request()

    def away_once(spec: Any) -> None:
        rig.computation.on_prepare = lambda spec: None
        raise InfrastructureError("away")

    rig.computation.on_prepare = away_once
    await rig.worker().run_once()
    log.advance(1)
    await rig.worker().run_once()
    run = await rig.run(run_id)
    assert (run.state, run.attempts, run.token, len(run.errors)) == (RunState.SUCCEEDED, 2, 2, 1)


async def test_a_bug_ends_the_run_and_says_so(rig: Rig) -> None:
    """An unexpected exception is FAILED with `DEFECT` and its text, made storable; the others go on."""
    broken, fine = await rig.request(2)

    def bug(spec: Any) -> None:
        if spec.flow_name == "flow-0":
            raise ZeroDivisionError("by \x00 and \ud800" + "x" * 5000)

    rig.computation.on_prepare = bug
    await rig.worker().run_once()
    run = await rig.run(broken)
    assert (run.state, run.errors[0].code) == (RunState.FAILED, "DEFECT")
    assert run.errors[0].message.startswith("ZeroDivisionError: by \N{REPLACEMENT CHARACTER} and ?xxx")
    assert len(run.errors[0].message) == 2000
    assert (await rig.run(fine)).state is RunState.SUCCEEDED


async def test_a_stream_that_cannot_be_read_does_not_hold_up_the_others(rig: Rig, log: MemoryLog) -> None:
    """One undecodable candidate is set aside and told; the rest of its batch is executed."""
    bad, *good = await rig.request(4)
    read_streams = log.read_streams

    async def reading(streams: Any) -> StreamsRead:
        if run_stream(bad) in streams:
            raise UndecodableEventError("a document that doesn't fit", at="run.requested.v1")
        return await read_streams(streams)

    log.read_streams = reading  # type: ignore[method-assign]
    assert await rig.worker().run_once() == 3
    log.read_streams = read_streams  # type: ignore[method-assign]
    assert [(await rig.run(run_id)).state for run_id in good] == [RunState.SUCCEEDED] * 3
    assert [event.run_id for event in rig.happenings.of("run.unreadable")] == [bad]


@pytest.mark.parametrize("ending", ["fails", "cancelled", "away"])
async def test_one_run_that_does_not_succeed_is_an_error(rig: Rig, log: MemoryLog, ending: str) -> None:
    """`run_one` raises what happened, so `--once` exits with a status other than 0."""
    (run_id,) = await rig.request()

    def happen(spec: Any) -> None:
        if ending == "fails":
            raise BlobMissingError("gone", at="x")
        if ending == "away":
            raise InfrastructureError("away")
        asked = RunCancellationRequested(run_id=run_id, principal="ana")
        log.append_blocking(Append(events=(NewEvent(run_stream(run_id), 3, asked, uuid4()),)))

    rig.computation.on_prepare = happen
    expected = {"fails": RunFailedError, "cancelled": RunCancelledError, "away": InfrastructureError}[ending]
    with pytest.raises(expected, match={"fails": "BLOB_MISSING", "cancelled": "RUN_CANCELLED", "away": "away"}[ending]):
        await rig.worker().run_one()


# ------------------------------------------------------------------------------------------------ leases


async def test_a_worker_that_wakes_late_publishes_nothing(rig: Rig, log: MemoryLog) -> None:
    """Its lease ran out while it computed: the publication is refused, whether or not another owner has come."""
    (run_id,) = await rig.request()
    rig.computation.on_compute = lambda border, tick: log.advance(31)
    await rig.worker(border_read_seconds=60.0).run_once()
    run = await rig.run(run_id)
    assert (run.state, run.results) == (RunState.RUNNING, ())
    assert await topics(rig, run_id) == STARTED
    assert rig.happenings.names(run_id)[-1] == "run.lease_lost"


async def test_a_lost_lease_ends_the_work(rig: Rig, log: MemoryLog) -> None:
    """A heartbeat that is refused stops the attempt at its next tick; it appends nothing more."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    waiting, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(waiting.set)
        go_on.wait(20)

    rig.computation.on_compute = compute
    worker = rig.worker(lease_ttl_seconds=30.0)
    task = asyncio.create_task(worker.run_once())
    await waiting.wait()
    log.advance(31)
    worker._attempts[run_id]._renewed_at -= 31
    assert await worker._heartbeats.beat_once() == 1
    await task
    assert rig.happenings.names(run_id)[-1] == "run.lease_lost"
    assert worker._slots.free == 1  # the thread is still there, and its slot is not given away
    go_on.set()
    assert await topics(rig, run_id) == STARTED


async def test_a_heartbeat_renews_only_what_makes_progress(rig: Rig, log: MemoryLog) -> None:
    """Each beat after progress is a renewal under the same token; without progress it is left out, and that is told once."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    loop, commands = asyncio.get_running_loop(), asyncio.Queue[str]()

    def compute(border: Any, tick: Any) -> None:
        while asyncio.run_coroutine_threadsafe(commands.get(), loop).result() == "tick":
            tick()
            loop.call_soon_threadsafe(ticked.set)

    ticked = asyncio.Event()
    rig.computation.on_compute = compute
    worker = rig.worker(lease_ttl_seconds=30.0)
    task = asyncio.create_task(worker.run_once())
    await rig.happenings.wait_for("run.stage", count=3)
    attempt = worker._attempts[run_id]
    renewals = []
    for progress in (True, True, False, False, True):
        if progress:
            ticked.clear()
            await commands.put("tick")
            await ticked.wait()
        attempt._renewed_at -= 10
        renewals.append(await worker._heartbeats.beat_once())
    assert renewals == [1, 1, 0, 0, 1]
    await commands.put("end")
    await task
    assert rig.happenings.names(run_id).count("run.stalled") == 1
    assert (await topics(rig, run_id)).count("lease.renewed.v1") == 3
    run = await rig.run(run_id)
    assert (run.state, run.token) == (RunState.SUCCEEDED, 1)


async def test_a_renewal_is_not_asked_for_before_its_time(rig: Rig) -> None:
    """A run that ends within a third of its TTL has no renewal: the grant was the first beat."""
    await rig.request(20)
    worker = rig.worker()
    rig.computation.on_compute = lambda border, tick: None
    await worker.run_once()
    assert "lease.renewed" not in rig.happenings.names()


# ------------------------------------------------------------------------------------------------ stopping


async def test_stopping_waits_for_what_is_nearly_done(rig: Rig) -> None:
    """Within the grace period a running attempt ends as ever, and nothing new is begun."""
    first, second = await rig.request(2)
    rig.computation.size = 10**9
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    rig.computation.on_compute = lambda border, tick: loop.call_soon_threadsafe(stop.set)
    await asyncio.wait_for(rig.worker(grace_seconds=20.0, thread_slots=1).run(stop), 20)
    assert (await rig.run(first)).state is RunState.SUCCEEDED
    assert (await rig.run(second)).state is RunState.QUEUED
    assert rig.happenings.names()[-1] == "worker.stopped"


async def test_stopping_hands_back_at_a_border(rig: Rig, log: MemoryLog) -> None:
    """After the grace period the run goes back to the queue at its next border, at no cost to its attempts, and free at once."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(stop.set)
        while True:
            border("ops")

    rig.computation.on_compute = compute
    await asyncio.wait_for(rig.worker(grace_seconds=0.05).run(stop), 20)
    run = await rig.run(run_id)
    assert (run.state, run.failures, run.attempts) == (RunState.QUEUED, 0, 1)
    assert (await topics(rig, run_id))[-2:] == ["lease.released.v1", "run.requeued.v1"]
    rig.computation.on_compute = lambda border, tick: None
    assert await rig.worker().run_once() == 1
    assert (await rig.run(run_id)).token == 2


async def test_stopping_hands_back_what_reaches_no_border(rig: Rig) -> None:
    """A hung thread does not keep the worker: after a bounded time its run is handed back over its head."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    never = threading.Event()

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(stop.set)
        never.wait(60)

    rig.computation.on_compute = compute
    await asyncio.wait_for(rig.worker(grace_seconds=0.05, hand_back_seconds=0.05).run(stop), 20)
    assert (await rig.run(run_id)).state is RunState.QUEUED
    assert "run.handed_back" in rig.happenings.names(run_id)
    never.set()


async def test_stopping_an_idle_worker_is_immediate(rig: Rig) -> None:
    """`stop` ends the wait of an idle worker, however long its poll."""
    stop = asyncio.Event()
    task = asyncio.create_task(rig.worker(poll_seconds=3600.0).run(stop))
    await rig.happenings.wait_for("worker.idle")
    stop.set()
    await asyncio.wait_for(task, 20)


@pytest.mark.parametrize("how", ["run", "run_once", "run_one"])
async def test_a_cancelled_worker_hands_back_too(rig: Rig, how: str) -> None:
    """Ctrl-C is an orderly stop: what runs is handed back before the cancellation goes on."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    computing, loop = asyncio.Event(), asyncio.get_running_loop()

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(computing.set)
        while True:
            border("ops")

    rig.computation.on_compute = compute
    worker = rig.worker(grace_seconds=0.05)
    work = {"run": lambda: worker.run(asyncio.Event()), "run_once": worker.run_once, "run_one": worker.run_one}[how]
    task = asyncio.create_task(work())  # type: ignore[no-untyped-call, var-annotated]
    await asyncio.wait_for(computing.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert (await rig.run(run_id)).state is RunState.QUEUED


# ------------------------------------------------------------------------------------------------ limits


async def test_a_log_that_stays_away_is_given_up_when_the_lease_has_run_out(rig: Rig, log: MemoryLog) -> None:
    """The end is tried as long as the lease may live, then left to it; the worker goes on."""
    (run_id,) = await rig.request()
    append, tries = log.append, []

    async def away(wanted: Append) -> Any:
        if any(new.event.topic == "run.succeeded.v1" for new in wanted.events):
            tries.append(1)
            raise InfrastructureError("away")
        return await append(wanted)

    log.append = away  # type: ignore[method-assign]
    assert await rig.worker(lease_ttl_seconds=0.3).run_once() == 1
    assert len(tries) >= 3
    assert rig.happenings.names(run_id)[-1] == "run.abandoned"
    assert await topics(rig, run_id) == STARTED


async def test_a_claim_whose_answer_is_lost_is_made_again_so_often(rig: Rig, log: MemoryLog) -> None:
    """`CLAIM_TRIES_MAX` times the same append, then the run is let go."""
    (run_id,) = await rig.request()
    claims = []

    async def away(wanted: Append) -> Any:
        claims.append(wanted)
        raise InfrastructureError("away")

    log.append = away  # type: ignore[method-assign]
    assert await rig.worker().run_once() == 0
    assert claims == [claims[0]] * CLAIM_TRIES_MAX
    assert rig.happenings.names(run_id) == ["run.abandoned"]


async def test_an_end_that_keeps_being_overtaken_is_given_up(rig: Rig, log: MemoryLog) -> None:
    """`CONFLICT_RETRIES_MAX` decisions, each on what was read anew; then it is left to the lease."""
    (run_id,) = await rig.request()
    append, tries = log.append, []

    async def conflicting(wanted: Append) -> Any:
        if any(new.event.topic == "run.succeeded.v1" for new in wanted.events):
            tries.append(1)
            raise VersionConflictError("moved on", at=run_stream(run_id))
        return await append(wanted)

    log.append = conflicting  # type: ignore[method-assign]
    await rig.worker().run_once()
    assert len(tries) == CONFLICT_RETRIES_MAX
    assert rig.happenings.names(run_id)[-1] == "run.abandoned"


async def test_a_listener_that_fails_ends_nothing(rig: Rig) -> None:
    """What a worker tells is told, not asked."""
    (run_id,) = await rig.request()

    def fail(event: WorkerEvent) -> None:
        raise ZeroDivisionError

    rig.happenings.on = fail
    assert await rig.worker().run_once() == 1
    assert (await rig.run(run_id)).state is RunState.SUCCEEDED


async def test_a_flow_that_this_version_does_not_know_fails_its_run(rig: Rig) -> None:
    """An op that is gone since the flow was admitted: FAILED with `OP_UNKNOWN` and the place, at once."""
    flow_address = rig.blobs.put(canonical(flow(nodes=[{"id": "ema", "op": "emma", "inputs": []}])))
    (run_id,) = await rig.request(flow=flow_address, snapshot=store_snapshot(rig.blobs))
    rig.computation = FlowComputation(rig.blobs, 10**6, 10**6)  # type: ignore[assignment]
    await rig.worker().run_once()
    (error,) = (await rig.run(run_id)).errors
    assert (error.code, error.at) == ("OP_UNKNOWN", "$.nodes[0].op")


async def test_big_runs_are_claimed_only_for_a_free_thread(rig: Rig) -> None:
    """With one slot, one big run is started at a time; those that wait are not claimed, and small ones pass them."""
    await rig.request(3)
    rig.computation.size = 10**9
    claimed: list[int] = []
    rig.computation.on_compute = lambda border, tick: claimed.append(len(rig.happenings.of("run.claimed")))
    stop = asyncio.Event()
    task = asyncio.create_task(rig.worker(thread_slots=1).run(stop))
    await rig.happenings.wait_for("run.succeeded", 3)
    stop.set()
    await task
    assert claimed == [1, 2, 3]


async def test_small_runs_pass_big_ones_that_wait(rig: Rig) -> None:
    """While all threads are busy, what fits on the event loop is executed."""
    await rig.request(2, snapshot=address_of("big"))
    (small,) = await rig.request()
    released = threading.Event()
    rig.computation.sizes[address_of("big")] = 10**9
    rig.computation.on_compute = lambda border, tick: None if _is_loop_thread() else released.wait(20)
    stop = asyncio.Event()
    task = asyncio.create_task(rig.worker(thread_slots=1).run(stop))
    await rig.happenings.wait_for("run.succeeded")
    assert [event.run_id for event in rig.happenings.of("run.succeeded")] == [small]
    assert len(rig.happenings.of("run.claimed")) == 2
    released.set()
    await rig.happenings.wait_for("run.succeeded", 3)
    stop.set()
    await task


def _is_loop_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def test_runs_in_flight_are_bounded(rig: Rig) -> None:
    """However long the queue, no more than `in_flight_max` runs are started and not ended; all get their turn."""
    run_ids = await rig.request(40)
    worker = rig.worker(in_flight_max=8, reserve_max=5)
    most = 0

    def watch(event: WorkerEvent) -> None:
        nonlocal most
        most = max(most, worker.in_flight)

    rig.happenings.on = watch
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await rig.happenings.wait_for("run.succeeded", 40)
    stop.set()
    await task
    assert 5 <= most <= 8
    assert {(await rig.run(run_id)).state for run_id in run_ids} == {RunState.SUCCEEDED}


async def test_a_round_that_fails_is_tried_again(rig: Rig) -> None:
    """A queue that is away, or a bug in a round, stops nothing: the loop says so, waits a little longer each time, and goes on."""
    await rig.request()
    reserve, faults = rig.queue.reserve, [InfrastructureError("away"), ZeroDivisionError("bug")]

    async def failing(*args: Any) -> Any:
        if faults:
            raise faults.pop(0)
        return await reserve(*args)

    rig.queue.reserve = failing  # type: ignore[method-assign]
    stop = asyncio.Event()
    task = asyncio.create_task(rig.worker().run(stop))
    await rig.happenings.wait_for("run.succeeded")
    stop.set()
    await task
    assert rig.happenings.names()[:2] == ["worker.unavailable", "worker.defect"]


async def test_an_append_whose_answer_was_lost_is_made_again(rig: Rig, log: MemoryLog) -> None:
    """Claim and publication survive a lost connection after COMMIT: the same append is sent again and is one."""
    (run_id,) = await rig.request()
    append, lost = log.append, []

    async def losing(wanted: Append) -> Any:
        appended = await append(wanted)
        if len(lost) < 2 and not appended.repeated:
            lost.append(wanted)
            raise InfrastructureError("connection lost")
        return appended

    log.append = losing  # type: ignore[method-assign]
    assert await rig.worker().run_once() == 1
    assert len(lost) == 2
    assert len(await topics(rig, run_id)) == 6
    assert (await rig.run(run_id)).state is RunState.SUCCEEDED


async def test_what_workers_tell_has_names_that_are_listed(rig: Rig) -> None:
    """Every happening's name is one of the permanent ones."""
    await rig.request(3)
    await rig.worker().run_once()
    assert set(rig.happenings.names()) <= EVENT_NAMES
