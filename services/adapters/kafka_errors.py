"""What a Kafka client reports, as our own errors: nothing of the client's leaves the adapters.

What must stay true: an error says whether asking again can help. Not known to be final means unavailable: a retry is bounded by
whoever retries, while an end that was not one loses work. Nothing is kept, so a crash leaves nothing.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from domain.errors import FinazError
from domain.stream.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicExistsError,
    TopicMissingError,
)

LOG: Final = logging.getLogger("finaz.kafka")
"""Where the client's own log lines go; by itself it would write them to standard error."""

REPEAT_SECONDS: Final = 30.0
"""How long further lines of one client on one matter are left out: in an outage it has several to say every second."""

MATTERS_MAX: Final = 256
"""Matters of which the last line is remembered; beyond, all are forgotten."""


class Repeats(logging.Filter):
    """Lets one line per client and matter pass (`FAIL [finaz#consumer-1] …`) and leaves out what follows it soon."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        matter, now = record.getMessage().partition("]")[0], self._clock()
        if now - self._passed.get(matter, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        if len(self._passed) >= MATTERS_MAX:
            self._passed.clear()
        self._passed[matter] = now
        return True


LOG.addFilter(Repeats())

_MISSING: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID}
_BLOCKED: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._NO_OFFSET}
_REFUSED: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._INVALID_ARG,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REQUEST,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
}


def typed(error: KafkaError, at: str) -> FinazError:
    """Our error for the client's; `at` is the topic, partition or address that it concerns."""
    code, text = error.code(), f"{error.name()}: {error.str()}"
    if code in _MISSING:
        return TopicMissingError(text, at=at, expected="a topic that was created")
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return TopicExistsError(text, at=at)
    if code in _BLOCKED:
        return RecoveryBlockedError(text, at=at, expected="an offset that the broker still has")
    if code == KafkaError._UNKNOWN_PARTITION:
        return PartitionsChangedError(text, at=at)
    if code in _REFUSED:
        return BrokerRefusedError(text, at=at)
    return BrokerUnavailableError(text, at=at)


def is_refusal(error: KafkaError) -> bool:
    """Whether asking again changes nothing."""
    return error.code() in _REFUSED


@contextmanager
def typed_errors(at: str) -> Iterator[None]:
    """Raise our errors instead of the client's."""
    try:
        yield
    except KafkaException as error:
        raise typed(error.args[0], at) from error
