"""Orphan recovery: a run whose worker is gone is put back into the queue, continuously, not only at a start.

It follows leases and runs. Each live lease of a run has a deadline at its expiry; a renewal moves it, the end of the run clears
it. When one comes, the run and its lease are read and decided upon afresh, and the recovery is appended under "nobody holds a
live lease and the token is still F", so a run with a live lease is never touched, whatever this manager believes. A queued run
has a deadline of its own, so that it ends FAILED in time even if no worker ever comes.

What must stay true: a BATCH or REPLAY run that is RUNNING without a live lease goes back to QUEUED, or ends as its state says
(cancelled, late, attempts exhausted); a STREAM run is never requeued: its stand-by takes it over, or it ends here if that was
asked for or its deadline has passed. A crash anywhere repeats at most a command whose events have the same ids.
"""

from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from domain.errors import (
    Fault,
    FinazError,
    LeaseHeldError,
    StaleFenceError,
    UndecodableEventError,
    UnknownTopicError,
    VersionConflictError,
)
from domain.events import Event, Metadata, Recorded
from domain.identity import RUN_ID, lease_stream, reaction_id, run_stream
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.runs.aggregate import Run, RunState, decide
from domain.runs.messages import (
    EndIfDue,
    Mode,
    RequeueReason,
    RequeueRun,
    RunCancelled,
    RunFailed,
    RunRequested,
    RunRequeued,
    RunStarted,
    RunSucceeded,
)
from services import effects
from services.leases import fold_lease
from services.ports import Append, EventLog, NewEvent, Vacant
from services.process_managers.contract import Clear, Command, Deadline, Document, Retry, SetAside, Stop, Verdict, Want
from services.runs import fold_run

NAME: Final = "orphan_recovery"
RECOVER: Final = "recover"
EXPIRE: Final = "expire"

RETRY_SECONDS: Final = (0.05, 0.2, 1.0, 5.0, 30.0)
"""Seconds after the first, second, … failure of a command; the last one from then on."""

ATTEMPTS_MAX: Final = 20
"""Failures of one command for any reason but an absent store, before it becomes a dead letter."""

_MOVED_ON: Final = (LeaseHeldError, StaleFenceError, VersionConflictError)


class OrphanRecovery:
    """The process manager (`services.process_managers.contract.ProcessManager`)."""

    name = NAME
    categories: tuple[str, ...] = ("run", "lease")

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def interested(self, event: Event) -> str | None:
        """The run: by its own events, or by those of its lease."""
        if isinstance(event, LeaseGranted | LeaseRenewed | LeaseReleased):
            return event.resource if RUN_ID.match(event.resource) else None
        if isinstance(event, RunRequested | RunStarted | RunRequeued | RunSucceeded | RunFailed | RunCancelled):
            return event.run_id
        return None

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        """A deadline for each live lease, one for each queued run, none for what has ended."""
        event, at = recorded.event, recorded.recorded_at
        match event:
            case LeaseGranted() | LeaseRenewed():
                return (_recover(event.resource, event.token, at + timedelta(seconds=event.ttl_seconds)),)
            case LeaseReleased():
                # Released and still running would be an orphan at once; the run's own event, if it ended, clears this.
                return (_recover(event.resource, event.token, at),) if state.get("running") else (Clear(RECOVER),)
            case RunRequested():
                due_at = at + timedelta(seconds=event.spec.deadline_seconds)
                return (Deadline(EXPIRE, due_at, {"run_id": event.run_id}),)
            case RunRequeued():
                return (Clear(RECOVER),)
            case RunSucceeded() | RunFailed() | RunCancelled():
                return (Clear(RECOVER), Clear(EXPIRE))
        return ()

    def apply(self, state: Document, recorded: Recorded) -> Document:
        """Whether the run is being executed; nothing once it is not."""
        match recorded.event:
            case RunStarted():
                return {"running": True}
            case RunRequeued() | RunSucceeded() | RunFailed() | RunCancelled():
                return {}
        return state

    def execute(self, command: Command, command_id: UUID) -> None:
        """Recover or expire the run, if that is still called for."""
        run_id: str = command.document["run_id"]
        streams = [run_stream(run_id), lease_stream(run_id)]
        read = self._log.read_streams_blocking(streams)
        history, leases = (read.streams[stream] for stream in streams)
        lease = fold_lease(run_id, leases)
        if not history or lease.is_live(read.now):
            return  # a renewal set a deadline of its own; an owner that is alive judges the run's deadline itself
        events = wanted_of(fold_run(run_id, history), read.now)
        if not events:
            return
        version = history[-1].version
        append = Append(
            events=tuple(
                NewEvent(run_stream(run_id), version + n, event, reaction_id(command_id, NAME, n))
                for n, event in enumerate(events, 1)
            ),
            guard=Vacant(run_id, lease.token),
            metadata=Metadata(causation_id=history[-1].event_id, correlation_id=run_id),
        )
        effects.append_blocking(self._log, append)

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        """A run that moved on is looked at again; an absent store is waited for; a bug becomes a dead letter in the end."""
        if isinstance(error, _MOVED_ON):
            return Retry(RETRY_SECONDS[0])
        if isinstance(error, UnknownTopicError | UndecodableEventError):
            return Stop()  # the log was written by newer code: this process must not decide anything about any run
        away = isinstance(error, FinazError) and error.fault is Fault.INFRASTRUCTURE
        if not away and attempts >= ATTEMPTS_MAX:
            return SetAside()
        return Retry(RETRY_SECONDS[min(attempts - 1, len(RETRY_SECONDS) - 1)])


def wanted_of(run: Run, now: datetime) -> tuple[Event, ...]:
    """What becomes of a run that nobody holds a live lease on, at `now`: nothing, for one that waits in time or has ended."""
    if run.state is RunState.RUNNING:
        if run.spec is not None and run.spec.mode is Mode.STREAM:
            # Its next owner takes it over, if it is not due to end.
            return decide(run, EndIfDue(run.token), now)
        return decide(run, RequeueRun(token=run.token, reason=RequeueReason.ORPHANED), now)
    if run.state is RunState.QUEUED:
        return decide(run, EndIfDue(0), now)
    return ()


def _recover(run_id: str, token: int, due_at: datetime) -> Deadline:
    document: dict[str, Any] = {"run_id": run_id, "token": token}
    return Deadline(RECOVER, due_at, document)
