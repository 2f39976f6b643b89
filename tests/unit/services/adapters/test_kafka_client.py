"""The limits of the Kafka client's adapter, and what its errors become; no broker is needed for these."""

import logging

import pytest
from confluent_kafka import KafkaError

from domain.errors import FinazError
from domain.stream.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicExistsError,
    TopicMissingError,
)
from services.adapters.kafka import KafkaBroker
from services.adapters.kafka_errors import MATTERS_MAX, REPEAT_SECONDS, Repeats, typed
from services.adapters.kafka_publisher import FAILURES_KEPT_MAX, KafkaPublisher
from services.broker import RECORD_BYTES_MAX

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000}
"""An address at which no broker ever listens."""


def publisher(**limits: float) -> KafkaPublisher:
    """A publisher that finds the topic `t` of one partition, and nobody to send to."""
    return KafkaPublisher(NOBODY, lambda topic: 1 if topic == "t" else None, **limits)  # type: ignore[arg-type]


def test_a_full_queue_makes_the_sender_wait_and_then_says_so() -> None:
    """The queue is bounded; a sender waits for a place, and gives up with a typed error after its limit."""
    sending = publisher(queue_records_max=5, queue_wait_seconds_max=0.2)
    for _ in range(5):
        sending.send("t", 0, b"key", b"value", {})
    with pytest.raises(BrokerUnavailableError, match="queue"):
        sending.send("t", 0, b"key", b"value", {})
    sending.close()


def test_a_flush_raises_what_failed_and_counts_it() -> None:
    """However many records fail, few errors are kept, all are counted, and the next flush starts from nothing."""
    sending = publisher(delivery_seconds_max=1.0)
    count = FAILURES_KEPT_MAX + 3
    for _ in range(count):
        sending.send("t", 0, b"key", b"value", {})
    with pytest.raises(BrokerUnavailableError) as failed:
        sending.flush(30)
    assert failed.value.context["records_failed"] == count
    sending.flush(1)
    sending.close()


def test_a_flush_that_is_not_done_in_time_says_how_much_is_left() -> None:
    """It never returns as if all were acknowledged."""
    sending = publisher()
    sending.send("t", 0, b"key", b"value", {})
    with pytest.raises(BrokerUnavailableError) as late:
        sending.flush(0.05)
    assert late.value.context["records_left"] == 1
    sending.close()


def test_what_cannot_be_sent_is_refused_before_it_is_queued() -> None:
    """A topic that isn't there, a partition that isn't there, a record beyond the limit, headers included."""
    sending = publisher()
    with pytest.raises(TopicMissingError):
        sending.send("u", 0, b"key", b"value", {})
    for partition in (-1, 1):
        with pytest.raises(PartitionsChangedError):
            sending.send("t", partition, b"key", b"value", {})
    with pytest.raises(BrokerRefusedError):
        sending.send("t", 0, b"key", bytes(RECORD_BYTES_MAX - 4), {"h": b"v"})
    sending.flush(0)
    sending.close()


def test_a_broker_that_is_not_there_is_unavailable_within_the_limit() -> None:
    """Everything that needs an answer says so; making the broker object asks nothing yet."""
    broker = KafkaBroker("127.0.0.1:1", request_seconds_max=0.3)
    topics = broker.topics()
    for ask in (
        lambda: broker.source("t"),
        lambda: topics.describe("t"),
        lambda: topics.create("t", 1, {}),
        lambda: topics.delete("t"),
        lambda: topics.add_partitions("t", 2),
    ):
        with pytest.raises(BrokerUnavailableError):
            ask()
    broker.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailableError),
        (KafkaError._TRANSPORT, BrokerUnavailableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, BrokerUnavailableError),
        (KafkaError.UNKNOWN, BrokerUnavailableError),
        (KafkaError._AUTO_OFFSET_RESET, RecoveryBlockedError),
        (KafkaError.OFFSET_OUT_OF_RANGE, RecoveryBlockedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissingError),
        (KafkaError._UNKNOWN_PARTITION, PartitionsChangedError),
        (KafkaError.TOPIC_ALREADY_EXISTS, TopicExistsError),
        (KafkaError.MSG_SIZE_TOO_LARGE, BrokerRefusedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerRefusedError),
    ],
)
def test_the_clients_errors_become_ours(code: int, error: type[FinazError]) -> None:
    """Each kind is told apart; what is not known to be final is taken for an outage, which somebody retries."""
    found = typed(KafkaError(code), "here")
    assert type(found) is error
    assert found.at == "here"


def test_an_outage_does_not_fill_the_log() -> None:
    """One line per client and matter within the time; others pass, and what is remembered is bounded."""
    now = [0.0]
    repeats = Repeats(lambda: now[0])

    def passes(text: str) -> bool:
        return repeats.filter(logging.LogRecord("finaz.kafka", logging.ERROR, "", 0, text, None, None))

    line = "FAIL [finaz#consumer-1] [thrd:x]: refused after 0 ms"
    assert passes(line)
    assert not passes(line.replace("0 ms", "1 ms"))
    assert passes(line.replace("consumer-1", "consumer-2"))
    now[0] = REPEAT_SECONDS
    assert passes(line)
    for number in range(2 * MATTERS_MAX):
        assert passes(f"FAIL [client-{number}] refused")
        assert len(repeats._passed) <= MATTERS_MAX
