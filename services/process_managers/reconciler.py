"""The reconciler: compares what is served with what happened, for every run that ends and, in rounds, for all runs there are.

Each run that succeeds is verified once its publication has had time to reach the read models; the first run ever starts a sweep
that goes through all runs, page by page, pauses, and begins again. What it finds, repairs and cannot repair are events of the
discrepancy's own stream (`services.reconciliation`).

What must stay true: a sweep's place is in its command, so a crash repeats at most one page; looking twice records once.
"""

from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import (
    Fault,
    FinazError,
    StaleFenceError,
    UndecodableEventError,
    UnknownTopicError,
    VersionConflictError,
)
from domain.events import Event, Recorded
from domain.runs.messages import RunRequested, RunSucceeded
from services.ports import EventLog
from services.process_managers.contract import Again, Command, Document, Retry, SetAside, Stop, Verdict, Want

NAME: Final = "reconciler"
VERIFY: Final = "verify"
SWEEP: Final = "sweep"

VERIFY_DELAY_SECONDS: Final = 1.0
"""Seconds after a publication before it is verified: the read models are there by then, as a rule."""

PAGE_RUNS_MAX: Final = 50
"""Runs that one step of a sweep looks at; it must end well before a runner counts as dead."""

PAGE_PAUSE_SECONDS: Final = 0.2
"""Seconds between two steps of a sweep."""

ROUND_SECONDS: Final = 600.0
"""Seconds between the end of a sweep and the beginning of the next, unless wiring says otherwise."""

RETRY_SECONDS: Final = (0.1, 1.0, 5.0, 30.0)
"""Seconds after the first, second, … failure of a command; the last one from then on."""

ATTEMPTS_MAX: Final = 20
"""Failures of one command for any reason but an absent part, before it becomes a dead letter."""


class Look(Protocol):
    """Looks at one run, records and repairs what disagrees (`services.reconciliation.Reconciliation`)."""

    def check(self, run_id: str) -> tuple[DiscrepancyKind, ...]: ...


class Reconciler:
    """The process manager (`services.process_managers.contract.ProcessManager`)."""

    name = NAME
    categories: tuple[str, ...] = ("run",)

    def __init__(self, log: EventLog, reconciliation: Look, round_seconds: float = ROUND_SECONDS) -> None:
        self._log = log
        self._reconciliation = reconciliation
        self._round_seconds = round_seconds

    def interested(self, event: Event) -> str | None:
        """A run that succeeded, by its id; any request, for the one sweep."""
        if isinstance(event, RunSucceeded):
            return event.run_id
        return SWEEP if isinstance(event, RunRequested) else None

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        """Verify what succeeded; begin the sweep, once."""
        if isinstance(recorded.event, RunSucceeded):
            due_at = recorded.recorded_at + timedelta(seconds=VERIFY_DELAY_SECONDS)
            return (Command(VERIFY, {"run_id": recorded.event.run_id}, due_at),)
        return () if state else (Command(SWEEP, {"after": 0, "found": 0}),)

    def apply(self, state: Document, recorded: Recorded) -> Document:
        """Whether the sweep was begun."""
        return state if isinstance(recorded.event, RunSucceeded) else {"begun": True}

    def execute(self, command: Command, command_id: UUID) -> Again | None:
        """Look at one run, or at the next page of all."""
        if command.name == VERIFY:
            self._reconciliation.check(command.document["run_id"])
            return None
        return self._sweep(command.document["after"], command.document["found"])

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        """What another wrote in between is looked at again; an absent part is waited for; a bug becomes a dead letter."""
        if isinstance(error, UnknownTopicError | UndecodableEventError):
            return Stop()
        moved_on = isinstance(error, VersionConflictError | StaleFenceError)
        away = isinstance(error, FinazError) and error.fault is Fault.INFRASTRUCTURE
        if not (away or moved_on) and attempts >= ATTEMPTS_MAX:
            return SetAside()
        return Retry(RETRY_SECONDS[min(attempts - 1, len(RETRY_SECONDS) - 1)])

    def _sweep(self, after: int, found: int) -> Again:
        page = self._log.read_log(after, PAGE_RUNS_MAX, (RunRequested.topic,))
        for recorded in page:
            assert isinstance(recorded.event, RunRequested)
            found += len(self._reconciliation.check(recorded.event.run_id))
        if len(page) < PAGE_RUNS_MAX:
            return Again(self._round_seconds, {"after": 0, "found": 0})
        return Again(PAGE_PAUSE_SECONDS, {"after": page[-1].position, "found": found})
