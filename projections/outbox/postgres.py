"""The outbox in PostgreSQL, to look at and to make again. The append function writes it; reserving items is the store's.

What must stay true: looking locks nothing; whether an item is due is judged by the statement that reads it.
"""

from typing import Final

import msgspec

from projections.outbox.projection import OutboxKey, OutboxRow
from projections.postgres import InlineRows
from projections.reading import Query

ROWS: Final = InlineRows[OutboxKey, OutboxRow](
    __package__, "outbox.sql", "outbox", OutboxRow, lambda row: (row.kind, row.key), "/".join
)


class Depth(msgspec.Struct, frozen=True):
    """How many items of one kind, lane and state there are, how many are due, and for how long the oldest due one has been."""

    kind: str
    lane: str
    state: str
    items: int
    due: int
    oldest_due_seconds: float


class OutboxReader:
    """Looks at the queue. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def depth(self) -> list[Depth]:
        """Pending and claimed items, by kind, lane and state."""
        return [Depth(*row) for row in self._query.rows(ROWS.sql["depth"])]

    def get(self, kind: str, key: str) -> OutboxRow | None:
        """One item, delivered or not."""
        rows = self._query.rows(ROWS.sql["get"], {"kind": kind, "key": key})
        return ROWS.decode(rows[0][0]) if rows else None


def rewrite(query: Query, seen: OutboxRow | None, right: OutboxRow) -> bool:
    """Make one row what its events say, if it is still as it was `seen` (None: it was missing). Whether it was."""
    position, state = (None, None) if seen is None else (seen.position, seen.state)
    given = {"right": msgspec.json.encode(right).decode(), "seen_position": position, "seen_state": state}
    return bool(query.rows(ROWS.sql["rewrite"], given))
