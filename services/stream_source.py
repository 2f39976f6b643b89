"""The source as an ownership reads it: opened, assigned, polled, paused, paced.

What must stay true: records of another topic that took the name are not committed, where the broker tells topics apart; a broker
that is away ends nothing for a bounded time, and nothing is lost meanwhile; a partition that a bounded run has read to its mark is
not read on; pauses are declared, so the lease lives through them. Nothing is written here.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Final

from domain.stream.errors import BrokerUnavailableError, RecoveryBlockedError, TopicMissingError
from services.broker import Marks, Polled, RecordSource
from services.stream_parts import AWAY_DELAY_SECONDS, PACE_SLICE_SECONDS
from services.stream_session import Session

NOTHING: Final = Polled((), {})


class Reading:
    """A source that was opened for the session. Used by the loop's thread."""

    def __init__(self, session: Session, source: RecordSource, stop: threading.Event) -> None:
        self.partitions = source.partitions
        self._session = session
        self._settings = session.tools.settings
        self._monotonic = session.tools.monotonic
        self._source = source
        self._stop = stop
        self._held: frozenset[int] = frozenset()
        self._away_since: float | None = None
        self._tries = 0
        self._paced_from: float | None = None
        self._paced = 0

    def marks(self) -> Mapping[int, Marks]:
        """The marks as they are now. Raises `PartitionsChangedError`, and what the broker raises when it stays away."""
        return self._session.patiently(self._source.marks)

    def marks_now(self) -> Mapping[int, Marks]:
        """As `marks`, without patience."""
        return self._source.marks()

    def identity(self) -> str:
        """What the broker calls the topic now; empty if it does not say."""
        return self._session.patiently(self._source.identity)

    def check_identity(self) -> None:
        """Before a commit: what was read is of the topic that the run opened. Raises `RecoveryBlockedError`.

        Ids do not come back, so one look behind the last record vouches for all before it. A topic that is missing, or a broker
        that is away, is told by polls.
        """
        try:
            self._same(self._source.identity())
        except (BrokerUnavailableError, TopicMissingError) as error:
            self._session.say("stream.away", error=error)

    def check_opened(self) -> None:
        """The same before the first record, with patience."""
        self._same(self.identity())

    def _same(self, found: str) -> None:
        expected = self._session.standing.journal.source_identity
        if expected and found and found != expected:
            raise RecoveryBlockedError(
                f"the topic was deleted and made again: it is {found} now",
                at=self._session.spec.topic,
                expected=f"the topic that the run opened, {expected}",
            )

    def assign(self, next_offsets: Mapping[int, int]) -> None:
        """Read on from here. Raises `RecoveryBlockedError`, `PartitionsChangedError`, …"""
        self._session.patiently(lambda: self._source.assign(next_offsets))
        self._held = frozenset()

    def poll(self, limit: int) -> Polled:
        """Up to `limit` records; nothing while the broker is away. Raises `BrokerUnavailableError` once that takes too long."""
        try:
            polled = self._source.poll(max(1, limit), self._settings.poll_seconds)
        except BrokerUnavailableError as error:
            self._wait_for_broker(error)
            return NOTHING
        self._away_since, self._tries = None, 0
        return polled

    def hold(self, partitions: Iterable[int]) -> None:
        """Have just these partitions paused."""
        wanted = frozenset(partitions)
        if wanted == self._held:
            return
        if paused := wanted - self._held:
            self._source.pause(paused)
        if resumed := self._held - wanted:
            self._source.resume(resumed)
        self._held = wanted

    def slice_of(self, limit: int) -> int:
        """How many records to ask for at once, at the pace."""
        pace = self._settings.pace
        return limit if pace is None else min(limit, max(1, int(pace * PACE_SLICE_SECONDS)))

    def pace(self, records: int) -> None:
        """After so many records, wait as long as the pace wants, the lease kept meanwhile."""
        pace = self._settings.pace
        if pace is None or not records:
            return
        if self._paced_from is None:
            self._paced_from = self._monotonic()
        self._paced += records
        while (left := self._paced_from + self._paced / pace - self._monotonic()) > 0:
            self._session.keeper.tick()
            if self._stop.wait(min(left, PACE_SLICE_SECONDS)):
                return
        # What was lost to a pause of ours is not made up for by a burst.
        if left < -1.0:
            self._paced_from, self._paced = self._monotonic(), 0

    def close(self) -> None:
        """Let go of the source."""
        self._source.close()

    def _wait_for_broker(self, error: BrokerUnavailableError) -> None:
        now = self._monotonic()
        if self._away_since is None:
            self._away_since = now
            self._session.say("stream.away", error=error)
        if now - self._away_since >= self._settings.away_seconds_max:
            raise error
        self._stop.wait(AWAY_DELAY_SECONDS[min(self._tries, len(AWAY_DELAY_SECONDS) - 1)])
        self._tries += 1
