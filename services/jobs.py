"""Jobs as operators see them: ask for one, look at it, confirm, cancel.

What must stay true: an answer about one job folds its own stream, so it is never behind; a second living job of one kind and target
is refused by the log (`JOB_RUNNING`), whatever read models say; a command is one append under the version that was read, decided
again if something came in between. A crash leaves the append or nothing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from domain.canonical import canonical
from domain.errors import BodyInvalidError, VersionConflictError
from domain.events import Recorded
from domain.identity import JOB_ID, checked_name, job_slot_stream, job_stream, lease_stream
from domain.jobs.aggregate import Job, JobCommand, JobState
from domain.jobs.errors import JobKindUnknownError
from domain.jobs.errors import JobNotFoundError as JobNotFoundError
from domain.jobs.messages import ConfirmJob, JobError, RequestJob, RequestJobCancellation
from projections.jobs.postgres import JobsReader
from projections.reading import Page
from services import effects
from services.event_ids import new_event_id
from services.job_appends import JobHead, by_operator, fold_job, head_of, request, streams_of
from services.job_kinds import JobKind
from services.ports import EventLog

CONFLICT_RETRIES_MAX: Final = 8
"""Times that a decision is made again because its stream had moved on."""

DOCUMENT_BYTES_MAX: Final = 16 * 1024
"""Bytes of a job's parameters as canonical JSON."""

JOB_STATES: Final = tuple(state.value for state in JobState if state is not JobState.ABSENT)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one job. `position` of `total` at `rate` a second is how far it is; `left_seconds` what that leaves.

    `summary` is what a job that waits for a confirmation found, `result` what one that succeeded did; `report` addresses a blob
    that says it at length.
    """

    job_id: str
    state: str
    kind: str
    target: str
    document: dict[str, Any]
    principal: str
    attempts: int
    owner: str
    token: int
    position: int
    total: int
    rate: float
    left_seconds: float | None
    confirmed_by: str | None
    cancelled_by: str | None
    summary: dict[str, Any] | None
    result: dict[str, Any] | None
    report: str | None
    error: JobError | None
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    log_position: int
    """Of the job's last event."""


class Jobs:
    """The use cases. `principal` is the operator who asks."""

    def __init__(
        self,
        log: EventLog,
        kinds: Mapping[str, JobKind],
        reader: JobsReader | None = None,
        new_id: Callable[[], UUID] = new_event_id,
    ) -> None:
        self._log = log
        self._kinds = kinds
        self._reader = reader
        self._new_id = new_id

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of job that can be asked for."""
        return tuple(sorted(self._kinds))

    async def request(self, kind: str, target: str, document: Mapping[str, Any], principal: str) -> JobView:
        """Ask for a job. Raises `JobKindUnknownError`, `JobRunningError`, and what the kind says of target and parameters."""
        known = self._kinds.get(kind)
        if known is None:
            expected = ", ".join(sorted(self._kinds))
            raise JobKindUnknownError(f"there is no kind of job {kind[:80]!r}", at="$.kind", expected=expected)
        checked_name(target, at="$.target")
        parameters = await asyncio.to_thread(known.checked, target, document)
        if len(canonical(parameters)) > DOCUMENT_BYTES_MAX:
            raise BodyInvalidError(
                "the parameters are too long", at="$.document", expected=f"at most {DOCUMENT_BYTES_MAX} bytes"
            )
        job_id = f"job_{uuid4().hex}"
        command = RequestJob(job_id=job_id, kind=kind, target=target, document=parameters, principal=principal)
        for _ in range(CONFLICT_RETRIES_MAX):
            read = await self._log.read_streams(streams_of(job_id, kind, target))
            try:
                await effects.append(self._log, request(head_of(job_id, kind, target, read), command, self._new_id))
            except VersionConflictError:
                continue  # the slot has moved: look who is in it
            return await self.get(job_id)
        raise VersionConflictError("the slot kept changing", at=job_slot_stream(kind, target))

    async def get(self, job_id: str) -> JobView:
        """The job as of now. Raises `JobNotFoundError`."""
        return view_job(job_id, await self.events(job_id))

    async def events(self, job_id: str) -> Sequence[Recorded]:
        """The events of the job's own stream. Raises `JobNotFoundError`."""
        if JOB_ID.match(job_id) is None:
            raise _not_found(job_id)
        stream = job_stream(job_id)
        found = (await self._log.read_streams([stream])).streams[stream]
        if not found:
            raise _not_found(job_id)
        return found

    async def history(self, job_id: str) -> Sequence[Recorded]:
        """The events of the job and of its leases, by position. Raises `JobNotFoundError`."""
        await self.events(job_id)
        read = await self._log.read_streams([job_stream(job_id), lease_stream(job_id)])
        return sorted((e for events in read.streams.values() for e in events), key=lambda e: e.position)

    async def list(
        self, state: str | None = None, kind: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[JobView]:
        """Jobs, the newest first, as far as the read model has come."""
        assert self._reader is not None
        page = await asyncio.to_thread(self._reader.list, state, kind, cursor, limit)
        return Page(tuple([_view(row.job, row.position) for row in page.items]), page.next_cursor, page.position)

    async def confirm(self, job_id: str, principal: str) -> JobView:
        """Say go on. Raises `JobNotFoundError`, `JobNotAwaitingError`, `JobFinishedError`."""
        return await self._command(job_id, ConfirmJob(principal), principal)

    async def cancel(self, job_id: str, principal: str) -> JobView:
        """Ask that it end; asking twice is asking once. Raises `JobNotFoundError`, `JobFinishedError`."""
        return await self._command(job_id, RequestJobCancellation(principal), principal)

    async def _command(self, job_id: str, command: JobCommand, principal: str) -> JobView:
        for _ in range(CONFLICT_RETRIES_MAX):
            wanted = by_operator(await self._head(job_id), command, principal, self._new_id)
            if wanted is None:
                return await self.get(job_id)
            try:
                await effects.append(self._log, wanted)
            except VersionConflictError:
                continue  # it has moved on: decide again
            return await self.get(job_id)
        raise VersionConflictError("the job kept moving on", at=job_id)

    async def _head(self, job_id: str) -> JobHead:
        job = fold_job(job_id, (await self.events(job_id))[:1])
        read = await self._log.read_streams(streams_of(job_id, job.kind, job.target))
        return head_of(job_id, job.kind, job.target, read)


def view_job(job_id: str, events: Sequence[Recorded]) -> JobView:
    """The view of a job from its events."""
    return _view(fold_job(job_id, events), events[-1].position)


def _view(job: Job, position: int) -> JobView:
    assert job.requested_at is not None
    return JobView(
        job_id=job.job_id,
        state=job.state.value,
        kind=job.kind,
        target=job.target,
        document=job.document,
        principal=job.principal,
        attempts=job.attempts,
        owner=job.owner,
        token=job.token,
        position=job.progress.position,
        total=job.progress.total,
        rate=job.progress.rate,
        left_seconds=None if job.finished else job.progress.left_seconds,
        confirmed_by=job.confirmed_by,
        cancelled_by=job.cancelled_by,
        summary=job.summary,
        result=job.result,
        report=job.report,
        error=job.error,
        requested_at=job.requested_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        log_position=position,
    )


def _not_found(job_id: str) -> JobNotFoundError:
    return JobNotFoundError("there is no such job", at=job_id[:80], expected="the job_id of a job")
