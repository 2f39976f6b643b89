"""Checkpoints in PostgreSQL: the rows for the runner, and the reader for people."""

from typing import Final

from projections.checkpoints.projection import CheckpointKey, CheckpointRow
from projections.postgres import RowStore, same
from projections.reading import Page, Query, checked_limit, page_of, place_of

ROWS: Final = RowStore[CheckpointKey, CheckpointRow, CheckpointRow](
    __package__,
    CheckpointRow,
    same,
    same,
    lambda row: (row.run_id, row.epoch),
    lambda key: f"{key[0]}/{key[1]}",
)

_NEWEST: Final = 2**63 - 1


class CheckpointsReader:
    """Looks up checkpoints. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(self, run_id: str, cursor: str | None = None, limit: int = 50) -> Page[CheckpointRow]:
        """The run's checkpoints, the newest first. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = {"run_id": run_id}
        before = _NEWEST if cursor is None else place_of(cursor, query)
        arguments = {**query, "before": before, "limit": checked_limit(limit) + 1}
        rows = [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], arguments)]
        return page_of(rows, limit, [row.epoch for row in rows], query, max((row.position for row in rows), default=0))
