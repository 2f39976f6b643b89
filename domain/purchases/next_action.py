"""What a purchase does next, and when: the deadlines of the saga, computed from recorded instants.

One place says when what is due; the process manager keeps these deadlines and the status page shows them. Pure.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

import msgspec

from domain.events import Event
from domain.purchases.messages import (
    CompensationBegun,
    EvidenceRecorded,
    Operation,
    Outcome,
    PaymentBecameUnknown,
    PurchaseStarted,
    SagaTransition,
    Source,
)
from domain.purchases.saga import (
    OVERDUE_SECONDS,
    RECONCILE_ATTEMPTS_MAX,
    RECONCILE_DELAYS_SECONDS,
    REFUND_DELAYS_SECONDS,
    RESUME_SECONDS,
    SagaState,
    fold_saga,
)


class Action(Enum):
    """What is due by itself."""

    CHARGE = "charge"
    RESUME = "resume"
    EXPIRE = "expire"
    RECONCILE = "reconcile"
    REFUND = "refund"
    OVERDUE = "overdue"


class Due(msgspec.Struct, frozen=True):
    """An action and its instant by the business clock; `attempt` counts the questions and refunds from 1."""

    action: Action
    due_at: datetime
    attempt: int = 1


_PAYING: Final = (Action.RESUME, Action.EXPIRE, Action.RECONCILE)
_COMPENSATING: Final = (Action.REFUND, Action.OVERDUE)


def dues_of(event: Event) -> tuple[Due, ...]:
    """What becomes due because of the event; each replaces what was due before under the same action."""
    match event:
        case PurchaseStarted():
            return (
                Due(Action.CHARGE, event.decided_at),
                Due(Action.RESUME, _after(event.decided_at, RESUME_SECONDS)),
                Due(Action.EXPIRE, event.expires_at),
            )
        case PaymentBecameUnknown():
            return (Due(Action.RECONCILE, _after(event.decided_at, RECONCILE_DELAYS_SECONDS[0])),)
        case EvidenceRecorded(operation=Operation.CHARGE, source=Source.RECONCILIATION):
            if event.attempt >= RECONCILE_ATTEMPTS_MAX:
                return ()
            due_at = _after(event.decided_at, RECONCILE_DELAYS_SECONDS[event.attempt])
            return (Due(Action.RECONCILE, due_at, event.attempt + 1),)
        case EvidenceRecorded(operation=Operation.REFUND) if event.outcome is Outcome.SUCCEEDED or event.attempt:
            # Behind a refund that was the last one owed stands COMPENSATED, which clears this.
            delay = REFUND_DELAYS_SECONDS[min(max(event.attempt, 1), len(REFUND_DELAYS_SECONDS)) - 1]
            return (Due(Action.REFUND, _after(event.decided_at, delay), event.attempt + 1),)
        case CompensationBegun():
            return (
                Due(Action.REFUND, event.decided_at),
                Due(Action.OVERDUE, _after(event.decided_at, OVERDUE_SECONDS)),
            )
    return ()


def cleared_by(event: Event) -> tuple[Action, ...]:
    """What is no longer due after the event, before what `dues_of` it gives."""
    if isinstance(event, PaymentBecameUnknown):
        return _PAYING
    if isinstance(event, SagaTransition):
        return (*_PAYING, *_COMPENSATING)
    return ()


def next_action(events: Iterable[Event]) -> Due | None:
    """The first thing that a purchase with these events will do by itself; None at an end, or while only a person can go on."""
    history = list(events)
    dues: dict[Action, Due] = {}
    for event in history:
        for action in cleared_by(event):
            dues.pop(action, None)
        for due in dues_of(event):
            dues[due.action] = due
    saga = fold_saga(history)
    if saga.state in (SagaState.CONFIRMED, SagaState.COMPENSATED, SagaState.UNKNOWN_EXPIRED):
        return None
    if saga.state is not SagaState.PENDING or saga.charge_attempts:
        dues.pop(Action.CHARGE, None)
        dues.pop(Action.EXPIRE, None)  # once a charge was attempted, time alone ends nothing
    if saga.state is not SagaState.COMPENSATION_PENDING:
        dues.pop(Action.REFUND, None)  # a refund that nobody asked for asks for no other
    return min(dues.values(), key=lambda due: due.due_at, default=None)


def _after(instant: datetime, seconds: float) -> datetime:
    return instant + timedelta(seconds=seconds)
