"""Runs: events of one instrument by column, in the order in which they came.

The stream keeps events so from where they are read to where they are stored: what is done for each event costs more than what is
done for many at once. What must stay true: a run is the same events as its iteration gives, to the bit, NaN in an array being
None in an event; nobody writes into a run's columns. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from domain.market.compiled import Ints, compiled
from domain.market.event_tables import EventTable, joined_tables
from domain.market.records import MarketEvent


class EventRun(msgspec.Struct, frozen=True, eq=False):
    """Events of one instrument by column."""

    instrument: str
    events: EventTable

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[MarketEvent]:
        events = self.events
        for event_id, time, available_at, revision, row in zip(
            events.ids,
            events.times.tolist(),
            events.available_at.tolist(),
            events.revisions.tolist(),
            events.values.tolist(),
            strict=True,
        ):
            yield MarketEvent(
                event_id=event_id,
                instrument=self.instrument,
                event_time=time,
                available_at=available_at,
                revision=revision,
                values=dict(zip(events.columns, [None if value != value else value for value in row], strict=True)),
            )

    def rows(self, start: int, end: int) -> "EventRun":
        """Some of the events."""
        return EventRun(self.instrument, self.events.rows(start, end))

    def picked(self, places: Ints) -> "EventRun":
        """The events at these places."""
        return EventRun(self.instrument, self.events.picked(places))

    @property
    def first_place(self) -> tuple[int, str]:
        """(event_time, event_id) of the first event; there must be one."""
        return int(self.events.times[0]), self.events.ids[0]

    @property
    def last_place(self) -> tuple[int, str]:
        """The same of the last."""
        return int(self.events.times[-1]), self.events.ids[-1]

    @property
    def in_order(self) -> bool:
        """Whether each event stands behind the one before it, by (event_time, event_id)."""
        times, ids = self.events.times, self.events.ids
        said = _order(times)
        if said != _TIES:
            return said == _RISING
        return all(ids[place] < ids[place + 1] for place in np.flatnonzero(np.diff(times) == 0).tolist())


def run_of(event: MarketEvent) -> EventRun:
    """A run of one event, whose columns stand sorted."""
    events = EventTable(
        [event.event_id],
        np.array([event.event_time], dtype=np.int64),
        np.array([event.available_at], dtype=np.int64),
        np.array([event.revision], dtype=np.int64),
        tuple(event.values),
        np.array([list(event.values.values())], dtype=np.float64),
    )
    return EventRun(event.instrument, events)


def runs_of(events: EventTable, instruments: Sequence[str]) -> list[EventRun]:
    """The events by instrument, the order in each kept; `instruments` has the one of each."""
    numbers: dict[str, int] = {}
    kinds = np.array([numbers.setdefault(name, len(numbers)) for name in instruments], dtype=np.int64)
    order = np.argsort(kinds, kind="stable")
    borders = [0, *(np.flatnonzero(np.diff(kinds[order])) + 1).tolist(), len(events)]
    ordered = events.picked(order)
    return [EventRun(name, ordered.rows(*part)) for name, part in zip(numbers, pairwise(borders), strict=True)]


def joined_runs(runs: Sequence[EventRun]) -> EventRun:
    """Runs of one instrument, at least one, one behind the other; nulls where a run has not all columns."""
    return EventRun(runs[0].instrument, joined_tables([run.events for run in runs]))


def events_of(parts: Iterable[MarketEvent | EventRun]) -> Iterator[MarketEvent]:
    """All events, one by one."""
    for part in parts:
        if isinstance(part, EventRun):
            yield from part
        else:
            yield part


_FALLING, _TIES, _RISING = 0, 1, 2


@compiled
def _order(times: Any) -> int:
    said = 2
    for i in range(1, times.shape[0]):
        if times[i] < times[i - 1]:
            return 0
        if times[i] == times[i - 1]:
            said = 1
    return said
