"""The shop, for looking: shows and what can be had, purchases, what is stuck, balances, sales. Everything may be a little stale.

What must stay true: looking changes nothing and decides nothing; a buyer sees only their own purchases.
"""

import asyncio
from datetime import date, datetime

import msgspec

from domain.purchases.errors import ShowNotFoundError
from domain.purchases.saga import SagaState
from projections.availability.postgres import AvailabilityReader
from projections.availability.projection import SeatRow
from projections.balances.postgres import ROWS as BALANCES
from projections.purchases.postgres import PurchasesReader
from projections.purchases.projection import PurchaseRow
from projections.reading import Page, Query
from projections.sales_per_day.postgres import SalesReader
from projections.sales_per_day.projection import SalesRow
from projections.shows.postgres import ShowsReader
from projections.shows.projection import ShowRow
from services.purchases import Purchases

PURCHASE_STATES = tuple(state.value for state in SagaState if state is not SagaState.ABSENT)
"""The states of a purchase."""


class ShowView(msgspec.Struct, frozen=True, kw_only=True):
    """A show on sale."""

    show_id: str
    title: str
    starts_at: datetime
    currency: str
    seat_count: int
    hold_seconds: int


class SeatView(msgspec.Struct, frozen=True, kw_only=True):
    """A seat: `FREE`, `RESERVED` or `SOLD`, as far as is known."""

    seat: str
    state: str
    price_minor: int
    currency: str


class PurchaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase in a list; `state_since` and `age_seconds` are by the business clock (an age only where it was asked for)."""

    purchase_id: str
    state: str
    principal: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    alerts: tuple[str, ...]
    state_since: datetime
    started_at: datetime
    age_seconds: float | None = None


class BalanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The balances of the ledger's accounts in one currency, in minor units; they sum to zero."""

    currency: str
    accounts: dict[str, int]
    charges: int
    refunds: int


class SalesView(msgspec.Struct, frozen=True, kw_only=True):
    """What one day sold of one show."""

    day: date
    show_id: str
    currency: str
    purchases: int
    seats: int
    revenue_minor: int
    cancelled: int


class Shop:
    """The use cases of looking; `purchases` are those of doing."""

    def __init__(self, purchases: Purchases, query: Query) -> None:
        self.purchases = purchases
        self._query = query
        self._shows = ShowsReader(query)
        self._seats = AvailabilityReader(query)
        self._purchases = PurchasesReader(query)
        self._sales = SalesReader(query)

    async def shows(self, cursor: str | None, limit: int) -> Page[ShowView]:
        """Shows, the newest first."""
        page = await asyncio.to_thread(self._shows.list, cursor, limit)
        return Page(tuple(map(_show, page.items)), page.next_cursor, page.position)

    async def availability(self, show_id: str) -> tuple[SeatView, ...]:
        """The seats of a show; it may be stale. Raises `ShowNotFoundError`."""
        rows = await asyncio.to_thread(self._seats.of_show, show_id)
        if not rows:
            raise ShowNotFoundError("there is no such show", at=show_id[:80], expected="one that is on sale")
        return tuple(map(_seat, rows))

    async def list(
        self, principal: str | None, state: str | None, cursor: str | None, limit: int
    ) -> Page[PurchaseSummary]:
        """Purchases, the newest first; of one principal, unless None."""
        page = await asyncio.to_thread(self._purchases.list, principal, state, cursor, limit)
        return Page(tuple(map(_summary, page.items)), page.next_cursor, page.position)

    async def stuck(self, age_seconds: float, limit: int) -> tuple[PurchaseSummary, ...]:
        """Purchases that have been in a state that is no end, or at an end with an alert, for so long, the longest first."""
        found = await asyncio.to_thread(self._purchases.stuck, age_seconds, limit)
        return tuple(_summary(row, age) for row, age in found)

    async def balances(self) -> tuple[BalanceView, ...]:
        """The ledger's balances, by currency."""
        rows = await asyncio.to_thread(BALANCES.all_rows, self._query)
        return tuple(
            BalanceView(currency=row.currency, accounts=row.accounts, charges=row.charges, refunds=row.refunds)
            for _, row in sorted(rows.items())
        )

    async def sales(self, show_id: str | None, limit: int) -> tuple[SalesView, ...]:
        """Sales per day, the newest first."""
        return tuple(map(_sales, await asyncio.to_thread(self._sales.list, show_id, limit)))


def _show(row: ShowRow) -> ShowView:
    return ShowView(**{name: getattr(row, name) for name in ShowView.__struct_fields__})


def _seat(row: SeatRow) -> SeatView:
    return SeatView(**{name: getattr(row, name) for name in SeatView.__struct_fields__})


def _sales(row: SalesRow) -> SalesView:
    return SalesView(**{name: getattr(row, name) for name in SalesView.__struct_fields__})


def _summary(row: PurchaseRow, age_seconds: float | None = None) -> PurchaseSummary:
    names = [name for name in PurchaseSummary.__struct_fields__ if name != "age_seconds"]
    return PurchaseSummary(age_seconds=age_seconds, **{name: getattr(row, name) for name in names})
