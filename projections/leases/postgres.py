"""Leases in PostgreSQL: the rows for the runner, and the reader for everybody else. For looking at; the guard row decides.

What must stay true: whether a lease is live is judged by the statement that reads it, by the database's clock.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from projections.leases.guard import GuardRow
from projections.leases.projection import LeaseRow
from projections.postgres import InlineRows, RowStore, same
from projections.reading import Query, checked_limit

ROWS: Final = RowStore[str, LeaseRow, LeaseRow](__package__, LeaseRow, same, same, lambda row: row.resource)
GUARD_ROWS: Final = InlineRows[str, GuardRow](
    __package__, "guard.sql", "lease_guard", GuardRow, lambda row: row.resource, str
)


class LeaseSeen(msgspec.Struct, frozen=True):
    """A lease's row, and whether it was live when it was read."""

    row: LeaseRow
    live: bool


class LeasesReader:
    """Looks up leases. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def get(self, resource: str) -> LeaseSeen | None:
        """The lease of the resource, if the projection has seen one."""
        seen = self._seen("get", {"resource": resource})
        return seen[0] if seen else None

    def list(self, after: int = 0, limit: int = 100, live: bool | None = None) -> Sequence[LeaseSeen]:
        """Leases by `first_position`, from after `after`, at most `limit`; only live ones, or only others, if `live` is given."""
        return self._seen("list", {"after": after, "limit": checked_limit(limit), "live": live})

    def _seen(self, statement: str, arguments: dict[str, Any]) -> Sequence[LeaseSeen]:
        found = self._query.rows(ROWS.sql[statement], arguments)
        return [LeaseSeen(ROWS.decode(document), bool(live)) for document, live in found]
