"""Where alerts come from: each source lists its own in one form, so that an operator has one list to look at.

A source has a name and lists what asks for an operator, the newest first, by a place in the log at which each alert's subject began
to be listed; no two subjects share a place. What must stay true: looking changes nothing. Another source is one more class here and
one more line in `alert_sources`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Protocol

import msgspec

from domain.discrepancies.aggregate import DiscrepancyState
from domain.purchases.messages import Alert, Settlement
from domain.purchases.saga import SETTLEMENTS, SagaState
from projections.discrepancies.postgres import DiscrepanciesReader
from projections.discrepancies.projection import DiscrepancyRow
from projections.purchases.postgres import PurchasesReader
from projections.purchases.projection import PurchaseRow
from projections.reading import Query

NEWEST: Final = 2**63 - 1
"""The place before which everything stands."""

RECONCILER: Final = "reconciler"
PURCHASES: Final = "purchases"
"""Names of the sources."""

PURCHASE_KINDS: Final = tuple(kind.value for kind in Alert)
"""Kinds of alerts that purchases have."""


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """What asks for an operator, or did: in state `ALERTED` it still does.

    `source` says who raised it, `subject` what it is about: a run (then `run_id` is the same) or a purchase. `expected` and
    `actual` (both cut if long) say what should be and what is, `outcome` how it was settled, or why it could not be; `principal`
    who resolved it; `found_at` is the last of `times_found` times. `settle_with` is the command that settles it, or what to
    wait for; empty where nothing is asked of an operator.
    """

    source: str
    kind: str
    subject: str
    run_id: str | None
    state: str
    expected: str
    actual: str
    outcome: str
    settle_with: str
    principal: str | None
    times_found: int
    found_at: datetime
    changed_at: datetime
    position: int


class Placed(msgspec.Struct, frozen=True):
    """An alert and its place in the list's order."""

    place: int
    view: AlertView


class AlertSource(Protocol):
    """One source of alerts. Blocks; any thread may ask."""

    def newest(self, state: str | None, before: int, limit: int) -> Sequence[Placed]:
        """Its newest alerts before a place, in this state (None: in any), at most `limit`. Raises `StoreUnavailableError`."""
        ...


class ReconcilerAlerts:
    """What the reconciler found: two things about a run that disagree."""

    def __init__(self, query: Query) -> None:
        self._reader = DiscrepanciesReader(query)

    def newest(self, state: str | None, before: int, limit: int) -> Sequence[Placed]:
        """See `AlertSource`."""
        return [Placed(row.first_position, _of_discrepancy(row)) for row in self._reader.newest(state, before, limit)]


class PurchaseAlerts:
    """Purchases with alerts that nobody has settled, one line for each purchase, by the kind that was raised last."""

    def __init__(self, query: Query) -> None:
        self._reader = PurchasesReader(query)

    def newest(self, state: str | None, before: int, limit: int) -> Sequence[Placed]:
        """See `AlertSource`. One that was settled is listed no more; its purchase's timeline has it."""
        if state not in (None, DiscrepancyState.ALERTED.value):
            return ()
        return [Placed(row.first_position, _of_purchase(row)) for row in self._reader.alerted(before, limit)]


def alert_sources(query: Query) -> tuple[AlertSource, ...]:
    """All of them."""
    return (ReconcilerAlerts(query), PurchaseAlerts(query))


def _of_discrepancy(row: DiscrepancyRow) -> AlertView:
    own = ("source", "run_id", "settle_with")
    fields = {name: getattr(row, name) for name in AlertView.__struct_fields__ if name not in own}
    asked = row.state == DiscrepancyState.ALERTED.value
    command = f"finaz alert resolve {row.kind} {row.subject} --note TEXT" if asked else ""
    return AlertView(source=RECONCILER, run_id=row.subject, settle_with=command, **fields)


def _settling(row: PurchaseRow) -> str:
    words = SETTLEMENTS.get(SagaState(row.state))
    if words is None:
        return f"nothing yet, it is {row.state} and goes on by itself: finaz purchase status {row.purchase_id}"
    return settle_command(row.purchase_id, words)


def settle_command(purchase_id: str, words: Iterable[Settlement]) -> str:
    """The command that settles the alerts of a purchase with one of these words."""
    return f"finaz purchase settle {purchase_id} {'|'.join(word.word for word in words)} --note TEXT"


def _of_purchase(row: PurchaseRow) -> AlertView:
    return AlertView(
        source=PURCHASES,
        kind=row.alerts[-1],
        subject=row.purchase_id,
        run_id=None,
        state=DiscrepancyState.ALERTED.value,
        expected="an end without alerts",
        actual=f"{row.state}; {', '.join(row.alerts)}",
        outcome="",
        settle_with=_settling(row),
        principal=None,
        times_found=1,
        found_at=row.state_since,
        changed_at=row.state_since,
        position=row.position,
    )
