"""The topics of a Kafka broker: created, described, extended and deleted by name, never by asking for their metadata.

Brokers may create a topic because somebody asked for its metadata; so whether it exists is read from the list of all topics.
What must stay true: a topic that `create` or `add_partitions` returned can be written and read at once, every partition having a
leader. A crash half-way leaves a topic created or not; `describe` tells.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in words that mypy counts
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from domain.stream.errors import BrokerRefusedError, BrokerUnavailableError, TopicMissingError
from services.adapters.kafka_errors import LOG, is_refusal, typed, typed_errors
from services.broker import Marks, TopicDescription

LOOK_SECONDS: Final = 0.05
"""Between two looks at the list of topics while waiting for a change to be there."""

REFUSAL_SECONDS: Final = 0.5
"""How long a request waits before it looks whether the broker refuses us; the client itself would try on for all of its time."""

REPLICAS_OF_BROKER: Final = -1
"""As many copies as the broker's own default says."""

_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_PASSING: Final = {
    KafkaError._NOENT,
    KafkaError._TRANSPORT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What is said while partitions are moving or new, or a connection is: asked again a moment later, it is known better."""


class KafkaTopics:
    """`Topics` of the broker at `bootstrap`. May be used from any thread. Each request ends within `timeout_seconds`."""

    def __init__(self, bootstrap: str, settings: Callable[[], Mapping[str, Any]], timeout_seconds: float) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._refusal: KafkaError | None = None
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic and return when each of its partitions has a leader."""
        topic = NewTopic(name, partitions, REPLICAS_OF_BROKER, config=dict(settings))
        self._done(name, lambda client: client.create_topics([topic], request_timeout=self._timeout)[name])
        self._wait(name, lambda: self._led(name) == partitions)

    def describe(self, name: str) -> TopicDescription | None:
        """The topic as it is now, or None if there is none."""
        partitions = self.partitions_of(name)
        if partitions is None:
            return None
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            found = self._done(
                name, lambda client: client.describe_configs([resource], request_timeout=self._timeout)[resource]
            )
        except TopicMissingError:  # it went in between
            return None
        settings = {key: entry.value for key, entry in found.items() if entry.value is not None}
        return TopicDescription(name, partitions, settings)

    def delete(self, name: str) -> None:
        """Delete the topic and return when it is gone from the list."""
        self._done(name, lambda client: client.delete_topics([name], request_timeout=self._timeout)[name])
        self._wait(name, lambda: self.partitions_of(name) is None)

    def add_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions and return when each has a leader."""
        if self.partitions_of(name) is None:
            raise TopicMissingError("there is no such topic", at=name, expected="a topic that was created")
        wanted = [NewPartitions(name, total)]
        self._done(name, lambda client: client.create_partitions(wanted, request_timeout=self._timeout)[name])
        self._wait(name, lambda: self._led(name) == total)

    def reach(self, timeout_seconds: float | None = None) -> ClusterMetadata:
        """Return, with the list of topics, if the broker answers in time.

        Raises `BrokerUnavailableError`, and `BrokerRefusedError` if it was reached and took us, or we it, for somebody else.
        """
        limit = timeout_seconds or self._timeout
        self._refusal = None
        try:
            return self._list(min(limit, REFUSAL_SECONDS))
        except BrokerUnavailableError:
            if limit <= REFUSAL_SECONDS:
                raise
        return self._list(limit - REFUSAL_SECONDS)

    def _list(self, seconds_max: float) -> ClusterMetadata:
        client = self._admin()
        try:
            with typed_errors(self._bootstrap):
                return client.list_topics(timeout=seconds_max)
        except BrokerUnavailableError:
            client.poll(0)  # hears why
            if self._refusal is not None:
                raise typed(self._refusal, self._bootstrap) from None
            raise

    def partitions_of(self, name: str, timeout_seconds: float | None = None) -> int | None:
        """How many partitions the topic has, led or not; None if it does not exist. Raises `BrokerUnavailableError`."""
        topic = self._listed(name, timeout_seconds)
        return None if topic is None else len(topic.partitions)

    def identity_of(self, name: str, timeout_seconds: float) -> str:
        """The id that the broker gave the topic when it was made; empty if it gives none, or does not tell it.

        Raises `TopicMissingError`, `BrokerUnavailableError`.
        """
        wanted = TopicCollection([name])
        try:
            found = self._done(
                name, lambda client: client.describe_topics(wanted, request_timeout=timeout_seconds)[name]
            )
        except BrokerRefusedError:
            return ""
        number = found.topic_id
        known = number.get_most_significant_bits() or number.get_least_significant_bits()
        return str(number) if known else ""

    def _led(self, name: str) -> int:
        """How many partitions of the topic have a leader, and so can be written and read."""
        topic = self._listed(name)
        return 0 if topic is None else sum(partition.leader >= 0 for partition in topic.partitions.values())

    def _listed(self, name: str, timeout_seconds: float | None = None) -> TopicMetadata | None:
        topic = self.reach(timeout_seconds).topics.get(name)
        if topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return None
        return topic

    def marks(self, name: str, partitions: int) -> Mapping[int, Marks]:
        """The marks of partitions 0 to `partitions` - 1; `high` is the end of what is committed.

        Asked over this client's own connection: on a reader's, the question would wait behind its fetch of records to come.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                with typed_errors(name):
                    return self._marks_once(name, partitions)
            except BrokerUnavailableError as error:
                if _code(error) not in _PASSING or time.monotonic() >= deadline:
                    raise
                self.close()  # what the client remembers of leaders is out of date, and it would not ask again
                time.sleep(LOOK_SECONDS)

    def _marks_once(self, name: str, partitions: int) -> dict[int, Marks]:
        client, places = self._admin(), [TopicPartition(name, number) for number in range(partitions)]
        ends = [
            client.list_offsets(
                dict.fromkeys(places, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._timeout,
            )
            for spec in (_EARLIEST, _LATEST)
        ]
        try:
            low, high = ({p.partition: end[p].result(self._timeout + 1).offset for p in places} for end in ends)
        except TimeoutError:
            raise BrokerUnavailableError(f"no answer within {self._timeout:g} seconds", at=name) from None
        return {number: Marks(low[number], high[number]) for number in range(partitions)}

    def close(self) -> None:
        """Let go of the client; the next use makes another."""
        with self._lock:
            self._client = None

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                with typed_errors(self._bootstrap):
                    settings: dict[str, Any] = {**self._settings(), "error_cb": self._heard}
                    self._client = AdminClient(settings, logger=LOG)
            client = self._client
        client.poll(0)  # hands its log lines to the logger
        return client

    def _heard(self, error: KafkaError) -> None:
        """The client's word on its connections: to who asks, a broker that refuses them looks as if it were not there."""
        if is_refusal(error):
            self._refusal = error

    def _done(self, name: str, ask: Callable[[AdminClient], Any]) -> Any:
        """The outcome of a request; the client stays referenced until it is known."""
        client = self._admin()
        with typed_errors(name):
            future = ask(client)
            try:
                return future.result(self._timeout + 1)
            except TimeoutError:
                raise BrokerUnavailableError(f"no answer within {self._timeout:g} seconds", at=name) from None
            finally:
                client.poll(0)

    def _wait(self, name: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout
        while not is_there():
            if time.monotonic() >= deadline:
                raise BrokerUnavailableError("the change did not take effect in time", at=name)
            time.sleep(LOOK_SECONDS)


def _code(error: BrokerUnavailableError) -> int | None:
    """The client's code that an error of ours was made from."""
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None
