"""Many records of one partition read at once: the plain case, in which nearly all of them come.

`read_bulk` gives what `readable_event` gives for each of the records, and the loads of those that are selected; or None, which says
nothing but "take them one by one". What must stay true: wherever it gives something, one by one gives the same; a property test
holds it. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from domain.identity import NAME_BYTES_MAX
from domain.market.compiled import Ints
from domain.market.line_reader import Lines, read_lines
from domain.market.record_reader import quick_event
from domain.market.records import MarketEvent
from domain.stream.records import HEADER_INDEX, HEADER_LOAD, StreamRecord, home, index_of, named

BULK_RECORDS_MIN: Final = 24
"""Records from which on reading them at once is quicker than one by one."""


class Bulk(msgspec.Struct, frozen=True):
    """Records as they were read: event times of all, and of those that are selected where they stand and what they are.

    `loads` are their (load id, index), which grow; None if they have none.
    """

    times: Ints
    places: list[int]
    events: list[MarketEvent]
    loads: tuple[str, list[int]] | None


def read_bulk(
    records: Sequence[StreamRecord], selected: Collection[bytes | None], partitions: int, beyond_micros: int
) -> Bulk | None:
    """The records of one partition, in order; None where one of them is anything but plain."""
    values = [record.value for record in records]
    first = None if values[0] is None else quick_event(values[0])
    if first is None or None in values:
        return None
    columns = tuple(first.values)
    data = b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # none of them is None
    lines = read_lines(data, len(records), columns) if data.isascii() else None
    if lines is None:
        return None
    ids, names = lines.texts["event_id"].strings(), lines.texts["instrument"].strings()
    keys = [record.key for record in records]
    if not (_are_names(ids) and _are_names(names)) or keys != [name.encode() for name in names]:
        return None
    if any(key is None or home(key, partitions) != records[0].partition for key in set(keys)):
        return None
    times = lines.integers["event_time"]
    if (times > lines.integers["available_at"] + beyond_micros).any():
        return None
    places = [place for place, key in enumerate(keys) if key in selected]
    grown, loads = _loads([records[place].headers for place in places])
    return Bulk(times, places, _events(lines, ids, names, columns, places), loads) if grown else None


def _are_names(texts: Sequence[str]) -> bool:
    """Whether all are names as ASCII has them."""
    sizes = set(map(len, texts))
    return min(sizes) > 0 and max(sizes) <= NAME_BYTES_MAX and "".join(texts).isprintable()


def _loads(headers: Sequence[Mapping[str, bytes]]) -> tuple[bool, tuple[str, list[int]] | None]:
    """Whether the records are of one load and their indices grow, or of none at all; and the load with the indices."""
    load_ids = {header.get(HEADER_LOAD) for header in headers}
    if not load_ids or load_ids == {None}:
        return True, None
    load_id = named(load_ids.pop())
    indices = [index for header in headers if (index := index_of(header.get(HEADER_INDEX))) is not None]
    if load_ids or load_id is None or len(indices) < len(headers):
        return False, None
    if any(before >= after for before, after in pairwise(indices)):
        return False, None
    return True, (load_id, indices)


def _events(
    lines: Lines, ids: Sequence[str], names: Sequence[str], columns: Sequence[str], places: Sequence[int]
) -> list[MarketEvent]:
    times, available = lines.integers["event_time"].tolist(), lines.integers["available_at"].tolist()
    revisions = lines.integers["revision"].tolist()
    values = [[None if value != value else value for value in lines.values[column].tolist()] for column in columns]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    return [
        MarketEvent(
            event_id=ids[place],
            instrument=names[place],
            event_time=times[place],
            available_at=available[place],
            revision=revisions[place],
            values=rows[place],
        )
        for place in places
    ]
