"""Apache Kafka, Redpanda, or whatever speaks their protocol, as a `Broker`, over the client `confluent-kafka`.

Readers, publishers and topics have a module each. What must stay true: nothing of the client leaves these modules, neither its
errors nor its log lines (they go to the logger `finaz.kafka`). A crash leaves nothing but what was flushed.
"""

from typing import Any, Final

from services.adapters.kafka_publisher import DELIVERY_SECONDS_MAX, KafkaPublisher
from services.adapters.kafka_security import PLAINTEXT, BrokerSecurity
from services.adapters.kafka_source import PARTITIONS_LOOK_SECONDS, PATIENCE_SECONDS, KafkaSource
from services.adapters.kafka_topics import KafkaTopics

REQUEST_SECONDS_MAX: Final = 15.0
"""How long one request to the broker may take, before it counts as unavailable."""

SILENCE_MILLISECONDS_MAX: Final = 10_000
"""How long a connection may leave a request without an answer, before it counts as lost; a fetch waits a tenth of a second."""

GROUP: Final = "finaz"
"""The name under which readers appear at the broker; they commit nothing under it."""


class KafkaBroker:
    """The broker at `bootstrap` (`host:port`, several separated by commas). Making one connects to nothing yet.

    `security` holds for every client that is made here. Raises `BrokerRefusedError` where it cannot be met (a password's file).
    """

    def __init__(
        self,
        bootstrap: str,
        security: BrokerSecurity = PLAINTEXT,
        *,
        group: str = GROUP,
        request_seconds_max: float = REQUEST_SECONDS_MAX,
        partitions_look_seconds: float = PARTITIONS_LOOK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        delivery_seconds_max: float = DELIVERY_SECONDS_MAX,
    ) -> None:
        self.bootstrap = bootstrap
        self._security = security
        self._group = group
        self._look = partitions_look_seconds
        self._patience = patience_seconds
        self._delivery = delivery_seconds_max
        self._topics = KafkaTopics(bootstrap, self._settings, request_seconds_max)

    def topics(self) -> KafkaTopics:
        """The broker's topics."""
        return self._topics

    def source(self, topic: str) -> KafkaSource:
        """A reader of a topic. Raises `TopicMissingError`, `BrokerUnavailableError`."""
        return KafkaSource(
            topic,
            {**self._settings(), "group.id": self._group},
            self._topics,
            partitions_look_seconds=self._look,
            patience_seconds=self._patience,
        )

    def publisher(self) -> KafkaPublisher:
        """A publisher to any of the topics."""
        return KafkaPublisher(self._settings(), self._topics.partitions_of, delivery_seconds_max=self._delivery)

    def close(self) -> None:
        """Let go of the client for topics; readers and publishers are closed by who opened them."""
        self._topics.close()

    def _settings(self) -> dict[str, Any]:
        return {
            **self._security.client_settings(),
            "bootstrap.servers": self.bootstrap,
            "client.id": "finaz",
            "reconnect.backoff.ms": 200,
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": SILENCE_MILLISECONDS_MAX,
            "socket.keepalive.enable": True,
            "log.connection.close": False,
        }
