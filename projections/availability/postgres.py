"""Seats in PostgreSQL: the rows for the runner, and the reader."""

from collections.abc import Sequence
from typing import Final

from projections.availability.projection import SeatKey, SeatRow
from projections.postgres import RowStore, same
from projections.reading import Query

ROWS: Final = RowStore[SeatKey, SeatRow, SeatRow](
    __package__, SeatRow, same, same, lambda row: (row.show_id, row.seat), "/".join
)


class AvailabilityReader:
    """Looks up seats. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def of_show(self, show_id: str) -> Sequence[SeatRow]:
        """The seats of a show, in the order in which they were offered; it may be stale."""
        return [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["of_show"], {"show_id": show_id})]
