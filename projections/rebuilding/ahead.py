"""Reading ahead: while a batch is folded and written, the next one is read and decoded.

A rebuild spends about a third of its time waiting for the database to write; that is when this works. What must stay true: at most
one batch is held besides the one at hand; what is handed out is what a read at that moment would give, or the beginning of it; an
event that cannot be decoded is no error here, but where it is its turn. A crash leaves nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from projections.log import DecodedEvents, ReadLog, StoredEvent

THREADS: Final = 1
"""One connection, one thread."""


class _Ahead(msgspec.Struct, frozen=True):
    after: int
    up_to: int
    limit: int
    events: "Future[Sequence[StoredEvent]]"


class ReadAhead:
    """Reads like the `read` it is given, which from then on runs in one thread of its own."""

    def __init__(self, read: ReadLog, close: Callable[[], None]) -> None:
        self._read_log = read
        self._close = close
        self._thread = ThreadPoolExecutor(THREADS, thread_name_prefix="finaz-read-ahead")
        self._ahead: _Ahead | None = None

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        """At most `limit` events with after < position <= up_to, in order; then start on those that follow."""
        ahead, self._ahead = self._ahead, None
        events: Sequence[StoredEvent] | None = None
        if ahead is not None and (ahead.after, ahead.limit) == (after, limit) and ahead.up_to <= up_to:
            events = ahead.events.result()
            if len(events) < limit and ahead.up_to < up_to:
                events = None  # more has arrived since
        if events is None:
            events = self._start(after, up_to, limit).events.result()
        if len(events) == limit:
            self._ahead = self._start(events[-1].position, up_to, limit)
        return events

    def close(self) -> None:
        """End the thread, then the connection."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._close()

    def _start(self, after: int, up_to: int, limit: int) -> _Ahead:
        return _Ahead(after, up_to, limit, self._thread.submit(self._read, after, up_to, limit))

    def _read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        return DecodedEvents(self._read_log(after, up_to, limit))
