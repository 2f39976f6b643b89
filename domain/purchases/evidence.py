"""What evidence means: the events of the saga that follow from what the gateway, or an operator, said of a charge or a refund.

What must stay true:
  * Evidence is no transition: it is recorded in every state, a repetition changes nothing, and evidence of a charge beats DECLINED
    and "not found".
  * An unknown charge is reconciled, never compensated blind: only an answer that is believed, or an operator, leads out of UNKNOWN.
  * "Not found" is believed only when the grace period since the last attempt is over.
  * COMPENSATED needs a refund for every recorded charge, in its own append (`domain.purchases.deal` sees to it).
Instants come in as arguments, by the business clock. Pure.
"""

from datetime import datetime, timedelta
from typing import Final

from domain.events import Event
from domain.purchases.messages import (
    Alert,
    CompensationBegun,
    EvidenceRecorded,
    Operation,
    Outcome,
    PaymentBecameUnknown,
    PaymentFailed,
    PaymentReceived,
    Source,
    UnknownExpired,
)
from domain.purchases.saga import (
    AWAITING,
    RECONCILE_ATTEMPTS_MAX,
    Saga,
    SagaState,
    alert,
    answered_by,
    evolve,
    identity_of,
    move,
)

GRACE_SECONDS: Final = 120
"""Seconds after an attempt in which "not found" is not believed."""


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
    answers = evidence.source is Source.REPLY and answered_by(evidence) not in saga.seen
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
