"""A deal: the saga, its reservation with the seats, its ledger and its notices, decided upon together and written in one append.

The saga's own events come first; what must follow from them without asking anybody (the entry in the ledger, the seats sold or
freed, what is told to others, the next state) follows in the same append, until only the gateway, the mail server or time can go
on. So no crash can leave a charge recorded without its entry, or a purchase confirmed without its seats.

What must stay true: every event of a stream stands under that stream's next version, so whoever decided on what is no longer so
is refused whole; COMPENSATED comes when every recorded charge has a recorded refund, with the refund's entry in the same append.
The ledger has one charge and one refund of an intent: of a further charge, which the gateway promised not to make, and its refund
the evidence tells, and an alert. Pure.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from domain.errors import BodyInvalidError, RefusedError
from domain.events import Event
from domain.purchases.evidence import follow_evidence
from domain.purchases.identity import (
    intent_id_of,
    ledger_stream,
    notice_id_of,
    notice_stream,
    purchase_stream,
    reservation_stream,
    seat_stream,
)
from domain.purchases.ledger import Account, entry
from domain.purchases.ledger import evolve as evolve_account
from domain.purchases.messages import (
    Alert,
    AttemptCharge,
    AttemptReconciliation,
    AttemptRefund,
    ChargeAttempted,
    CompensationBegun,
    EntryKind,
    EvidenceRecorded,
    ExpireReservation,
    GatewayAnswer,
    MailRecorded,
    NoticePosted,
    Operation,
    Outcome,
    PaymentFailed,
    PurchaseCommand,
    PurchaseCompensated,
    PurchaseConfirmed,
    PurchaseSettled,
    PurchaseStarted,
    RaiseOverdue,
    ReconciliationAttempted,
    RecordEvidence,
    RecordMail,
    RefundAttempted,
    Settlement,
    SettlePurchase,
    Source,
    StartPurchase,
)
from domain.purchases.messages_seats import (
    ReservationCancelled,
    ReservationExpired,
    ReservationMade,
    ReservationPinned,
    ReservationSold,
    SeatReleased,
    SeatReserved,
    SeatSold,
)
from domain.purchases.saga import (
    DETAIL_CHARACTERS_MAX,
    OVERDUE_SECONDS,
    SETTLEMENTS,
    Saga,
    SagaState,
    alert,
    evolve,
    move,
)
from domain.purchases.seats import (
    EXPIRED,
    SAGA_COMPENSATED,
    Reservation,
    ReservationState,
    Seat,
    evolve_reservation,
    total_of,
)

NOTE_CHARACTERS_MAX: Final = 2000
"""Characters of an operator's note."""

PAYMENT_SUCCEEDED: Final = "PaymentSucceeded"
RESERVATION_CANCELLED: Final = "ReservationCancelled"
"""Names of what is told to others."""


class Deal(msgspec.Struct, frozen=True):
    """Everything that one purchase decides on."""

    saga: Saga = Saga()
    reservation: Reservation = Reservation()
    account: Account = Account()


class Placed(msgspec.Struct, frozen=True):
    """An event and the stream that it goes to."""

    stream: str
    event: Event


def start(command: StartPurchase, seats: Mapping[str, Seat], hold_until: datetime, now: datetime) -> tuple[Placed, ...]:
    """Seats, reservation and saga. Raises `SeatUnknownError`, `SeatsTakenError`; then there is nothing of all that."""
    amount = total_of(seats, command.show_id)
    currency = next(iter(seats.values())).currency
    ids = {"purchase_id": command.purchase_id, "show_id": command.show_id}
    return (
        *(Placed(seat_stream(command.show_id, seat), SeatReserved(seat=seat, **ids)) for seat in command.seats),
        Placed(
            reservation_stream(command.purchase_id),
            ReservationMade(
                seats=command.seats,
                amount_minor=amount,
                currency=currency,
                expires_at=hold_until,
                decided_at=now,
                **ids,
            ),
        ),
        Placed(
            purchase_stream(command.purchase_id),
            PurchaseStarted(
                intent_id=intent_id_of(command.purchase_id),
                seats=command.seats,
                amount_minor=amount,
                currency=currency,
                principal=command.principal,
                payment_method=command.payment_method,
                contact_id=command.contact_id,
                expires_at=hold_until,
                decided_at=now,
                **ids,
            ),
        ),
    )


def decide(deal: Deal, command: PurchaseCommand, now: datetime) -> tuple[Placed, ...]:
    """What the command calls for, with everything that follows; `()` if it is no longer called for.

    Raises `RefusedError` for an operator's word that does not fit the state, `BodyInvalidError` for a bad note.
    """
    work = _Work(deal)
    _of(work, command, now)
    work.follow(now)
    return tuple(work.placed)


class _Work:
    """A deal being decided upon: what was placed so far is applied already."""

    def __init__(self, deal: Deal) -> None:
        self.saga = deal.saga
        self.reservation = deal.reservation
        self.account = deal.account
        self.placed: list[Placed] = []

    def tell(self, *events: Event) -> None:
        """Events of the saga itself."""
        for event in events:
            self.placed.append(Placed(purchase_stream(self.saga.purchase_id), event))
            self.saga = evolve(self.saga, event)

    def reserve(self, event: Event) -> None:
        """An event of the reservation."""
        self.placed.append(Placed(reservation_stream(self.saga.purchase_id), event))
        self.reservation = evolve_reservation(self.reservation, event)

    def post(self, kind: EntryKind) -> None:
        """An entry in the ledger."""
        saga = self.saga
        event = entry(kind, saga.intent_id, saga.purchase_id, saga.amount_minor, saga.currency)
        self.placed.append(Placed(ledger_stream(saga.intent_id), event))
        self.account = evolve_account(self.account, event)

    def seats(self, event_of: Callable[[str], Event]) -> None:
        """An event of every seat of the reservation."""
        show_id = self.saga.show_id
        self.placed += (Placed(seat_stream(show_id, seat), event_of(seat)) for seat in self.reservation.seats)

    def notify(self, name: str, reason: str, now: datetime) -> None:
        """Something to be told to others, once per name."""
        saga = self.saga
        notice_id = notice_id_of(saga.purchase_id, name)
        notice = NoticePosted(
            notice_id=notice_id,
            name=name,
            purchase_id=saga.purchase_id,
            show_id=saga.show_id,
            seats=saga.seats,
            amount_minor=saga.amount_minor,
            currency=saga.currency,
            reason=reason,
            decided_at=now,
        )
        self.placed.append(Placed(notice_stream(notice_id), notice))

    # ---------------------------------------------------------------- what follows by itself

    def follow(self, now: datetime) -> None:
        """Go on until only the gateway, the mail server or time can."""
        if self.saga.charged and not self.account.charged:
            self.post(EntryKind.CHARGE)
        if self.saga.refunded and self.account.charged and not self.account.refunded:
            self.post(EntryKind.REFUND)
        if self.saga.state is SagaState.PAID:
            self._finish_sale(now)
        if self.saga.state is SagaState.PAYMENT_FAILED:
            self.tell(move(CompensationBegun, self.saga, now, "PAYMENT_FAILED"))
        agreed = self.account.charged == self.account.refunded
        if self.saga.state is SagaState.COMPENSATION_PENDING and agreed and not self.saga.owed:
            self._compensate(now)

    def _finish_sale(self, now: datetime) -> None:
        if self.saga.refunded or not self.reservation.holds:
            reason = "REFUNDED" if self.saga.refunded else "SEATS_LOST"
            self.tell(move(CompensationBegun, self.saga, now, reason))
            return
        saga = self.saga
        self.seats(lambda seat: SeatSold(show_id=saga.show_id, seat=seat, purchase_id=saga.purchase_id))
        self.reserve(ReservationSold(purchase_id=saga.purchase_id))
        self.tell(move(PurchaseConfirmed, saga, now))
        self.notify(PAYMENT_SUCCEEDED, "", now)

    def _compensate(self, now: datetime) -> None:
        saga = self.saga
        held = self.reservation.holds
        if self.reservation.state is not ReservationState.CANCELLED:
            self.reserve(ReservationCancelled(purchase_id=saga.purchase_id, reason=SAGA_COMPENSATED))
            if held:
                self.release(SAGA_COMPENSATED)
            self.notify(RESERVATION_CANCELLED, SAGA_COMPENSATED, now)
        self.tell(move(PurchaseCompensated, saga, now))

    def release(self, reason: str) -> None:
        """Free the seats of the reservation."""
        saga = self.saga
        self.seats(
            lambda seat: SeatReleased(show_id=saga.show_id, seat=seat, purchase_id=saga.purchase_id, reason=reason)
        )

    def expire(self, now: datetime) -> None:
        """Let the reservation go: nobody tried to pay in time."""
        self.release(EXPIRED)
        self.reserve(ReservationExpired(purchase_id=self.saga.purchase_id, decided_at=now))
        self.tell(move(PaymentFailed, self.saga, now, "RESERVATION_EXPIRED"))


def _of(work: _Work, command: PurchaseCommand, now: datetime) -> None:
    saga = work.saga
    ids: dict[str, Any] = {"purchase_id": saga.purchase_id, "decided_at": now}
    match command:
        case AttemptCharge() if saga.state is SagaState.PENDING:
            _attempt_charge(work, now)
        case AttemptReconciliation(attempt=attempt) if saga.state is SagaState.UNKNOWN:
            if attempt >= saga.reconcile_attempts:  # the same attempt again after a crash is still that attempt
                work.tell(ReconciliationAttempted(attempt=attempt, **ids))
        case AttemptRefund() if saga.state is SagaState.COMPENSATION_PENDING and saga.owed:
            work.tell(RefundAttempted(attempt=saga.refund_attempts + 1, **ids))
        case RecordEvidence():
            work.tell(*follow_evidence(saga, _evidence(saga, command, now), now, command.asked_at))
        case ExpireReservation() if saga.state is SagaState.PENDING and _has_expired(work.reservation, now):
            work.expire(now)
        case RaiseOverdue() if _is_overdue(saga, now):
            work.tell(*alert(saga, Alert.COMPENSATION_OVERDUE, saga.purchase_id, now))
        case SettlePurchase():
            work.tell(*_settled(saga, command, now))
        case RecordMail() if command.mail not in saga.mails:  # it was sent, whatever has become of the purchase since
            work.tell(
                MailRecorded(
                    purchase_id=saga.purchase_id, mail=command.mail, message_id=command.message_id, sent=command.sent
                )
            )


def _attempt_charge(work: _Work, now: datetime) -> None:
    if _has_expired(work.reservation, now):
        work.expire(now)
        return
    if work.reservation.state is ReservationState.HELD:
        work.reserve(ReservationPinned(purchase_id=work.saga.purchase_id))
    attempt = work.saga.charge_attempts + 1
    work.tell(ChargeAttempted(purchase_id=work.saga.purchase_id, attempt=attempt, decided_at=now))


def _has_expired(reservation: Reservation, now: datetime) -> bool:
    until = reservation.expires_at
    return reservation.state is ReservationState.HELD and until is not None and now >= until


def _is_overdue(saga: Saga, now: datetime) -> bool:
    since = saga.compensating_since
    waiting = saga.state is SagaState.COMPENSATION_PENDING and since is not None
    return waiting and since is not None and (now - since).total_seconds() >= OVERDUE_SECONDS


def _evidence(saga: Saga, command: RecordEvidence, now: datetime) -> EvidenceRecorded:
    """The event of an answer; one over another amount than ours is never taken for a success."""
    answer = command.answer
    other = (answer.amount_minor, answer.currency) != (saga.amount_minor, saga.currency)
    outcome = Outcome.OTHER_AMOUNT if answer.outcome is Outcome.SUCCEEDED and other else answer.outcome
    return EvidenceRecorded(
        purchase_id=saga.purchase_id,
        operation=answer.operation,
        outcome=outcome,
        source=command.source,
        attempt=command.attempt,
        amount_minor=answer.amount_minor,
        currency=_kept(answer.currency),
        gateway_id=_kept(answer.gateway_id),
        detail=_kept(answer.detail),
        decided_at=now,
    )


def _kept(text: str) -> str:
    """As much of what a gateway says as the log can hold: no answer, however odd, may go unrecorded."""
    return text[:DETAIL_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _settled(saga: Saga, command: SettlePurchase, now: datetime) -> Iterator[Event]:
    note = command.note.strip()
    if not note or len(note) > NOTE_CHARACTERS_MAX:
        raise BodyInvalidError("a note is needed", at="$.note", expected=f"1 to {NOTE_CHARACTERS_MAX} characters")
    refund = command.settlement is Settlement.REFUNDED
    needed = SagaState.COMPENSATION_PENDING if refund else SagaState.UNKNOWN_EXPIRED
    asked = saga.owed if saga.state is SagaState.COMPENSATION_PENDING else saga.alerts
    if command.settlement not in SETTLEMENTS.get(saga.state, ()) or (refund and not asked):
        raise RefusedError(
            f"a purchase that is {saga.state.value} cannot be settled so", at=saga.purchase_id, expected=needed.value
        )
    yield PurchaseSettled(
        purchase_id=saga.purchase_id,
        settlement=command.settlement,
        principal=command.principal,
        note=note,
        decided_at=now,
    )
    if command.settlement is Settlement.NOT_CHARGED:
        yield move(PaymentFailed, saga, now, "OPERATOR")
        return
    if refund and not saga.owed:
        return  # what the alerts were about has been put right
    answer = GatewayAnswer(
        operation=Operation.REFUND if refund else Operation.CHARGE,
        outcome=Outcome.SUCCEEDED,
        amount_minor=saga.amount_minor,
        currency=saga.currency,
    )
    yield from follow_evidence(saga, _evidence(saga, RecordEvidence(answer, Source.OPERATOR), now), now)
