"""Discrepancies in PostgreSQL: the rows for the runner, and the reader for the operator."""

from collections.abc import Sequence
from typing import Final

from projections.discrepancies.projection import DiscrepancyKey, DiscrepancyRow
from projections.postgres import RowStore, same
from projections.reading import Page, Query, checked_limit, page_of, place_of

ROWS: Final = RowStore[DiscrepancyKey, DiscrepancyRow, DiscrepancyRow](
    __package__, DiscrepancyRow, same, same, lambda row: (row.kind, row.subject), lambda key: key[1]
)

_NEWEST: Final = 2**63 - 1


class DiscrepanciesReader:
    """Looks up discrepancies. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(self, state: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[DiscrepancyRow]:
        """Discrepancies, the newest first; `state` `ALERTED` are the alerts. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = {"state": state}
        before = _NEWEST if cursor is None else place_of(cursor, query)
        arguments = {"state": state, "before": before, "limit": checked_limit(limit) + 1}
        rows = [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], arguments)]
        return page_of(rows, limit, [row.first_position for row in rows], query, rows[0].position if rows else 0)

    def open(self) -> Sequence[tuple[str, str, int]]:
        """How many are not settled: kind, state (`FOUND`, `ALERTED`), count."""
        return [(kind, state, count) for kind, state, count in self._query.rows(ROWS.sql["open"])]
