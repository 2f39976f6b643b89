"""The quarantine in PostgreSQL: the rows for the runner, and the reader for people."""

from typing import Final

from projections.postgres import RowStore, same
from projections.quarantine.projection import RecordKey, RecordRow
from projections.reading import Page, Query, checked_limit, page_of, place_of

ROWS: Final = RowStore[RecordKey, RecordRow, RecordRow](
    __package__,
    RecordRow,
    same,
    same,
    lambda row: (row.run_id, row.partition, row.offset),
    lambda key: f"{key[0]}/{key[1]}/{key[2]}",
)

_OFFSET_BITS: Final = 47
"""A cursor holds partition and offset as one number of 63 bits: 65 536 partitions of 140 million million records."""


class QuarantineReader:
    """Looks up records that were omitted, late or retried. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def list(
        self, run_id: str, state: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[RecordRow]:
        """The run's records by partition and offset. Raises `CursorInvalidError`, `BodyInvalidError`."""
        query = {"run_id": run_id, "state": state}
        partition, offset = (0, -1) if cursor is None else divmod(place_of(cursor, query), 1 << _OFFSET_BITS)
        arguments = {**query, "partition": partition, "offset": offset, "limit": checked_limit(limit) + 1}
        rows = [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], arguments)]
        places = [(row.partition << _OFFSET_BITS) | row.offset for row in rows]
        return page_of(rows, limit, places, query, max((row.position for row in rows), default=0))
