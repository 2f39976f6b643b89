"""The saga: the table of its states, what it remembers, and what follows from each command.

What must stay true:
  * Evidence is no transition: what the gateway says is recorded in every state, a repetition changes nothing, and evidence of a
    charge beats DECLINED and "not found".
  * An unknown charge is reconciled, never compensated blind: only an answer that is believed, or an operator, leads out of UNKNOWN.
  * "Not found" is believed only when the grace period since the last attempt is over.
  * COMPENSATED needs a refund for every recorded charge, in its own append (`domain.purchases.deal` sees to it). One intent has one
    charge if the gateway keeps its promise; each further one, known by its gateway id, is owed a refund of its own.
Instants come in as arguments, by the business clock. Pure.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
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
from domain.transitions import AggregateState, TransitionTable

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
            seen = _with(_with(saga.seen, identity_of(event)), _answered(event))
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


def _answered(evidence: EvidenceRecorded) -> str:
    """Which attempt has its answer."""
    return f"{evidence.operation.value}|{evidence.source.value}|{evidence.attempt}"


def fold_saga(events: Iterable[Event]) -> Saga:
    """The saga that a stream's events make."""
    saga = Saga()
    for event in events:
        saga = evolve(saga, event)
    return saga


# ------------------------------------------------------------------------------------------------ what evidence means


def follow_evidence(
    saga: Saga, evidence: EvidenceRecorded, now: datetime, asked_at: datetime | None = None
) -> tuple[Event, ...]:
    """The evidence and what follows from it in the saga itself; `()` for what is known already.

    `asked_at` is when the question was asked, if it was one: a process that slept since then does not make "not found" truer.
    """
    if evidence.operation is Operation.REFUND:
        return _of_refund(saga, evidence, now)
    if identity_of(evidence) in saga.seen:
        return ()
    events: list[Event] = [evidence]
    match evidence.outcome:
        case Outcome.SUCCEEDED if saga.charged:
            return _of_further_charge(saga, evidence, now)
        case Outcome.SUCCEEDED if saga.state in AWAITING:
            events.append(move(PaymentReceived, saga, now, evidence.source.value))
        case Outcome.SUCCEEDED if saga.state is SagaState.COMPENSATED:
            events.append(move(CompensationBegun, saga, now, "LATE_CHARGE"))
        case Outcome.DECLINED if saga.state in AWAITING and not saga.disputed:
            events.append(move(PaymentFailed, saga, now, "DECLINED"))
        case Outcome.OTHER_AMOUNT:
            events += alert(saga, Alert.OTHER_AMOUNT, f"{evidence.amount_minor} {evidence.currency}", now)
            events += _inconclusive(saga, evidence, now)
        case Outcome.NOT_FOUND if (
            saga.state is SagaState.UNKNOWN and not saga.disputed and _grace_is_over(saga, asked_at or now)
        ):
            events.append(move(PaymentFailed, saga, now, "NOT_FOUND"))
        case Outcome.DECLINED | Outcome.NOT_FOUND | Outcome.UNKNOWN:
            events += _inconclusive(saga, evidence, now)
    return tuple(events)


def _of_further_charge(saga: Saga, evidence: EvidenceRecorded, now: datetime) -> tuple[Event, ...]:
    """A charge beside a recorded one: the same again, its id learned, or a second one, which the gateway promised not to make.

    A second one is refunded where nothing is sold. Where seats are, an operator is asked first: if the gateway has only told one
    charge under two names, a refund would take back the one that pays for them.
    """
    if not evidence.gateway_id or evidence.gateway_id in saga.charges:
        return ()
    if len(evolve(saga, evidence).charges) == len(saga.charges):
        return (evidence,)
    events = (evidence, *alert(saga, Alert.SECOND_CHARGE, evidence.gateway_id, now))
    if saga.state is SagaState.COMPENSATED and evolve(saga, evidence).owed:
        return (*events, move(CompensationBegun, saga, now, "LATE_CHARGE"))
    return events


def _of_refund(saga: Saga, evidence: EvidenceRecorded, now: datetime) -> tuple[Event, ...]:
    # An operator's word is about what is owed then; a reply that tells an old refund again answers an attempt, so another follows.
    answers = evidence.source is Source.REPLY and _answered(evidence) not in saga.seen
    new = evidence.source is Source.OPERATOR or (answers and saga.owed)
    if identity_of(evidence) in saga.seen and not new:
        return ()
    other = evidence.outcome is Outcome.OTHER_AMOUNT
    if saga.owed and (other or evidence.outcome is Outcome.DECLINED):
        return (evidence, *alert(saga, Alert.REFUND_REFUSED, evidence.detail, now))
    after = evolve(saga, evidence)
    surplus = len(after.refunds) > max(len(saga.refunds), len(saga.charges))
    taken = saga.state is SagaState.CONFIRMED and after.refunded and not saga.refunded
    if other or surplus or taken:
        return (evidence, *alert(saga, Alert.UNEXPECTED_REFUND, evidence.gateway_id, now))
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


def _grace_is_over(saga: Saga, asked_at: datetime) -> bool:
    return saga.last_attempt_at is None or asked_at - saga.last_attempt_at >= timedelta(seconds=GRACE_SECONDS)


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
