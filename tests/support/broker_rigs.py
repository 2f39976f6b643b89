"""What the conformance suite and fault tests do to a broker besides reading and publishing, for each kind of broker alike."""

import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import uuid4

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from services.adapters.kafka import KafkaBroker
from services.broker import Broker
from tests.support.memory_broker import MemoryBroker

ADMIN_SECONDS = 20


class Rig(Protocol):
    """A broker and how to disturb it."""

    @property
    def broker(self) -> Broker: ...

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove all offsets below `before`."""
        ...

    def transaction(self, topic: str, partition: int, values: Sequence[bytes], *, commit: bool) -> None:
        """Publish values in one transaction: its marker takes an offset that holds no record, and an aborted one's values too."""
        ...


class MemoryRig:
    """A `MemoryBroker`."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self.broker.delete_records(topic, partition, before)

    def transaction(self, topic: str, partition: int, values: Sequence[bytes], *, commit: bool) -> None:
        if not commit:
            self.broker.append_absent(topic, partition, len(values) + 1)
            return
        for value in values:
            self.broker.append(topic, partition, b"key", value, {})
        self.broker.append_absent(topic, partition)


class KafkaRig:
    """A broker that speaks Kafka's protocol."""

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self.bootstrap = bootstrap
        self.broker = KafkaBroker(bootstrap, partitions_look_seconds=0.0, **options)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        place = TopicPartition(topic, partition, before)
        client.delete_records([place])[place].result(ADMIN_SECONDS)

    def transaction(self, topic: str, partition: int, values: Sequence[bytes], *, commit: bool) -> None:
        source = self.broker.source(topic)
        before = source.marks()[partition].high
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"test-{uuid4()}"})
        producer.init_transactions(ADMIN_SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, b"key", partition)
        producer.flush(ADMIN_SECONDS)
        (producer.commit_transaction if commit else producer.abort_transaction)(ADMIN_SECONDS)
        deadline = time.monotonic() + ADMIN_SECONDS  # the broker answers before its markers are written
        while source.marks()[partition].high < before + len(values) + 1:
            assert time.monotonic() < deadline, "the transaction's marker is not written"
            time.sleep(0.01)
        source.close()
