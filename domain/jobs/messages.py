"""Commands and events of a job: long work that an operator asked for (a rebuild, an audit, …), of any kind.

`kind` names who can do it, `target` what it is done to, `document` its parameters. Only one job of a kind and target lives at a
time: the job's slot says which (`JobSlotTaken`, `JobSlotFreed`, written in the same append as the job's first and last event).
Addresses are content addresses (`sha256:…`); positions are places in the log.
"""

from enum import Enum
from typing import Any, ClassVar

import msgspec

from domain.events import Event, registered


class InterruptionReason(Enum):
    """Why an attempt ended without ending the job."""

    INFRASTRUCTURE = "INFRASTRUCTURE"
    """A part that it depends on was away. Counts towards the limit of attempts."""
    HANDED_BACK = "HANDED_BACK"
    """The process was told to stop."""


class JobError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What went wrong: code, sentence, place."""

    code: str
    message: str
    at: str | None = None


class RequestJob(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a job; the first thing that happens to one."""

    job_id: str
    kind: str
    target: str
    document: dict[str, Any]
    principal: str


class StartJob(msgspec.Struct, frozen=True):
    """Take the job under the token of a lease just granted; also one whose last owner has gone silent."""

    owner: str
    token: int


class ReportProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Say how far it is."""

    token: int
    position: int
    total: int
    rate: float


class AwaitConfirmation(msgspec.Struct, frozen=True, kw_only=True):
    """Stop until an operator has read the report and says go on."""

    token: int
    report: str
    summary: dict[str, Any]


class ConfirmJob(msgspec.Struct, frozen=True):
    """An operator's word to go on."""

    principal: str


class RequestJobCancellation(msgspec.Struct, frozen=True):
    """Ask that the job end without an effect; honoured at its next safe border."""

    principal: str


class CompleteJob(msgspec.Struct, frozen=True, kw_only=True):
    """End it SUCCEEDED."""

    token: int
    result: dict[str, Any]
    report: str | None = None


class FailJob(msgspec.Struct, frozen=True, kw_only=True):
    """End it FAILED."""

    token: int
    error: JobError
    report: str | None = None


class CancelJob(msgspec.Struct, frozen=True):
    """End it CANCELLED, as was asked."""

    token: int


class InterruptJob(msgspec.Struct, frozen=True, kw_only=True):
    """End the attempt and leave the job to the next one; a limit may turn this into the job's end."""

    token: int
    reason: InterruptionReason
    error: JobError | None = None


@registered
class JobRequested(Event, frozen=True, kw_only=True):
    """A job was asked for and waits for a runner."""

    topic: ClassVar[str] = "job.requested.v1"
    job_id: str
    kind: str
    target: str
    document: dict[str, Any]
    principal: str


@registered
class JobStarted(Event, frozen=True, kw_only=True):
    """A runner took the job under a live lease."""

    topic: ClassVar[str] = "job.started.v1"
    job_id: str
    owner: str
    token: int
    attempt: int


@registered
class JobProgressed(Event, frozen=True, kw_only=True):
    """How far it is: `position` of `total`, at `rate` positions a second."""

    topic: ClassVar[str] = "job.progressed.v1"
    job_id: str
    token: int
    position: int
    total: int
    rate: float


@registered
class JobAwaitsConfirmation(Event, frozen=True, kw_only=True):
    """The job goes on when an operator, who may read the report first, says so."""

    topic: ClassVar[str] = "job.awaits_confirmation.v1"
    job_id: str
    token: int
    report: str
    summary: dict[str, Any]


@registered
class JobConfirmed(Event, frozen=True, kw_only=True):
    """An operator said go on."""

    topic: ClassVar[str] = "job.confirmed.v1"
    job_id: str
    principal: str


@registered
class JobCancellationRequested(Event, frozen=True, kw_only=True):
    """Somebody asked the job to stop; its runner will see that at the next border."""

    topic: ClassVar[str] = "job.cancellation_requested.v1"
    job_id: str
    principal: str


@registered
class JobInterrupted(Event, frozen=True, kw_only=True):
    """An attempt ended and the job waits again, not before `delay_seconds` from now."""

    topic: ClassVar[str] = "job.interrupted.v1"
    job_id: str
    token: int
    reason: InterruptionReason
    delay_seconds: float
    error: JobError | None = None


@registered
class JobSucceeded(Event, frozen=True, kw_only=True):
    """The job did what was asked; `result` says what that was, `report` (a blob) at length."""

    topic: ClassVar[str] = "job.succeeded.v1"
    job_id: str
    token: int
    result: dict[str, Any]
    report: str | None = None


@registered
class JobFailed(Event, frozen=True, kw_only=True):
    """The job ended without doing what was asked. `token` is that of the last attempt."""

    topic: ClassVar[str] = "job.failed.v1"
    job_id: str
    token: int
    error: JobError
    report: str | None = None


@registered
class JobCancelled(Event, frozen=True, kw_only=True):
    """The job ended because that was asked for. `token` is 0 if it was never started."""

    topic: ClassVar[str] = "job.cancelled.v1"
    job_id: str
    token: int
    principal: str


@registered
class JobSlotTaken(Event, frozen=True, kw_only=True):
    """The job is the only living one of its kind for its target."""

    topic: ClassVar[str] = "job_slot.taken.v1"
    kind: str
    target: str
    job_id: str


@registered
class JobSlotFreed(Event, frozen=True, kw_only=True):
    """That job has ended; another may be asked for."""

    topic: ClassVar[str] = "job_slot.freed.v1"
    kind: str
    target: str
    job_id: str
