"""Watermarks: up to which instant of event time a partition's past is closed.

A partition's watermark is the greatest event time seen in it minus the allowed lateness. It never goes back; it stands still while
a gap that the source announced is open; silence moves nothing. An explicit IDLE_CONFIRMED raises it to the instant that it
carries and takes the partition out of the minimum until its next record; END_OF_BOUNDED_SOURCE takes it out for good.

What must stay true: `at` never decreases, whatever happens in whatever order. Pure.
"""

from typing import Any, Final

from domain.market.compiled import Ints
from domain.market.errors import StateInvalidError
from domain.market.lane_arrays import at_least, greatest_before

NEVER: Final = -(2**62)
"""The watermark of a partition in which nothing was seen yet."""

GAPS_MAX: Final = 10_000
"""Open gaps of one partition; more are ignored, and close by their deadlines anyway."""

MEMBERS: Final = 5
"""Members of a watermark's state document."""


class PartitionWatermark:
    """The watermark of one partition; times in microseconds since the UTC epoch. Not shared between threads."""

    def __init__(self, lateness_micros: int) -> None:
        self.at = NEVER
        self.idle = False
        self.ended = False
        self._lateness = lateness_micros
        self._seen = NEVER
        self._gaps: dict[str, int] = {}

    def see(self, event_time: int) -> None:
        """A readable event of this time came in."""
        self.idle = False
        if event_time > self._seen:
            self._seen = event_time
        if self._gaps:
            self._expire_gaps()
            self._advance()
        elif self._seen - self._lateness > self.at:
            self.at = self._seen - self._lateness

    def before_each(self, event_times: Ints) -> Ints | None:
        """Where the watermark will be before each of these events is seen; None where it does not just follow them."""
        if self._gaps or self.ended or not len(event_times):
            return None
        return at_least(greatest_before(self._seen, event_times) - self._lateness, self.at)

    def confirm_idle(self, instant: int | None) -> None:
        """The source says that there is nothing before `instant` any more (None: it only says that it is idle).

        It is event time that has passed, as an event's would be: it ends gaps whose deadline it reaches, and while another is open
        it is kept until that closes. Else a source that falls silent inside a gap would hold its last ticks for ever.
        """
        self.idle = True
        if instant is not None:
            self._seen = max(self._seen, instant + self._lateness)
            self._expire_gaps()
            self._advance()

    def close_before(self, instant: int) -> None:
        """What is before the instant is past, whatever was seen of this partition."""
        self.at = max(self.at, instant)

    def end(self) -> None:
        """There will be nothing more."""
        self.ended = True
        self._gaps.clear()

    def open_gap(self, instrument: str, deadline: int | None) -> None:
        """The source announces that events of the instrument are missing and will come, until the deadline in event time."""
        if deadline is not None and len(self._gaps) < GAPS_MAX:
            self._gaps[instrument] = deadline

    def close_gap(self, instrument: str) -> None:
        """What was missing has come."""
        self._gaps.pop(instrument, None)
        self._advance()

    def state_document(self) -> dict[str, Any]:
        """All of it as JSON."""
        gaps = [[name, self._gaps[name]] for name in sorted(self._gaps)]
        return {"at": self.at, "ended": self.ended, "gaps": gaps, "idle": self.idle, "seen": self._seen}

    def restore(self, document: Any) -> None:
        """Take over what `state_document` wrote. `StateInvalidError` if it is something else."""
        try:
            at, seen = document["at"], document["seen"]
            gaps = dict(document["gaps"])
            ended, idle = document["ended"], document["idle"]
            if not all(type(number) is int for number in (at, seen, *gaps.values())) or len(document) != MEMBERS:
                raise ValueError
            if type(ended) is not bool or type(idle) is not bool or not all(type(name) is str for name in gaps):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise StateInvalidError("no state of a watermark", at="watermark", expected="five members") from None
        self.at, self._seen, self._gaps, self.ended, self.idle = at, seen, gaps, ended, idle

    def _expire_gaps(self) -> None:
        """A gap whose deadline the partition's own events have passed is over: the source did not keep its word."""
        reached = self._seen - self._lateness
        for name in [name for name, deadline in self._gaps.items() if deadline <= reached]:
            del self._gaps[name]

    def _advance(self) -> None:
        if not self._gaps and self._seen > NEVER:
            self.at = max(self.at, self._seen - self._lateness)
