"""Jobs, for operators: one row per job, in the state of its last event.

What must stay true: a row is the fold of the job's stream by its own aggregate, so it cannot say anything else than the job does.
"""

from typing import Any, Final

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.jobs.aggregate import Job, evolve
from domain.jobs.messages import (
    JobAwaitsConfirmation,
    JobCancellationRequested,
    JobCancelled,
    JobConfirmed,
    JobFailed,
    JobInterrupted,
    JobProgressed,
    JobRequested,
    JobStarted,
    JobSucceeded,
)
from projections.folding import ReadModel

NAME: Final = "jobs"

JobEvent = (
    JobRequested
    | JobStarted
    | JobProgressed
    | JobAwaitsConfirmation
    | JobConfirmed
    | JobCancellationRequested
    | JobInterrupted
    | JobSucceeded
    | JobFailed
    | JobCancelled
)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job; what lists are made by stands in columns of its own."""

    job_id: str
    kind: str
    target: str
    state: str
    job: Job
    first_position: int
    position: int


def key_of(event: Event) -> str | None:
    """The job that the event is about, or None."""
    return event.job_id if isinstance(event, JobEvent) else None


def apply(row: JobRow | None, recorded: Recorded) -> JobRow:
    """The row after the event. Raises `IllegalTransitionError` for one that cannot follow."""
    event: Any = recorded.event
    if row is None and not isinstance(event, JobRequested):
        raise IllegalTransitionError("the job was never asked for", at=recorded.stream)
    job = evolve(Job(event.job_id) if row is None else row.job, event, recorded.recorded_at)
    return JobRow(
        job_id=job.job_id,
        kind=job.kind,
        target=job.target,
        state=job.state.value,
        job=job,
        first_position=recorded.position if row is None else row.first_position,
        position=recorded.position,
    )


MODEL: Final = ReadModel[str, JobRow](NAME, ("job",), key_of, apply)
