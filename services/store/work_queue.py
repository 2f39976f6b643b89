"""The outbox as a work queue: which pending items a worker is about to look at.

What must stay true: a reservation is a hint, never truth: only an append under a live lease claims an item, so a reservation lost,
doubled or outlived costs a refused append and nothing else. A worker that dies leaves reservations that end by themselves.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from projections.statements import statements
from services.store.connections import Pool

RESERVE_MAX: Final = 50
"""Items that one call reserves at most."""

SWEEP_MAX: Final = 500
"""Ended reservations that one sweep removes at most."""

SWEEP_CALLS: Final = 200
"""Calls of `reserve` after which a sweep is made."""

_SQL: Final = statements("services.store", "reserve.sql")


class OutboxQueue:
    """Implements `services.ports.WorkQueue` over the outbox. Any thread, any event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._calls = 0

    async def reserve(self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float) -> Sequence[str]:
        """Keys of up to `limit` (at most `RESERVE_MAX`) items that are due and free, in queue order; see `WorkQueue`."""
        return await asyncio.to_thread(self.reserve_blocking, kind, lanes, limit, owner, seconds)

    def reserve_blocking(
        self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float
    ) -> Sequence[str]:
        """As `reserve`, from a thread."""
        self._calls += 1
        if self._calls % SWEEP_CALLS == 0:
            self.sweep()
        arguments = {
            "kind": kind,
            "lanes": list(lanes),
            "limit": min(limit, RESERVE_MAX),
            "owner": owner,
            "seconds": seconds,
        }
        return [key for (key,) in self._pool.rows(_SQL["reserve"], arguments)]

    async def release(self, kind: str, keys: Sequence[str], owner: str) -> None:
        """Give reservations back before they end; what another took over meanwhile stays."""
        await asyncio.to_thread(self.release_blocking, kind, keys, owner)

    def release_blocking(self, kind: str, keys: Sequence[str], owner: str) -> None:
        """As `release`, from a thread."""
        self._pool.rows(_SQL["release"], {"kind": kind, "keys": list(keys), "owner": owner})

    def sweep(self) -> None:
        """Remove reservations that ended long ago, a bounded number."""
        self._pool.rows(_SQL["sweep"], {"limit": SWEEP_MAX})
