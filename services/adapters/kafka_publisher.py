"""Sending records to a Kafka broker: idempotent, in order within a partition, each to the partition that the caller chose.

What must stay true: nothing is reported as sent that the broker did not acknowledge (`acks=all`); a record is in the log once
however often the client repeats it; the queue is bounded, and a full one makes the sender wait instead of fail. A crash of this
process leaves a prefix of what was sent in each partition: whoever publishes on looks for the last record of each.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from domain.errors import FinazError
from domain.stream.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    PartitionsChangedError,
    TopicMissingError,
)
from services.adapters.kafka_errors import LOG, typed, typed_errors
from services.broker import RECORD_BYTES_MAX

QUEUE_RECORDS_MAX: Final = 100_000
"""Records sent and not yet acknowledged, at most."""

QUEUE_KIBIBYTES_MAX: Final = 64 * 1024
"""KiB of records sent and not yet acknowledged, at most."""

QUEUE_WAIT_SECONDS_MAX: Final = 60.0
"""How long `send` waits while the queue is full."""

DELIVERY_SECONDS_MAX: Final = 120.0
"""How long the client repeats a record before it gives it up: longer than a broker takes to come back."""

FAILURES_KEPT_MAX: Final = 10
"""Failed records of which the error is kept until the next flush; the others are only counted."""

ATTEND_EVERY_RECORDS: Final = 500
"""How often `send` lets the client report."""

_FRAME_BYTES_MAX: Final = 64 * 1024
"""What the protocol adds to a record, at most."""


class KafkaPublisher:
    """A `Publisher`. Used by one thread at a time. After a failure was raised, make another one."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        partitions_of: Callable[[str], int | None],
        *,
        queue_records_max: int = QUEUE_RECORDS_MAX,
        queue_wait_seconds_max: float = QUEUE_WAIT_SECONDS_MAX,
        delivery_seconds_max: float = DELIVERY_SECONDS_MAX,
    ) -> None:
        self._partitions_of = partitions_of
        self._wait = queue_wait_seconds_max
        self._partitions: dict[str, int] = {}
        self._failures: list[FinazError] = []
        self._failed = 0
        self._sent = 0
        with typed_errors(settings["bootstrap.servers"]):
            self._producer = Producer(
                {
                    **settings,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 5,
                    "message.max.bytes": RECORD_BYTES_MAX + _FRAME_BYTES_MAX,
                    "queue.buffering.max.messages": queue_records_max,
                    "queue.buffering.max.kbytes": QUEUE_KIBIBYTES_MAX,
                    "delivery.timeout.ms": int(delivery_seconds_max * 1000),
                    "delivery.report.only.error": True,
                },
                logger=LOG,
            )

    def send(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        """Queue a record. The first to a topic asks whether the topic exists, since a broker might create it otherwise."""
        self._check(topic, partition, key, value, headers)
        deadline = 0.0
        while True:
            try:
                self._producer.produce(
                    topic,
                    value=value,
                    key=key,
                    partition=partition,
                    headers=list(headers.items()),
                    on_delivery=self._ended,
                )
                break
            except BufferError:
                deadline = deadline or time.monotonic() + self._wait
                if time.monotonic() >= deadline:
                    raise BrokerUnavailableError(
                        "the queue of records stays full: the broker takes none",
                        at=topic,
                        expected=f"a place within {self._wait:g} seconds",
                    ) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                raise typed(error.args[0], f"{topic}, partition {partition}") from error
        self._sent += 1
        if self._sent % ATTEND_EVERY_RECORDS == 0:
            self._producer.poll(0)

    def flush(self, timeout_seconds: float) -> None:
        """Return when everything sent is acknowledged; raise what failed, with how many did."""
        left = self._producer.flush(timeout_seconds)
        if self._failed:
            failures, failed = self._failures, self._failed
            self._failures, self._failed = [], 0
            first = failures[0]
            raise type(first)(f"{failed} records failed; the first: {first.detail}", at=first.at, records_failed=failed)
        if left:
            raise BrokerUnavailableError(
                f"{left} records are not acknowledged after {timeout_seconds:g} seconds", records_left=left
            )

    def close(self) -> None:
        """Drop what was not flushed and let go of the client."""
        self._producer.purge()
        self._producer.flush(0)

    def _check(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        if topic not in self._partitions:
            found = self._partitions_of(topic)
            if found is None:
                raise TopicMissingError("there is no such topic", at=topic, expected="a topic that was created")
            self._partitions[topic] = found
        if not 0 <= partition < self._partitions[topic]:
            raise PartitionsChangedError(
                f"there is no partition {partition}", at=topic, expected=f"below {self._partitions[topic]}"
            )
        size = len(key) + len(value or b"") + sum(len(name) + len(text) for name, text in headers.items())
        if size > RECORD_BYTES_MAX:
            raise BrokerRefusedError(
                f"a record of {size} bytes is too large", at=topic, expected=f"at most {RECORD_BYTES_MAX} bytes"
            )

    def _ended(self, error: KafkaError | None, message: Message) -> None:
        """The client's report of a record that failed; those that succeeded are not reported."""
        if error is None:
            return
        self._failed += 1
        if len(self._failures) < FAILURES_KEPT_MAX:
            self._failures.append(typed(error, f"{message.topic()}, partition {message.partition()}"))
