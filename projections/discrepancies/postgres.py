"""Discrepancies in PostgreSQL: the rows for the runner, and the reader for the operator."""

from collections.abc import Sequence
from typing import Final

from projections.discrepancies.projection import DiscrepancyKey, DiscrepancyRow
from projections.postgres import RowStore, same
from projections.reading import Query

ROWS: Final = RowStore[DiscrepancyKey, DiscrepancyRow, DiscrepancyRow](
    __package__, DiscrepancyRow, same, same, lambda row: (row.kind, row.subject), lambda key: key[1]
)


class DiscrepanciesReader:
    """Looks up discrepancies. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def newest(self, state: str | None, before: int, limit: int) -> Sequence[DiscrepancyRow]:
        """At most so many, the newest first, first found before a position; `state` `ALERTED` are the alerts."""
        given = {"state": state, "before": before, "limit": limit}
        return [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], given)]

    def open(self) -> Sequence[tuple[str, str, int]]:
        """How many are not settled: kind, state (`FOUND`, `ALERTED`), count."""
        return [(kind, state, count) for kind, state, count in self._query.rows(ROWS.sql["open"])]
