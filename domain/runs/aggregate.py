"""A run: from asked for to ended, exactly one way.

What must stay true: `run_revision` counts state changes; a run ends once; results are published at most once per output and
only together with SUCCEEDED; cancellation is honoured at borders and loses to a publication. The table below is the whole life
of a run; `decide` chooses the events, `evolve` folds them. A crash leaves the run in the state of its last event, where a
process manager finds it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from domain.errors import (
    AttemptsExhaustedError,
    DeadlineExceededError,
    IllegalTransitionError,
    RunFinishedError,
    StaleFenceError,
)
from domain.events import Event
from domain.runs.messages import (
    CancelRun,
    EndIfDue,
    FailRun,
    PublishResults,
    RequestCancellation,
    RequestRun,
    RequeueReason,
    RequeueRun,
    ResultPublished,
    ResultRef,
    RunCancellationRequested,
    RunCancelled,
    RunError,
    RunFailed,
    RunHandedOff,
    RunRequested,
    RunRequeued,
    RunSpec,
    RunStarted,
    RunSucceeded,
    StartRun,
)
from domain.transitions import AggregateState, TransitionTable

ATTEMPTS_MAX: Final = 5
"""Attempts that may end in a fault of the infrastructure or a crash; then the run ends FAILED."""

REQUEUE_DELAY_SECONDS: Final = (0.5, 2.0, 8.0, 30.0)
"""Seconds to wait after the first, second, … counted failure."""

ERRORS_MAX: Final = 16
"""Errors that a run remembers in its state; attempts are bounded, so this is a backstop."""


class RunState(AggregateState):
    """Where a run stands."""

    ABSENT = "ABSENT"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


RUN_TRANSITIONS: Final = TransitionTable[RunState](
    "run",
    {
        (RunState.ABSENT, RunRequested): RunState.QUEUED,
        (RunState.QUEUED, RunStarted): RunState.RUNNING,
        (RunState.QUEUED, RunCancelled): RunState.CANCELLED,
        (RunState.QUEUED, RunFailed): RunState.FAILED,
        (RunState.RUNNING, RunCancellationRequested): RunState.RUNNING,
        (RunState.RUNNING, RunHandedOff): RunState.RUNNING,
        (RunState.RUNNING, ResultPublished): RunState.RUNNING,
        (RunState.RUNNING, RunSucceeded): RunState.SUCCEEDED,
        (RunState.RUNNING, RunFailed): RunState.FAILED,
        (RunState.RUNNING, RunCancelled): RunState.CANCELLED,
        (RunState.RUNNING, RunRequeued): RunState.QUEUED,
    },
)

FINISHED: Final = frozenset(RUN_TRANSITIONS.final_states())
_CHANGES_STATE: Final = frozenset(t for (s, t), after in RUN_TRANSITIONS.rows.items() if after is not s) | {
    RunHandedOff
}

RunCommand: TypeAlias = (
    RequestRun | StartRun | RequestCancellation | CancelRun | EndIfDue | RequeueRun | FailRun | PublishResults
)


class Run(msgspec.Struct, frozen=True, gc=False):
    """State of a run. `failures` counts what counts towards `ATTEMPTS_MAX`; `token` is the last executing owner's."""

    run_id: str
    state: RunState = RunState.ABSENT
    run_revision: int = 0
    principal: str = ""
    spec: RunSpec | None = None
    body_hash: str = ""
    sweep_id: str | None = None
    attempts: int = 0
    failures: int = 0
    token: int = 0
    owner: str = ""
    cancellation_requested: bool = False
    errors: tuple[RunError, ...] = ()
    results: tuple[ResultRef, ...] = ()
    requested_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINISHED

    @property
    def deadline_at(self) -> datetime | None:
        """The instant past which the run ends FAILED; None before it was requested."""
        if self.requested_at is None or self.spec is None:
            return None
        return self.requested_at + timedelta(seconds=self.spec.deadline_seconds)


def decide(run: Run, command: RunCommand, now: datetime) -> tuple[Event, ...]:
    """The events of the command at `now` (the database's clock).

    Raises `RunFinishedError` for what needs a run that hasn't ended, `StaleFenceError` for a token that isn't the current
    one, `IllegalTransitionError` for the rest of what the table doesn't allow.
    """
    if isinstance(command, RequestRun):
        return _checked(run, _requested(command))
    if run.state is RunState.ABSENT:
        raise IllegalTransitionError(
            f"there is no run {run.run_id}", at=run.run_id, expected="a run that was requested"
        )
    if isinstance(command, StartRun):
        return _checked(run, *_start(run, command, now))
    if run.finished:
        raise RunFinishedError(f"the run has ended: {run.state.name}", at=run.run_id, state=run.state.name)
    if isinstance(command, RequestCancellation):
        return _checked(run, *_request_cancellation(run, command))
    _check_token(run, command.token)
    if isinstance(command, CancelRun):
        return _checked(run, RunCancelled(run_id=run.run_id, token=command.token))
    if isinstance(command, EndIfDue):
        return _checked(run, *_due(run, command.token, now))
    if isinstance(command, RequeueRun):
        return _checked(run, _requeue(run, command, now))
    if isinstance(command, FailRun):
        return _checked(run, RunFailed(run_id=run.run_id, error=command.error, token=command.token))
    return _checked(run, *_publish(run, command, now))


def evolve(run: Run, event: Event, recorded_at: datetime) -> Run:
    """The run after an event that was recorded at `recorded_at`."""
    kind, before = type(event), run.state
    state = RUN_TRANSITIONS.next_state(before, kind)
    changes = _CHANGES[kind](run, event, recorded_at) if kind in _CHANGES else {}
    if state is not before:
        changes["state"] = state
        if state in FINISHED:
            changes["finished_at"] = recorded_at
    if kind in _CHANGES_STATE and before is not RunState.ABSENT:
        changes["run_revision"] = run.run_revision + 1
    return msgspec.structs.replace(run, **changes)


def requeue_delay_seconds(failures_before: int) -> float:
    """Seconds to wait before trying again after the next counted failure."""
    return REQUEUE_DELAY_SECONDS[min(failures_before, len(REQUEUE_DELAY_SECONDS) - 1)]


def _requested(command: RequestRun) -> Event:
    return RunRequested(
        run_id=command.run_id,
        principal=command.principal,
        spec=command.spec,
        body_hash=command.body_hash,
        sweep_id=command.sweep_id,
    )


def _start(run: Run, command: StartRun, now: datetime) -> tuple[Event, ...]:
    """Start, unless the deadline has passed or a cancellation is due: then the run ends without being executed."""
    due = _due(run, 0, now) if run.state is RunState.QUEUED else ()
    return due or (RunStarted(run_id=run.run_id, owner=command.owner, token=command.token, attempt=run.attempts + 1),)


def _request_cancellation(run: Run, command: RequestCancellation) -> tuple[Event, ...]:
    if run.state is RunState.QUEUED:
        return (RunCancelled(run_id=run.run_id),)
    if run.cancellation_requested:
        return ()
    return (RunCancellationRequested(run_id=run.run_id, principal=command.principal),)


def _requeue(run: Run, command: RequeueRun, now: datetime) -> Event:
    """Back to the queue; or the end, if that was asked for, is late, or was tried too often."""
    due = _due(run, command.token, now)
    if due:
        return due[0]
    if command.reason.counts and run.failures + 1 >= ATTEMPTS_MAX:
        return RunFailed(run_id=run.run_id, error=_exhausted(run, command), token=command.token)
    counts = command.reason is RequeueReason.INFRASTRUCTURE
    return RunRequeued(
        run_id=run.run_id,
        token=command.token,
        reason=command.reason,
        delay_seconds=requeue_delay_seconds(run.failures) if counts else 0.0,
        error=command.error,
    )


def _publish(run: Run, command: PublishResults, now: datetime) -> tuple[Event, ...]:
    """Publish if absent. This is the last border: a cancellation or a deadline that came before it still wins."""
    due = _due(run, command.token, now)
    if due:
        return due
    published = {result.output for result in run.results}
    fresh = [result for result in command.results if result.output not in published]
    return (
        *(ResultPublished(run_id=run.run_id, token=command.token, result=result) for result in fresh),
        RunSucceeded(run_id=run.run_id, token=command.token),
    )


def _due(run: Run, token: int, now: datetime) -> tuple[Event, ...]:
    """The end that a border brings: cancelled if that was asked for, failed if the deadline has passed, else nothing."""
    if run.cancellation_requested:
        return (RunCancelled(run_id=run.run_id, token=token),)
    if _is_late(run, now):
        return (_failed_late(run, token),)
    return ()


def _is_late(run: Run, now: datetime) -> bool:
    return run.deadline_at is not None and now >= run.deadline_at


def _failed_late(run: Run, token: int) -> Event:
    seconds = run.spec.deadline_seconds if run.spec else 0
    message = f"the run did not end within {seconds} seconds of its admission"
    error = RunError(code=DeadlineExceededError.code, message=message, attempt=run.attempts)
    return RunFailed(run_id=run.run_id, error=error, token=token)


def _exhausted(run: Run, command: RequeueRun) -> RunError:
    last = f"; the last error: {command.error.code}: {command.error.message}" if command.error else "; its worker died"
    message = f"{run.failures + 1} attempts failed{last}"
    return RunError(code=AttemptsExhaustedError.code, message=message, attempt=run.attempts)


def _remember(run: Run, error: RunError | None) -> tuple[RunError, ...]:
    return run.errors if error is None else (*run.errors, error)[-ERRORS_MAX:]


def _check_token(run: Run, token: int) -> None:
    executing = run.token if run.state is RunState.RUNNING else 0
    if token != executing:
        raise StaleFenceError(f"token {token} is not executing the run; {executing} is", at=run.run_id, token=executing)


def _checked(run: Run, *events: Event) -> tuple[Event, ...]:
    """The events, after the table has agreed to each in turn."""
    state = run.state
    for event in events:
        state = RUN_TRANSITIONS.next_state(state, type(event))
    return events


_CHANGES: Final[Mapping[type[Event], Callable[[Run, Any, datetime], dict[str, Any]]]] = {
    RunRequested: lambda run, event, at: {
        "principal": event.principal,
        "spec": event.spec,
        "body_hash": event.body_hash,
        "sweep_id": event.sweep_id,
        "requested_at": at,
    },
    RunStarted: lambda run, event, at: {
        "attempts": event.attempt,
        "token": event.token,
        "owner": event.owner,
        "started_at": at,
    },
    ResultPublished: lambda run, event, at: {"results": (*run.results, event.result)},
    RunHandedOff: lambda run, event, at: {"token": event.token, "owner": event.owner},
    RunCancellationRequested: lambda run, event, at: {"cancellation_requested": True},
    RunRequeued: lambda run, event, at: {
        "failures": run.failures + event.reason.counts,
        "errors": _remember(run, event.error),
    },
    RunFailed: lambda run, event, at: {"errors": _remember(run, event.error)},
}
"""What an event changes besides the state, its count and its end."""
