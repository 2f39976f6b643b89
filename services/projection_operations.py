"""What operators tell projections beyond pausing them: stop at a position, pass over one event; and what was done to each.

What must stay true: each command is one statement with its entry in the projection's log, carrying the operator's name and reason,
so that what was done can be listed and nothing is done without being listed. A crash leaves both or neither.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from projections.registry import PROJECTIONS
from projections.status import LogEntry, Projections, Skip
from services.adapters.manager_store import DeadLetter, ManagerOperations
from services.alerts import REASON_CHARACTERS_MAX, RUNNERS, checked_reason

ENTRIES_MAX: Final = 200
"""Entries of a projection's log that are shown at once."""

NAMES: Final = tuple(sorted({*RUNNERS, *PROJECTIONS}))
"""All projections and process managers, inline ones too: each has a log, and rebuilds of each may have to pass over an event."""

__all__ = ["ENTRIES_MAX", "NAMES", "REASON_CHARACTERS_MAX", "DeadLetter", "LogEntry", "ProjectionOperations", "Skip"]


class ProjectionOperations:
    """The use cases. `principal` is the operator who asks. Everything raises `ProjectionUnknownError`."""

    def __init__(self, projections: Projections, managers: ManagerOperations) -> None:
        self._projections = projections
        self._managers = managers

    async def stop_at(self, name: str, position: int, principal: str, reason: str) -> None:
        """Have a running one pause when everything up to `position` is applied. Raises `PositionPassedError`."""
        await asyncio.to_thread(self._projections.stop_at, name, position, checked_reason(reason), principal)

    async def skip(self, name: str, position: int, principal: str, reason: str) -> None:
        """Have one that stopped at the event at `position` pass over it. Raises `NotStoppedThereError`."""
        await asyncio.to_thread(self._projections.skip, name, position, checked_reason(reason), principal)

    async def skipped(self, name: str) -> Sequence[Skip]:
        """The events that it passes over."""
        return await asyncio.to_thread(self._projections.skipped, name)

    async def entries(self, name: str, before: int | None, limit: int) -> Sequence[LogEntry]:
        """What was done to it, the newest first; of entries before the id `before`."""
        return await asyncio.to_thread(self._projections.entries, name, limit, before or 2**63 - 1)

    async def dead_letter(self, manager: str, command_id: str) -> DeadLetter:
        """One dead letter, whole. Raises `NotFoundError`."""
        return await asyncio.to_thread(self._managers.dead_letter, manager, UUID(command_id))

    async def revive_all(self, manager: str, principal: str) -> int:
        """Have every dead letter of a manager, but events' reactions, tried again. How many that are."""
        return await asyncio.to_thread(self._managers.revive_all, manager, principal)
