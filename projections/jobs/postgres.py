"""Jobs in PostgreSQL: the rows for the runner, and the reader for operators."""

from typing import Final

from projections.jobs.projection import JobRow
from projections.postgres import RowStore, same
from projections.reading import Page, Query, checked_limit, page_of, place_of

ROWS: Final = RowStore[str, JobRow, JobRow](__package__, JobRow, same, same, lambda row: row.job_id)

_NEWEST: Final = 2**63 - 1


class JobsReader:
    """Looks up jobs. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(
        self, state: str | None = None, kind: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[JobRow]:
        """Jobs, the newest first. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = {"state": state, "kind": kind}
        before = _NEWEST if cursor is None else place_of(cursor, query)
        arguments = {**query, "before": before, "limit": checked_limit(limit) + 1}
        rows = [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], arguments)]
        return page_of(
            rows, limit, [row.first_position for row in rows], query, max((row.position for row in rows), default=0)
        )
