"""The runtime of process managers: a projection runner that also issues what is due.

A manager's instances are folded by `projections.runner` like any read model: state, deadlines, commands and position in one
transaction, one active instance per manager, takeover, heartbeat, pause, stop, lag. When that has caught up, `Dispatcher`
issues what is due, one command of an instance at a time (and one at all, unless the manager says that it can take more), and
records the outcome.

While commands are at work in threads of their own, the runner goes on giving signs of life: who only waits for a slow gateway or
mail server is not taken for dead, for then a stand-by would issue the same at the same time.

What must stay true: nothing is issued while the manager is behind (an event that it hasn't seen may clear the deadline), paused
or stopped; every command ends issued, or among the dead letters, or is tried again. A crash between issuing a command and
recording that issues it again after the restart, under the same id, which changes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from projections.position import HEARTBEAT_SECONDS
from projections.runner import Alive
from services import faultpoints
from services.faultpoints import point
from services.process_managers.contract import Command, Document, ProcessManager, Retry, SetAside, threads_of

COMMANDS_PER_TURN_MAX: Final = 100
"""Commands issued before the runner looks at the log again, so that a long row of them cannot starve it."""

TURN_SECONDS_MAX: Final = 2.0
"""Seconds after which a turn of several threads begins no further command: slow ones must not keep the runner from the log."""

STOP_RETRY_SECONDS: Final = 5.0
"""Seconds until a command whose failure means `Stop` is looked at again; meanwhile nothing else of the manager is issued."""

REASON_CHARACTERS_MAX: Final = 2000
"""Characters kept of why a command failed."""

Report = Callable[[str, Mapping[str, Any]], None]


class DueCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command whose time has come; `attempts` failed before."""

    command_id: UUID
    key: str
    command: Command
    attempts: int


class CommandQueue(Protocol):
    """The table of commands, seen by the dispatcher of one manager. Everything raises `StoreUnavailableError`."""

    def due(self, limit: int) -> Sequence[DueCommand]:
        """Pending commands whose instant has come by the database's clock, the longest due first."""
        ...

    def next_due_seconds(self) -> float | None:
        """Seconds until the next pending command is due (0 if one is), None if there is none."""
        ...

    def issued(self, command_ids: Sequence[UUID]) -> None:
        """They were issued: never again."""
        ...

    def again(self, command_id: UUID, delay_seconds: float, document: Document) -> None:
        """It was issued, and is due again after `delay_seconds` with this document."""
        ...

    def retry(self, command_id: UUID, delay_seconds: float, reason: str) -> None:
        """It failed; it is due again after `delay_seconds`."""
        ...

    def set_aside(self, command_id: UUID, reason: str) -> None:
        """It failed for good: a dead letter, for an operator."""
        ...


class Dispatcher:
    """Issues what one manager wants."""

    def __init__(self, manager: ProcessManager, queue: CommandQueue, report: Report) -> None:
        self._manager = manager
        self._queue = queue
        self._report = report
        self._threads = threads_of(manager)

    def run_once(self, alive: Alive = lambda: None) -> float | None:
        """Issue what is due, at most `COMMANDS_PER_TURN_MAX`. Seconds until there is more to do; None: nothing is known of.

        `alive` is called from time to time meanwhile, where the manager can take several commands at once.
        """
        due = self._queue.due(COMMANDS_PER_TURN_MAX)
        issued: list[UUID] = []
        try:
            if not self._issue_all(due, issued, alive):
                return STOP_RETRY_SECONDS
        finally:
            if issued:
                self._queue.issued(issued)
        return 0.0 if len(due) == COMMANDS_PER_TURN_MAX else self._queue.next_due_seconds()

    def _issue_all(self, due: Sequence[DueCommand], issued: list[UUID], alive: Alive) -> bool:
        """Issue the commands, in their order within each instance. Whether the manager may go on."""
        if self._threads == 1 or not due:
            return all(self._issue(item, issued) for item in due)
        rows: dict[str, list[DueCommand]] = {}
        for item in due:
            rows.setdefault(item.key, []).append(item)
        until = time.monotonic() + TURN_SECONDS_MAX
        with ThreadPoolExecutor(self._threads, thread_name_prefix=f"finaz-{self._manager.name}") as threads:
            futures = [threads.submit(self._issue_row, row, issued, until) for row in rows.values()]
            pending: set[Future[bool]] = set(futures)
            while pending:
                pending = wait(pending, timeout=HEARTBEAT_SECONDS).not_done
                alive()
            return all(future.result() for future in futures)

    def _issue_row(self, row: Sequence[DueCommand], issued: list[UUID], until: float) -> bool:
        """Issue the commands of one instance; none is begun once the turn has lasted long enough: it is due at the next."""
        return all(time.monotonic() >= until or self._issue(item, issued) for item in row)

    def _issue(self, item: DueCommand, issued: list[UUID]) -> bool:
        """Whether the manager may go on. What was issued for good is added to `issued`, to be recorded in one statement."""
        try:
            point(faultpoints.COMMAND_BEFORE)
            again = self._manager.execute(item.command, item.command_id)
            point(faultpoints.COMMAND_AFTER)
        except Exception as error:
            return self._failed(item, error)
        if again is None:
            issued.append(item.command_id)
        else:
            self._queue.again(item.command_id, again.delay_seconds, again.document)
        self._report("command_issued", self._details(item))
        return True

    def _failed(self, item: DueCommand, error: Exception) -> bool:
        attempts = item.attempts + 1
        verdict = self._manager.on_error(error, attempts)
        reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
        details = {**self._details(item), "attempts": attempts, "reason": reason}
        if isinstance(verdict, Retry):
            self._queue.retry(item.command_id, verdict.delay_seconds, reason)
            self._report("command_retrying", {**details, "delay_seconds": verdict.delay_seconds})
            return True
        if isinstance(verdict, SetAside):
            self._queue.set_aside(item.command_id, reason)
            self._report("command_set_aside", details)
            return True
        self._queue.retry(item.command_id, STOP_RETRY_SECONDS, reason)
        self._report("manager_held_up", details)
        return False

    def _details(self, item: DueCommand) -> dict[str, Any]:
        return {
            "manager": self._manager.name,
            "key": item.key,
            "command": item.command.name,
            "command_id": str(item.command_id),
        }
