"""The runner of jobs: takes one that nobody is working on, executes its kind, and says what came of it.

`run_once` takes at most one job and sees it to an end; `run` only ticks, waits and tries again; it is the body of a thread, since
kinds block. A second thread beats for the job at hand: it renews the lease every third of its TTL, as long as the kind gets on, and
looks whether somebody asked to cancel.

What must stay true: a job is worked on under a live lease by one runner; an overtaken one can write nothing more of it; the loop
never dies of what a job or the database does; told to stop, it hands the job back at its next border. A crash leaves a RUNNING job
whose lease expires; then another runner starts it again.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from domain.errors import (
    FinazError,
    InfrastructureError,
    LeaseHeldError,
    RefusedError,
    StaleFenceError,
    VersionConflictError,
)
from domain.jobs.aggregate import JobCommand
from domain.jobs.messages import (
    AwaitConfirmation,
    CancelJob,
    CompleteJob,
    FailJob,
    InterruptionReason,
    InterruptJob,
    JobError,
)
from projections.reading import Query
from projections.runner import RETRY_SECONDS, Report, unheard
from projections.statements import statements
from services import effects
from services.event_ids import new_event_id
from services.job_appends import Runner, advanced, claim, head_of, may_be_claimed, own_streams_of, streams_of
from services.job_attempt import LOOK_SECONDS, Attempt
from services.job_kinds import Confirm, Done, JobCancelledError, JobHandedBackError, JobKind, Outcome, Refused
from services.ports import EventLog

LIVING_JOBS_MAX: Final = 500
"""Living jobs that a runner looks at, the oldest first; there is at most one of each kind and target."""

POLL_SECONDS: Final = 1.0
"""How often a runner looks by itself."""

IDLE_SECONDS: Final = 60.0
"""How often, at most, a runner without a job does what else there is."""

END_TRIES_MAX: Final = 5
"""Times that the end of an attempt is told to a store that is away; then the lease expires and another looks what became of it."""

MESSAGE_CHARACTERS_MAX: Final = 2000
"""Characters kept of why a job failed."""

_SQL: Final = statements("services", "jobs.sql")
_LOST_RACE: Final = (VersionConflictError, LeaseHeldError, StaleFenceError)
_log: Final = logging.getLogger("finaz.jobs")

Idle = Callable[[], Sequence[str]]
"""What to do now and then while there is no job; says what it did."""


def nothing_idle() -> Sequence[str]:
    """There is nothing else."""
    return ()


Living = Callable[[], Sequence[tuple[str, str, str]]]
"""Gives (kind, target, job_id) of the jobs that have not ended, the oldest first."""


def living_in(query: Query) -> Living:
    """The living jobs of a database, by their slots in the log itself."""

    def living() -> list[tuple[str, str, str]]:
        return [
            (kind, target, job_id) for kind, target, job_id in query.rows(_SQL["living"], {"limit": LIVING_JOBS_MAX})
        ]

    return living


class JobRunner:
    """One loop over jobs. `owner` must be new at every process start. `run` is the body of a thread; `wake` and `stop` are not."""

    progress = None
    """Shown by projectors for their runners; a job says itself how far it is."""

    def __init__(
        self,
        log: EventLog,
        kinds: Mapping[str, JobKind],
        owner: str,
        living: Living,
        *,
        ttl_seconds: float = 30.0,
        name: str = "jobs",
        report: Report = unheard,
        idle: Idle = nothing_idle,
        new_id: Callable[[], UUID] = new_event_id,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._log = log
        self._kinds = kinds
        self._living = living
        self._runner = Runner(owner, ttl_seconds, name)
        self._report_to = report
        self._idle = idle
        self._idle_at = float("-inf")
        self._new_id = new_id
        self._monotonic = monotonic
        self._wake = threading.Event()
        self._stopping = False
        self._attempt: Attempt | None = None

    def wake(self) -> None:
        """Something was appended: look now."""
        self._wake.set()

    def stop(self) -> None:
        """End `run`; a job at hand is handed back at its next border."""
        self._stopping = True
        attempt = self._attempt
        if attempt is not None:
            attempt.stop()
        self._wake.set()

    def interrupt(self) -> None:
        """Nothing can be cut off from outside: what is left running ends with the process, and its lease expires."""

    def run(self) -> None:
        """Work until `stop`. Raises nothing: whatever goes wrong is reported and tried again."""
        failures = 0
        while not self._stopping:
            self._wake.clear()
            try:
                busy = self.run_once() is not None
                if not busy:
                    self._tidy()
                failures = 0
            except Exception as error:  # the last resort of a supervised loop: no error may end it
                busy = False
                failures += 1
                self._report("jobs_retrying", error=str(error), kind=type(error).__name__)
            if not busy and not self._stopping:
                self._wake.wait(RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1] if failures else POLL_SECONDS)

    def run_once(self) -> str | None:
        """Take the oldest job that is to be had, and execute it to an end of the attempt. Its id; None if there was none.

        Raises `InfrastructureError` if the store is away before anything was taken.
        """
        for kind, target, job_id in self._living():
            if kind not in self._kinds or self._stopping:
                continue  # of another process, or of newer code
            attempt = self._claimed(kind, target, job_id)
            if attempt is not None:
                self._execute(self._kinds[kind], attempt)
                return job_id
        return None

    def _tidy(self) -> None:
        """Do what is to be done now and then while there is no job."""
        now = self._monotonic()
        if now - self._idle_at >= IDLE_SECONDS:
            self._idle_at = now
            for done in self._idle():
                self._report("jobs_tidied", done=done)

    def _claimed(self, kind: str, target: str, job_id: str) -> Attempt | None:
        if not may_be_claimed(job_id, self._log.read_streams_blocking(own_streams_of(job_id))):
            return None
        read = self._log.read_streams_blocking(streams_of(job_id, kind, target))
        head = head_of(job_id, kind, target, read)
        wanted = claim(head, self._runner, read.now, self._new_id)
        if wanted is None:
            return None
        try:
            claimed = advanced(head, wanted, effects.append_blocking(self._log, wanted))
        except _LOST_RACE:
            return None
        if claimed.job.finished:
            self._report("job_failed", job_id=job_id, error=str(claimed.job.error))
            return None
        self._report("job_started", job_id=job_id, job_kind=kind, target=target, token=claimed.lease.token)
        return Attempt(self._log, claimed, self._runner, self._new_id, self._monotonic)

    def _execute(self, kind: JobKind, attempt: Attempt) -> None:
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(attempt, ended), name="finaz-job-beat", daemon=True)
        beating.start()
        self._attempt = attempt
        if self._stopping:
            attempt.stop()
        try:
            command = self._worked(kind, attempt)
            if command is not None:
                self._tell_end(attempt, command)
                self._report("job_attempt_ended", job_id=attempt.job_id, outcome=type(command).__name__)
        finally:
            self._attempt = None
            ended.set()
            beating.join(LOOK_SECONDS)

    def _worked(self, kind: JobKind, attempt: Attempt) -> JobCommand | None:
        """What the attempt came to; None where it is no longer ours to say."""
        token = attempt.fence.token
        try:
            if attempt.cancelled:
                return self._undone(kind, attempt)
            return _command(kind.run(attempt), token)
        except JobCancelledError:
            return self._undone(kind, attempt)
        except JobHandedBackError:
            return InterruptJob(token=token, reason=InterruptionReason.HANDED_BACK)
        except StaleFenceError as error:
            self._report("job_lost", job_id=attempt.job_id, error=str(error))
            return None
        except InfrastructureError as error:
            self._report("job_interrupted", job_id=attempt.job_id, error=str(error))
            return InterruptJob(token=token, reason=InterruptionReason.INFRASTRUCTURE, error=_error(error))
        except FinazError as error:
            return FailJob(token=token, error=_error(error))
        except Exception as error:
            _log.exception("the job %s failed", attempt.job_id)
            defect = JobError(code=FinazError.code, message=f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX])
            return FailJob(token=token, error=defect)

    def _undone(self, kind: JobKind, attempt: Attempt) -> JobCommand | None:
        token = attempt.fence.token
        try:
            kind.undo(attempt)
        except StaleFenceError:
            return None
        except InfrastructureError as error:
            return InterruptJob(token=token, reason=InterruptionReason.INFRASTRUCTURE, error=_error(error))
        except Exception as error:  # what it leaves is dropped by the next job of its kind
            _log.exception("what the job %s made could not be dropped", attempt.job_id)
            self._report("job_not_undone", job_id=attempt.job_id, error=str(error))
        return CancelJob(token)

    def _tell_end(self, attempt: Attempt, command: JobCommand) -> None:
        for left in reversed(range(END_TRIES_MAX)):
            try:
                attempt.tell(command)
                return
            except RefusedError as error:
                self._report("job_lost", job_id=attempt.job_id, error=str(error))
                return
            except InfrastructureError as error:
                self._report("job_end_untold", job_id=attempt.job_id, error=str(error))
                if not left:
                    return
                time.sleep(RETRY_SECONDS[min(END_TRIES_MAX - left, len(RETRY_SECONDS)) - 1])

    def _beat(self, attempt: Attempt, ended: threading.Event) -> None:
        while not ended.wait(min(LOOK_SECONDS, self._runner.ttl_seconds / 4)):
            try:
                attempt.beat()
            except StaleFenceError as error:
                if not ended.is_set():
                    attempt.lose(error)
                return
            except Exception as error:  # the next beat tries again, and the lease is the judge
                self._report("job_beat_failed", job_id=attempt.job_id, error=str(error))

    def _report(self, event: str, **details: Any) -> None:
        with suppress(Exception):  # a log that fails must not stop the jobs
            self._report_to(event, details)


def _command(outcome: Outcome, token: int) -> JobCommand:
    match outcome:
        case Done():
            return CompleteJob(token=token, result=outcome.result, report=outcome.report)
        case Confirm():
            return AwaitConfirmation(token=token, report=outcome.report, summary=outcome.summary)
        case Refused():
            error = JobError(code=outcome.code, message=outcome.message[:MESSAGE_CHARACTERS_MAX], at=outcome.at)
            return FailJob(token=token, error=error, report=outcome.report)


def _error(error: FinazError) -> JobError:
    return JobError(code=error.code, message=error.detail[:MESSAGE_CHARACTERS_MAX], at=error.at)
