"""Tables: events by column, and how many records are read into one at once, where they are plain.

What must stay true: a table has the events that `parse_event` reads from the same records, one by one; of what it does not read it
says nothing. Pure.
"""

from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np

from domain.identity import NAME_BYTES_MAX
from domain.market.compiled import Bytes, Floats, Ints, compiled
from domain.market.fingerprints import unplain
from domain.market.line_reader import read_lines
from domain.market.record_reader import quick_event


class EventTable(msgspec.Struct, frozen=True, eq=False):
    """n events by column, in the order in which they came; `values` has n rows, and a column for each of `columns`, sorted.

    Times in microseconds. Nobody writes into the columns.
    """

    ids: list[str]
    times: Ints
    available_at: Ints
    revisions: Ints
    columns: tuple[str, ...]
    values: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Floats:
        """A column of values; nulls where the events have none of that name."""
        if name not in self.columns:
            return np.full(len(self), np.nan)
        return self.values[:, self.columns.index(name)]

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

    def picked(self, places: Ints | Sequence[int]) -> "EventTable":
        """The events at these places, in their order."""
        ids, at = self.ids, np.asarray(places, dtype=np.int64)
        return EventTable(
            [ids[place] for place in at.tolist()],
            self.times[at],
            self.available_at[at],
            self.revisions[at],
            self.columns,
            self.values[at],
        )


def joined_tables(tables: Sequence[EventTable]) -> EventTable:
    """Tables, at least one, one behind the other; nulls where a table has not all columns."""
    columns = tuple(sorted({column for table in tables for column in table.columns}))
    values = [np.concatenate([table.column(column) for table in tables]) for column in columns]
    return EventTable(
        list(chain.from_iterable([table.ids for table in tables])),
        np.concatenate([table.times for table in tables]),
        np.concatenate([table.available_at for table in tables]),
        np.concatenate([table.revisions for table in tables]),
        columns,
        np.stack(values, axis=1) if values else np.empty((sum(map(len, tables)), 0)),
    )


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
