"""One tail of the log per process: it reads new run events once and hands them to whoever watches.

What must stay true: a watcher is told of every event of its stream behind the position at which it subscribed, in order, or is
told that it was not (`lagged`, after which it reads the stream itself); a watcher that doesn't read delays nobody; the tail reads
nothing while nobody watches. It holds no truth: a crash or a lost database loses no event, it goes on behind its last position.

Woken by notification and by a poll, since a notification can be lost.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from domain.errors import InfrastructureError, OverloadedError
from domain.events import Recorded
from services.ports import EventLog

WATCHERS_MAX: Final = 512
"""Watches open at once in one process; each costs a socket and a queue."""

WATCH_QUEUE_EVENTS_MAX: Final = 64
"""Events that wait for one slow watcher; beyond them it has to read its stream again."""

TAIL_BATCH_EVENTS_MAX: Final = 1000
"""Events of one read of the log."""

TAIL_POLL_SECONDS: Final = 1.0
"""How long a lost notification can delay a watcher."""

TAIL_BACKOFF_SECONDS: Final = (0.1, 0.5, 1.0, 2.0)
"""Waits after the first, second, … failed read in a row."""

WATCHED_TOPICS: Final = (
    "run.requested.v1",
    "run.started.v1",
    "run.cancellation_requested.v1",
    "run.cancelled.v1",
    "run.requeued.v1",
    "run.failed.v1",
    "run.result_published.v1",
    "run.succeeded.v1",
    "run.handed_off.v1",
)
"""The topics of a run's own stream."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.tail")


class Wakeups(Protocol):
    """Something that knows when the log has grown."""

    async def wait_async(self, timeout_seconds: float | None = None) -> bool:
        """Return when the log may have grown, at the latest after `timeout_seconds`; whether it was told so."""
        ...


class Subscription:
    """One watcher's queue. `lagged` says that events were dropped since `take` last said so."""

    def __init__(self) -> None:
        self._events: deque[Recorded] = deque()
        self._ready = asyncio.Event()
        self._lagged = False
        self._closed = False

    def offer(self, recorded: Recorded) -> None:
        """Queue an event; a full queue is emptied and the watcher told to read for itself."""
        if len(self._events) >= WATCH_QUEUE_EVENTS_MAX:
            self._events.clear()
            self._lagged = True
        if not self._lagged:
            self._events.append(recorded)
        self._ready.set()

    def lag(self) -> None:
        """Tell the watcher to read for itself."""
        self._events.clear()
        self._lagged = True
        self._ready.set()

    def close(self) -> None:
        """Tell the watcher that nothing more will come."""
        self._closed = True
        self._ready.set()

    @property
    def closed(self) -> bool:
        """Whether the tail has ended; the watcher should too."""
        return self._closed

    async def take(self, timeout_seconds: float) -> tuple[Sequence[Recorded], bool]:
        """What has come, and whether anything was dropped; `((), False)` after `timeout_seconds` of silence, or at the end."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._ready.wait()
        except TimeoutError:
            return (), False
        self._ready.clear()
        events, lagged = tuple(self._events), self._lagged
        self._events.clear()
        self._lagged = False
        return events, lagged


class LogTail:
    """The tail. `run` is its loop, `run_once` one turn of it."""

    def __init__(self, log: EventLog, wakeups: Wakeups) -> None:
        self._log = log
        self._wakeups = wakeups
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._count = 0
        self._position: int | None = None
        self._wanted = asyncio.Event()
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def watchers(self) -> int:
        """Subscriptions open now."""
        return self._count

    async def subscribe(self, stream: str) -> Subscription:
        """A queue of the stream's events behind the log's present end. Raises `OverloadedError` beyond `WATCHERS_MAX`.

        Whoever subscribes first and reads the stream then has missed nothing.
        """
        if self._closed or self._count >= WATCHERS_MAX:
            raise OverloadedError("too many watches are open", at="watch", expected=f"at most {WATCHERS_MAX}")
        subscription = Subscription()
        self._subscriptions.setdefault(stream, set()).add(subscription)
        self._count += 1
        try:
            async with self._starting:
                if self._position is None:
                    self._position = await asyncio.to_thread(self._log.high_water_mark)
        except BaseException:
            self.unsubscribe(stream, subscription)
            raise
        self._wanted.set()
        return subscription

    def unsubscribe(self, stream: str, subscription: Subscription) -> None:
        """Forget the queue; with the last one the tail stops reading."""
        queues = self._subscriptions.get(stream)
        if queues is None or subscription not in queues:
            return
        queues.discard(subscription)
        self._count -= 1
        if not queues:
            del self._subscriptions[stream]
        if not self._subscriptions:
            self._position = None
            self._wanted.clear()

    def start(self) -> None:
        """Start the loop in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self.run(), name="log tail")

    def close(self) -> None:
        """End every watch, and let no new one in: the server is about to stop."""
        self._closed = True
        for queues in self._subscriptions.values():
            for subscription in queues:
                subscription.close()

    async def stop(self) -> None:
        """End the watches and the loop; returns when the loop has ended."""
        self.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Read and hand out until cancelled; a failed read is tried again, with growing waits and for ever."""
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                if await self.run_once() < TAIL_BATCH_EVENTS_MAX:
                    await self._wakeups.wait_async(TAIL_POLL_SECONDS)
                failures = 0
            except InfrastructureError as error:
                _log.warning("log tail waits", code=error.code, detail=str(error))
                await asyncio.sleep(TAIL_BACKOFF_SECONDS[min(failures, len(TAIL_BACKOFF_SECONDS) - 1)])
                failures += 1
            except Exception as error:
                # An event that can't be read concerns one run, not all: go on behind it, every watcher reads its own stream.
                _log.error("log tail skips to the end", exc_info=error)
                self._position = None
                await asyncio.sleep(TAIL_BACKOFF_SECONDS[-1])

    async def run_once(self) -> int:
        """One read of the log; returns how many events came."""
        if not self._subscriptions:
            return 0
        async with self._starting:
            if self._position is None:
                self._position = await asyncio.to_thread(self._log.high_water_mark)
                self._lag_all()
            position = self._position
        batch, reached = await asyncio.to_thread(self._read, position)
        for recorded in batch:
            for subscription in self._subscriptions.get(recorded.stream, ()):
                subscription.offer(recorded)
        if self._position is not None:  # the last watcher may have left meanwhile
            self._position = max(self._position, reached)
        return len(batch)

    def _read(self, position: int) -> tuple[Sequence[Recorded], int]:
        """The next events, and the position up to which there are no more of them: other events need no second look."""
        mark = self._log.high_water_mark()
        batch = self._log.read_log(position, TAIL_BATCH_EVENTS_MAX, WATCHED_TOPICS)
        last = batch[-1].position if batch else position
        return batch, last if len(batch) >= TAIL_BATCH_EVENTS_MAX else max(last, mark)

    def _lag_all(self) -> None:
        for queues in self._subscriptions.values():
            for subscription in queues:
                subscription.lag()
