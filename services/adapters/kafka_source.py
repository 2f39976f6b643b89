"""Reading one topic of a Kafka broker by assignment and exact offsets.

What must stay true: every offset is delivered or shown to hold no record, in order within its partition: where the log ends in
offsets without a record (markers of transactions, compaction), the client's end-of-partition event tells how far it has read.
Offsets that are gone are an error, never a jump (`auto.offset.reset` is `error`); nothing is committed to the broker. An error that
comes behind records is raised by the next `poll`, so that the records before it are not lost. A crash leaves nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from domain.errors import FinazError
from domain.stream.errors import (
    BrokerUnavailableError,
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicMissingError,
)
from domain.stream.record_columns import RecordColumns
from services.adapters.kafka_errors import LOG, typed, typed_errors
from services.adapters.kafka_topics import KafkaTopics
from services.broker import Marks, Polled

BATCH_RECORDS_MAX: Final = 2000
"""Records taken from the client at once: several times as fast as one by one, and short enough to stop in between."""

PREFETCH_KIBIBYTES_MAX: Final = 64 * 1024
"""What the client may hold ready, in KiB; a single record may be larger."""

PARTITIONS_LOOK_SECONDS: Final = 5.0
"""How often a reader looks whether the topic has got more partitions."""

PATIENCE_SECONDS: Final = 3.0
"""How long no broker may be reachable before `poll` says so; the client reconnects by itself meanwhile."""

PROBE_SECONDS_MAX: Final = 1.0
"""How long `poll` may take longer than it was told, to ask whether the broker is there."""

READING: Final = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "isolation.level": "read_committed",
    "check.crcs": True,
    "fetch.queue.backoff.ms": 10,  # the default of 1000 costs a factor of five
    "fetch.wait.max.ms": 100,  # a new assignment waits behind a fetch that waits at the broker
    "queued.max.messages.kbytes": PREFETCH_KIBIBYTES_MAX,
}
"""How every reader reads, whatever else is set."""


class KafkaSource:
    """A `RecordSource` of one topic. Used by one thread at a time."""

    def __init__(
        self,
        topic: str,
        settings: Mapping[str, Any],
        topics: KafkaTopics,
        *,
        partitions_look_seconds: float = PARTITIONS_LOOK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._topic = topic
        self._topics = topics
        self._look_seconds = partitions_look_seconds
        self._patience = patience_seconds
        self._next: dict[int, int] = {}
        self._paused: set[int] = set()
        self._pending: FinazError | None = None
        self._broken = False
        self._down_since: float | None = None
        self._looked_at = time.monotonic()
        self._missed = False
        self.partitions = self._partitions_now()
        with typed_errors(topic):
            self._consumer: Consumer | None = Consumer({**settings, **READING, "error_cb": self._heard}, logger=LOG)

    # ---------------------------------------------------------------- the port

    def marks(self) -> Mapping[int, Marks]:
        """The marks of every partition; `high` is the end of what is committed, behind which open transactions may stand."""
        self._check_partitions()
        return self._topics.marks(self._topic, self.partitions)

    def identity(self) -> str:
        """The id of the topic that has the name now."""
        return self._topics.identity_of(self._topic, PROBE_SECONDS_MAX)

    def assign(self, next_offsets: Mapping[int, int]) -> None:
        """Read on from exactly these offsets."""
        if set(next_offsets) != set(range(self.partitions)):
            raise PartitionsChangedError(
                f"offsets are given for partitions {sorted(next_offsets)}",
                at=self._topic,
                expected=f"one for each of the topic's {self.partitions} partitions",
            )
        marks = self.marks()
        for number, offset in next_offsets.items():
            self._check_kept(number, offset, marks[number])
        self._next = dict(next_offsets)
        self._paused.clear()
        self._pending = None
        self._assign()
        self._broken = False

    def poll(self, limit: int, timeout_seconds: float) -> Polled:
        """At most `limit` records (and at most `BATCH_RECORDS_MAX`), as soon as there are any."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending
        self._look_at_partitions()
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            polled = self._delivered(min(limit, BATCH_RECORDS_MAX), left)
            if polled is None:
                self._check_reachable()
                return Polled((), {})
            if polled.next_offsets or left == 0:
                return polled

    def pause(self, partitions: Iterable[int]) -> None:
        """Deliver nothing of these partitions; what the client has ready of them is dropped and fetched again later."""
        self._switch(set(partitions) - self._paused, self._open().pause)
        self._paused |= set(partitions)

    def resume(self, partitions: Iterable[int]) -> None:
        """Deliver these partitions again, from the first record not delivered."""
        again = self._paused & set(partitions)
        self._switch(again, self._open().resume)
        self._paused -= again

    def close(self) -> None:
        """End the client; what it has ready is dropped."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # ---------------------------------------------------------------- records

    def _delivered(self, limit: int, timeout_seconds: float) -> Polled | None:
        """What came in time; None if nothing did.

        The client counts what it has handed over as read. If that breaks on its way to the caller, reading goes back to where the
        caller is; else those offsets would look as if they held no record.
        """
        if self._broken:
            self._assign()
        self._broken = True
        messages = self._messages(limit, timeout_seconds)
        polled = self._polled(messages)
        self._broken = False
        return polled if messages else None

    def _assign(self) -> None:
        """Let the client read from where the caller is, with the caller's pauses."""
        places = [TopicPartition(self._topic, number, offset) for number, offset in self._next.items()]
        paused = [place for place in places if place.partition in self._paused]
        with typed_errors(self._topic):
            self._open().assign(places)
            self._open().resume(places)
            if paused:
                self._open().pause(paused)

    def _messages(self, limit: int, timeout_seconds: float) -> list[Message]:
        """What is ready at once; if nothing is, the first that comes in time and what came with it.

        Asking for many with a time-out would wait for all of them.
        """
        consumer = self._open()
        with typed_errors(self._topic):
            ready = consumer.consume(limit, 0)
            if ready:
                return ready
            first = consumer.poll(timeout_seconds)
            if first is None:
                return []
            return [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]

    def _polled(self, messages: list[Message]) -> Polled:
        """Where every record passes: as little as can be is done for each."""
        records = [message for message in messages if message.error() is None]
        others = () if len(records) == len(messages) else [one for one in messages if one.error() is not None]
        columns = _columns(records)
        moved = {mine.partition: mine.offsets[-1] + 1 for mine in columns}
        failure: FinazError | None = None
        for message in others:
            error: KafkaError = message.error()  # type: ignore[assignment]
            partition: int = message.partition()  # type: ignore[assignment]
            if error.code() != KafkaError._PARTITION_EOF:
                failure = failure or self._failure(partition, error)
                continue
            end: int = message.offset()  # type: ignore[assignment]
            if end > moved.get(partition, self._next.get(partition, end)):
                moved[partition] = end
        self._next.update(moved)
        if moved:
            self._down_since = None
            self._pending = failure
        elif failure is not None:
            raise failure
        return Polled(columns, moved)

    def _failure(self, partition: int | None, error: KafkaError) -> FinazError:
        if partition is None or partition < 0:
            return typed(error, self._topic)
        return typed(error, f"{self._topic}, partition {partition}, offset {self._next.get(partition)}")

    def _switch(self, partitions: set[int], how: Callable[[list[TopicPartition]], None]) -> None:
        if partitions:
            with typed_errors(self._topic):
                how([TopicPartition(self._topic, number) for number in sorted(partitions)])

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise BrokerUnavailableError("this reader was closed", at=self._topic, expected="a new one")
        return self._consumer

    # ---------------------------------------------------------------- what can be wrong

    def _heard(self, error: KafkaError) -> None:
        """The client's word on the connection, given inside `poll`, many times in an outage; it goes on trying by itself."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()
            LOG.warning("no broker can be reached: %s", error.str())

    def _check_reachable(self) -> None:
        """After an empty poll: tell silence from a broker that is away."""
        if self._down_since is not None and time.monotonic() - self._down_since >= self._patience:
            self._topics.reach(PROBE_SECONDS_MAX)
            self._down_since = None

    def _check_kept(self, number: int, offset: int, marks: Marks) -> None:
        at = f"{self._topic}, partition {number}, offset {offset}"
        if offset < marks.low:
            raise RecoveryBlockedError(
                "the broker no longer has it: its retention removed it",
                at=at,
                expected=f"an offset from {marks.low} on",
            )
        if offset > marks.high:
            raise RecoveryBlockedError(
                "it is beyond the end of the log: the broker lost data", at=at, expected=f"an offset up to {marks.high}"
            )

    def _look_at_partitions(self) -> None:
        """Now and then, and not while the broker is known to be away; one that does not answer may be.

        A topic is taken for deleted at the second look in a row: a broker that has just started may not know it yet.
        """
        now = time.monotonic()
        if self._down_since is not None or now - self._looked_at < self._look_seconds:
            return
        self._looked_at = now
        try:
            self._check_partitions(PROBE_SECONDS_MAX)
            self._missed = False
        except BrokerUnavailableError:
            self._down_since = now
        except TopicMissingError:
            if self._missed:
                raise
            self._missed = True

    def _check_partitions(self, timeout_seconds: float | None = None) -> None:
        found = self._partitions_now(timeout_seconds)
        if found != self.partitions:
            raise PartitionsChangedError(
                f"the topic has {found} partitions now", at=self._topic, expected=f"{self.partitions} partitions"
            )

    def _partitions_now(self, timeout_seconds: float | None = None) -> int:
        found = self._topics.partitions_of(self._topic, timeout_seconds)
        if found is None:
            raise TopicMissingError("there is no such topic", at=self._topic, expected="a topic that was created")
        return found


def _columns(messages: Sequence[Message]) -> tuple[RecordColumns, ...]:
    """The records of messages that are such, by partition."""
    partitions: list[int] = [message.partition() for message in messages]  # type: ignore[misc]
    numbers = sorted(set(partitions))
    found = []
    for number in numbers:
        mine = messages
        if len(numbers) > 1:
            mine = [message for message, partition in zip(messages, partitions, strict=True) if partition == number]
        found.append(
            RecordColumns(
                number,
                [message.offset() for message in mine],  # type: ignore[misc]
                [message.key() for message in mine],
                [message.value() for message in mine],
                _headers(mine),
            )
        )
    return tuple(found)


def _headers(messages: Sequence[Message]) -> Sequence[Mapping[str, bytes | None]]:
    """The headers of each: of those with one name the last stands.

    Where a name is no UTF-8 the client gives none of them: then the record has none, and is judged by its key and value. The client
    must not be asked a second time for what it could not give: it has freed it.
    """
    found: list[Mapping[str, bytes | None]] = []
    for message in messages:
        try:
            found.append(dict(message.headers() or ()))  # type: ignore[arg-type]
        except (SystemError, UnicodeDecodeError):
            place = f"partition {message.partition()}, offset {message.offset()}"
            LOG.warning("HEADERS [%s] left out of a record, since a name is no text: %s", message.topic(), place)
            found.append({})
    return found
