"""The runtime of process managers: its limits are reached, and what is beyond them is refused or left for the next turn."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from domain.events import Event, Recorded
from services.process_managers import runtime
from services.process_managers.contract import (
    WANTS_PER_EVENT_MAX,
    Again,
    Command,
    Document,
    SetAside,
    Stop,
    Verdict,
    Want,
)
from services.process_managers.instances import TooManyWantsError, instances_of
from services.process_managers.runtime import COMMANDS_PER_TURN_MAX, Dispatcher, DueCommand
from tests.support.histories import seeded_history


class Counting:
    """A manager that wants so many commands per event, and counts what it executes."""

    name = "orphan_recovery"
    categories = ("run",)

    def __init__(self, wants: int = 1) -> None:
        self.wants = wants
        self.executed: list[str] = []
        self.verdict: Verdict = Stop()

    def interested(self, event: Event) -> str | None:
        return "all"

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        return tuple(Command("do", {"n": n}) for n in range(self.wants))

    def apply(self, state: Document, recorded: Recorded) -> Document:
        return state

    def execute(self, command: Command, command_id: UUID) -> Again | None:
        self.executed.append(command.name)
        if command.name == "bad":
            raise ZeroDivisionError
        return None

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        return self.verdict


class MemoryQueue:
    """Due commands in memory."""

    def __init__(self, names: Sequence[str]) -> None:
        self.waiting = [
            DueCommand(command_id=uuid4(), key="k", command=Command(name, {}), attempts=0) for name in names
        ]
        self.asides: list[UUID] = []
        self.retries: list[float] = []

    def due(self, limit: int) -> list[DueCommand]:
        return self.waiting[:limit]

    def next_due_seconds(self) -> float | None:
        return 0.0 if self.waiting else None

    def issued(self, command_ids: Sequence[UUID]) -> None:
        self.waiting = [item for item in self.waiting if item.command_id not in command_ids]

    def again(self, command_id: UUID, delay_seconds: float, document: Document) -> None:
        raise AssertionError("nothing recurs here")

    def retry(self, command_id: UUID, delay_seconds: float, reason: str) -> None:
        self.retries.append(delay_seconds)

    def set_aside(self, command_id: UUID, reason: str) -> None:
        self.asides.append(command_id)
        self.issued([command_id])


def test_a_turn_issues_so_many_commands_and_asks_for_another_turn() -> None:
    """The limit is reached exactly; the rest is due at once, after the runner has looked at the log."""
    manager, queue = Counting(), MemoryQueue(["do"] * (COMMANDS_PER_TURN_MAX + 1))
    dispatcher = Dispatcher(manager, queue, lambda name, details: None)
    assert dispatcher.run_once() == 0.0
    assert len(manager.executed) == COMMANDS_PER_TURN_MAX
    assert dispatcher.run_once() is None
    assert len(manager.executed) == COMMANDS_PER_TURN_MAX + 1
    assert queue.waiting == []


def test_a_failure_that_means_stop_holds_up_the_rest_and_what_was_issued_stays_issued() -> None:
    """The commands before it are recorded, the one itself is tried again later, those behind it wait."""
    manager, queue = Counting(), MemoryQueue(["do", "bad", "do"])
    dispatcher = Dispatcher(manager, queue, lambda name, details: None)
    assert dispatcher.run_once() == runtime.STOP_RETRY_SECONDS
    assert [item.command.name for item in queue.waiting] == ["bad", "do"]
    assert queue.retries == [runtime.STOP_RETRY_SECONDS]
    manager.verdict = SetAside()
    assert dispatcher.run_once() is None
    assert len(queue.asides) == 1


@pytest.mark.parametrize(("wants", "accepted"), [(WANTS_PER_EVENT_MAX, True), (WANTS_PER_EVENT_MAX + 1, False)])
def test_one_reaction_may_want_so_much(wants: int, accepted: bool) -> None:
    """More is a bug of the manager, which stops it at the event before anything is stored."""
    model: Any = instances_of(Counting(wants))
    recorded = next(item for item in seeded_history(1, 4).events if item.stream.startswith("run/"))
    if accepted:
        assert len(model.apply(None, recorded).commands) == WANTS_PER_EVENT_MAX
    else:
        with pytest.raises(TooManyWantsError):
            model.apply(None, recorded)
