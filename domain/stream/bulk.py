"""Many records of one partition read at once: the plain case, in which nearly all of them come.

`read_bulk` gives what `readable_event` gives for each of the records, and the loads of those that are selected; or None, which says
nothing but "take them one by one". What must stay true: wherever it gives something, one by one gives the same; a property test
holds it. Pure.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter, lt
from typing import Final

import msgspec

from domain.market.compiled import Ints
from domain.market.event_tables import EventTable, read_table
from domain.stream.record_columns import RecordColumns
from domain.stream.records import HEADER_INDEX, HEADER_LOAD, home, named

BULK_RECORDS_MIN: Final = 24
"""Records from which on reading them at once is quicker than one by one."""

_INDEX_DIGITS_MAX: Final = 18
"""Digits of an index that is read here: so many are surely a number up to `INDEX_MAX`."""

_load_of: Final = itemgetter(HEADER_LOAD)
_index_of: Final = itemgetter(HEADER_INDEX)


class Bulk(msgspec.Struct, frozen=True, eq=False):
    """Records as they were read: event times of all; of those that are selected where they stand, their instruments and events.

    `loads` are their (load id, index), which grow; None if they have none.
    """

    times: Ints
    places: list[int]
    instruments: list[str]
    events: EventTable
    loads: tuple[str, list[int]] | None

    def __len__(self) -> int:
        return len(self.times)

    def rows(self, start: int, end: int) -> "Bulk":
        """Some of the records."""
        first, last = bisect_left(self.places, start), bisect_left(self.places, end)
        return Bulk(
            self.times[start:end],
            [place - start for place in self.places[first:last]],
            self.instruments[first:last],
            self.events.rows(first, last),
            None if self.loads is None else (self.loads[0], self.loads[1][first:last]),
        )


def read_bulk(
    records: RecordColumns, selected: Mapping[bytes, str], partitions: int, beyond_micros: int
) -> Bulk | None:
    """The records, in order; None where one of them is anything but plain. `selected` has keys of instruments, and their names."""
    values = [value for value in records.values if value is not None]
    keys = [key for key in records.keys if key is not None]
    table = read_table(values, keys) if len(values) == len(keys) == len(records) else None
    if table is None or (table.times > table.available_at + beyond_micros).any():
        return None
    different = set(keys)
    if any(home(key, partitions) != records.partition for key in different):
        return None
    headers: Sequence[Mapping[str, bytes | None]] = records.headers
    places, events = list(range(len(keys))), table
    if not selected.keys() >= different:
        places = [place for place in places if keys[place] in selected]
        headers = [headers[place] for place in places]
        events = table.picked(places)
    grown, loads = _loads(headers)
    if not grown:
        return None
    return Bulk(table.times, places, [selected[keys[place]] for place in places], events, loads)


def _loads(headers: Sequence[Mapping[str, bytes | None]]) -> tuple[bool, tuple[str, list[int]] | None]:
    """Whether the records are of one load and their indices grow, or of none at all; and the load with the indices."""
    try:
        load_ids, texts = set(map(_load_of, headers)), list(map(_index_of, headers))
    except KeyError:
        return all(HEADER_LOAD not in header for header in headers), None
    if not load_ids:
        return True, None
    load_id = named(load_ids.pop())
    if load_id is None or load_ids or None in texts:
        return False, None
    sizes = set(map(len, texts))
    if min(sizes) == 0 or max(sizes) > _INDEX_DIGITS_MAX or not b"".join(texts).isdigit():
        return False, None
    indices = list(map(int, texts))
    if not all(map(lt, indices, islice(indices, 1, None))):
        return False, None
    return True, (load_id, indices)
