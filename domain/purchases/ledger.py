"""The ledger: double entries, append-only, one of each kind per intent, each summing to zero.

What must stay true: a refund is the charge's inverse and stands behind it; the sum over all accounts is zero, always. Pure.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from domain.events import Event
from domain.purchases.errors import LedgerUnbalancedError
from domain.purchases.messages import EntryKind, LedgerEntryPosted, LedgerLine
from domain.transitions import AggregateState, TransitionTable

GATEWAY_RECEIVABLE: Final = "gateway_receivable"
"""What the gateway owes us."""

TICKET_SALES: Final = "ticket_sales"
"""What buyers paid for tickets."""


class AccountState(AggregateState):
    """How far the entries of one intent have got."""

    ABSENT = "ABSENT"
    CHARGED = "CHARGED"
    REFUNDED = "REFUNDED"


_NEXT: Final = {
    (AccountState.ABSENT, EntryKind.CHARGE): AccountState.CHARGED,
    (AccountState.CHARGED, EntryKind.REFUND): AccountState.REFUNDED,
}

LEDGER_TRANSITIONS: Final = TransitionTable[AccountState](
    "ledger",
    {
        (AccountState.ABSENT, LedgerEntryPosted): AccountState.CHARGED,
        (AccountState.CHARGED, LedgerEntryPosted): AccountState.REFUNDED,
    },
)
"""The first entry is the charge, the second its refund; there is no third."""


class Account(msgspec.Struct, frozen=True):
    """The entries of one intent."""

    state: AccountState = AccountState.ABSENT
    amount_minor: int = 0

    @property
    def charged(self) -> bool:
        return self.state is not AccountState.ABSENT

    @property
    def refunded(self) -> bool:
        return self.state is AccountState.REFUNDED


def entry(kind: EntryKind, intent_id: str, purchase_id: str, amount_minor: int, currency: str) -> LedgerEntryPosted:
    """The entry of a charge or of its refund."""
    debit = amount_minor if kind is EntryKind.CHARGE else -amount_minor
    return LedgerEntryPosted(
        intent_id=intent_id,
        purchase_id=purchase_id,
        kind=kind,
        currency=currency,
        lines=(
            LedgerLine(account=GATEWAY_RECEIVABLE, amount_minor=debit),
            LedgerLine(account=TICKET_SALES, amount_minor=-debit),
        ),
    )


def evolve(account: Account, event: Event) -> Account:
    """The account after an entry. Raises `IllegalTransitionError` for a repeated kind, `LedgerUnbalancedError`."""
    assert isinstance(event, LedgerEntryPosted)
    if sum(line.amount_minor for line in event.lines) != 0:
        raise LedgerUnbalancedError("the lines do not sum to zero", at=event.intent_id, expected="0")
    state = LEDGER_TRANSITIONS.next_state(account.state, type(event))
    if _NEXT.get((account.state, event.kind)) is not state:
        raise LedgerUnbalancedError(f"{event.kind.value} is out of turn", at=event.intent_id, expected=state.value)
    amount = next(line.amount_minor for line in event.lines if line.account == GATEWAY_RECEIVABLE)
    if event.kind is EntryKind.REFUND and amount != -account.amount_minor:
        raise LedgerUnbalancedError("the refund is not the charge's inverse", at=event.intent_id)
    return Account(state, amount if event.kind is EntryKind.CHARGE else account.amount_minor)


def fold_account(events: Iterable[Event]) -> Account:
    """The account that a stream's entries make."""
    account = Account()
    for event in events:
        account = evolve(account, event)
    return account
