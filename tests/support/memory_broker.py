"""A broker in memory: topics of offsets, some of which hold no record. It passes the same conformance suite as the real ones.

One process, no durability. What tests do to it: `delete_records` as retention does, `append_absent` as a transaction's marker does,
`compact` away records, `lose` the end of a partition as a broker that was not durable does, and switch `available` off and on.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from domain.stream.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicExistsError,
    TopicMissingError,
)
from domain.stream.record_columns import columns_of
from domain.stream.records import StreamRecord
from services.broker import RECORD_BYTES_MAX, Marks, Polled, TopicDescription

DEFAULTS = {"cleanup.policy": "delete", "max.message.bytes": "1048588", "retention.ms": "604800000"}


@dataclass
class Partition:
    """`slots[i]` is the record at offset `low + i`, or None where the log holds no record."""

    low: int = 0
    slots: list[StreamRecord | None] = field(default_factory=list)

    @property
    def high(self) -> int:
        return self.low + len(self.slots)


@dataclass
class Topic:
    settings: dict[str, str]
    partitions: list[Partition]
    identity: str


class MemoryBroker:
    """A `Broker` that is its own `Topics`. `available = False` makes everything raise `BrokerUnavailableError`."""

    def __init__(self) -> None:
        self.available = True
        self._topics: dict[str, Topic] = {}
        self._made = 0
        self._changed = threading.Condition()

    # ---------------------------------------------------------------- the port

    def topics(self) -> "MemoryBroker":
        return self

    def source(self, topic: str) -> "MemorySource":
        with self._changed:
            return MemorySource(self, topic, len(self.topic(topic).partitions))

    def publisher(self) -> "MemoryPublisher":
        return MemoryPublisher(self)

    def close(self) -> None:
        pass

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        with self._changed:
            self._check()
            if name in self._topics:
                raise TopicExistsError("the topic exists already", at=name)
            if partitions < 1:
                raise BrokerRefusedError("a topic has at least one partition", at=name)
            if unknown := sorted(set(settings) - set(DEFAULTS)):
                raise BrokerRefusedError(f"unknown settings: {', '.join(unknown)}", at=name)
            made = [Partition() for _ in range(partitions)]
            self._made += 1  # two processes that make the same topics in the same order have the same ones
            self._topics[name] = Topic({**DEFAULTS, **settings}, made, f"{name} {self._made}")

    def describe(self, name: str) -> TopicDescription | None:
        with self._changed:
            self._check()
            topic = self._topics.get(name)
            return None if topic is None else TopicDescription(name, len(topic.partitions), dict(topic.settings))

    def delete(self, name: str) -> None:
        with self._changed:
            self.topic(name)
            del self._topics[name]
            self._changed.notify_all()

    def add_partitions(self, name: str, total: int) -> None:
        with self._changed:
            topic = self.topic(name)
            if total <= len(topic.partitions):
                raise BrokerRefusedError("partitions can only be added", at=name)
            topic.partitions += [Partition() for _ in range(total - len(topic.partitions))]
            self._changed.notify_all()

    # ---------------------------------------------------------------- what tests do to it

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove all offsets below `before`, as retention does."""
        with self._changed:
            held = self._topics[topic].partitions[partition]
            assert held.low <= before <= held.high
            del held.slots[: before - held.low]
            held.low = before
            self._changed.notify_all()

    def append_absent(self, topic: str, partition: int, count: int = 1) -> None:
        """Let the next `count` offsets hold no record, as the marker of a transaction does."""
        with self._changed:
            self._topics[topic].partitions[partition].slots += [None] * count
            self._changed.notify_all()

    def compact(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        """Let these offsets hold no record any more."""
        with self._changed:
            held = self._topics[topic].partitions[partition]
            for offset in offsets:
                held.slots[offset - held.low] = None

    def lose(self, topic: str, partition: int, high: int) -> None:
        """Forget all offsets from `high` on, as a broker that was not durable does after a crash."""
        with self._changed:
            held = self._topics[topic].partitions[partition]
            del held.slots[high - held.low :]

    # ---------------------------------------------------------------- inside

    def _check(self) -> None:
        if not self.available:
            raise BrokerUnavailableError("the broker in memory is switched off")

    def topic(self, name: str) -> Topic:
        self._check()
        if name not in self._topics:
            raise TopicMissingError("there is no such topic", at=name, expected="a topic that was created")
        return self._topics[name]

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        with self._changed:
            partitions = self.topic(topic).partitions
            if not 0 <= partition < len(partitions):
                raise BrokerRefusedError("there is no such partition", at=f"{topic}, partition {partition}")
            held = partitions[partition]
            record = StreamRecord(partition=partition, offset=held.high, key=key, value=value, headers=dict(headers))
            held.slots.append(record)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for any change, the lock held by the caller and let go meanwhile."""
        self._changed.wait(seconds)

    @property
    def lock(self) -> threading.Condition:
        return self._changed


class MemorySource:
    """A `RecordSource` of a `MemoryBroker`. It takes turns between partitions."""

    def __init__(self, broker: MemoryBroker, topic: str, partitions: int) -> None:
        self.partitions = partitions
        self._broker = broker
        self._topic = topic
        self._next: dict[int, int] = {}
        self._paused: set[int] = set()
        self._turn = 0

    def marks(self) -> Mapping[int, Marks]:
        with self._broker.lock:
            return {number: Marks(held.low, held.high) for number, held in enumerate(self._held())}

    def identity(self) -> str:
        with self._broker.lock:
            return self._broker.topic(self._topic).identity

    def assign(self, next_offsets: Mapping[int, int]) -> None:
        with self._broker.lock:
            held = self._held()
            if set(next_offsets) != set(range(self.partitions)):
                raise PartitionsChangedError(
                    "other partitions than the topic's", at=self._topic, expected=f"{self.partitions} partitions"
                )
            for partition, offset in next_offsets.items():
                self._check_kept(held[partition], partition, offset)
            self._next = dict(next_offsets)
            self._paused.clear()

    def poll(self, limit: int, timeout_seconds: float) -> Polled:
        deadline = time.monotonic() + timeout_seconds
        with self._broker.lock:
            while not (polled := self._delivered(limit)).next_offsets:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._broker.wait(left)
            return polled

    def pause(self, partitions: Iterable[int]) -> None:
        self._paused |= set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        self._paused -= set(partitions)

    def close(self) -> None:
        self._next = {}

    # ---------------------------------------------------------------- inside

    def _held(self) -> list[Partition]:
        held = self._broker.topic(self._topic).partitions
        if len(held) != self.partitions:
            raise PartitionsChangedError(
                f"the topic has {len(held)} partitions now", at=self._topic, expected=f"{self.partitions} partitions"
            )
        return held

    def _check_kept(self, held: Partition, partition: int, offset: int) -> None:
        at = f"{self._topic}, partition {partition}, offset {offset}"
        if offset < held.low:
            raise RecoveryBlockedError("retention has removed it", at=at, expected=f"at least {held.low}")
        if offset > held.high:
            raise RecoveryBlockedError("the broker has lost data", at=at, expected=f"at most {held.high}")

    def _delivered(self, limit: int) -> Polled:
        held = self._held()
        records: list[StreamRecord] = []
        moved: dict[int, int] = {}
        self._turn += 1
        for step in range(self.partitions):
            partition = (self._turn + step) % self.partitions
            if partition not in self._next or partition in self._paused or len(records) >= limit:
                continue
            self._check_kept(held[partition], partition, self._next[partition])
            offset = self._take(held[partition], self._next[partition], limit, records)
            if offset != self._next[partition]:
                moved[partition] = self._next[partition] = offset
        return Polled(columns_of(records), moved)

    def _take(self, held: Partition, offset: int, limit: int, records: list[StreamRecord]) -> int:
        while offset < held.high and len(records) < limit:
            record = held.slots[offset - held.low]
            offset += 1
            if record is not None:
                records.append(record)
        return offset


class MemoryPublisher:
    """A `Publisher` to a `MemoryBroker`: what is sent is in the topic at once; what fails is raised by `flush`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._failed: list[Exception] = []

    def send(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        size = len(key) + len(value or b"") + sum(len(name) + len(text) for name, text in headers.items())
        if size > RECORD_BYTES_MAX:
            raise BrokerRefusedError("the record is too large", at=topic, expected=f"at most {RECORD_BYTES_MAX} bytes")
        if self._broker.available:
            with self._broker.lock:
                self._broker.topic(topic)
        try:
            self._broker.append(topic, partition, key, value, headers)
        except (BrokerUnavailableError, BrokerRefusedError, TopicMissingError) as error:
            self._failed.append(error)

    def flush(self, timeout_seconds: float) -> None:
        failed, self._failed = self._failed, []
        if failed:
            raise failed[0]

    def close(self) -> None:
        pass
