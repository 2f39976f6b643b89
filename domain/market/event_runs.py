"""Runs: events of one instrument by column, in the order in which they came.

The stream keeps events so from where they are read to where they are stored: what is done for each event costs more than what is
done for many at once. What must stay true: a run is the same events as its iteration gives, to the bit, NaN in an array being
None in an event; nobody writes into a run's columns. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from domain.market.compiled import Floats, Ints, compiled
from domain.market.records import MarketEvent


class EventRun(msgspec.Struct, frozen=True, eq=False):
    """n events. Times in microseconds; `values` has n rows, and a column for each of `columns`, which stand sorted."""

    instrument: str
    ids: list[str]
    times: Ints
    available_at: Ints
    revisions: Ints
    columns: tuple[str, ...]
    values: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[MarketEvent]:
        for event_id, time, available_at, revision, row in zip(
            self.ids,
            self.times.tolist(),
            self.available_at.tolist(),
            self.revisions.tolist(),
            self.values.tolist(),
            strict=True,
        ):
            yield MarketEvent(
                event_id=event_id,
                instrument=self.instrument,
                event_time=time,
                available_at=available_at,
                revision=revision,
                values=dict(zip(self.columns, [None if value != value else value for value in row], strict=True)),
            )

    def column(self, name: str) -> Floats:
        """A column of values; nulls where the events have none of that name."""
        if name not in self.columns:
            return np.full(len(self), np.nan)
        return self.values[:, self.columns.index(name)]

    def rows(self, start: int, end: int) -> "EventRun":
        """Some of the events."""
        part = slice(start, end)
        return EventRun(
            self.instrument,
            self.ids[part],
            self.times[part],
            self.available_at[part],
            self.revisions[part],
            self.columns,
            self.values[part],
        )

    def picked(self, places: Ints) -> "EventRun":
        """The events at these places."""
        ids = self.ids
        return EventRun(
            self.instrument,
            [ids[place] for place in places.tolist()],
            self.times[places],
            self.available_at[places],
            self.revisions[places],
            self.columns,
            self.values[places],
        )

    @property
    def in_order(self) -> bool:
        """Whether each event stands behind the one before it, by (event_time, event_id)."""
        said = _order(self.times)
        if said != _TIES:
            return said == _RISING
        ids = self.ids
        return all(ids[place] < ids[place + 1] for place in np.flatnonzero(np.diff(self.times) == 0).tolist())


def run_of(event: MarketEvent) -> EventRun:
    """A run of one event, whose columns stand sorted."""
    return EventRun(
        event.instrument,
        [event.event_id],
        np.array([event.event_time], dtype=np.int64),
        np.array([event.available_at], dtype=np.int64),
        np.array([event.revision], dtype=np.int64),
        tuple(event.values),
        np.array([list(event.values.values())], dtype=np.float64),
    )


def joined_runs(runs: Sequence[EventRun]) -> EventRun:
    """Runs of one instrument, at least one, one behind the other; nulls where a run has not all columns."""
    columns = tuple(sorted({column for run in runs for column in run.columns}))
    values = [np.concatenate([run.column(column) for run in runs]) for column in columns]
    return EventRun(
        runs[0].instrument,
        list(chain.from_iterable([run.ids for run in runs])),
        np.concatenate([run.times for run in runs]),
        np.concatenate([run.available_at for run in runs]),
        np.concatenate([run.revisions for run in runs]),
        columns,
        np.stack(values, axis=1) if values else np.empty((sum(map(len, runs)), 0)),
    )


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
