"""One attempt at one job: what its kind is given to work with, and how its runner speaks for it.

The kind's thread and the beat's share it under a lock. What must stay true: everything that is said of the job is appended under
the fence; a command of an operator in between makes it decided again; an attempt that was overtaken says nothing more. A crash
leaves the job RUNNING under a lease that expires.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from domain.errors import StaleFenceError, VersionConflictError
from domain.jobs.aggregate import JobCommand
from domain.jobs.messages import ReportProgress
from services import effects
from services.job_appends import JobHead, Runner, advanced, by_owner, looked_at_again, own_streams_of, renew
from services.job_kinds import JobCancelledError, JobHandedBackError
from services.ports import Append, EventLog, Fence

PROGRESS_SECONDS: Final = 1.0
"""Between two words of progress, at least; long jobs say less often how far they are, so that their streams stay short."""

PROGRESS_SHARE: Final = 0.01
"""Of the time that an attempt has taken, also between two words of progress, at least."""

LOOK_SECONDS: Final = 1.0
"""How often the beat looks whether a cancellation was asked for."""

STALL_SECONDS_MAX: Final = 120.0
"""Without a sign of life from its kind for so long, a job's lease is no longer renewed: what hangs loses it."""

CONFLICT_RETRIES_MAX: Final = 8
"""Times that an append is decided again because a command came in between."""


class Attempt:
    """One attempt at one job: `services.job_kinds.JobWork` for its kind, and what its runner does with it."""

    def __init__(
        self, log: EventLog, head: JobHead, runner: Runner, new_id: Callable[[], UUID], monotonic: Callable[[], float]
    ) -> None:
        self._log = log
        self._head = head
        self._runner = runner
        self._new_id = new_id
        self._monotonic = monotonic
        self._token = head.lease.token
        self._lock = threading.Lock()
        self._lost: StaleFenceError | None = None
        self._stopping = False
        self._began = self._lived = self._renewed = monotonic()
        self._said = float("-inf")
        self._said_of: tuple[int, int] | None = None
        self._first: tuple[float, int] | None = None

    # ---------------------------------------------------------------- what the kind sees

    @property
    def job_id(self) -> str:
        return self._head.job_id

    @property
    def target(self) -> str:
        return self._head.job.target

    @property
    def document(self) -> Mapping[str, Any]:
        return self._head.job.document

    @property
    def principal(self) -> str:
        return self._head.job.principal

    @property
    def attempt(self) -> int:
        return self._head.job.attempts

    @property
    def confirmed(self) -> bool:
        return self._head.job.confirmed_by is not None

    @property
    def fence(self) -> Fence:
        """See `JobWork`."""
        return Fence(self.job_id, self._runner.owner, self._token)

    def alive(self, quiet_seconds: float = 0.0) -> None:
        """See `JobWork`."""
        self._lived = self._monotonic() + quiet_seconds
        if self._lost is not None:
            raise self._lost

    def reached(self, position: int, total: int) -> None:
        """See `JobWork`."""
        self.alive()
        now = self._monotonic()
        if self._first is None:
            self._first = now, position
        due = now - self._said >= max(PROGRESS_SECONDS, (now - self._began) * PROGRESS_SHARE)
        if due and self._said_of != (
            position,
            total,
        ):  # the lease says that it lives; the log need not be told the same twice
            since, from_position = self._first
            rate = round((position - from_position) / (now - since), 1) if now > since else 0.0
            self._said, self._said_of = now, (position, total)
            self.tell(ReportProgress(token=self._token, position=position, total=total, rate=max(0.0, rate)))
        if self.cancelled:
            raise JobCancelledError
        if self._stopping:
            raise JobHandedBackError

    # ---------------------------------------------------------------- what the runner does

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._head.job.cancelled_by is not None

    def stop(self) -> None:
        """Hand the job back at its next border. From any thread."""
        self._stopping = True

    def tell(self, command: JobCommand) -> None:
        """Append what the command decides, under the fence; decided again if an operator's command came in between.

        Raises `StaleFenceError`, `InfrastructureError`.
        """
        with self._lock:
            for _ in range(CONFLICT_RETRIES_MAX):
                try:
                    self._append(by_owner(self._head, command, self._runner, self._token, self._new_id))
                    return
                except VersionConflictError:
                    self._read()
        raise StaleFenceError("the job kept changing", at=self.job_id)

    def beat(self) -> None:
        """Renew the lease if that is due and the kind gets on; see what operators have said. Raises what `tell` raises."""
        with self._lock:
            if self._head.job.finished:
                return
            self._read()
            now = self._monotonic()
            stalled = now - self._lived > STALL_SECONDS_MAX
            if not stalled and now - self._renewed >= self._runner.ttl_seconds / 3 - LOOK_SECONDS:
                try:
                    self._append(renew(self._head, self._runner, self._token, self._new_id))
                    self._renewed = now
                except VersionConflictError:
                    self._read()  # the next beat

    def lose(self, error: StaleFenceError) -> None:
        """The lease is another's: the kind ends at its next call."""
        self._lost = error

    def _append(self, wanted: Append) -> None:
        self._head = advanced(self._head, wanted, effects.append_blocking(self._log, wanted))

    def _read(self) -> None:
        read = self._log.read_streams_blocking(own_streams_of(self.job_id))
        head = looked_at_again(self._head, read)
        if head.lease.token != self._token or not head.lease.is_live(read.now):
            raise StaleFenceError(f"token {self._token} no longer has the job", at=self.job_id, token=head.lease.token)
        self._head = head
