"""The saga: the table of its states, what it remembers, and what follows from each command.

What must stay true:
  * Evidence is no transition: what the gateway says is recorded in every state, a repetition changes nothing, and evidence of a
    charge beats DECLINED and "not found".
  * An unknown charge is reconciled, never compensated blind: only an answer that is believed, or an operator, leads out of UNKNOWN.
  * "Not found" is believed only when the grace period since the last attempt is over.
  * COMPENSATED needs a refund for a recorded charge, in its own append (`domain.purchases.deal` sees to it).
Instants come in as arguments, by the business clock. Pure.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

import msgspec

from domain.events import Event
from domain.purchases.messages import (
    Alert,
    ChargeAttempted,
    CompensationBegun,
    EvidenceRecorded,
    MailRecorded,
    Operation,
    Outcome,
    PaymentBecameUnknown,
    PaymentFailed,
    PaymentReceived,
    PurchaseAlertRaised,
    PurchaseCompensated,
    PurchaseConfirmed,
    PurchaseSettled,
    PurchaseStarted,
    ReconciliationAttempted,
    RefundAttempted,
    SagaTransition,
    Source,
    UnknownExpired,
)
from domain.transitions import TransitionTable

RECONCILE_DELAYS_SECONDS: Final = (60, 120, 240, 480, 960, 1920)
"""Seconds before the first, second, … question what became of a charge: 1, 2, 4, 8, 16, 32 minutes; then UNKNOWN_EXPIRED."""

RECONCILE_ATTEMPTS_MAX: Final = len(RECONCILE_DELAYS_SECONDS)
"""Questions that are asked before an operator is."""

GRACE_SECONDS: Final = 120
"""Seconds after an attempt in which "not found" is not believed."""

RESUME_SECONDS: Final = 300
"""Seconds after which a saga without an answer charges again, under its intent."""

REFUND_DELAYS_SECONDS: Final = (60, 120, 240, 480, 960, 1920, 3600)
"""Seconds before a refund is asked for again after its first, second, … attempt; the last one from then on, for ever."""

OVERDUE_SECONDS: Final = 24 * 3600
"""Seconds of COMPENSATION_PENDING after which an operator is asked for."""

DETAIL_CHARACTERS_MAX: Final = 300
"""Characters kept of what a gateway says beside its answer."""

_FACTS: Final = (
    ChargeAttempted,
    ReconciliationAttempted,
    RefundAttempted,
    EvidenceRecorded,
    PurchaseAlertRaised,
    PurchaseSettled,
    MailRecorded,
)
"""Events that are recorded in any state and move none."""


class SagaState(Enum):
    """Where a purchase stands."""

    ABSENT = "ABSENT"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"
    UNKNOWN_EXPIRED = "UNKNOWN_EXPIRED"
    PAID = "PAID"
    PAYMENT_FAILED = "PAYMENT_FAILED"
    CONFIRMED = "CONFIRMED"
    COMPENSATION_PENDING = "COMPENSATION_PENDING"
    COMPENSATED = "COMPENSATED"


_S = SagaState
SAGA_TRANSITIONS: Final = TransitionTable[SagaState](
    "purchase",
    {
        (_S.ABSENT, PurchaseStarted): _S.PENDING,
        (_S.PENDING, PaymentReceived): _S.PAID,
        (_S.PENDING, PaymentFailed): _S.PAYMENT_FAILED,
        (_S.PENDING, PaymentBecameUnknown): _S.UNKNOWN,
        (_S.UNKNOWN, PaymentReceived): _S.PAID,
        (_S.UNKNOWN, PaymentFailed): _S.PAYMENT_FAILED,
        (_S.UNKNOWN, UnknownExpired): _S.UNKNOWN_EXPIRED,
        (_S.UNKNOWN_EXPIRED, PaymentReceived): _S.PAID,
        (_S.UNKNOWN_EXPIRED, PaymentFailed): _S.PAYMENT_FAILED,
        (_S.PAID, PurchaseConfirmed): _S.CONFIRMED,
        (_S.PAID, CompensationBegun): _S.COMPENSATION_PENDING,
        (_S.PAYMENT_FAILED, CompensationBegun): _S.COMPENSATION_PENDING,
        (_S.COMPENSATION_PENDING, PurchaseCompensated): _S.COMPENSATED,
        (_S.COMPENSATED, CompensationBegun): _S.COMPENSATION_PENDING,
    },
)

AWAITING: Final = (_S.PENDING, _S.UNKNOWN, _S.UNKNOWN_EXPIRED)
"""States in which it is not known whether the buyer was charged."""


class Saga(msgspec.Struct, frozen=True):
    """State of one purchase. `round` counts how often it was compensated: a mail of an earlier round is corrected by the next."""

    state: SagaState = SagaState.ABSENT
    purchase_id: str = ""
    intent_id: str = ""
    show_id: str = ""
    seats: tuple[str, ...] = ()
    amount_minor: int = 0
    currency: str = ""
    principal: str = ""
    payment_method: str = ""
    contact_id: str = ""
    expires_at: datetime | None = None
    charge_attempts: int = 0
    last_attempt_at: datetime | None = None
    reconcile_attempts: int = 0
    refund_attempts: int = 0
    charged: bool = False
    charge_gateway_id: str = ""
    refunded: bool = False
    compensating_since: datetime | None = None
    round: int = 0
    alerts: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    mails: tuple[str, ...] = ()

    @property
    def mail_due(self) -> str | None:
        """The mail that its present state calls for and that was not recorded yet."""
        wanted = {
            SagaState.CONFIRMED: "confirmed",
            SagaState.COMPENSATED: "failed" if self.round <= 1 else f"correction-{self.round - 1}",
        }.get(self.state)
        return None if wanted in self.mails else wanted


def evolve(saga: Saga, event: Event) -> Saga:
    """The saga after an event. Raises `IllegalTransitionError`."""
    if isinstance(event, _FACTS) and saga.state is not SagaState.ABSENT:
        return _remembering(saga, event)
    state = SAGA_TRANSITIONS.next_state(saga.state, type(event))
    match event:
        case PurchaseStarted():
            return _begun(state, event)
        case CompensationBegun():
            return msgspec.structs.replace(saga, state=state, compensating_since=event.decided_at)
        case PurchaseCompensated():
            # Another round has alerts of its own.
            return msgspec.structs.replace(saga, state=state, compensating_since=None, round=saga.round + 1, alerts=())
    return msgspec.structs.replace(saga, state=state)


def _begun(state: SagaState, event: PurchaseStarted) -> Saga:
    return Saga(
        state=state,
        purchase_id=event.purchase_id,
        intent_id=event.intent_id,
        show_id=event.show_id,
        seats=event.seats,
        amount_minor=event.amount_minor,
        currency=event.currency,
        principal=event.principal,
        payment_method=event.payment_method,
        contact_id=event.contact_id,
        expires_at=event.expires_at,
    )


def _remembering(saga: Saga, event: Event) -> Saga:
    changed = msgspec.structs.replace
    match event:
        case ChargeAttempted():
            return changed(saga, charge_attempts=event.attempt, last_attempt_at=event.decided_at)
        case ReconciliationAttempted():
            return changed(saga, reconcile_attempts=event.attempt)
        case RefundAttempted():
            return changed(saga, refund_attempts=event.attempt)
        case PurchaseAlertRaised():
            return changed(saga, alerts=_with(saga.alerts, event.alert.value))
        case MailRecorded():
            return changed(saga, mails=_with(saga.mails, event.mail))
        case EvidenceRecorded():
            saga = changed(saga, seen=_with(saga.seen, identity_of(event)))
            if event.outcome is not Outcome.SUCCEEDED:
                return saga
            if event.operation is Operation.REFUND:
                return changed(saga, refunded=True)
            first = saga.charge_gateway_id or event.gateway_id
            return changed(saga, charged=True, charge_gateway_id=first)
    return saga


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The names with one more, each once, in their order."""
    return tuple(sorted({*names, name}))


def identity_of(evidence: EvidenceRecorded) -> str:
    """What makes two pieces of evidence the same: an answer that ends nothing is told apart by the attempt that it answers."""
    final = evidence.outcome is Outcome.SUCCEEDED or (
        evidence.outcome is Outcome.DECLINED and evidence.operation is Operation.CHARGE
    )
    asked = () if final else (evidence.source.value, evidence.attempt)
    told = (evidence.gateway_id, evidence.amount_minor, evidence.currency)
    return "|".join(map(str, (evidence.operation.value, evidence.outcome.value, *told, *asked)))


def fold_saga(events: Iterable[Event]) -> Saga:
    """The saga that a stream's events make."""
    saga = Saga()
    for event in events:
        saga = evolve(saga, event)
    return saga


# ------------------------------------------------------------------------------------------------ what evidence means


def follow_evidence(saga: Saga, evidence: EvidenceRecorded, now: datetime) -> tuple[Event, ...]:
    """The evidence and what follows from it in the saga itself; `()` for what is known already."""
    if evidence.operation is Operation.REFUND:
        return _of_refund(saga, evidence, now)
    events: list[Event] = []
    known = identity_of(evidence) in saga.seen
    if not known:
        events.append(evidence)
    match evidence.outcome:
        case Outcome.SUCCEEDED if saga.charged:
            if evidence.gateway_id and saga.charge_gateway_id not in ("", evidence.gateway_id):
                events += alert(saga, Alert.SECOND_CHARGE, evidence.gateway_id, now)
            else:
                return ()
        case Outcome.SUCCEEDED if saga.state in AWAITING:
            events.append(move(PaymentReceived, saga, now, evidence.source.value))
        case Outcome.SUCCEEDED if saga.state is SagaState.COMPENSATED:
            events.append(move(CompensationBegun, saga, now, "LATE_CHARGE"))
        case Outcome.DECLINED if saga.state in AWAITING and not saga.charged:
            events.append(move(PaymentFailed, saga, now, "DECLINED"))
        case Outcome.OTHER_AMOUNT:
            events += alert(saga, Alert.OTHER_AMOUNT, f"{evidence.amount_minor} {evidence.currency}", now)
            events += _inconclusive(saga, evidence, now)
        case Outcome.NOT_FOUND if saga.state is SagaState.UNKNOWN and _grace_is_over(saga, now):
            events.append(move(PaymentFailed, saga, now, "NOT_FOUND"))
        case Outcome.NOT_FOUND | Outcome.UNKNOWN:
            events += _inconclusive(saga, evidence, now)
    return tuple(events)


def _of_refund(saga: Saga, evidence: EvidenceRecorded, now: datetime) -> tuple[Event, ...]:
    if identity_of(evidence) in saga.seen or (saga.refunded and evidence.outcome is Outcome.SUCCEEDED):
        return ()
    refused = evidence.outcome in (Outcome.DECLINED, Outcome.OTHER_AMOUNT) and not saga.refunded
    if refused:
        return (evidence, *alert(saga, Alert.REFUND_REFUSED, evidence.detail, now))
    if evidence.outcome is Outcome.SUCCEEDED and saga.state is SagaState.CONFIRMED:
        return (evidence, *alert(saga, Alert.UNEXPECTED_REFUND, evidence.detail, now))
    return (evidence,)


def _inconclusive(saga: Saga, evidence: EvidenceRecorded, now: datetime) -> tuple[Event, ...]:
    """An answer that decides nothing: UNKNOWN from the first one, an operator's affair after the last question."""
    if saga.state is SagaState.PENDING:
        return (move(PaymentBecameUnknown, saga, now, evidence.outcome.value),)
    last = evidence.source is Source.RECONCILIATION and evidence.attempt >= RECONCILE_ATTEMPTS_MAX
    if saga.state is SagaState.UNKNOWN and last:
        expired = move(UnknownExpired, saga, now, evidence.outcome.value)
        return (expired, *alert(saga, Alert.UNKNOWN_EXPIRED, saga.purchase_id, now))
    return ()


def _grace_is_over(saga: Saga, now: datetime) -> bool:
    return saga.last_attempt_at is None or now - saga.last_attempt_at >= timedelta(seconds=GRACE_SECONDS)


def alert(saga: Saga, kind: Alert, detail: str, now: datetime) -> tuple[Event, ...]:
    """The alert, unless it was raised already."""
    if kind.value in saga.alerts:
        return ()
    return (
        PurchaseAlertRaised(
            purchase_id=saga.purchase_id, alert=kind, detail=detail[:DETAIL_CHARACTERS_MAX], decided_at=now
        ),
    )


def move(kind: type[SagaTransition], saga: Saga, now: datetime, reason: str = "") -> SagaTransition:
    """A transition of the saga."""
    return kind(purchase_id=saga.purchase_id, reason=reason, decided_at=now)
