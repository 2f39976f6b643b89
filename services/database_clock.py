"""The database's clock, estimated between reads.

Time that decides is the database's; asking it before every decision would cost a round trip each. So: an instant that the
database told, plus the monotonic time that has passed here since the answer arrived. What must stay true: the estimate is never
ahead of the database's clock (but for drift within `OBSERVATIONS`), so no deadline is called passed too early; the wall clock of
this machine is never used, so it may be an hour off or in any zone.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from domain.instants import from_micros, to_micros

OBSERVATIONS: Final = 16
"""Answers of the database that the estimate is made from: the one that arrived with the least delay counts."""


class DatabaseClock:
    """`observe` each instant that the database tells, as it arrives; `now` is the estimate. Before the first: `datetime.min`.

    Both may be called from any thread.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: tuple[float, ...] = ()
        self._offset = _NEVER

    def observe(self, now: datetime) -> None:
        """The database said `now` a moment ago."""
        self._offsets = (*self._offsets[1 - OBSERVATIONS :], to_micros(now) / 1e6 - self._monotonic())
        self._offset = max(self._offsets)

    def now(self) -> datetime:
        """What the database's clock shows now, or a little less."""
        return from_micros(max(self.micros(), _EARLIEST))

    def micros(self) -> int:
        """The same in microseconds since the epoch: cheaper to compare. Before the first observation: long ago."""
        return int((self._offset + self._monotonic()) * 1e6) - 1


_EARLIEST: Final = to_micros(datetime.min.replace(tzinfo=UTC))
_NEVER: Final = -1e12
