"""Clocks: from accepted events to ticks, for one instrument.

An event clock ticks once per `event_id`. An interval clock ticks once per half-open cell [k·length, (k+1)·length) counted from
the UTC epoch: the last event of the cell, by (event_time, event_id), speaks for it, nulls included; the tick stands at the
cell's end and is called `<instrument>@<end>`. Cells left empty between two others are GAPs, emitted only when the later one
closes; more of them in a row than the flow allows is `ClockGapTooLongError`.

What must stay true: ticks come out in clock order, once each, and `Clock`, fed in any order and released at any watermarks,
gives exactly what `project` gives for the same events at once. Its memory is what was accepted and not yet released: one event
per `event_id`, or per cell; whoever feeds it bounds that.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np

from domain.instants import format_instant, from_micros
from domain.market.compiled import Floats, Ints
from domain.market.errors import ClockGapTooLongError, ClockOrderError, RunTooLargeError, StateInvalidError
from domain.market.event_runs import EventRun
from domain.market.event_tables import EventTable
from domain.market.flow import EventClock, IntervalClock
from domain.market.records import MarketEvent
from domain.market.text_columns import LATEST, instant_texts

TICKS_MAX: Final = 100_000_000
"""Ticks that one projection may give, so that a short cell over sparse events cannot fill the memory."""

_MICROS: Final = 1_000_000


@dataclass(frozen=True)
class Ticks:
    """Ticks in clock order: times in microseconds, ids, and one column of values per input (NaN is a GAP)."""

    event_times: Ints
    event_ids: list[str]
    columns: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.event_ids)


def project(clock: EventClock | IntervalClock, instrument: str, events: Ticks) -> Ticks:
    """All ticks of events that are complete, in clock order, one per `event_id`."""
    if isinstance(clock, EventClock) or not len(events):
        return events
    length = clock.length_seconds * _MICROS
    cells = events.event_times // length
    last = np.flatnonzero(np.diff(cells, append=cells[-1] + 1))
    filled = cells[last]
    _check_gaps(clock, instrument, filled)
    total = int(filled[-1] - filled[0]) + 1
    if total > TICKS_MAX:
        raise RunTooLargeError(f"{total} ticks", at=instrument, expected=f"at most {TICKS_MAX}")
    places = filled - filled[0]
    columns = {}
    for name, values in events.columns.items():
        columns[name] = np.full(total, np.nan)
        columns[name][places] = values[last]
    times = (np.arange(filled[0], filled[-1] + 1, dtype=np.int64) + 1) * length
    return Ticks(times, _cell_ids(instrument, times), columns)


class Clock:
    """The incremental form for one instrument: accept events, release ticks. Not shared between threads.

    What an event clock was given in order is kept in `_runs` as it came, all of it behind what is in `_order`; before anything
    is taken out of order, the runs are moved there.
    """

    def __init__(self, clock: EventClock | IntervalClock, instrument: str, columns: Sequence[str]) -> None:
        self._clock = clock
        self._instrument = instrument
        self._columns = tuple(columns)
        self._length = clock.length_seconds * _MICROS if isinstance(clock, IntervalClock) else 0
        self._order: list[tuple[int, str]] = []
        self._pending: dict[tuple[int, str], tuple[int, str, int, tuple[float | None, ...]]] = {}
        self._runs: list[EventRun] = []
        self._passed: tuple[int, str] | None = None

    def __len__(self) -> int:
        """Events held."""
        return len(self._order) + sum(map(len, self._runs))

    def has_passed(self, event_time: int, event_id: str) -> bool:
        """Whether the event's place (its cell, for an interval clock) is at or before the last tick released."""
        return self._passed is not None and self._key(event_time, event_id) <= self._passed

    def accept(self, event: MarketEvent) -> None:
        """Take an event, or a higher revision of one still held; a revision not higher changes nothing.

        Raises `ClockOrderError` if its place has been released: judging lateness is the caller's part.
        """
        self.accept_all((event,))

    def accept_all(self, events: Iterable[MarketEvent]) -> None:
        """As `accept`, each in turn."""
        self._unfold_runs()
        length, columns, passed, order, pending = self._length, self._columns, self._passed, self._order, self._pending
        for event in events:
            time, event_id, get = event.event_time, event.event_id, event.values.get
            key = (time // length, "") if length else (time, event_id)
            if passed is not None and key <= passed:
                raise ClockOrderError("the event's place has been released", at=event_id, expected="a later event")
            entry = (time, event_id, event.revision, tuple([get(column) for column in columns]))
            held = pending.get(key)
            if held is None:
                if order and key < order[-1]:
                    insort(order, key)
                else:
                    order.append(key)
            elif entry[:3] <= held[:3]:
                continue
            pending[key] = entry

    def accept_run(self, run: EventRun) -> None:
        """As `accept`, each in turn; quicker where they stand in order, behind all that is held."""
        if not len(run) or not run.in_order:
            self.accept_all(run)
        elif self._length:
            cells = run.events.times // self._length  # the last of a cell speaks for it
            self.accept_all(run.picked(np.flatnonzero(np.diff(cells, append=cells[-1] + 1))))
        else:
            first, last = run.first_place, self._last()
            if last is None or first > last:
                self._runs.append(run)
            else:
                self.accept_all(run)

    def release(self, watermark: int) -> Ticks:
        """The ticks of event times below the watermark, or of cells that end at or below it."""
        return self._take(self._released_by(watermark))

    def waiting(self, watermark: int) -> int:
        """How many of the events held the watermark does not let go."""
        return len(self) - self._released_by(watermark)

    def finish(self) -> Ticks:
        """All remaining ticks; the input has ended."""
        return self._take(len(self))

    def state_document(self) -> dict[str, Any]:
        """What is held and how far ticks were released, as JSON. Equal states are equal to the byte."""
        self._unfold_runs()
        held = (self._pending[key] for key in self._order)
        return {
            "passed": None if self._passed is None else list(self._passed),
            "pending": [[time, event_id, revision, list(values)] for time, event_id, revision, values in held],
        }

    def restore(self, document: Any) -> None:
        """Take over a state written by `state_document` for the same clock and columns. `StateInvalidError` if it is none."""
        try:
            passed = document["passed"]
            self._passed = None if passed is None else _typed_key(passed)
            self._order, self._pending, self._runs = [], {}, []
            for time, event_id, revision, values in document["pending"]:
                key = self._key(*_typed_key([time, event_id]))
                if type(revision) is not int or len(values) != len(self._columns) or key in self._pending:
                    raise ValueError
                if not all(value is None or type(value) is float for value in values):
                    raise ValueError
                self._order.append(key)
                self._pending[key] = (time, event_id, revision, tuple(values))
            if any(left >= right for left, right in pairwise(self._order)):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise StateInvalidError("no state of this clock", at="clock", expected="passed and pending") from None

    def _last(self) -> tuple[int, str] | None:
        """The place of the last event that is held or was released."""
        if self._runs:
            return self._runs[-1].last_place
        return self._order[-1] if self._order else self._passed

    def _unfold_runs(self) -> None:
        """Hold the runs' events one by one."""
        for run in self._runs:
            for event in run:
                key = (event.event_time, event.event_id)
                self._order.append(key)
                self._pending[key] = (*key, event.revision, tuple(map(event.values.get, self._columns)))
        self._runs = []

    def _released_by(self, watermark: int) -> int:
        released = bisect_left(self._order, (watermark // self._length if self._length else watermark, ""))
        if released == len(self._order):
            for run in self._runs:
                released += int(np.searchsorted(run.events.times, watermark))
        return released

    def _key(self, event_time: int, event_id: str) -> tuple[int, str]:
        return (event_time // self._length, "") if self._length else (event_time, event_id)

    def _take(self, count: int) -> Ticks:
        runs = self._take_runs(count - len(self._order))
        if not runs:
            return self._take_held(count)
        parts = [self._take_held(len(self._order))] if self._order else []
        parts += [self._ticks_of(run.events) for run in runs]
        self._passed = runs[-1].last_place
        return _joined(parts, self._columns)

    def _ticks_of(self, events: EventTable) -> Ticks:
        return Ticks(events.times, events.ids, {name: events.column(name) for name in self._columns})

    def _take_runs(self, count: int) -> list[EventRun]:
        """The first events of the runs; none of them if `count` is not positive."""
        taken: list[EventRun] = []
        while count > 0:
            run = self._runs[0]
            if len(run) <= count:
                taken.append(self._runs.pop(0))
            else:
                taken.append(run.rows(0, count))
                self._runs[0] = run.rows(count, len(run))
            count -= len(run)
        return taken

    def _take_held(self, count: int) -> Ticks:
        keys = self._order[:count]
        if self._length:
            ticks = self._cells(keys)
        else:
            rows = [self._pending[key] for key in keys]
            times = np.array([row[0] for row in rows], dtype=np.int64)
            ticks = Ticks(times, [row[1] for row in rows], self._columns_of([row[3] for row in rows]))
        del self._order[:count]
        for key in keys:
            del self._pending[key]
        if keys:
            self._passed = keys[-1]
        return ticks

    def _cells(self, keys: list[tuple[int, str]]) -> Ticks:
        assert isinstance(self._clock, IntervalClock)
        before = [] if self._passed is None else [self._passed[0]]
        filled = np.array(before + [cell for cell, _ in keys], dtype=np.int64)
        _check_gaps(self._clock, self._instrument, filled)
        nothing = (None,) * len(self._columns)
        cells: list[int] = []
        rows: list[tuple[float | None, ...]] = []
        for key in keys:
            last = cells[-1] if cells else (self._passed[0] if self._passed is not None else key[0] - 1)
            cells += range(last + 1, key[0] + 1)
            rows += [nothing] * (key[0] - last - 1)
            rows.append(self._pending[key][3])
        times = (np.array(cells, dtype=np.int64) + 1) * self._length
        return Ticks(times, _cell_ids(self._instrument, times), self._columns_of(rows))

    def _columns_of(self, rows: list[tuple[float | None, ...]]) -> dict[str, Floats]:
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self._columns))
        return {column: np.ascontiguousarray(table[:, index]) for index, column in enumerate(self._columns)}


def _joined(parts: Sequence[Ticks], columns: Sequence[str]) -> Ticks:
    """Ticks one behind the other; at least one part."""
    times = np.concatenate([part.event_times for part in parts])
    ids = list(chain.from_iterable([part.event_ids for part in parts]))
    return Ticks(times, ids, {name: np.concatenate([part.columns[name] for part in parts]) for name in columns})


def _check_gaps(clock: IntervalClock, instrument: str, filled: Ints) -> None:
    empties = np.diff(filled) - 1
    long = np.flatnonzero(empties > clock.empty_cells_max)
    if len(long):
        index = int(long[0])
        start = format_instant(from_micros((int(filled[index]) + 1) * clock.length_seconds * _MICROS))
        raise ClockGapTooLongError(
            f"{int(empties[index])} empty cells from {start} on",
            at=instrument,
            expected=f"at most {clock.empty_cells_max} in a row",
        )


def _cell_ids(instrument: str, times: Ints) -> list[str]:
    if len(times) and int(times[-1]) > LATEST:
        raise RunTooLargeError("a cell ends beyond the year 9999", at=instrument, expected="earlier events")
    return [f"{instrument}@{text}" for text in instant_texts(times).strings()]


def _typed_key(pair: Any) -> tuple[int, str]:
    number, text = pair
    if type(number) is not int or type(text) is not str:
        raise ValueError
    return number, text
