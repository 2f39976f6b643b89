"""What a kind of job is, and what it is given to work with: the contract between `services.job_runner` and who does the work.

A kind is executed in a thread of its own and may block. It calls `reached` at every border where it may safely stop: that says how
far it is, proves that it is alive, and raises where it has to end. What must stay true: a kind can be executed again after a crash
at any point (the next attempt finds what the last one left and goes on, or starts over); everything that others can see is done
under `fence`; what a cancelled job has made beside is undone by `undo`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from services.ports import Fence


class Done(msgspec.Struct, frozen=True):
    """The job did what was asked: `result` says what in a few figures, `report` is the address of the whole in CAS."""

    result: dict[str, Any]
    report: str | None = None


class Confirm(msgspec.Struct, frozen=True):
    """The job stops here until an operator, who may read the report, says go on; then it is executed again, `confirmed`."""

    report: str
    summary: dict[str, Any]


class Refused(msgspec.Struct, frozen=True):
    """The job ends FAILED with this code and sentence, and perhaps a report of why."""

    code: str
    message: str
    report: str | None = None
    at: str | None = None


Outcome = Done | Confirm | Refused


class JobCancelledError(Exception):
    """Raised by `JobWork.reached`: an operator asked the job to stop. Let it pass."""


class JobHandedBackError(Exception):
    """Raised by `JobWork.reached`: the process is stopping. Let it pass; the job goes on elsewhere."""


class JobWork(Protocol):
    """One attempt at a job, as its kind sees it."""

    @property
    def job_id(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def document(self) -> Mapping[str, Any]:
        """The parameters, as `JobKind.checked` gave them."""
        ...

    @property
    def principal(self) -> str: ...

    @property
    def attempt(self) -> int:
        """1 at the first."""
        ...

    @property
    def confirmed(self) -> bool:
        """Whether an operator has confirmed what an attempt before had stopped for."""
        ...

    @property
    def fence(self) -> Fence:
        """The lease under which it is executed."""
        ...

    def reached(self, position: int, total: int) -> None:
        """A safe border: how far it is. Cheap; to be called often, at least every `STALL_SECONDS_MAX`.

        Raises `JobCancelledError`, `JobHandedBackError`, `StaleFenceError`: all to be let pass.
        """
        ...

    def alive(self, quiet_seconds: float = 0.0) -> None:
        """Not a border, but a sign of life: it is getting on and must not be interrupted now. Raises `StaleFenceError`.

        What follows is bounded and may take `quiet_seconds` (one long statement, say): it does not count as a stall.
        """
        ...


class JobKind(Protocol):
    """One kind of job."""

    @property
    def name(self) -> str:
        """Permanent: it stands in events and in what operators type."""
        ...

    def checked(self, target: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with defaults filled in, canonical JSON. Raises an `InputError` or `NotFoundError` for bad ones."""
        ...

    def run(self, work: JobWork) -> Outcome:
        """Do it, or go on with it. A `FinazError` of the infrastructure is tried again later; any other ends the job FAILED."""
        ...

    def undo(self, work: JobWork) -> None:
        """Drop what a job that was cancelled has made beside. Called by its owner before the job ends; may be called twice."""
        ...
