"""Discrepancies, for the operator: one row per (kind, subject) that ever disagreed, in the state of its last event.

What must stay true: a row is the fold of its stream; `ALERTED` rows are what an operator is asked about.
"""

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from domain.discrepancies.aggregate import Discrepancy, DiscrepancyState, evolve
from domain.discrepancies.messages import (
    DiscrepancyAlertRaised,
    DiscrepancyAlertResolved,
    DiscrepancyFound,
    DiscrepancyRepaired,
)
from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from projections.folding import ReadModel

NAME: Final = "discrepancies"

DiscrepancyKey: TypeAlias = tuple[str, str]
"""kind and subject"""

DiscrepancyEvent: TypeAlias = DiscrepancyFound | DiscrepancyRepaired | DiscrepancyAlertRaised | DiscrepancyAlertResolved


class DiscrepancyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A discrepancy. `outcome` says how it was settled, or why it could not be; `found_at` is the last time it was found."""

    kind: str
    subject: str
    state: str
    expected: str
    actual: str
    outcome: str
    principal: str | None
    times_found: int
    found_at: datetime
    changed_at: datetime
    first_position: int
    position: int

    @property
    def discrepancy(self) -> Discrepancy:
        """As its aggregate has it, as far as the table of transitions needs."""
        return Discrepancy(DiscrepancyState(self.state), None, self.subject)


def key_of(event: Event) -> DiscrepancyKey | None:
    """The discrepancy that the event is about, or None."""
    return (event.kind.value, event.subject) if isinstance(event, DiscrepancyEvent) else None


def apply(row: DiscrepancyRow | None, recorded: Recorded) -> DiscrepancyRow:
    """The row after the event. Raises `IllegalTransitionError` for one that cannot follow."""
    event, at = recorded.event, recorded.recorded_at
    state = evolve(Discrepancy() if row is None else row.discrepancy, event).state.value
    if isinstance(event, DiscrepancyFound):
        return DiscrepancyRow(
            kind=event.kind.value,
            subject=event.subject,
            state=state,
            expected=event.expected,
            actual=event.actual,
            outcome="",
            principal=None,
            times_found=1 if row is None else row.times_found + 1,
            found_at=at,
            changed_at=at,
            first_position=recorded.position if row is None else row.first_position,
            position=recorded.position,
        )
    if row is None:
        raise IllegalTransitionError("the discrepancy was never found", at=recorded.stream)
    outcome, principal = _outcome(event)
    return msgspec.structs.replace(
        row, state=state, outcome=outcome, principal=principal, changed_at=at, position=recorded.position
    )


def _outcome(event: Event) -> tuple[str, str | None]:
    match event:
        case DiscrepancyRepaired():
            return event.repair, None
        case DiscrepancyAlertRaised():
            return event.reason, None
        case DiscrepancyAlertResolved():
            return event.note, event.principal
    return "", None


MODEL: Final = ReadModel[DiscrepancyKey, DiscrepancyRow](NAME, ("discrepancy",), key_of, apply)
