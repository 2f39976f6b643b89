"""Heartbeats: the leases of a worker's running attempts are renewed, as long as each gets on.

A lease is renewed a third of its TTL after it was granted or last renewed, at the latest; the grant is the first beat. What must
stay true: a run that makes no progress is not renewed, so it loses its lease; a lease that is lost ends its attempt; a store that
is away ends nothing, the next beat tries again. A crash stops all beats, and the leases expire.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from domain.errors import InfrastructureError, StaleFenceError
from services.batch_parts import Interruption, OnEvent, WorkerEvent
from services.batch_run import Attempt

BEATS_PER_INTERVAL: Final = 4
"""How often attempts are looked at in a third of a TTL, so that a renewal is at most a quarter of it early, and never late."""

_log: Final = logging.getLogger("finaz.batch_worker")


class Heartbeats:
    """Beats for the attempts in `attempts`, which its owner changes. Used from one event loop."""

    def __init__(self, attempts: Mapping[str, Attempt], lease_ttl_seconds: float, emit: OnEvent) -> None:
        self._attempts = attempts
        self._pause = lease_ttl_seconds / 3 / BEATS_PER_INTERVAL
        self._every = lease_ttl_seconds / 3 - self._pause
        self._emit = emit

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beat for the length of the block."""
        beat = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beat.cancel()
            with suppress(asyncio.CancelledError):
                await beat

    async def beat_once(self) -> int:
        """Renew the leases that are due for it. Returns how many were."""
        due = [attempt for attempt in self._attempts.values() if attempt.wants_renewal(self._every)]
        await asyncio.gather(*(self._renew(attempt) for attempt in due))
        return len(due)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            await self.beat_once()

    async def _renew(self, attempt: Attempt) -> None:
        try:
            await attempt.renew()
        except StaleFenceError:
            attempt.abandon(Interruption.LEASE_LOST)
        except InfrastructureError as error:
            self._tell("worker.unavailable", error, attempt)
        except Exception as error:
            _log.exception("the lease of %s could not be renewed", attempt.run_id)
            self._tell("worker.defect", error, attempt)

    def _tell(self, name: str, error: Exception, attempt: Attempt) -> None:
        self._emit(WorkerEvent(name=name, run_id=attempt.run_id, token=attempt.token, detail=str(error), error=error))
