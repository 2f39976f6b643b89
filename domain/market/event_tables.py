"""Tables: many records read at once, where they are plain, and handed on by instrument.

What must stay true: a table has the events that `parse_event` reads from the same records, one by one; of what it does not read it
says nothing. Pure.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from domain.identity import NAME_BYTES_MAX
from domain.market.compiled import Bytes, Floats, Ints, compiled
from domain.market.event_runs import EventRun
from domain.market.fingerprints import unplain
from domain.market.line_reader import read_lines
from domain.market.record_reader import quick_event


class EventTable(msgspec.Struct, frozen=True, eq=False):
    """n events by column, in the order in which they came; `values` has n rows, and a column for each of `columns`, sorted."""

    ids: list[str]
    times: Ints
    available_at: Ints
    revisions: Ints
    columns: tuple[str, ...]
    values: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, start: int, end: int) -> "EventTable":
        """Some of the events."""
        part = slice(start, end)
        return EventTable(
            self.ids[part],
            self.times[part],
            self.available_at[part],
            self.revisions[part],
            self.columns,
            self.values[part],
        )

    def picked(self, places: Sequence[int]) -> "EventTable":
        """The events at these places."""
        if len(places) == len(self):
            return self
        ids, at = self.ids, np.array(places, dtype=np.int64)
        return EventTable(
            [ids[place] for place in places],
            self.times[at],
            self.available_at[at],
            self.revisions[at],
            self.columns,
            self.values[at],
        )

    def runs(self, instruments: Sequence[str]) -> list[EventRun]:
        """The events by instrument, the order in each kept; `instruments` has the one of each."""
        numbers: dict[str, int] = {}
        kinds = np.array([numbers.setdefault(name, len(numbers)) for name in instruments], dtype=np.int64)
        order = np.argsort(kinds, kind="stable")
        borders = [0, *(np.flatnonzero(np.diff(kinds[order])) + 1).tolist(), len(self)]
        times, available, revisions = self.times[order], self.available_at[order], self.revisions[order]
        values, ids = self.values[order], [self.ids[place] for place in order.tolist()]
        runs: list[EventRun] = []
        for name, (start, end) in zip(numbers, pairwise(borders), strict=True):
            part = slice(start, end)
            columns = (times[part], available[part], revisions[part], self.columns, values[part])
            runs.append(EventRun(name, ids[part], *columns))
        return runs


def read_table(values: Sequence[bytes], keys: Sequence[bytes]) -> EventTable | None:
    """The events of some records, whose instruments are these keys; None where one is not plain, or of another instrument."""
    first = quick_event(values[0])
    if first is None:
        return None
    columns = tuple(first.values)
    data = b"\n".join(values) + b"\n"
    lines = read_lines(data, len(values), columns) if data.isascii() else None
    if lines is None:
        return None
    ids, names = lines.texts["event_id"], lines.texts["instrument"]
    if len(unplain(ids, NAME_BYTES_MAX)) or len(unplain(names, NAME_BYTES_MAX)):
        return None
    sizes = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    if not _are_same(names.data, names.starts, names.sizes, np.frombuffer(b"".join(keys), dtype=np.uint8), sizes):
        return None
    text = data.decode("ascii")
    return EventTable(
        [text[at:end] for at, end in zip(ids.starts.tolist(), (ids.starts + ids.sizes).tolist(), strict=True)],
        lines.integers["event_time"],
        lines.integers["available_at"],
        lines.integers["revision"],
        columns,
        np.stack([lines.values[column] for column in columns], axis=1),
    )


@compiled
def _are_same(data: Bytes, starts: Ints, sizes: Ints, others: Bytes, other_sizes: Ints) -> bool:
    """Whether the texts are the others, which stand one behind the other."""
    at = 0
    for i in range(starts.shape[0]):
        if sizes[i] != other_sizes[i]:
            return False
        for j in range(sizes[i]):
            if data[starts[i] + j] != others[at + j]:
                return False
        at += sizes[i]
    return True
