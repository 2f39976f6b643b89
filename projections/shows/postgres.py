"""Shows in PostgreSQL: the rows for the runner, and the reader."""

from typing import Final

from projections.postgres import RowStore, same
from projections.reading import Page, Query, checked_limit, page_of, place_of
from projections.shows.projection import ShowRow

ROWS: Final = RowStore[str, ShowRow, ShowRow](__package__, ShowRow, same, same, lambda row: row.show_id)

_NEWEST: Final = 2**63 - 1


class ShowsReader:
    """Looks up shows. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(self, cursor: str | None = None, limit: int = 50) -> Page[ShowRow]:
        """Shows, the newest first. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = "shows"
        before = _NEWEST if cursor is None else place_of(cursor, query)
        found = self._query.rows(ROWS.sql["list"], {"before": before, "limit": checked_limit(limit) + 1})
        rows = [ROWS.decode(document) for (document,) in found]
        return page_of(rows, limit, [row.first_position for row in rows], query, rows[0].position if rows else 0)

    def get(self, show_id: str) -> ShowRow | None:
        """One show, if the projection has come so far."""
        rows = self._query.rows(ROWS.sql["get"], {"show_id": show_id})
        return ROWS.decode(rows[0][0]) if rows else None
