"""Blobs written in groups, off the event loop.

Flushing to disk, or a bucket's answer, takes long enough to hold up every other run; handing each blob to a thread costs more
than computing a small run. So: whatever queued while the last group was being written is the next group, one thread at a time.
What must stay true: `put` returns only when the bytes are durable; one blob's fault reaches only its caller; equal bytes in a
group are written once. The queue is bounded by the callers, each of which waits for its own blob.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from services import effects
from services.ports import BlobStore

GROUP_MAX: Final = 64
"""Blobs in one group; the rest waits for the next."""


class BlobWriter:
    """`put` for coroutines. Used from one event loop."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._queue: list[tuple[bytes, asyncio.Future[str]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def put(self, data: bytes) -> str:
        """Store the bytes durably; returns their address. Raises `InfrastructureError`."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._queue.append((data, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        while self._queue:
            group, self._queue = self._queue[:GROUP_MAX], self._queue[GROUP_MAX:]
            distinct = list(dict.fromkeys(data for data, _ in group))
            written = dict(zip(distinct, await asyncio.to_thread(self._write, distinct), strict=True))
            for data, future in group:
                outcome = written[data]
                if future.done():
                    continue  # its caller was cancelled
                if isinstance(outcome, BaseException):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _write(self, distinct: Sequence[bytes]) -> list[str | BaseException]:
        outcomes: list[str | BaseException] = []
        for data in distinct:
            try:
                outcomes.append(effects.store_blob(self._blobs, data))
            except Exception as error:
                outcomes.append(error)
        return outcomes
