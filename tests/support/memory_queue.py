"""A work queue in memory: the outbox of a `MemoryLog`, folded as far as it goes at each reservation."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from projections.outbox.projection import OutboxRow, apply, key_of
from tests.support.memory_log import MemoryLog

PAGE = 1_000_000


class MemoryQueue:
    """A `WorkQueue` over a `MemoryLog`; its clock is the log's."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._rows: dict[tuple[str, str], OutboxRow] = {}
        self._read = 0
        self._reserved: dict[str, tuple[int, datetime]] = {}

    def rows(self) -> dict[str, OutboxRow]:
        """The outbox, by key."""
        for recorded in self._log.read_log(self._read, PAGE):
            self._read = recorded.position
            key = key_of(recorded.event)
            if key is not None:
                self._rows[key] = apply(self._rows.get(key), recorded)
        return {key: row for (_, key), row in self._rows.items()}

    async def reserve(self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float) -> Sequence[str]:
        now = self._log.now()
        due = [
            row
            for row in self.rows().values()
            if row.kind == kind and row.lane in lanes and row.state == "pending" and row.due_at <= now
        ]
        free = [row for row in due if not self._is_reserved(row, now)]
        free.sort(key=lambda row: (-row.priority, row.enqueued_position))
        for row in free[:limit]:
            self._reserved[row.key] = row.position, now + timedelta(seconds=seconds)
        return [row.key for row in free[:limit]]

    async def release(self, kind: str, keys: Sequence[str], owner: str) -> None:
        for key in keys:
            self._reserved.pop(key, None)

    def _is_reserved(self, row: OutboxRow, now: datetime) -> bool:
        position, until = self._reserved.get(row.key, (0, now))
        return position == row.position and now < until
