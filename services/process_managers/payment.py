"""The payment manager: charges, asks what became of charges, refunds, lets reservations go, and alerts about what takes too long.

It follows the sagas and keeps their deadlines by the business clock (`domain.purchases.next_action`). What it does is always the
same three steps: an append that records the attempt on the present state of the saga, the call to the gateway, an append that
records what was said together with everything that follows from it.

What must stay true: it decides nothing itself (`domain.purchases.deal` does, on what is read then), so a command that came too
late, twice, or from two managers at once finds the saga as it is and asks for nothing that is no longer called for; every call
goes under the purchase's own keys, so repeating it after a crash charges or refunds nobody twice. A refund is never given up.
"""

from typing import Any, Final
from uuid import UUID

from domain.errors import UndecodableEventError, UnknownTopicError, VersionConflictError
from domain.events import Event, Recorded
from domain.purchases.errors import GatewayMissingError
from domain.purchases.identity import refund_key_of
from domain.purchases.messages import (
    AttemptCharge,
    AttemptReconciliation,
    AttemptRefund,
    ChargeAttempted,
    EvidenceRecorded,
    ExpireReservation,
    PurchaseStarted,
    RaiseOverdue,
    RecordEvidence,
    RefundAttempted,
    SagaTransition,
    Source,
)
from domain.purchases.next_action import Action, cleared_by, dues_of
from domain.purchases.saga import Saga, SagaState, fold_saga
from services import purchase_effects
from services.deals import Deals
from services.gateway import ChargeRequest, Gateway, RefundRequest
from services.process_managers.contract import (
    Clear,
    Clock,
    Command,
    Deadline,
    Document,
    Retry,
    Stop,
    Verdict,
    Want,
)

NAME: Final = "payment"

THREADS: Final = 8
"""Purchases whose gateway calls are made at once."""

RETRY_SECONDS: Final = (0.1, 0.5, 2.0, 10.0, 30.0)
"""Seconds after the first, second, … failure of a command; the last one from then on, for ever: money is never set aside."""


_ASKING: Final = {
    Action.CHARGE: (SagaState.PENDING,),
    Action.RESUME: (SagaState.PENDING,),
    Action.RECONCILE: (SagaState.UNKNOWN,),
    Action.REFUND: (SagaState.COMPENSATION_PENDING,),
}
"""In which states each action has something to ask of the gateway."""


class Payment:
    """The process manager (`services.process_managers.contract.ProcessManager`)."""

    name = NAME
    categories: tuple[str, ...] = ("purchase",)
    clock = Clock.BUSINESS
    threads = THREADS

    def __init__(self, deals: Deals, gateway: Gateway | None) -> None:
        self._deals = deals
        self._gateway = gateway

    def interested(self, event: Event) -> str | None:
        """The purchase."""
        return event.purchase_id if isinstance(event, PurchaseStarted | SagaTransition | EvidenceRecorded) else None

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        """The deadlines that the event sets and clears; the first charge is a command that nothing takes back."""
        event = recorded.event
        wants: list[Want] = [Clear(action.value) for action in cleared_by(event)]
        for due in dues_of(event):
            document = {"purchase_id": self.interested(event), "attempt": due.attempt}
            if due.action is Action.CHARGE:
                wants.append(Command(due.action.value, document))
            else:
                wants.append(Deadline(due.action.value, due.due_at, document))
        return tuple(wants)

    def apply(self, state: Document, recorded: Recorded) -> Document:
        """Nothing: what it decides by is read when it is due."""
        return {}

    def execute(self, command: Command, command_id: UUID) -> None:
        """Do what is due, if it is still called for."""
        purchase_id: str = command.document["purchase_id"]
        attempt: int = command.document["attempt"]
        action = Action(command.name)
        if action is Action.EXPIRE:
            self._deals.carry(purchase_id, ExpireReservation())
        elif action is Action.OVERDUE:
            self._deals.carry(purchase_id, RaiseOverdue())
        elif self._gateway is None:
            self._miss(purchase_id, action)
        elif action is Action.RECONCILE:
            self._reconcile(self._gateway, purchase_id, attempt)
        elif action is Action.REFUND:
            self._refund(self._gateway, purchase_id)
        else:
            self._charge(self._gateway, purchase_id)

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        """Whatever it was, it is tried again: money is at stake. Only a log written by newer code stops this process."""
        if isinstance(error, UnknownTopicError | UndecodableEventError):
            return Stop()
        if isinstance(error, VersionConflictError):
            return Retry(RETRY_SECONDS[0])
        return Retry(RETRY_SECONDS[min(attempts - 1, len(RETRY_SECONDS) - 1)])

    # ---------------------------------------------------------------- the three calls

    def _miss(self, purchase_id: str, action: Action) -> None:
        """There is no gateway: nothing is attempted, so a reservation that nobody can pay expires as any other."""
        saga = fold_saga(recorded.event for recorded in self._deals.history(purchase_id))
        if saga.state in _ASKING[action]:
            raise GatewayMissingError("no gateway is set", at=purchase_id, expected="FINAZ_GATEWAY_URL")

    def _charge(self, gateway: Gateway, purchase_id: str) -> None:
        attempted = self._deals.carry(purchase_id, AttemptCharge())
        attempt = _attempt_of(attempted.events, ChargeAttempted)
        if not attempt:
            return  # expired, or somebody has the answer already
        saga = attempted.saga
        request = ChargeRequest(
            intent_id=saga.intent_id,
            amount_minor=saga.amount_minor,
            currency=saga.currency,
            payment_method=saga.payment_method,
        )
        answer = purchase_effects.charge(gateway, request)
        self._deals.carry(purchase_id, RecordEvidence(answer, Source.REPLY, attempt))

    def _reconcile(self, gateway: Gateway, purchase_id: str, attempt: int) -> None:
        attempted = self._deals.carry(purchase_id, AttemptReconciliation(attempt))
        if attempted.saga.state is not SagaState.UNKNOWN:
            return
        answer = purchase_effects.find_charge(gateway, attempted.saga.intent_id)
        evidence = RecordEvidence(answer, Source.RECONCILIATION, attempt, attempted.decided_at)
        self._deals.carry(purchase_id, evidence)

    def _refund(self, gateway: Gateway, purchase_id: str) -> None:
        attempted = self._deals.carry(purchase_id, AttemptRefund())
        attempt = _attempt_of(attempted.events, RefundAttempted)
        if not attempt:
            return
        answer = purchase_effects.refund(gateway, _refund_request(attempted.saga))
        self._deals.carry(purchase_id, RecordEvidence(answer, Source.REPLY, attempt))


def _refund_request(saga: Saga) -> RefundRequest:
    done = len(saga.refunds)
    return RefundRequest(
        intent_id=saga.intent_id,
        refund_key=refund_key_of(saga.intent_id, done + 1),
        amount_minor=saga.amount_minor,
        currency=saga.currency,
        charge_id=saga.charges[done],
    )


def _attempt_of(events: tuple[Event, ...], kind: type[Any]) -> int:
    """The number of the attempt among the events, 0 without one."""
    return next((event.attempt for event in events if isinstance(event, kind)), 0)
