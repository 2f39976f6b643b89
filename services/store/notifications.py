"""Wake-ups: "the log has grown", "the outbox has something", without asking all the time.

What must stay true: a wake-up says only "look again", so one too many is harmless and none is ever the last: whoever waits also
wakes after `poll_seconds`, because a NOTIFY can be lost (while the connection is away, or between a look and the LISTEN). The
listening thread reconnects with growing pauses, wakes everybody when it is back, and its death is noticed by nothing but latency.
Nothing here holds a lock across I/O; a crash leaves nothing.
"""

import asyncio
import logging
import os
import select
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import psycopg

from services.store.connections import Connection, connect

EVENTS: Final = "finaz_events"
"""Channel: events were appended; the payload is the last position."""

OUTBOX: Final = "finaz_outbox"
"""Channel: outbox rows became pending."""

POLL_SECONDS: Final = 1.0
"""Seconds after which a waiter looks without having been woken."""

BACKOFF_SECONDS: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 2.0
"""Pauses between two tries to connect: doubled from the first to the second."""

PROBE_SECONDS: Final = 30.0
"""Seconds of silence after which the connection is tried."""

_log: Final = logging.getLogger("finaz.store")


class Waker:
    """One waiter's own end: `wait` in a thread or `wait_async` in an event loop, not both. Close it, or use it in a `with`."""

    def __init__(self, listener: "Listener", channels: frozenset[str], poll_seconds: float) -> None:
        self._listener = listener
        self._channels = channels
        self._poll_seconds = poll_seconds
        self._woken = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken_async: asyncio.Event | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until there is something to look at, or until it is time to look anyway. True if it was a wake-up."""
        woken = self._woken.wait(self._pause(timeout_seconds))
        self._woken.clear()
        return woken

    async def wait_async(self, timeout_seconds: float | None = None) -> bool:
        """As `wait`, without blocking the event loop."""
        if self._woken_async is None:
            self._woken_async = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            if self._woken.is_set():
                self._woken_async.set()
        try:
            async with asyncio.timeout(self._pause(timeout_seconds)):
                await self._woken_async.wait()
        except TimeoutError:
            return False
        finally:
            self._woken_async.clear()
            self._woken.clear()
        return True

    def wakes(self) -> Iterator[None]:
        """For ever: now, then after each `wait`, until closed."""
        while not self._closed:
            yield
            self.wait()

    async def wakes_async(self) -> AsyncIterator[None]:
        """For ever: now, then after each `wait_async`, until closed."""
        while not self._closed:
            yield
            await self.wait_async()

    def wake(self) -> None:
        """Wake the waiter; from any thread."""
        self._woken.set()
        loop, event = self._loop, self._woken_async
        if loop is not None and event is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """End the iterations; the waiter is woken."""
        self._closed = True
        self._listener.forget(self)
        self.wake()

    def hears(self, channel: str) -> bool:
        return channel in self._channels

    def _pause(self, timeout_seconds: float | None) -> float:
        return self._poll_seconds if timeout_seconds is None else min(timeout_seconds, self._poll_seconds)


class Listener:
    """One LISTEN connection and its thread for a whole process. Starts with the first waker; `close` ends it at once."""

    def __init__(self, dsn: str, channels: tuple[str, ...] = (EVENTS, OUTBOX)) -> None:
        self._dsn = dsn
        self._channels = channels
        self._wakers: frozenset[Waker] = frozenset()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._bell_in, self._bell_out = os.pipe()  # a byte in it ends the wait for notifications

    def waker(self, *channels: str, poll_seconds: float = POLL_SECONDS) -> Waker:
        """A new waiter for these channels (none: all of them)."""
        waker = Waker(self, frozenset(channels or self._channels), poll_seconds)
        with self._lock:
            self._wakers |= {waker}
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._main, name="finaz-listener", daemon=True)
                self._thread.start()
        return waker

    def forget(self, waker: Waker) -> None:
        with self._lock:
            self._wakers -= {waker}

    def close(self) -> None:
        """End the thread; everybody is woken once more."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._bell_out, b"x")
        if self._thread is not None:
            self._thread.join()
        os.close(self._bell_in)
        os.close(self._bell_out)
        self._wake(None)

    # ---------------------------------------------------------------- in the thread

    def _main(self) -> None:
        pause = BACKOFF_SECONDS
        while not self._closing.is_set():
            try:
                with connect(self._dsn) as connection:
                    for channel in self._channels:
                        connection.execute(f"LISTEN {channel}")
                    pause = BACKOFF_SECONDS
                    self._wake(None)  # whatever was said while nobody listened
                    self._listen(connection)
            except psycopg.Error as error:
                _log.warning("listening again in %.2f s: %s", pause, error)
            except Exception:
                _log.exception("listening again in %.2f s", pause)
            self._closing.wait(pause)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    def _listen(self, connection: Connection) -> None:
        while not self._closing.is_set():
            ready, _, _ = select.select([connection.fileno(), self._bell_in], [], [], PROBE_SECONDS)
            if not ready:
                connection.execute("SELECT 1")
                continue
            for channel in {notify.channel for notify in connection.notifies(timeout=0)}:
                self._wake(channel)

    def _wake(self, channel: str | None) -> None:
        for waker in self._wakers:
            if channel is None or waker.hears(channel):
                waker.wake()
