"""Blobs written in groups, off the event loop.

Flushing to disk, or a bucket's answer, takes long enough to hold up every other run; handing each blob to a thread costs more
than computing a small run. So: whatever queued while the last group was being written is the next group, shared among a few
threads, because several flushes at once take little longer than one.
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


THREADS_MAX: Final = 8
"""Threads that write one group."""


async def store_all(blobs: BlobStore, distinct: Sequence[bytes]) -> list[str | Exception]:
    """Store each of the blobs durably; per blob its address, or why it could not be stored."""
    parts = [distinct[start::THREADS_MAX] for start in range(min(THREADS_MAX, len(distinct)))]
    written = await asyncio.gather(*(asyncio.to_thread(_store_each, blobs, part) for part in parts))
    return [written[place % THREADS_MAX][place // THREADS_MAX] for place in range(len(distinct))]


def _store_each(blobs: BlobStore, part: Sequence[bytes]) -> list[str | Exception]:
    outcomes: list[str | Exception] = []
    for data in part:
        try:
            outcomes.append(effects.store_blob(blobs, data))
        except Exception as error:
            outcomes.append(error)
    return outcomes


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
            try:
                outcomes = await store_all(self._blobs, distinct)
            except Exception as error:  # no thread to be had: the callers are told, the next group is tried
                outcomes = [error] * len(distinct)
            written = dict(zip(distinct, outcomes, strict=True))
            for data, future in group:
                _settle(future, written[data])


def _settle(future: "asyncio.Future[str]", outcome: str | Exception) -> None:
    if future.done():
        return  # its caller was cancelled
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
