"""What a worker wants of the log for one run, as values: claim it, renew its lease, end it, hand it back.

Pure: streams in, `Append` out. What must stay true: everything that a worker does to a run is one append over the run's and the
lease's stream, under the versions that the decision was made on and a guard that the log checks by its own clock. So a second
worker, a cancellation or a takeover in between refuses the append, and a crash leaves all of it or nothing.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from domain.errors import StaleFenceError
from domain.events import Event, Metadata, Recorded
from domain.identity import lease_stream, run_stream
from domain.leases.aggregate import Lease
from domain.leases.aggregate import evolve as evolve_lease
from domain.runs.aggregate import Run, RunCommand, RunState, decide
from domain.runs.aggregate import evolve as evolve_run
from domain.runs.messages import ResultPublished, ResultRef, RunStarted, StartRun
from services.leases import acquired, fold_lease, released, renewed
from services.ports import Append, Appended, Fence, Guard, NewEvent, StreamsRead
from services.runs import fold_run

NewId = Callable[[], UUID]


class Claimant(msgspec.Struct, frozen=True):
    """Who claims: `owner` is new at every process start, `label` is a name for people."""

    owner: str
    ttl_seconds: float
    label: str = ""


class Head(msgspec.Struct, frozen=True):
    """A run and its lease as the log held them, and the versions that an append on top must have."""

    run: Run
    run_version: int
    lease: Lease
    lease_version: int
    cause: UUID | None = None
    """The run's last event: what a worker does next is because of it."""

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def running(self) -> bool:
        return self.run.state is RunState.RUNNING


def streams_of(run_ids: Sequence[str]) -> list[str]:
    """The streams that the heads of these runs are folded from."""
    return [name for run_id in run_ids for name in (run_stream(run_id), lease_stream(run_id))]


def head_of(run_id: str, read: StreamsRead) -> Head:
    """The head of a run from a read of its streams."""
    events: Sequence[Recorded] = read.streams[run_stream(run_id)]
    leases: Sequence[Recorded] = read.streams[lease_stream(run_id)]
    return Head(
        fold_run(run_id, events),
        events[-1].version if events else 0,
        fold_lease(run_id, leases),
        leases[-1].version if leases else 0,
        events[-1].event_id if events else None,
    )


def advanced(head: Head, append: Append, appended: Appended) -> Head:
    """The head after an append of ours was accepted."""
    run, lease, cause = head.run, head.lease, head.cause
    run_version, lease_version = head.run_version, head.lease_version
    runs, leases = run_stream(head.run_id), lease_stream(head.run_id)
    for new in append.events:
        if new.stream == runs:
            run, run_version, cause = evolve_run(run, new.event, appended.recorded_at), new.version, new.event_id
        elif new.stream == leases:
            lease, lease_version = evolve_lease(lease, new.event, appended.recorded_at), new.version
    return Head(run, run_version, lease, lease_version, cause)


def claim(head: Head, claimant: Claimant, now: datetime, new_id: NewId) -> Append | None:
    """Take the lease and start the run, or end it if that is due; None where there is nothing to take.

    The guard says that nobody holds a live lease and the token is still the last one: of two claimants one gets nothing.
    """
    if head.run.state is not RunState.QUEUED or head.lease.is_live(now):
        return None
    step = acquired(head.lease, claimant.owner, claimant.ttl_seconds, now, claimant.label)
    events = decide(head.run, StartRun(claimant.owner, step.event.token), now)
    granted = (step.event,) if isinstance(events[-1], RunStarted) else ()
    return _append(head, granted, events, step.guard, new_id)


def renew(head: Head, claimant: Claimant, token: int, new_id: NewId) -> Append:
    """Prolong the lease by its TTL from the moment of recording."""
    step = renewed(Fence(head.run_id, claimant.owner, token), claimant.ttl_seconds)
    return _append(head, (step.event,), (), step.guard, new_id)


def conclude(
    head: Head, command: RunCommand, claimant: Claimant, token: int, now: datetime, new_id: NewId
) -> Append | None:
    """What the command decides for the run, and the lease given back with it; None where it decides nothing.

    Raises `StaleFenceError` if the run is no longer executed under the token, `RunFinishedError` if it has ended.
    """
    check_mine(head, claimant, token)
    events = decide(head.run, command, now)
    if not events:
        return None
    step = released(Fence(head.run_id, claimant.owner, token))
    return _append(head, (step.event,), events, step.guard, new_id)


def check_mine(head: Head, claimant: Claimant, token: int) -> None:
    """Raises `StaleFenceError` unless the claimant's token is the last one given (live or not is for the log to say)."""
    lease = head.lease
    if lease.owner != claimant.owner or lease.token != token:
        raise StaleFenceError(f"token {token} was overtaken by {lease.token}", at=head.run_id, token=lease.token)


def published_by(append: Append) -> tuple[ResultRef, ...]:
    """The results that an append makes visible."""
    return tuple(new.event.result for new in append.events if isinstance(new.event, ResultPublished))


def _append(
    head: Head, lease_events: tuple[Event, ...], run_events: tuple[Event, ...], guard: Guard, new_id: NewId
) -> Append:
    leases, runs = lease_stream(head.run_id), run_stream(head.run_id)
    news = [
        NewEvent(leases, version, event, new_id()) for version, event in enumerate(lease_events, head.lease_version + 1)
    ]
    news += [NewEvent(runs, version, event, new_id()) for version, event in enumerate(run_events, head.run_version + 1)]
    metadata = Metadata(causation_id=head.cause, correlation_id=head.run_id, principal=head.run.principal or None)
    return Append(events=tuple(news), guard=guard, metadata=metadata)
