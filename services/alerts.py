"""What asks for an operator: alerts of the reconciler, dead letters and pauses of process managers, and what to do about each.

What must stay true: an alert is resolved by an event that carries the operator's name and note, decided on the discrepancy's own
stream; a dead letter is revived or discarded once. A crash leaves each done or not done.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from domain.discrepancies.aggregate import NOTE_CHARACTERS_MAX, Discrepancy, DiscrepancyState, decide, evolve
from domain.discrepancies.messages import DiscrepancyKind, ResolveAlert
from domain.errors import AlertNotFoundError, BodyInvalidError
from domain.events import Metadata
from domain.identity import discrepancy_stream
from projections.discrepancies.postgres import DiscrepanciesReader
from projections.discrepancies.projection import DiscrepancyRow
from projections.reading import PAGE_ROWS_MAX, Page
from projections.registry import OPTIONAL, PROCESS_MANAGERS, PROJECTIONS
from projections.status import Projections
from services import effects
from services.adapters.manager_store import DEAD_LETTERS_MAX, DeadLetter, ManagerOperations
from services.ports import Append, EventLog, NewEvent

__all__ = [
    "ALERTS_PAGE_MAX",
    "ALERT_STATES",
    "DEAD_LETTERS_MAX",
    "MANAGERS",
    "NOTE_CHARACTERS_MAX",
    "REASON_CHARACTERS_MAX",
    "RUNNERS",
    "AlertView",
    "Alerts",
    "DeadLetter",
    "checked_reason",
]

REASON_CHARACTERS_MAX: Final = 2000
"""Characters of the reason for which something is paused or discarded."""

ALERTS_PAGE_MAX: Final = PAGE_ROWS_MAX
"""Alerts of one page."""

ALERT_STATES: Final = tuple(state.value for state in DiscrepancyState if state is not DiscrepancyState.ABSENT)
"""The states of what was found, in their order: `FOUND`, `ALERTED`, `SETTLED`."""

MANAGERS: Final = tuple(sorted(PROCESS_MANAGERS))
"""The process managers, by name."""

RUNNERS: Final = tuple(
    sorted(PROCESS_MANAGERS.union(OPTIONAL, (name for name, made in PROJECTIONS.items() if not made.inline)))
)
"""What has a runner, and so can be paused and resumed: asynchronous projections and process managers, by name."""

AWAITED_BY_NOBODY: Final = frozenset({*PROCESS_MANAGERS, *OPTIONAL})
"""What may be dead while the API can serve all the same."""


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """Two things about a run that disagreed; in state `ALERTED` an operator is asked about it.

    `expected` is what the events say, `actual` what was found (both cut if long). `outcome` says how it was settled, or why it
    could not be; `principal` who resolved it; `found_at` is the last of `times_found` times.
    """

    kind: str
    run_id: str
    state: str
    expected: str
    actual: str
    outcome: str
    principal: str | None
    times_found: int
    found_at: datetime
    changed_at: datetime
    position: int


class Alerts:
    """The use cases. `principal` is the operator who asks."""

    def __init__(
        self, log: EventLog, reader: DiscrepanciesReader, managers: ManagerOperations, projections: Projections
    ) -> None:
        self._log = log
        self._reader = reader
        self._managers = managers
        self._projections = projections

    async def list(self, state: str | None, cursor: str | None, limit: int) -> Page[AlertView]:
        """Discrepancies, newest first; those in state `ALERTED` are what an operator is asked about."""
        page = await asyncio.to_thread(self._reader.list, state, cursor, limit)
        return Page(tuple(map(_view, page.items)), page.next_cursor, page.position)

    async def resolve(self, kind: str, subject: str, principal: str, note: str) -> int:
        """An operator's word that an alert was dealt with; the event's position. Raises `AlertNotFoundError`."""
        stream = discrepancy_stream(kind, subject)
        events = (await self._log.read_streams([stream])).streams[stream]
        discrepancy = Discrepancy()
        for recorded in events:
            discrepancy = evolve(discrepancy, recorded.event)
        if kind not in DiscrepancyKind.__members__ or discrepancy.state is not DiscrepancyState.ALERTED:
            raise AlertNotFoundError(
                "there is no such alert", at=f"{kind}/{subject}"[:300], expected="one that is open"
            )
        (event,) = decide(discrepancy, ResolveAlert(principal=principal, note=note))
        append = Append(
            events=(NewEvent(stream, len(events) + 1, event, uuid4()),),
            metadata=Metadata(causation_id=events[-1].event_id, correlation_id=subject, principal=principal),
        )
        return (await effects.append(self._log, append)).position

    async def dead_letters(self, manager: str | None) -> Sequence[DeadLetter]:
        """What failed for good, oldest first."""
        return await asyncio.to_thread(self._managers.dead_letters, manager)

    async def revive(self, manager: str, command_id: UUID, principal: str) -> None:
        """Have a dead letter tried again. Raises `NotFoundError`."""
        await asyncio.to_thread(self._managers.revive, manager, command_id, principal)

    async def discard(self, manager: str, command_id: UUID, principal: str, reason: str) -> None:
        """Have done with a dead letter. Raises `NotFoundError`."""
        await asyncio.to_thread(self._managers.discard, manager, command_id, principal, checked_reason(reason))

    async def pause(self, name: str, principal: str, reason: str) -> None:
        """Have a projection or process manager stay where it is. Raises `ProjectionUnknownError`."""
        await asyncio.to_thread(self._projections.pause, name, checked_reason(reason), principal)

    async def resume(self, name: str, principal: str) -> None:
        """Let it go on, also one that stopped at an event. Raises `ProjectionUnknownError`."""
        await asyncio.to_thread(self._projections.resume, name, principal)

    async def replay(self, manager: str, principal: str) -> None:
        """Have a paused process manager fold the log again from its beginning; nothing is issued twice. Raises `RefusedError`."""
        await asyncio.to_thread(self._managers.replay, manager)
        await asyncio.to_thread(self._projections.note, manager, "replay", principal, "", 0)


def checked_reason(reason: Any) -> str:
    """The reason itself, if it is one: 1 to `REASON_CHARACTERS_MAX` characters. Else `BodyInvalidError`."""
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise BodyInvalidError(
            "a reason is needed", at="$.reason", expected=f"text of 1 to {REASON_CHARACTERS_MAX} characters"
        )
    return reason


def _view(row: DiscrepancyRow) -> AlertView:
    fields = {name: getattr(row, name) for name in AlertView.__struct_fields__ if name != "run_id"}
    return AlertView(run_id=row.subject, **fields)
