"""Sales per day in PostgreSQL: the rows for the runner, and the reader."""

from collections.abc import Sequence
from typing import Final

from projections.postgres import RowStore, same
from projections.reading import Query, checked_limit
from projections.sales_per_day.projection import SalesKey, SalesRow

ROWS: Final = RowStore[SalesKey, SalesRow, SalesRow](
    __package__, SalesRow, same, same, lambda row: (row.day, row.show_id, row.currency), lambda key: key[1]
)


class SalesReader:
    """Looks up sales. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(self, show_id: str | None, limit: int) -> Sequence[SalesRow]:
        """Days, the newest first; of one show, if it is given."""
        given = {"show_id": show_id, "limit": checked_limit(limit)}
        return [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], given)]
