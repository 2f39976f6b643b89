"""Notices on a broker's topic: each under the purchase's id as its key, so that those of one purchase stay in order.

What must stay true: `tell` returns when the broker has acknowledged all; else it raises, and the relay tells them all again, so a
consumer may see one twice and knows it by its `notice_id`.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from domain.market.arrivals import partition_of
from domain.purchases.messages import NoticePosted
from domain.stream.errors import TopicExistsError
from services.broker import Broker
from services.notice_relay import document_of

PARTITIONS: Final = 4
"""Partitions of a topic that is not there yet."""

FLUSH_SECONDS_MAX: Final = 10.0
"""Seconds to wait for the broker's acknowledgement."""


class TopicTeller:
    """Implements `services.notice_relay.Teller`. `open_broker` is called at the first notice; close it in the end."""

    def __init__(self, open_broker: Callable[[], Broker], topic: str) -> None:
        self.via = f"topic {topic}"
        self._open_broker = open_broker
        self._topic = topic
        self._broker: Broker | None = None
        self._partitions = 0
        self._lock = threading.Lock()

    def tell(self, notices: Sequence[NoticePosted]) -> None:
        """See `Teller`. Raises the broker's errors."""
        with self._lock:
            if self._broker is None:
                self._broker = self._open_broker()
            if not self._partitions:
                self._partitions = self._made(self._broker)
            publisher = self._broker.publisher()
            try:
                for notice in notices:
                    key = notice.purchase_id.encode()
                    headers = {"notice_id": notice.notice_id.encode(), "name": notice.name.encode()}
                    publisher.send(self._topic, partition_of(key, self._partitions), key, document_of(notice), headers)
                publisher.flush(FLUSH_SECONDS_MAX)
            finally:
                publisher.close()

    def close(self) -> None:
        """Let go of the broker."""
        with self._lock:
            if self._broker is not None:
                self._broker.close()
                self._broker = None

    def _made(self, broker: Broker) -> int:
        topics = broker.topics()
        found = topics.describe(self._topic)
        if found is None:
            with suppress(TopicExistsError):  # another relay was faster
                topics.create(self._topic, PARTITIONS, {"cleanup.policy": "delete"})
            found = topics.describe(self._topic)
        return PARTITIONS if found is None else found.partitions
