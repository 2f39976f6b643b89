"""What the services ask of a message broker, as Protocols and values.

Reading is by assignment and exact offsets: the journal of a run says where to go on, never the broker's own memory of a group.
What must stay true: nothing here creates a topic by asking for it; `next_offsets` moves over offsets that hold no record (markers
of transactions, compaction) as over records, so every offset is accounted for; a reader never jumps over a hole that retention
made, and never starts over silently. One conformance suite (`tests/conformance/test_broker.py`) runs against every implementation.
A crash leaves what was flushed in the topic; a record sent and not flushed may be there or not.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from domain.stream.record_columns import RecordColumns
from domain.stream.records import StreamRecord

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest record that a publisher sends and a source reads, key, value and headers together."""


class Marks(msgspec.Struct, frozen=True):
    """The offsets that a partition holds: `low` ≤ offset < `high`; equal means empty. `high` is safe to read."""

    low: int
    high: int


class Polled(msgspec.Struct, frozen=True):
    """Records by partition, in the order of their offsets, and how far each partition touched has now been read.

    `next_offsets` is the first offset not yet delivered; where it is beyond the last record plus one, or moves without a record,
    the offsets in between hold no record and never will.
    """

    columns: tuple[RecordColumns, ...]
    next_offsets: Mapping[int, int]

    def __len__(self) -> int:
        return sum(map(len, self.columns))

    @property
    def records(self) -> tuple[StreamRecord, ...]:
        """The records one by one."""
        return tuple(record for columns in self.columns for record in columns.records())


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic as the broker knows it. `settings` has every setting that the broker tells, defaults included."""

    name: str
    partitions: int
    settings: Mapping[str, str]


class RecordSource(Protocol):
    """Reads one topic. Used by one thread at a time; `close` may be called twice."""

    @property
    def partitions(self) -> int:
        """How many partitions the topic had when the source was opened; they are numbered from 0."""
        ...

    def identity(self) -> str:
        """What the broker calls the topic that has this name now: another, once it was deleted and made again.

        Empty if the broker gives topics no identity. Raises `BrokerUnavailableError`, `TopicMissingError`, both soon.
        """
        ...

    def marks(self) -> Mapping[int, Marks]:
        """The marks of every partition, asked of the broker now; a record whose flush has returned is below `high`.

        Raises `BrokerUnavailableError`, `TopicMissingError`, and `PartitionsChangedError` if the topic has since got more.
        """
        ...

    def assign(self, next_offsets: Mapping[int, int]) -> None:
        """Read on from exactly these offsets, one for each partition; what was assigned before is forgotten, pauses included.

        Raises `PartitionsChangedError` (other partitions than the topic's), `RecoveryBlockedError` (an offset below `low`:
        retention took it; above `high`: the broker lost data), `BrokerUnavailableError`, `TopicMissingError`.
        """
        ...

    def poll(self, limit: int, timeout_seconds: float) -> Polled:
        """At most `limit` records, as soon as there are any; empty after `timeout_seconds` without one.

        Raises `BrokerUnavailableError` (poll again: nothing is lost), `RecoveryBlockedError` when offsets to be read have gone,
        `PartitionsChangedError`, seen within some seconds, and `TopicMissingError`.
        """
        ...

    def pause(self, partitions: Iterable[int]) -> None:
        """Deliver nothing of these partitions until `resume`; what they have is not lost. Repeating it changes nothing."""
        ...

    def resume(self, partitions: Iterable[int]) -> None:
        """Deliver these partitions again, from the first record not delivered."""
        ...

    def close(self) -> None: ...


class Topics(Protocol):
    """The broker's topics. Everything raises `BrokerUnavailableError`, and `BrokerRefusedError` for what the broker won't do."""

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic and return when it can be used. Raises `TopicExistsError`."""
        ...

    def describe(self, name: str) -> TopicDescription | None:
        """The topic as it is now, or None if there is none; never creates it."""
        ...

    def delete(self, name: str) -> None:
        """Delete the topic with all its records. Raises `TopicMissingError`."""
        ...

    def add_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions, more than it has. Raises `TopicMissingError`."""
        ...


class Publisher(Protocol):
    """Sends records, each to the partition that the caller chose, in order and once each within the life of this publisher."""

    def send(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        """Queue a record; None is a tombstone. Waits while the bounded queue is full.

        Raises `BrokerUnavailableError` if it stays full, `BrokerRefusedError` for a record that is too large.
        """
        ...

    def flush(self, timeout_seconds: float) -> None:
        """Return when everything sent is acknowledged. Raises what failed since the last flush, the first of each: then some
        records may be missing, and the caller looks into the topic before it sends again."""
        ...

    def close(self) -> None:
        """Let go without waiting; what was not flushed may be lost."""
        ...


class Broker(Protocol):
    """A broker that can be reached under one address."""

    def topics(self) -> Topics: ...

    def source(self, topic: str) -> RecordSource:
        """A reader of a topic, nothing assigned. Raises `TopicMissingError`, `BrokerUnavailableError`."""
        ...

    def publisher(self) -> Publisher: ...

    def close(self) -> None:
        """Let go of what the broker object itself holds; sources and publishers are closed by who opened them."""
        ...
