"""What asks for an operator: alerts from every source, dead letters and pauses of process managers, and what to do about each.

What must stay true: all alerts stand in one list, whatever they are about, each with its source's name; one of the reconciler's is
resolved by an event that carries the operator's name and note, decided on the discrepancy's own stream; a dead letter is revived or
discarded once. A crash leaves each done or not done.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID, uuid4

from domain.discrepancies.aggregate import NOTE_CHARACTERS_MAX, Discrepancy, DiscrepancyState, decide, evolve
from domain.discrepancies.messages import DiscrepancyKind, ResolveAlert
from domain.errors import AlertNotFoundError, BodyInvalidError
from domain.events import Metadata
from domain.identity import discrepancy_stream
from domain.purchases.messages import Settlement
from projections.reading import PAGE_ROWS_MAX, Page, checked_limit, page_of, place_of
from projections.registry import OPTIONAL, PROCESS_MANAGERS, PROJECTIONS
from projections.status import Projections
from services import effects
from services.adapters.manager_store import DEAD_LETTERS_MAX, DeadLetter, ManagerOperations
from services.alert_sources import NEWEST, PURCHASE_KINDS, AlertSource, AlertView, settle_command
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
    "refuse_others",
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


class Alerts:
    """The use cases. `principal` is the operator who asks."""

    def __init__(
        self, log: EventLog, sources: Sequence[AlertSource], managers: ManagerOperations, projections: Projections
    ) -> None:
        self._log = log
        self._sources = tuple(sources)
        self._managers = managers
        self._projections = projections

    async def list(self, state: str | None, cursor: str | None, limit: int) -> Page[AlertView]:
        """Alerts of all sources, newest first; those in state `ALERTED` are what an operator is asked about."""
        query = {"state": state}
        before = NEWEST if cursor is None else place_of(cursor, query)
        asked = checked_limit(limit) + 1
        found = await asyncio.gather(
            *(asyncio.to_thread(source.newest, state, before, asked) for source in self._sources)
        )
        merged = sorted((placed for some in found for placed in some), key=lambda placed: placed.place, reverse=True)
        views = [placed.view for placed in merged[:asked]]
        return page_of(
            views, limit, [placed.place for placed in merged], query, max((view.position for view in views), default=0)
        )

    async def resolve(self, kind: str, subject: str, principal: str, note: str) -> int:
        """Say that one of the reconciler's alerts was dealt with; the event's position. Raises `AlertNotFoundError`."""
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


def refuse_others(kind: str, *, at: str) -> None:
    """Raise `AlertNotFoundError` for a kind of another source than the reconciler, naming the command that is right."""
    if kind in PURCHASE_KINDS:
        raise AlertNotFoundError(
            f"{kind} is an alert of a purchase, which is settled by what the gateway did",
            at=at,
            expected=settle_command("PURCHASE_ID", Settlement),
        )


def checked_reason(reason: Any) -> str:
    """The reason itself, if it is one: 1 to `REASON_CHARACTERS_MAX` characters. Else `BodyInvalidError`."""
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise BodyInvalidError(
            "a reason is needed", at="$.reason", expected=f"text of 1 to {REASON_CHARACTERS_MAX} characters"
        )
    return reason
