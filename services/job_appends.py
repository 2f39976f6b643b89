"""What is wanted of the log for one job, as values: ask for it, claim it, say how far it is, end it.

Pure: streams in, `Append` out. What must stay true: whatever happens to a job is one append over its own stream, its slot's and its
lease's, under the versions that were read and, for what its owner does, under the fence; the slot is freed by the append that ends
the job. So a second runner, a cancellation or a takeover in between refuses the append, and a crash leaves all of it or nothing.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from domain.errors import StaleFenceError
from domain.events import Event, Metadata, Recorded
from domain.identity import job_slot_stream, job_stream, lease_stream
from domain.jobs.aggregate import FINISHED, JOB_TRANSITIONS, Job, JobCommand, JobState, decide, evolve
from domain.jobs.messages import JobRequested, JobSlotFreed, JobStarted, RequestJob, StartJob
from domain.jobs.slot import Slot, take
from domain.jobs.slot import evolve as evolve_slot
from domain.leases.aggregate import Lease
from domain.leases.aggregate import evolve as evolve_lease
from services.leases import acquired, fold_lease, released, renewed
from services.ports import Append, Appended, Fence, Guard, NewEvent, StreamsRead

NewId = Callable[[], UUID]


class Runner(msgspec.Struct, frozen=True):
    """Who takes jobs: `owner` is new at every process start."""

    owner: str
    ttl_seconds: float
    label: str = ""


class JobHead(msgspec.Struct, frozen=True):
    """A job, its lease and its slot as the log held them, and the versions that an append on top must have."""

    job: Job
    job_version: int
    lease: Lease
    lease_version: int
    slot: Slot
    slot_version: int
    cause: UUID | None = None

    @property
    def job_id(self) -> str:
        return self.job.job_id


def fold_job(job_id: str, events: Sequence[Recorded]) -> Job:
    """The state of the job after its events (none: `ABSENT`)."""
    job = Job(job_id)
    for recorded in events:
        job = evolve(job, recorded.event, recorded.recorded_at)
    return job


def fold_slot(kind: str, target: str, events: Sequence[Recorded]) -> Slot:
    """The state of the slot after its events."""
    slot = Slot(kind, target)
    for recorded in events:
        slot = evolve_slot(slot, recorded.event)
    return slot


def streams_of(job_id: str, kind: str, target: str) -> list[str]:
    """The streams that the head of a job is folded from."""
    return [job_stream(job_id), lease_stream(job_id), job_slot_stream(kind, target)]


def head_of(job_id: str, kind: str, target: str, read: StreamsRead) -> JobHead:
    """The head of a job from a read of its streams."""
    jobs, leases, slots = (read.streams[name] for name in streams_of(job_id, kind, target))
    return JobHead(
        fold_job(job_id, jobs),
        len(jobs),
        fold_lease(job_id, leases),
        len(leases),
        fold_slot(kind, target, slots),
        len(slots),
        jobs[-1].event_id if jobs else None,
    )


def own_streams_of(job_id: str) -> list[str]:
    """The streams that say whether a job is to be had, and whether it is still ours; a slot's grows with every job."""
    return [job_stream(job_id), lease_stream(job_id)]


def may_be_claimed(job_id: str, read: StreamsRead) -> bool:
    """Whether a job is due and nobody holds its lease, from a read of its own streams."""
    jobs, leases = (read.streams[name] for name in own_streams_of(job_id))
    return fold_job(job_id, jobs).is_due(read.now) and not fold_lease(job_id, leases).is_live(read.now)


def looked_at_again(head: JobHead, read: StreamsRead) -> JobHead:
    """The head after a read of the job's own streams. Its slot stays as it is while the job lives."""
    jobs, leases = (read.streams[name] for name in own_streams_of(head.job_id))
    return JobHead(
        fold_job(head.job_id, jobs),
        len(jobs),
        fold_lease(head.job_id, leases),
        len(leases),
        head.slot,
        head.slot_version,
        jobs[-1].event_id,
    )


def advanced(head: JobHead, append: Append, appended: Appended) -> JobHead:
    """The head after an append of ours was accepted."""
    streams = streams_of(head.job_id, head.slot.kind, head.slot.target)
    for new in append.events:
        if new.stream == streams[0]:
            job = evolve(head.job, new.event, appended.recorded_at)
            head = msgspec.structs.replace(head, job=job, job_version=new.version, cause=new.event_id)
        elif new.stream == streams[1]:
            lease = evolve_lease(head.lease, new.event, appended.recorded_at)
            head = msgspec.structs.replace(head, lease=lease, lease_version=new.version)
        else:
            head = msgspec.structs.replace(head, slot=evolve_slot(head.slot, new.event), slot_version=new.version)
    return head


def request(head: JobHead, command: RequestJob, new_id: NewId) -> Append:
    """Ask for the job and take its slot. Raises `JobRunningError` while another lives in it."""
    taken = take(head.slot, command.job_id)
    return _append(head, (), decide(head.job, command), (taken,), None, new_id, command.principal)


def claim(head: JobHead, runner: Runner, now: datetime, new_id: NewId) -> Append | None:
    """Take the lease and start the job, or end it where its attempts are used up; None where there is nothing to take."""
    if not head.job.is_due(now) or head.lease.is_live(now):
        return None
    step = acquired(head.lease, runner.owner, runner.ttl_seconds, now, runner.label)
    events = decide(head.job, StartJob(runner.owner, step.event.token))
    granted = (step.event,) if isinstance(events[-1], JobStarted) else ()
    return _append(head, granted, events, _freed(head, events), step.guard, new_id)


def renew(head: JobHead, runner: Runner, token: int, new_id: NewId) -> Append:
    """Prolong the lease by its TTL from the moment of recording."""
    step = renewed(Fence(head.job_id, runner.owner, token), runner.ttl_seconds)
    return _append(head, (step.event,), (), (), step.guard, new_id)


def by_owner(head: JobHead, command: JobCommand, runner: Runner, token: int, new_id: NewId) -> Append:
    """What the owner says of its job; the lease goes back where that ends the attempt, the slot where it ends the job.

    Raises `StaleFenceError` once another has the job.
    """
    if head.lease.owner != runner.owner or head.lease.token != token:
        raise StaleFenceError(f"token {token} was overtaken", at=head.job_id, token=head.lease.token)
    events = decide(head.job, command)
    state = JOB_TRANSITIONS.next_state(head.job.state, type(events[-1]))
    over = state is not JobState.RUNNING
    step = released(Fence(head.job_id, runner.owner, token))
    return _append(head, (step.event,) if over else (), events, _freed(head, events), step.guard, new_id)


def by_operator(head: JobHead, command: JobCommand, principal: str, new_id: NewId) -> Append | None:
    """What an operator says of a job; None where that says nothing new. Raises what `decide` raises."""
    events = decide(head.job, command)
    return _append(head, (), events, _freed(head, events), None, new_id, principal) if events else None


def _freed(head: JobHead, events: Sequence[Event]) -> tuple[Event, ...]:
    """The slot's end of the job, where these events end it."""
    if JOB_TRANSITIONS.next_state(head.job.state, type(events[-1])) not in FINISHED:
        return ()
    return (JobSlotFreed(kind=head.slot.kind, target=head.slot.target, job_id=head.job_id),)


def _append(
    head: JobHead,
    leases: Sequence[Event],
    jobs: Sequence[Event],
    slots: Sequence[Event],
    guard: Guard | None,
    new_id: NewId,
    principal: str | None = None,
) -> Append:
    streams = streams_of(head.job_id, head.slot.kind, head.slot.target)
    parts = (
        (streams[1], head.lease_version, leases),
        (streams[0], head.job_version, jobs),
        (streams[2], head.slot_version, slots),
    )
    news = [
        NewEvent(stream, version, event, new_id())
        for stream, before, events in parts
        for version, event in enumerate(events, before + 1)
    ]
    requested = [event for event in jobs if isinstance(event, JobRequested)]
    who = principal or (requested[0].principal if requested else head.job.principal) or None
    metadata = Metadata(causation_id=head.cause, correlation_id=head.job_id, principal=who)
    return Append(events=tuple(news), guard=guard, metadata=metadata)
