"""The business clock: the one SQL function that deadlines of purchases are judged by.

It is the database's clock plus an offset that tests and demos can move forward, so that 25 hours pass without sleeping. Leases
never read it. Its instants stand in the events (`decided_at`), and deadlines are computed from those.
"""

from datetime import datetime
from typing import Final, Protocol

from projections.reading import Query
from projections.statements import statements

_SQL: Final = statements("services", "business_clock.sql")


class BusinessClock(Protocol):
    """Tells business time. Blocks."""

    def now(self) -> datetime: ...


class DatabaseBusinessClock:
    """The clock of the database (`finaz.business_now`)."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def now(self) -> datetime:
        """The present instant. Raises `StoreUnavailableError`."""
        now: datetime = self._query.rows(_SQL["now"])[0][0]
        return now

    def advance(self, seconds: float) -> datetime:
        """Move the clock forward, for everybody who uses this database. For tests and demos."""
        now: datetime = self._query.rows(_SQL["advance"], {"seconds": seconds})[0][0]
        return now
