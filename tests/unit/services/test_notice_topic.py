"""Notices on a topic: each where its purchase's key puts it, acknowledged before the relay records it."""

import msgspec
import pytest

from domain.market.arrivals import partition_of
from domain.purchases.messages import NoticePosted
from domain.stream.errors import BrokerUnavailableError
from services.adapters.notice_topic import PARTITIONS, TopicTeller
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_log import START

TOPIC = "finaz.notices"


def notice(number: int, name: str = "PaymentSucceeded") -> NoticePosted:
    purchase = f"res_{number:040d}"
    return NoticePosted(
        notice_id=f"{purchase}.{name}",
        name=name,
        purchase_id=purchase,
        show_id="show_1",
        seats=("A1",),
        amount_minor=4500,
        currency="EUR",
        reason="",
        decided_at=START,
    )


def test_notices_are_on_the_topic_under_their_purchase() -> None:
    """The topic is made if it is not there; those of one purchase stand in one partition, in order, known by their id."""
    broker = MemoryBroker()
    teller = TopicTeller(lambda: broker, TOPIC)
    told = [notice(n, name) for n in range(6) for name in ("PaymentSucceeded", "ReservationCancelled")]
    teller.tell(told)
    teller.tell(told[:2])  # after a crash: told again
    teller.close()
    source = broker.source(TOPIC)
    assert source.partitions == PARTITIONS
    source.assign(dict.fromkeys(range(PARTITIONS), 0))
    records = source.poll(100, 1.0).records
    assert len(records) == len(told) + 2
    found = [msgspec.json.decode(record.value or b"") for record in records]
    assert {one["notice_id"] for one in found} == {one.notice_id for one in told}
    for record, one in zip(records, found, strict=True):
        assert record.key is not None
        assert record.key == one["purchase_id"].encode()
        assert record.partition == partition_of(record.key, PARTITIONS)
        assert "@" not in (record.value or b"").decode()


def test_a_broker_that_is_away_is_the_relays_affair() -> None:
    """It raises, so nothing is recorded as told."""
    broker = MemoryBroker()
    broker.available = False
    with pytest.raises(BrokerUnavailableError):
        TopicTeller(lambda: broker, TOPIC).tell([notice(1)])
