"""Balances: one row per currency, with the balance of each account in minor units.

What must stay true: the accounts of a row sum to zero, since every entry does.
"""

from typing import Final

import msgspec

from domain.events import Event, Recorded
from domain.purchases.messages import EntryKind, LedgerEntryPosted
from projections.folding import ReadModel

NAME: Final = "balances"


class BalanceRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The accounts of one currency, and how many charges and refunds made them."""

    currency: str
    accounts: dict[str, int]
    charges: int
    refunds: int
    position: int


def key_of(event: Event) -> str | None:
    """The currency of an entry, or None."""
    return event.currency if isinstance(event, LedgerEntryPosted) else None


def apply(row: BalanceRow | None, recorded: Recorded) -> BalanceRow:
    """The row after an entry."""
    event = recorded.event
    assert isinstance(event, LedgerEntryPosted)
    accounts = {} if row is None else dict(row.accounts)
    for line in event.lines:
        accounts[line.account] = accounts.get(line.account, 0) + line.amount_minor
    charge = event.kind is EntryKind.CHARGE
    return BalanceRow(
        currency=event.currency,
        accounts=accounts,
        charges=(row.charges if row else 0) + charge,
        refunds=(row.refunds if row else 0) + (not charge),
        position=recorded.position,
    )


MODEL: Final = ReadModel[str, BalanceRow](NAME, ("ledger",), key_of, apply)
