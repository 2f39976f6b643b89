"""Reading from a broker when what comes is not what a reader hopes for: nothing is lost on the way to the caller."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from domain.stream.records import StreamRecord
from services.adapters import kafka_source
from services.adapters.kafka import KafkaBroker
from services.adapters.kafka_source import KafkaSource
from tests.support.brokers import RunningBroker
from tests.support.foreign_records import publish_with_header

SECONDS_MAX = 30.0


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[KafkaBroker]:
    made = KafkaBroker(broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def topic(client: KafkaBroker) -> str:
    """A fresh topic of two partitions."""
    name = f"source-{uuid4()}"
    client.topics().create(name, 2, {})
    return name


@pytest.fixture
def source(client: KafkaBroker, topic: str) -> Iterator[KafkaSource]:
    made = client.source(topic)
    made.assign({0: 0, 1: 0})
    yield made
    made.close()


def publish(client: KafkaBroker, topic: str, *records: tuple[int, bytes]) -> None:
    publisher = client.publisher()
    for partition, value in records:
        publisher.send(topic, partition, b"key", value, {"name": b"value"})
    publisher.flush(SECONDS_MAX)
    publisher.close()


def read(source: KafkaSource, count: int) -> list[StreamRecord]:
    """Poll until so many records have come, each offset with its record."""
    records: list[StreamRecord] = []
    while len(records) < count:
        polled = source.poll(500, SECONDS_MAX)
        assert polled.records, f"only {len(records)} came"
        records += polled.records
    return records


def test_what_broke_on_its_way_is_delivered_again(
    client: KafkaBroker, topic: str, source: KafkaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in which something breaks unexpectedly is not taken for offsets without records: the next poll has all of it.

    Pauses stay as they were.
    """
    publish(client, topic, *((n % 2, b"%d" % n) for n in range(20)))
    source.pause([1])
    fine = kafka_source._headers
    broken: list[int] = []

    def breaks_once(messages: Any) -> Any:
        if any(message.offset() == 5 for message in messages) and not broken:
            broken.append(1)
            raise RuntimeError("something broke")
        return fine(messages)

    monkeypatch.setattr(kafka_source, "_headers", breaks_once)
    with pytest.raises(RuntimeError):
        read(source, 10)
    records = read(source, 10)
    assert [(record.partition, record.offset) for record in records] == [(0, offset) for offset in range(10)]
    source.resume([1])
    assert [(record.partition, record.offset) for record in read(source, 10)] == [(1, offset) for offset in range(10)]


def test_a_header_whose_name_is_no_text_loses_no_record(
    broker: RunningBroker, client: KafkaBroker, topic: str, source: KafkaSource
) -> None:
    """The record comes without headers, and what stands around it is untouched."""
    publish(client, topic, (0, b"before"))
    publish_with_header(broker.bootstrap, topic, 0, b"key", b"foreign", b"\xff\xfe")
    publish(client, topic, (0, b"behind"))
    records = read(source, 3)
    assert [(record.offset, record.value) for record in records] == [(0, b"before"), (1, b"foreign"), (2, b"behind")]
    assert [dict(record.headers) for record in records] == [{"name": b"value"}, {}, {"name": b"value"}]


def test_of_headers_with_one_name_the_last_stands(
    broker: RunningBroker, client: KafkaBroker, topic: str, source: KafkaSource
) -> None:
    """As the writer of the last meant it; a header without a value has an empty one."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v", b"k", 0, headers=[("a", b"1"), ("b", None), ("a", b"2")])
    producer.flush(SECONDS_MAX)
    (record,) = read(source, 1)
    assert dict(record.headers) == {"a": b"2", "b": b""}
