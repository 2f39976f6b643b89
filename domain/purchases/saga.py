"""The saga: the table of its states, and what it remembers. What evidence means in each state stands in `evidence.py`, what a
command calls for, with the other streams that follow, in `deal.py`.

What must stay true: evidence moves no state, it is remembered in every one, and a repetition changes nothing; one intent has one
charge if the gateway keeps its promise, and each further one, known by its gateway id, is owed a refund of its own. Instants come
in as arguments, by the business clock. Pure.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
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
    Settlement,
    Source,
    UnknownExpired,
)
from domain.transitions import AggregateState, TransitionTable

RECONCILE_DELAYS_SECONDS: Final = (60, 120, 240, 480, 960, 1920)
"""Seconds before the first, second, … question what became of a charge: 1, 2, 4, 8, 16, 32 minutes; then UNKNOWN_EXPIRED."""

RECONCILE_ATTEMPTS_MAX: Final = len(RECONCILE_DELAYS_SECONDS)
"""Questions that are asked before an operator is."""

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


class SagaState(AggregateState):
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

SETTLEMENTS: Final[Mapping[SagaState, tuple[Settlement, ...]]] = {
    _S.UNKNOWN_EXPIRED: (Settlement.CHARGED, Settlement.NOT_CHARGED),
    _S.COMPENSATION_PENDING: (Settlement.REFUNDED,),
    _S.CONFIRMED: (Settlement.REFUNDED,),
    _S.COMPENSATED: (Settlement.REFUNDED,),
}
"""What an operator may say in each state: of a refund where one is owed, or at an end where there are alerts; elsewhere nothing."""

AWAITING: Final = (_S.PENDING, _S.UNKNOWN, _S.UNKNOWN_EXPIRED)
"""States in which it is not known whether the buyer was charged."""


LASTING: Final = (Alert.OTHER_AMOUNT.value, Alert.UNEXPECTED_REFUND.value)
"""Alerts that an end of the purchase does not end, only an operator's word; another round of compensation has the others anew."""


def lasting(alerts: Iterable[str]) -> tuple[str, ...]:
    """The alerts that stand at an end."""
    return tuple(name for name in alerts if name in LASTING)


class Saga(msgspec.Struct, frozen=True):
    """State of one purchase.

    `charges` and `refunds` are the gateway's ids of those that are recorded, all over the purchase's amount; `""` stands for one
    that was told without an id (by an operator), until an id turns up. `disputed`: a charge over another amount is recorded.
    `round` counts how often it was compensated: a mail of an earlier round is corrected by the next.
    """

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
    charges: tuple[str, ...] = ()
    refunds: tuple[str, ...] = ()
    disputed: bool = False
    compensating_since: datetime | None = None
    round: int = 0
    alerts: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    mails: tuple[str, ...] = ()

    @property
    def charged(self) -> bool:
        """Whether a charge is recorded, refunded or not."""
        return bool(self.charges)

    @property
    def refunded(self) -> bool:
        """Whether a refund is recorded for every charge, and there is one."""
        return bool(self.refunds) and len(self.refunds) >= len(self.charges)

    @property
    def owed(self) -> int:
        """How many recorded charges are still to be refunded; one pays for the seats, unless the purchase comes to nothing."""
        kept = 0 if self.state in (SagaState.COMPENSATION_PENDING, SagaState.COMPENSATED) else 1
        return max(0, len(self.charges) - len(self.refunds) - kept)

    @property
    def mail_due(self) -> str | None:
        """The mail that its present state calls for and that was not recorded yet; a correction only of what was written."""
        if self.state is SagaState.CONFIRMED:
            return None if "confirmed" in self.mails else "confirmed"
        told = max(map(_round_of, self.mails), default=0)
        if self.state is not SagaState.COMPENSATED or told >= self.round:
            return None
        if told:
            return f"correction-{self.round - 1}"
        return "failed" if self.round == 1 else f"failed-{self.round}"


def _round_of(mail: str) -> int:
    """The round of compensation that a mail told of; 0 for one that told of none."""
    name, _, number = mail.partition("-")
    return {"failed": int(number or 1), "correction": int(number or 0) + 1}.get(name, 0)


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
        case PurchaseConfirmed():
            return msgspec.structs.replace(saga, state=state, alerts=lasting(saga.alerts))
        case PurchaseCompensated():
            kept = lasting(saga.alerts)
            return msgspec.structs.replace(
                saga, state=state, compensating_since=None, round=saga.round + 1, alerts=kept
            )
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
        case PurchaseSettled():
            return changed(saga, alerts=())  # they were for whoever has settled it
        case EvidenceRecorded():
            seen = _with(_with(saga.seen, identity_of(event)), answered_by(event))
            return _counting(changed(saga, seen=seen), event)
    return saga


def _counting(saga: Saga, event: EvidenceRecorded) -> Saga:
    """The charges and refunds that are recorded with the evidence; an operator's word of refunds is about all that were owed."""
    changed = msgspec.structs.replace
    charge = event.operation is Operation.CHARGE
    if event.outcome is Outcome.OTHER_AMOUNT and charge:
        return changed(saga, disputed=True)
    if event.outcome is not Outcome.SUCCEEDED:
        return saga
    if charge:
        return changed(saga, charges=_learned(saga.charges, event.gateway_id))
    if event.source is Source.OPERATOR:
        return changed(saga, refunds=(*saga.refunds, *[""] * saga.owed))
    return changed(saga, refunds=_learned(saga.refunds, event.gateway_id))


def _learned(ids: tuple[str, ...], gateway_id: str) -> tuple[str, ...]:
    """The ids with one more, each once; an id that turns up may be that of one that was told without."""
    if gateway_id in ids:
        return (*ids, "") if not gateway_id else ids
    if "" not in ids:
        return (*ids, gateway_id)
    place = ids.index("")
    return (*ids[:place], gateway_id, *ids[place + 1 :])


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The names with one more, each once, in their order."""
    return tuple(sorted({*names, name}))


def identity_of(evidence: EvidenceRecorded) -> str:
    """What makes two pieces of evidence the same: an answer that ends nothing, or names nothing, is told apart by its attempt."""
    charge = evidence.operation is Operation.CHARGE
    done = evidence.outcome is Outcome.SUCCEEDED and (charge or evidence.gateway_id)
    final = done or (evidence.outcome is Outcome.DECLINED and charge)
    asked = () if final else (evidence.source.value, evidence.attempt)
    told = (evidence.gateway_id, evidence.amount_minor, evidence.currency)
    return "|".join(map(str, (evidence.operation.value, evidence.outcome.value, *told, *asked)))


def answered_by(evidence: EvidenceRecorded) -> str:
    """Which attempt has its answer."""
    return f"{evidence.operation.value}|{evidence.source.value}|{evidence.attempt}"


def fold_saga(events: Iterable[Event]) -> Saga:
    """The saga that a stream's events make."""
    saga = Saga()
    for event in events:
        saga = evolve(saga, event)
    return saga


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
