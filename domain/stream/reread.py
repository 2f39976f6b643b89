"""What a stream run accepted, found a second time: from the records of its topic and what its journal says, without its core.

The journal says which offsets are omitted and which came late; everything else of the rules is small: other instruments are no
concern of the flow, a repeated (load id, index) and an event_id seen at this or a higher revision are copies. What must stay true:
nothing of `worker_core`, its watermarks or its bounded memory is used here, so a fault in them cannot hide itself. All
identities of the topic are held in memory. Pure.
"""

from collections.abc import Collection
from typing import Final

from domain.market.errors import RunTooLargeError
from domain.market.flow import FlowSpec
from domain.market.lanes import lanes_of
from domain.market.records import MarketEvent
from domain.stream.records import StreamRecord, UnreadableError, readable_event
from domain.stream.worker_core import StreamLimits

EVENTS_MAX: Final = 1_000_000
"""Events that one second look holds, some 0.6 GB; a run that accepted more is not judged in one piece."""

Places = Collection[tuple[int, int]]
"""(partition, offset) of records."""


class Reread:
    """Takes the records of each partition in the order of their offsets; `accepted` has the events at the end.

    `omitted`, `late` and `retried` are places as the journal has them at the run's end.
    """

    def __init__(
        self, flow: FlowSpec, partitions: int, limits: StreamLimits, omitted: Places, late: Places, retried: Places
    ) -> None:
        self.unexplained: list[tuple[int, int, str]] = []
        """Records of the flow's instruments that cannot be read and that the journal does not call omitted: place and why."""
        self._selected = {plan.instrument.encode("utf-8") for plan in lanes_of(flow)}
        self._partitions = partitions
        self._beyond = limits.beyond_micros
        self._omitted = omitted
        self._late = late
        self._retried = retried
        self._loads: list[dict[str, int]] = [{} for _ in range(partitions)]
        self._events: dict[tuple[str, int], MarketEvent] = {}
        self._afterwards: list[MarketEvent] = []

    def begin_with(self, event: MarketEvent) -> None:
        """An event that was accepted before the topic's first record: of the run behind which this one goes on."""
        self._events.setdefault((event.event_id, event.revision), event)

    def take(self, record: StreamRecord) -> None:
        """Look at one record. Raises `RunTooLargeError`."""
        place = (record.partition, record.offset)
        if record.value is None or place in self._omitted or not self._may_concern(record):
            return
        try:
            event = readable_event(record, self._partitions, self._beyond)
        except UnreadableError as error:
            self.unexplained.append((*place, error.detail))
            return
        if place in self._retried:
            if place not in self._late:
                self._afterwards.append(event)
            return
        if self._is_repeated(record) or place in self._late:
            return
        self._events.setdefault((event.event_id, event.revision), event)
        if len(self._events) > EVENTS_MAX:
            raise RunTooLargeError("too many events for a second look", at="topic", expected=f"at most {EVENTS_MAX}")

    def accepted(self) -> list[MarketEvent]:
        """What takes part in the values: the highest revision of each event; what was retried came after what was not."""
        for event in self._afterwards:
            self._events.setdefault((event.event_id, event.revision), event)
        highest: dict[str, MarketEvent] = {}
        for (event_id, revision), event in self._events.items():
            if event_id not in highest or highest[event_id].revision < revision:
                highest[event_id] = event
        return list(highest.values())

    def _may_concern(self, record: StreamRecord) -> bool:
        """Whether the key selects the record, or says nothing at all: then it should have been omitted."""
        return record.key in self._selected or record.instrument is None

    def _is_repeated(self, record: StreamRecord) -> bool:
        if record.load is None:
            return False
        load, index = record.load
        last = self._loads[record.partition]
        if index <= last.get(load, -1):
            return True
        last[load] = index
        return False
