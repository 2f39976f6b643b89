"""What a process manager is: four callbacks, and values that say what it wants.

`interested` says which instance an event concerns; `react` what to do about it; `apply` what to remember; `on_error` what a
failure means. They are pure: `execute` alone acts, and is told a command's id so that acting twice is acting once.

What must stay true: reacting to one event again wants the same things under the same ids (`command_id` derives them from the
event), so replaying from position 0 issues nothing twice; a manager never reads a clock (a deadline is an instant computed from
what was recorded, and the database says when it has come, by the clock that the manager names).
"""

from datetime import datetime
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

import msgspec

from domain.events import Event, Recorded
from domain.identity import reaction_id

WANTS_PER_EVENT_MAX: Final = 100
"""Things that one reaction may want; more is a bug, caught before anything is stored."""

Document: TypeAlias = dict[str, Any]


class Clock(Enum):
    """By which clock of the database a manager's commands are due."""

    DATABASE = "DATABASE"
    """The real one; whatever has to do with leases goes by it."""
    BUSINESS = "BUSINESS"
    """The one of business deadlines, which tests can move forward (`finaz.business_now`)."""


class Command(msgspec.Struct, frozen=True):
    """Do this once, at `due_at` or else as soon as possible: `name` says what, `document` (JSON values) with what.

    Once wanted it cannot be withdrawn; what can is a `Deadline`.
    """

    name: str
    document: Document
    due_at: datetime | None = None


class Deadline(msgspec.Struct, frozen=True):
    """Do this once, when `due_at` has come, unless it is replaced (same instance, same name) or cleared before."""

    name: str
    due_at: datetime
    document: Document


class Clear(msgspec.Struct, frozen=True):
    """Forget the instance's deadline of this name, if there is one."""

    name: str


Want: TypeAlias = Command | Deadline | Clear


class Again(msgspec.Struct, frozen=True):
    """A command that recurs: it is due again after `delay_seconds`, under the same id, with another document."""

    delay_seconds: float
    document: Document


class Retry(msgspec.Struct, frozen=True):
    """Try the command again after `delay_seconds`."""

    delay_seconds: float


class SetAside(msgspec.Struct, frozen=True):
    """Put the event or the command among the dead letters, and go on."""


class Stop(msgspec.Struct, frozen=True):
    """Stop this manager at the event, or leave the command as it is and try nothing else; an operator resumes it."""


Verdict: TypeAlias = Retry | SetAside | Stop


class ProcessManager(Protocol):
    """One process manager. `name` and its commands' names are frozen for ever.

    `categories` are the stream categories that it reads (`run` of `run/…`). It may name a `clock` (`clock_of`), and how many
    commands, each of another instance, `execute` can be called with at once (`threads_of`).
    """

    name: str
    categories: tuple[str, ...]

    def interested(self, event: Event) -> str | None:
        """The key of the instance that the event concerns, or None."""
        ...

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        """What the event calls for, given what the instance remembers (`{}` at first)."""
        ...

    def apply(self, state: Document, recorded: Recorded) -> Document:
        """What the instance remembers after the event; `{}` forgets the instance."""
        ...

    def execute(self, command: Command, command_id: UUID) -> Again | None:
        """Do what the command says. Blocks. Called again after a crash: it must be idempotent by `command_id`."""
        ...

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        """What the `attempts`-th failure of a command means; for a failing reaction `attempts` is 1 and never grows."""
        ...


def clock_of(manager: ProcessManager) -> Clock:
    """The clock that the manager names by an attribute `clock`; without one, the database's."""
    clock: Clock = getattr(manager, "clock", Clock.DATABASE)
    return clock


def threads_of(manager: ProcessManager) -> int:
    """How many commands at once the manager names by an attribute `threads`; without one, one."""
    threads: int = getattr(manager, "threads", 1)
    return threads


def command_id(manager: str, cause: UUID, index: int) -> UUID:
    """The id of the `index`-th thing that the manager wants because of the event `cause`."""
    return reaction_id(cause, manager, index)
