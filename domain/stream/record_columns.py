"""Records of one partition by column: how a poll hands them over, and how the worker takes them where they are plain.

What must stay true: `record` gives the same record that stood there. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from domain.stream.records import StreamRecord


class RecordColumns(msgspec.Struct, frozen=True, gc=False):
    """Records in the order of their offsets; `headers` have the last value of each name, None for one without a value."""

    partition: int
    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Mapping[str, bytes | None]]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def value_bytes(self) -> int:
        """Bytes of all values."""
        return sum(map(len, filter(None, self.values)))

    def record(self, place: int) -> StreamRecord:
        """One record; a header without a value has an empty one."""
        headers: Any = self.headers[place]
        if None in headers.values():
            headers = {name: value or b"" for name, value in headers.items()}
        return StreamRecord(
            partition=self.partition,
            offset=self.offsets[place],
            key=self.keys[place],
            value=self.values[place],
            headers=headers,
        )

    def records(self) -> list[StreamRecord]:
        """All of them."""
        return [self.record(place) for place in range(len(self))]

    def rows(self, start: int, end: int) -> "RecordColumns":
        """Some of the records."""
        part = slice(start, end)
        return RecordColumns(self.partition, self.offsets[part], self.keys[part], self.values[part], self.headers[part])


def columns_of(records: Iterable[StreamRecord]) -> tuple[RecordColumns, ...]:
    """The records by partition, the order within each kept."""
    by_partition: dict[int, list[StreamRecord]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(record)
    return tuple(
        RecordColumns(
            partition,
            [record.offset for record in mine],
            [record.key for record in mine],
            [record.value for record in mine],
            [record.headers for record in mine],
        )
        for partition, mine in by_partition.items()
    )
