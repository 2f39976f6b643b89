"""Follow the log live by server-sent events: every event, or those of some topics, streams or principal.

Each event is one message: `id` is its position, `event` its topic, `data` the document that the log's page has. What must stay
true: whoever follows gets every matching event behind the position at which it began exactly once per connection, in order; after
`Last-Event-ID: N` it goes on behind N; a follower that does not read delays nobody (each reads for itself). It is woken by
notification and by a poll. Nothing is held that a crash could lose.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from typing import Final

import msgspec
import structlog

from domain.canonical import canonical
from domain.errors import FinazError, InfrastructureError, OverloadedError
from services.inspected import InspectedEvent
from services.inspection import Inspection, Search
from services.ports import Wakeups

FOLLOWERS_MAX: Final = 32
"""Connections that follow the log at once in one process; each reads for itself."""

FOLLOW_PAGE_EVENTS: Final = 500
"""Events of one read."""

FOLLOW_POLL_SECONDS: Final = 1.0
"""How long a lost notification can delay a follower."""

KEEP_ALIVE_SECONDS: Final = 15.0
"""Silence after which a comment is sent."""

BACKOFF_SECONDS: Final = 1.0
"""Wait after a read that failed."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.follow")

OpenWakeups = Callable[[], AbstractContextManager[Wakeups]]


class LogFollowers:
    """Everybody who follows the log in this process."""

    def __init__(self, inspection: Inspection, open_wakeups: OpenWakeups, mark: Callable[[], int]) -> None:
        self._inspection = inspection
        self._open_wakeups = open_wakeups
        self._mark = mark
        self._count = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """The server is about to stop: everybody is sent home within a poll."""
        self._closing.set()

    async def begin(self, after: int | None) -> int:
        """Take a place, and say behind which position it begins (None: at the log's present end).

        Raises `OverloadedError` beyond `FOLLOWERS_MAX`.
        """
        if self._closing.is_set() or self._count >= FOLLOWERS_MAX:
            raise OverloadedError("too many follow the log", at="follow", expected=f"at most {FOLLOWERS_MAX}")
        self._count += 1
        try:
            return await asyncio.to_thread(self._mark) if after is None else after
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give the place back."""
        self._count -= 1

    async def chunks(self, wanted: Search, position: int) -> AsyncGenerator[bytes, None]:
        """Messages until the server stops, or the log cannot be read for a reason that waiting does not mend."""
        silent_seconds = 0.0
        with self._open_wakeups() as wakeups:
            yield b": following\n\n"
            while not self._closing.is_set():
                try:
                    mark = await asyncio.to_thread(self._mark)
                    page = await asyncio.to_thread(self._inspection.search, wanted, FOLLOW_PAGE_EVENTS, position)
                except InfrastructureError as error:
                    _log.warning("follower waits", code=error.code, detail=str(error))
                    await asyncio.sleep(BACKOFF_SECONDS)
                    continue
                except FinazError as error:
                    yield b"event: problem\ndata: %s\n\n" % canonical({"code": error.code, "detail": str(error)})
                    return
                if page.items:
                    silent_seconds = 0.0
                    yield b"".join(map(message, page.items))
                # What was committed after `mark` was read may be missing from the last page, and nothing before it can be.
                if page.next_cursor is not None:
                    position = int(page.next_cursor)
                else:
                    position = page.items[-1].position if page.items else max(position, mark)
                if page.next_cursor is None and not await wakeups.wait_async(FOLLOW_POLL_SECONDS):
                    silent_seconds += FOLLOW_POLL_SECONDS
                    if silent_seconds >= KEEP_ALIVE_SECONDS:
                        silent_seconds = 0.0
                        yield b": keep-alive\n\n"


def message(event: InspectedEvent) -> bytes:
    """One event as a message."""
    data = canonical(msgspec.to_builtins(event))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.topic.encode(), data)
