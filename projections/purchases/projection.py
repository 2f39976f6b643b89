"""Purchases: one row per saga, in the state of its last event; for lists, and for finding those that are stuck.

What must stay true: `state_since` is an instant of the business clock, taken from the event that brought the state.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.purchases.messages import (
    PurchaseAlertRaised,
    PurchaseCompensated,
    PurchaseConfirmed,
    PurchaseSettled,
    PurchaseStarted,
    SagaTransition,
)
from domain.purchases.saga import SAGA_TRANSITIONS, SagaState, lasting
from projections.folding import ReadModel

NAME: Final = "purchases"


class PurchaseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A purchase. `alerts` are those that its present round has raised and nobody has settled."""

    purchase_id: str
    state: str
    principal: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    alerts: tuple[str, ...]
    state_since: datetime
    started_at: datetime
    first_position: int
    position: int


def key_of(event: Event) -> str | None:
    """The purchase that the event changes here, or None."""
    mine = PurchaseStarted | SagaTransition | PurchaseAlertRaised | PurchaseSettled
    return event.purchase_id if isinstance(event, mine) else None


def apply(row: PurchaseRow | None, recorded: Recorded) -> PurchaseRow:
    """The row after the event. Raises `IllegalTransitionError`."""
    event = recorded.event
    changed = msgspec.structs.replace
    if isinstance(event, PurchaseStarted):
        return PurchaseRow(
            purchase_id=event.purchase_id,
            state=SAGA_TRANSITIONS.next_state(SagaState.ABSENT, type(event)).value,
            principal=event.principal,
            show_id=event.show_id,
            seats=event.seats,
            amount_minor=event.amount_minor,
            currency=event.currency,
            alerts=(),
            state_since=event.decided_at,
            started_at=event.decided_at,
            first_position=recorded.position,
            position=recorded.position,
        )
    if row is None:
        raise IllegalTransitionError("the purchase was never started", at=recorded.stream)
    if isinstance(event, PurchaseAlertRaised):
        return changed(row, alerts=(*row.alerts, event.alert.value), position=recorded.position)
    if isinstance(event, PurchaseSettled):
        return changed(row, alerts=(), position=recorded.position)
    assert isinstance(event, SagaTransition)
    state = SAGA_TRANSITIONS.next_state(SagaState(row.state), type(event)).value
    alerts = lasting(row.alerts) if isinstance(event, PurchaseConfirmed | PurchaseCompensated) else row.alerts
    return changed(row, state=state, state_since=event.decided_at, alerts=alerts, position=recorded.position)


MODEL: Final = ReadModel[str, PurchaseRow](NAME, ("purchase",), key_of, apply)
