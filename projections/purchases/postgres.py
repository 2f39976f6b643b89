"""Purchases in PostgreSQL: the rows for the runner, and the reader."""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.purchases.saga import OVERDUE_SECONDS
from projections.postgres import RowStore, same
from projections.purchases.projection import PurchaseRow
from projections.reading import Page, Query, checked_limit, page_of, place_of

ROWS: Final = RowStore[str, PurchaseRow, PurchaseRow](__package__, PurchaseRow, same, same, lambda row: row.purchase_id)

_NEWEST: Final = 2**63 - 1


class StateCount(msgspec.Struct, frozen=True):
    """How many purchases stand in a state that is no end, how old the oldest is, and how many are overdue."""

    state: str
    count: int
    oldest_seconds: float
    overdue: int


class PurchasesReader:
    """Lists purchases. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(
        self, principal: str | None, state: str | None, cursor: str | None = None, limit: int = 50
    ) -> Page[PurchaseRow]:
        """Purchases, the newest first. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = {"principal": principal, "state": state}
        before = _NEWEST if cursor is None else place_of(cursor, query)
        given = {**query, "before": before, "limit": checked_limit(limit) + 1}
        rows = [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], given)]
        return page_of(rows, limit, [row.first_position for row in rows], query, rows[0].position if rows else 0)

    def alerted(self, before: int, limit: int) -> Sequence[PurchaseRow]:
        """Those with alerts that nobody has settled, begun before a position, the newest first, at most so many."""
        rows = self._query.rows(ROWS.sql["alerted"], {"before": before, "limit": limit})
        return [ROWS.decode(document) for (document,) in rows]

    def stuck(self, age_seconds: float, limit: int) -> Sequence[tuple[PurchaseRow, float]]:
        """Those not at an end, or with an alert, in their state for so long, with their age in seconds, the oldest first."""
        given = {"age_seconds": age_seconds, "limit": checked_limit(limit)}
        return [(ROWS.decode(row), age) for row, age in self._query.rows(ROWS.sql["stuck"], given)]


def open_purchases(query: Query) -> Sequence[StateCount]:
    """What has not come to an end, by state; overdue is what has stood there for `OVERDUE_SECONDS`. Blocks."""
    rows = query.rows(ROWS.sql["counts"], {"overdue_seconds": OVERDUE_SECONDS})
    return [StateCount(*row) for row in rows]
