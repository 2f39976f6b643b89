"""Runs as their owners see them, on both logs: who sees what, and cancelling against whatever else happens."""

import asyncio
from typing import Any

import pytest

from domain.errors import RunFinishedError, RunNotFoundError, VersionConflictError
from domain.events import Event
from domain.identity import lease_stream, run_stream
from domain.leases.messages import LeaseGranted
from domain.runs.aggregate import RunState
from domain.runs.messages import RequeueReason, RunError, RunFailed, RunRequested, RunRequeued, RunStarted, RunSucceeded
from services.event_ids import new_event_id
from services.ports import Append, NewEvent
from services.runs import CONFLICT_RETRIES_MAX, Runs
from tests.support.logs import LogUnderTest, log_under_test
from tests.support.worker_rig import requested

under_test = pytest.fixture(params=["memory", "postgres"])(log_under_test)


async def put(under_test: LogUnderTest, stream: str, *events: Event) -> None:
    """Append events after those that the stream has."""
    version = len((await under_test.log.read_streams([stream])).streams[stream])
    news = tuple(NewEvent(stream, version + n, event, new_event_id()) for n, event in enumerate(events, 1))
    await under_test.log.append(Append(events=news))


async def a_run(under_test: LogUnderTest) -> RunRequested:
    event = requested()
    await put(under_test, run_stream(event.run_id), event)
    return event


def started(run_id: str, attempt: int = 1) -> RunStarted:
    return RunStarted(run_id=run_id, owner="A", token=attempt, attempt=attempt)


async def test_a_view_says_everything_of_its_run(under_test: LogUnderTest) -> None:
    """Folded from the stream: state, revision, attempts, errors, deadline, position of the last event."""
    event = await a_run(under_test)
    run_id, stream = event.run_id, run_stream(event.run_id)
    error = RunError(code="STORE_UNAVAILABLE", message="away", attempt=1)
    back = RunRequeued(run_id=run_id, token=1, reason=RequeueReason.INFRASTRUCTURE, delay_seconds=0.5, error=error)
    await put(under_test, stream, started(run_id), back, started(run_id, 2))
    view = await Runs(under_test.log).get(run_id, "ana")
    assert (view.state, view.run_revision, view.attempts, view.token) == (RunState.RUNNING, 3, 2, 2)
    assert (view.errors, view.results, view.finished_at) == ((error,), (), None)
    assert (view.deadline_at - view.requested_at).total_seconds() == event.spec.deadline_seconds
    assert (view.flow, view.snapshot, view.as_of) == (event.spec.flow, event.spec.snapshot, event.spec.as_of)
    assert view.position == await asyncio.to_thread(under_test.log.high_water_mark)


@pytest.mark.parametrize("run_id", ["", "run_", "run_" + "0" * 64, "run_" + "A" * 64, "x" * 300, "run_\x00"])
async def test_what_does_not_exist_is_not_found(under_test: LogUnderTest, run_id: str) -> None:
    """`RUN_NOT_FOUND`, whatever the id looks like."""
    runs = Runs(under_test.log)
    for ask in (runs.get, runs.cancel, runs.history):
        with pytest.raises(RunNotFoundError):
            await ask(run_id, "ana", True)


async def test_anothers_run_is_not_found_unless_one_operates(under_test: LogUnderTest) -> None:
    """No difference between not there and not yours; an operator sees and stops all."""
    event = await a_run(under_test)
    runs = Runs(under_test.log)
    for ask in (runs.get, runs.cancel, runs.history):
        with pytest.raises(RunNotFoundError):
            await ask(event.run_id, "bob")
    assert (await runs.get(event.run_id, "bob", operates=True)).principal == "ana"
    assert (await runs.cancel(event.run_id, "bob", operates=True)).state is RunState.CANCELLED


async def test_history_is_the_runs_and_its_leases_events(under_test: LogUnderTest) -> None:
    """By position, as they happened."""
    event = await a_run(under_test)
    run_id = event.run_id
    await put(under_test, lease_stream(run_id), LeaseGranted(resource=run_id, owner="A", token=1, ttl_seconds=60.0))
    await put(under_test, run_stream(run_id), started(run_id))
    await a_run(under_test)
    history = await Runs(under_test.log).history(run_id, "ana")
    assert [e.event.topic for e in history] == ["run.requested.v1", "lease.granted.v1", "run.started.v1"]
    assert [e.position for e in history] == [1, 2, 3]


async def test_cancelling_a_running_run_asks_once(under_test: LogUnderTest) -> None:
    """The state stays RUNNING until a border; asking again, also at once, adds nothing."""
    event = await a_run(under_test)
    await put(under_test, run_stream(event.run_id), started(event.run_id))
    runs = Runs(under_test.log)
    views = await asyncio.gather(*(runs.cancel(event.run_id, "ana") for _ in range(10)))
    assert {(view.state, view.cancellation_requested) for view in views} == {(RunState.RUNNING, True)}
    topics = [e.event.topic for e in await runs.history(event.run_id, "ana")]
    assert topics.count("run.cancellation_requested.v1") == 1


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
async def test_cancelling_after_the_end_is_refused(under_test: LogUnderTest, how: str) -> None:
    """409 `RUN_FINISHED`, and nothing is appended."""
    event = await a_run(under_test)
    run_id, runs = event.run_id, Runs(under_test.log)
    ends: dict[str, tuple[Event, ...]] = {
        "succeeded": (started(run_id), RunSucceeded(run_id=run_id, token=1)),
        "failed": (RunFailed(run_id=run_id, error=RunError(code="DEADLINE_EXCEEDED", message="late")),),
        "cancelled": (),
    }
    await put(under_test, run_stream(run_id), *ends[how]) if ends[how] else await runs.cancel(run_id, "ana")
    before = await asyncio.to_thread(under_test.log.high_water_mark)
    with pytest.raises(RunFinishedError) as caught:
        await runs.cancel(run_id, "ana")
    assert caught.value.status == 409
    assert await asyncio.to_thread(under_test.log.high_water_mark) == before


async def test_a_cancellation_that_meets_a_start_decides_again(under_test: LogUnderTest) -> None:
    """A worker starts the run between the read and the append: the answer is of the running run, not a conflict."""
    event = await a_run(under_test)
    append, run_id = under_test.log.append, event.run_id

    async def overtaken(wanted: Append) -> Any:
        under_test.log.append = append  # type: ignore[method-assign]
        await put(under_test, run_stream(run_id), started(run_id))
        return await append(wanted)

    under_test.log.append = overtaken  # type: ignore[method-assign]
    view = await Runs(under_test.log).cancel(run_id, "ana")
    assert (view.state, view.cancellation_requested) == (RunState.RUNNING, True)


async def test_a_cancellation_that_is_always_overtaken_is_given_up(under_test: LogUnderTest) -> None:
    """After `CONFLICT_RETRIES_MAX` decisions, with the conflict itself."""
    event = await a_run(under_test)
    tries = []

    async def conflicting(wanted: Append) -> Any:
        tries.append(wanted)
        raise VersionConflictError("moved on", at=run_stream(event.run_id))

    under_test.log.append = conflicting  # type: ignore[method-assign]
    with pytest.raises(VersionConflictError):
        await Runs(under_test.log).cancel(event.run_id, "ana")
    assert len(tries) == CONFLICT_RETRIES_MAX
