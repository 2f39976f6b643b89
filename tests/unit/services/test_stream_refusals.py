"""A stream worker whose broker says no, and one that has set aside more than a run may: it stops, and the run goes on later."""

from typing import Any

import pytest

from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import FinazError
from domain.leases.messages import LeaseReleased
from domain.market.arrivals import partition_of
from domain.runs.aggregate import RunState
from domain.runs.messages import ResultPublished
from domain.stream import journal
from domain.stream.errors import BrokerRefusedError, QuarantineFullError
from domain.stream.messages import Pressure, PressureEntered, RecordsOmitted
from services.broker import Broker
from tests.support.fixture_market import GOLDEN
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker, MemorySource
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import PARTITIONS, THIRTEEN_COUNTS, TOPIC, StreamRig, fixture_log, publish_log

KEY = b"fixture.fx-0"
UNREADABLE = 3


@pytest.fixture
def thirteen() -> StreamRig:
    """The topic has thirteen loads of the fixture's arrivals: 299 records."""
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    return rig


def stopped(rig: StreamRig, run_id: str, error: type[FinazError], **settings: Any) -> None:
    """The worker stops with the error; why is the journal's last word, the lease is given back, nothing is published."""
    with pytest.raises(error):
        rig.work(run_id, **settings)
    word = rig.of(run_id, PressureEntered)[-1]
    assert (word.state, word.reason.partition(":")[0]) == (Pressure.RECOVERY_BLOCKED, error.code)
    assert rig.topics(run_id)[-1] == LeaseReleased.topic
    assert rig.run(run_id).state is RunState.RUNNING
    assert not rig.of(run_id, ResultPublished)


def goes_on(rig: StreamRig, run_id: str, counts: dict[str, int]) -> None:
    """A next owner ends the run with the golden values, every record accounted for once."""
    rig.work(run_id)
    assert [event.result.values_hash for event in rig.of(run_id, ResultPublished)] == [GOLDEN]
    assert rig.counts(run_id) == counts


def test_a_broker_that_refuses_to_be_read_stops_the_worker(
    thirteen: StreamRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`BROKER_REFUSED` in the middle of a topic, as when a right is withdrawn: what was committed stands, the rest comes later."""
    run_id, poll = thirteen.request(), MemorySource.poll

    def refusing(source: MemorySource, limit: int, timeout_seconds: float) -> Any:
        if thirteen.of(run_id, CheckpointCommitted):
            raise BrokerRefusedError("TOPIC_AUTHORIZATION_FAILED", at=TOPIC)
        return poll(source, limit, timeout_seconds)

    monkeypatch.setattr(MemorySource, "poll", refusing)
    stopped(thirteen, run_id, BrokerRefusedError, checkpoint_records=50)
    committed = thirteen.of(run_id, CheckpointCommitted)
    assert len(committed) == 1
    monkeypatch.undo()
    goes_on(thirteen, run_id, THIRTEEN_COUNTS)


def test_a_broker_that_does_not_let_us_in_stops_the_worker(
    thirteen: StreamRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`BROKER_REFUSED` before anything was read, as for a wrong password: nothing is committed."""
    run_id = thirteen.request()

    def refusing(broker: Broker, topic: str) -> Any:
        raise BrokerRefusedError("_AUTHENTICATION", at=topic)

    monkeypatch.setattr(MemoryBroker, "source", refusing)
    stopped(thirteen, run_id, BrokerRefusedError)
    assert not thirteen.of(run_id, CheckpointCommitted)
    monkeypatch.undo()
    goes_on(thirteen, run_id, THIRTEEN_COUNTS)


def test_a_full_quarantine_stops_the_worker(thirteen: StreamRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """`QUARANTINE_FULL`: what is one record too many is not committed, nor is the rest of its epoch; up to the limit all is."""
    publisher = thirteen.broker.publisher()
    for _ in range(UNREADABLE):
        publisher.send(TOPIC, partition_of(KEY, PARTITIONS), KEY, b"not a record", {})
    publisher.flush(1.0)
    run_id = thirteen.request()
    monkeypatch.setattr(journal, "QUARANTINE_MAX", UNREADABLE - 1)
    stopped(thirteen, run_id, QuarantineFullError)
    kept = [item for event in thirteen.of(run_id, RecordsOmitted) for item in event.items if item.quarantine]
    assert len(kept) < UNREADABLE
    monkeypatch.setattr(journal, "QUARANTINE_MAX", UNREADABLE)
    goes_on(thirteen, run_id, THIRTEEN_COUNTS | {"omitted": THIRTEEN_COUNTS["omitted"] + UNREADABLE})
    kept = [item for event in thirteen.of(run_id, RecordsOmitted) for item in event.items if item.quarantine]
    assert len(kept) == UNREADABLE
