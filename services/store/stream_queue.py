"""The outbox as stream servers look at it: runs that wait for an owner, and runs whose owner is gone.

What must stay true: a look is a hint, never truth; who owns a run is decided by the append that claims it.
"""

from collections.abc import Sequence
from typing import Final

from projections.outbox.projection import KIND_RUN
from projections.statements import statements
from services.store.connections import Pool

LOOK_MAX: Final = 100
"""Runs that one look shows at most."""

_SQL: Final = statements("services.store", "stream_queue.sql")


class StreamQueue:
    """Implements `services.stream_server.UnownedRuns`. Any thread."""

    def __init__(self, pool: Pool, lane: str = "STREAM") -> None:
        self._pool = pool
        self._lane = lane

    def unowned(self, limit: int) -> Sequence[str]:
        """The ids of up to `limit` runs that may be claimed now. Raises `StoreUnavailableError`."""
        arguments = {"kind": KIND_RUN, "lane": self._lane, "limit": min(limit, LOOK_MAX)}
        return [key for (key,) in self._pool.rows(_SQL["unowned"], arguments)]
