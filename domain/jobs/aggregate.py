"""A job: from asked for to ended, exactly one way.

What must stay true: a job ends once; a cancellation is honoured at a border and loses to what has been done already; what waits
for a confirmation does nothing until an operator gives it; a job whose owner has gone silent is started again, a bounded number of
times. The table below is the whole life of a job. A crash leaves it in the state of its last event, where the next runner finds it.
"""

from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from domain.errors import AttemptsExhaustedError, IllegalTransitionError, StaleFenceError
from domain.events import Event
from domain.jobs.errors import JobFinishedError, JobNotAwaitingError
from domain.jobs.messages import (
    AwaitConfirmation,
    CancelJob,
    CompleteJob,
    ConfirmJob,
    FailJob,
    InterruptionReason,
    InterruptJob,
    JobAwaitsConfirmation,
    JobCancellationRequested,
    JobCancelled,
    JobConfirmed,
    JobError,
    JobFailed,
    JobInterrupted,
    JobProgressed,
    JobRequested,
    JobStarted,
    JobSucceeded,
    ReportProgress,
    RequestJob,
    RequestJobCancellation,
    StartJob,
)
from domain.transitions import AggregateState, TransitionTable

ATTEMPTS_MAX: Final = 5
"""Attempts that may end in a fault of the infrastructure or a crash; then the job ends FAILED."""

RETRY_DELAY_SECONDS: Final = (1.0, 5.0, 15.0, 60.0)
"""Seconds to wait after the first, second, … counted interruption."""


class JobState(AggregateState):
    """Where a job stands."""

    ABSENT = "ABSENT"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    AWAITING = "AWAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


JOB_TRANSITIONS: Final = TransitionTable[JobState](
    "job",
    {
        (JobState.ABSENT, JobRequested): JobState.QUEUED,
        (JobState.QUEUED, JobStarted): JobState.RUNNING,
        (JobState.QUEUED, JobCancellationRequested): JobState.QUEUED,
        (JobState.QUEUED, JobCancelled): JobState.CANCELLED,
        (JobState.RUNNING, JobStarted): JobState.RUNNING,
        (JobState.RUNNING, JobProgressed): JobState.RUNNING,
        (JobState.RUNNING, JobCancellationRequested): JobState.RUNNING,
        (JobState.RUNNING, JobInterrupted): JobState.QUEUED,
        (JobState.RUNNING, JobAwaitsConfirmation): JobState.AWAITING,
        (JobState.RUNNING, JobSucceeded): JobState.SUCCEEDED,
        (JobState.RUNNING, JobFailed): JobState.FAILED,
        (JobState.RUNNING, JobCancelled): JobState.CANCELLED,
        (JobState.AWAITING, JobConfirmed): JobState.QUEUED,
        (JobState.AWAITING, JobCancellationRequested): JobState.QUEUED,
    },
)

FINISHED: Final = frozenset(JOB_TRANSITIONS.final_states())

JobCommand: TypeAlias = (
    RequestJob
    | StartJob
    | ReportProgress
    | AwaitConfirmation
    | ConfirmJob
    | RequestJobCancellation
    | CompleteJob
    | FailJob
    | CancelJob
    | InterruptJob
)


class JobProgress(msgspec.Struct, frozen=True, gc=False):
    """How far it was at its last word: `position` of `total`, at `rate` positions a second."""

    position: int = 0
    total: int = 0
    rate: float = 0.0

    @property
    def left_seconds(self) -> float | None:
        """Seconds left at this rate; None while there is none."""
        return max(0, self.total - self.position) / self.rate if self.rate > 0.0 else None


class Job(msgspec.Struct, frozen=True):
    """State of a job. `failures` counts what counts towards `ATTEMPTS_MAX`; `token` is the last owner's."""

    job_id: str
    state: JobState = JobState.ABSENT
    kind: str = ""
    target: str = ""
    document: dict[str, Any] = {}
    principal: str = ""
    attempts: int = 0
    failures: int = 0
    owner: str = ""
    token: int = 0
    progress: JobProgress = JobProgress()
    cancelled_by: str | None = None
    confirmed_by: str | None = None
    report: str | None = None
    summary: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: JobError | None = None
    requested_at: datetime | None = None
    started_at: datetime | None = None
    due_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINISHED

    def is_due(self, now: datetime) -> bool:
        """Whether a runner may take it at `now`, if nobody holds its lease."""
        if self.state is JobState.QUEUED:
            return self.due_at is None or self.due_at <= now or self.cancelled_by is not None
        return self.state is JobState.RUNNING


def decide(job: Job, command: JobCommand) -> tuple[Event, ...]:
    """The events of the command; `()` for what is so already.

    Raises `JobFinishedError` for what needs a job that hasn't ended, `JobNotAwaitingError` for a confirmation that nobody waits
    for, `StaleFenceError` for a token that isn't the current one, `IllegalTransitionError` for what else the table doesn't allow.
    """
    if isinstance(command, RequestJob):
        return _allowed(job, JobRequested(**msgspec.structs.asdict(command)))
    if job.state is JobState.ABSENT:
        raise IllegalTransitionError(f"there is no job {job.job_id}", at=job.job_id, expected="one that was asked for")
    if job.finished:
        raise JobFinishedError(f"the job has ended {job.state.value}", at=job.job_id, state=job.state.value)
    match command:
        case StartJob():
            return _start(job, command)
        case ConfirmJob():
            return _confirm(job, command)
        case RequestJobCancellation():
            return _ask_to_cancel(job, command)
        case _:
            return _by_owner(job, command)


def evolve(job: Job, event: Event, recorded_at: datetime) -> Job:
    """The job after an event that was recorded at `recorded_at`."""
    state = JOB_TRANSITIONS.next_state(job.state, type(event))
    changed = msgspec.structs.replace
    match event:
        case JobRequested():
            return Job(
                job_id=event.job_id,
                state=state,
                kind=event.kind,
                target=event.target,
                document=event.document,
                principal=event.principal,
                requested_at=recorded_at,
            )
        case JobStarted():
            crashed = job.state is JobState.RUNNING
            return changed(
                job,
                state=state,
                owner=event.owner,
                token=event.token,
                attempts=event.attempt,
                failures=job.failures + crashed,
                started_at=job.started_at or recorded_at,
                due_at=None,
            )
        case JobProgressed():
            return changed(job, state=state, progress=JobProgress(event.position, event.total, event.rate))
        case JobInterrupted():
            counts = event.reason is InterruptionReason.INFRASTRUCTURE
            due_at = recorded_at + timedelta(seconds=event.delay_seconds)
            return changed(job, state=state, failures=job.failures + counts, due_at=due_at, error=event.error)
        case JobAwaitsConfirmation():
            return changed(job, state=state, report=event.report, summary=event.summary, confirmed_by=None)
        case JobConfirmed():
            return changed(job, state=state, confirmed_by=event.principal)
        case JobCancellationRequested():
            return changed(job, state=state, cancelled_by=event.principal)
    return _ended(job, state, event, recorded_at)


def _ended(job: Job, state: JobState, event: Event, recorded_at: datetime) -> Job:
    ended = msgspec.structs.replace(job, state=state, finished_at=recorded_at)
    match event:
        case JobSucceeded():
            report = event.report or job.report
            return msgspec.structs.replace(ended, result=event.result, report=report, error=None)
        case JobFailed():
            return msgspec.structs.replace(ended, error=event.error, report=event.report or job.report)
        case JobCancelled():
            return msgspec.structs.replace(ended, cancelled_by=event.principal)
    return ended


def _start(job: Job, command: StartJob) -> tuple[Event, ...]:
    attempt = job.attempts + 1
    started = JobStarted(job_id=job.job_id, owner=command.owner, token=command.token, attempt=attempt)
    failures = job.failures + (job.state is JobState.RUNNING)
    if job.state is JobState.RUNNING and failures >= ATTEMPTS_MAX:
        return _allowed(job, _exhausted(job, command.token, JobError(code="CRASHED", message="its owner went silent")))
    return _allowed(job, started)


def _confirm(job: Job, command: ConfirmJob) -> tuple[Event, ...]:
    if job.state is not JobState.AWAITING:
        raise JobNotAwaitingError(
            f"the job is {job.state.value}", at=job.job_id, expected="one that waits for a confirmation"
        )
    return _allowed(job, JobConfirmed(job_id=job.job_id, principal=command.principal))


def _ask_to_cancel(job: Job, command: RequestJobCancellation) -> tuple[Event, ...]:
    """Never started: it ends at once. Otherwise its runner ends it, and undoes what it has made."""
    if job.cancelled_by is not None:
        return ()
    if job.attempts == 0:
        return _allowed(job, JobCancelled(job_id=job.job_id, token=0, principal=command.principal))
    return _allowed(job, JobCancellationRequested(job_id=job.job_id, principal=command.principal))


def _by_owner(
    job: Job, command: ReportProgress | AwaitConfirmation | CompleteJob | FailJob | CancelJob | InterruptJob
) -> tuple[Event, ...]:
    """What only the owner of the current token may say."""
    if job.state is not JobState.RUNNING or command.token != job.token:
        raise StaleFenceError(f"token {command.token} no longer has the job", at=job.job_id, token=job.token)
    event: Event
    match command:
        case ReportProgress():
            event = JobProgressed(job_id=job.job_id, **msgspec.structs.asdict(command))
        case AwaitConfirmation() if (
            job.cancelled_by is not None
        ):  # nobody is to be asked any more: the next attempt undoes it
            event = _interrupted(job, InterruptJob(token=command.token, reason=InterruptionReason.HANDED_BACK))
        case AwaitConfirmation():
            event = JobAwaitsConfirmation(job_id=job.job_id, **msgspec.structs.asdict(command))
        case CompleteJob():
            event = JobSucceeded(job_id=job.job_id, **msgspec.structs.asdict(command))
        case FailJob():
            event = JobFailed(job_id=job.job_id, **msgspec.structs.asdict(command))
        case CancelJob():
            event = JobCancelled(job_id=job.job_id, token=command.token, principal=job.cancelled_by or job.principal)
        case InterruptJob():
            event = _interrupted(job, command)
    return _allowed(job, event)


def _interrupted(job: Job, command: InterruptJob) -> Event:
    counts = command.reason is InterruptionReason.INFRASTRUCTURE
    if counts and job.failures + 1 >= ATTEMPTS_MAX:
        return _exhausted(job, command.token, command.error)
    delay = RETRY_DELAY_SECONDS[min(job.failures, len(RETRY_DELAY_SECONDS) - 1)] if counts else 0.0
    return JobInterrupted(
        job_id=job.job_id, token=command.token, reason=command.reason, delay_seconds=delay, error=command.error
    )


def _exhausted(job: Job, token: int, last: JobError | None) -> JobFailed:
    why = f"; the last time: {last.code}: {last.message}" if last else ""
    error = JobError(code=AttemptsExhaustedError.code, message=f"{ATTEMPTS_MAX} attempts did not end the job{why}")
    return JobFailed(job_id=job.job_id, token=token, error=error)


def _allowed(job: Job, event: Event) -> tuple[Event, ...]:
    JOB_TRANSITIONS.next_state(job.state, type(event))
    return (event,)
