"""Commands and events of the saga, its ledger and its notices; importing it registers all topics of the context.

Amounts are whole minor units of the currency beside them. `decided_at` is the business clock's instant at which the event was
decided; deadlines are computed from it.
"""

from datetime import datetime
from enum import Enum
from typing import ClassVar

import msgspec

from domain.events import Event, registered
from domain.purchases import messages_seats as messages_seats


class Operation(Enum):
    """What was asked of the gateway."""

    CHARGE = "CHARGE"
    REFUND = "REFUND"


class Outcome(Enum):
    """What is known of it. `OTHER_AMOUNT`: it happened, over another amount or currency than asked."""

    SUCCEEDED = "SUCCEEDED"
    DECLINED = "DECLINED"
    NOT_FOUND = "NOT_FOUND"
    UNKNOWN = "UNKNOWN"
    OTHER_AMOUNT = "OTHER_AMOUNT"


class Source(Enum):
    """How the evidence came."""

    REPLY = "REPLY"
    RECONCILIATION = "RECONCILIATION"
    WEBHOOK = "WEBHOOK"
    OPERATOR = "OPERATOR"


class Alert(Enum):
    """What asks for an operator about a purchase; each has its runbook."""

    UNKNOWN_EXPIRED = "UNKNOWN_EXPIRED"
    OTHER_AMOUNT = "OTHER_AMOUNT"
    REFUND_REFUSED = "REFUND_REFUSED"
    COMPENSATION_OVERDUE = "COMPENSATION_OVERDUE"
    SECOND_CHARGE = "SECOND_CHARGE"
    UNEXPECTED_REFUND = "UNEXPECTED_REFUND"


class Settlement(Enum):
    """An operator's word on what the gateway did, having asked it by hand."""

    CHARGED = "CHARGED"
    NOT_CHARGED = "NOT_CHARGED"
    REFUNDED = "REFUNDED"

    @property
    def word(self) -> str:
        """As an operator writes it."""
        return self.value.lower().replace("_", "-")


class EntryKind(Enum):
    """What an entry of the ledger records; one of each per intent."""

    CHARGE = "CHARGE"
    REFUND = "REFUND"


class GatewayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway said, or that it did not (`UNKNOWN`). `gateway_id` is its own name of the charge or refund, if any."""

    operation: Operation
    outcome: Outcome
    amount_minor: int = 0
    currency: str = ""
    gateway_id: str = ""
    detail: str = ""


# ------------------------------------------------------------------------------------------------ commands


class StartPurchase(msgspec.Struct, frozen=True, kw_only=True):
    """Reserve the seats and begin the saga."""

    purchase_id: str
    show_id: str
    seats: tuple[str, ...]
    principal: str
    payment_method: str
    contact_id: str


class AttemptCharge(msgspec.Struct, frozen=True):
    """Record that the charge is about to be asked for, if it still may be."""


class AttemptReconciliation(msgspec.Struct, frozen=True):
    """Record that the gateway is about to be asked what became of the charge; `attempt` counts from 1."""

    attempt: int


class AttemptRefund(msgspec.Struct, frozen=True):
    """Record that the refund is about to be asked for."""


class RecordEvidence(msgspec.Struct, frozen=True):
    """Record what the gateway said; `attempt` is that of the call which it answers (0: none of ours), `asked_at` its instant."""

    answer: GatewayAnswer
    source: Source
    attempt: int = 0
    asked_at: datetime | None = None


class ExpireReservation(msgspec.Struct, frozen=True):
    """Let the reservation go if its time is over and nobody tried to pay."""


class RaiseOverdue(msgspec.Struct, frozen=True):
    """Alert that the compensation takes too long, if it still does."""


class SettlePurchase(msgspec.Struct, frozen=True, kw_only=True):
    """An operator has asked the gateway by hand."""

    settlement: Settlement
    principal: str
    note: str


class RecordMail(msgspec.Struct, frozen=True, kw_only=True):
    """A mail was accepted by the mail server, or there is nobody to send it to any more (`sent` false)."""

    mail: str
    message_id: str
    sent: bool


PurchaseCommand = (
    AttemptCharge
    | AttemptReconciliation
    | AttemptRefund
    | RecordEvidence
    | ExpireReservation
    | RaiseOverdue
    | SettlePurchase
    | RecordMail
)


# ------------------------------------------------------------------------------------------------ the saga: facts


@registered
class PurchaseStarted(Event, frozen=True, kw_only=True):
    """The saga begins, in the append that reserves the seats. `contact_id` refers to a table outside the log."""

    topic: ClassVar[str] = "purchase.started.v1"

    purchase_id: str
    intent_id: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    principal: str
    payment_method: str
    contact_id: str
    expires_at: datetime
    decided_at: datetime


@registered
class ChargeAttempted(Event, frozen=True, kw_only=True):
    """The charge is about to be asked for, for the `attempt`-th time under the same intent."""

    topic: ClassVar[str] = "purchase.charge_attempted.v1"

    purchase_id: str
    attempt: int
    decided_at: datetime


@registered
class ReconciliationAttempted(Event, frozen=True, kw_only=True):
    """The gateway is about to be asked what became of the charge."""

    topic: ClassVar[str] = "purchase.reconciliation_attempted.v1"

    purchase_id: str
    attempt: int
    decided_at: datetime


@registered
class RefundAttempted(Event, frozen=True, kw_only=True):
    """The refund is about to be asked for, for the `attempt`-th time under the same key."""

    topic: ClassVar[str] = "purchase.refund_attempted.v1"

    purchase_id: str
    attempt: int
    decided_at: datetime


@registered
class EvidenceRecorded(Event, frozen=True, kw_only=True):
    """What the gateway said. It is no transition: what follows from it, if anything, stands behind it."""

    topic: ClassVar[str] = "purchase.evidence_recorded.v1"

    purchase_id: str
    operation: Operation
    outcome: Outcome
    source: Source
    attempt: int
    amount_minor: int
    currency: str
    gateway_id: str
    detail: str
    decided_at: datetime


@registered
class PurchaseAlertRaised(Event, frozen=True, kw_only=True):
    """An operator is asked for."""

    topic: ClassVar[str] = "purchase.alert_raised.v1"

    purchase_id: str
    alert: Alert
    detail: str
    decided_at: datetime


@registered
class PurchaseSettled(Event, frozen=True, kw_only=True):
    """An operator's word, with name and note."""

    topic: ClassVar[str] = "purchase.settled.v1"

    purchase_id: str
    settlement: Settlement
    principal: str
    note: str
    decided_at: datetime


@registered
class MailRecorded(Event, frozen=True, kw_only=True):
    """The mail server has accepted the mail of this name (`sent`), or its addressee is erased."""

    topic: ClassVar[str] = "purchase.mail_recorded.v1"

    purchase_id: str
    mail: str
    message_id: str
    sent: bool


# ------------------------------------------------------------------------------------------------ the saga: transitions


class SagaTransition(Event, frozen=True, kw_only=True):
    """What the events that move the saga have in common."""

    purchase_id: str
    reason: str = ""
    decided_at: datetime


@registered
class PaymentReceived(SagaTransition, frozen=True, kw_only=True):
    """To PAID: the charge is recorded."""

    topic: ClassVar[str] = "purchase.payment_received.v1"


@registered
class PaymentFailed(SagaTransition, frozen=True, kw_only=True):
    """To PAYMENT_FAILED."""

    topic: ClassVar[str] = "purchase.payment_failed.v1"


@registered
class PaymentBecameUnknown(SagaTransition, frozen=True, kw_only=True):
    """To UNKNOWN: it may have been charged; the gateway is asked until it says."""

    topic: ClassVar[str] = "purchase.payment_became_unknown.v1"


@registered
class UnknownExpired(SagaTransition, frozen=True, kw_only=True):
    """To UNKNOWN_EXPIRED: the gateway was asked as often as was promised; an operator decides."""

    topic: ClassVar[str] = "purchase.unknown_expired.v1"


@registered
class PurchaseConfirmed(SagaTransition, frozen=True, kw_only=True):
    """To CONFIRMED: the seats are sold."""

    topic: ClassVar[str] = "purchase.confirmed.v1"


@registered
class CompensationBegun(SagaTransition, frozen=True, kw_only=True):
    """To COMPENSATION_PENDING."""

    topic: ClassVar[str] = "purchase.compensation_begun.v1"


@registered
class PurchaseCompensated(SagaTransition, frozen=True, kw_only=True):
    """To COMPENSATED: whatever was charged is refunded, and the seats are free."""

    topic: ClassVar[str] = "purchase.compensated.v1"


# ------------------------------------------------------------------------------------------------ ledger and notices


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A debit (positive) or credit (negative) of one account."""

    account: str
    amount_minor: int


@registered
class LedgerEntryPosted(Event, frozen=True, kw_only=True):
    """A double entry: its lines sum to zero. One of each kind per intent."""

    topic: ClassVar[str] = "ledger.entry_posted.v1"

    intent_id: str
    purchase_id: str
    kind: EntryKind
    currency: str
    lines: tuple[LedgerLine, ...]


@registered
class NoticePosted(Event, frozen=True, kw_only=True):
    """Something is to be told to others: `name` is `PaymentSucceeded` or `ReservationCancelled`."""

    topic: ClassVar[str] = "notice.posted.v1"

    notice_id: str
    name: str
    purchase_id: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    reason: str
    decided_at: datetime


@registered
class NoticeDelivered(Event, frozen=True, kw_only=True):
    """It was told, at least once, by this way."""

    topic: ClassVar[str] = "notice.delivered.v1"

    notice_id: str
    via: str
