"""Apache Kafka as it fails: killed and started again under who reads and who publishes, retention, compaction, transactions.

Only a broker that keeps what it acknowledged can show these; the embedded one is not held to them.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from deployment.brokers.apache import apache_kafka
from deployment.brokers.process import BrokerProcess
from domain.stream.errors import BrokerUnavailableError, PartitionsChangedError, RecoveryBlockedError
from domain.stream.records import StreamRecord
from services.broker import Marks, RecordSource
from tests.support.broker_rigs import KafkaRig
from tests.support.brokers import RunningBroker

SECONDS_MAX = 60.0
RECORDS = 20_000

EAGER = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "100",
}
"""A broker that looks after retention and compaction at once, instead of every five minutes."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, kafka_broker: RunningBroker) -> Iterator[BrokerProcess]:
    """An Apache Kafka of this module's own (it skips where the shared one does)."""
    with apache_kafka(tmp_path_factory.mktemp("mortal") / "broker", settings=EAGER) as process:
        yield process


@pytest.fixture
def rig(mortal: BrokerProcess) -> KafkaRig:
    return KafkaRig(mortal.bootstrap, patience_seconds=0.5, request_seconds_max=3.0)


@pytest.fixture
def name() -> str:
    return f"faults-{uuid4()}"


def until(source: RecordSource, offset: int, partition: int = 0) -> list[StreamRecord]:
    """Read one partition up to an offset, however often the broker is away meanwhile."""
    records: list[StreamRecord] = []
    reached = -1
    deadline = time.monotonic() + SECONDS_MAX
    while reached < offset:
        assert time.monotonic() < deadline, f"reached {reached} of {offset}"
        try:
            polled = source.poll(500, 1.0)
        except BrokerUnavailableError:
            continue
        records += polled.records
        reached = polled.next_offsets.get(partition, reached)
    return records


def test_a_broker_killed_under_a_reader_and_a_publisher_loses_and_doubles_nothing(
    mortal: BrokerProcess, rig: KafkaRig, name: str
) -> None:
    """Each record that a flush acknowledged is read once, in order, by a reader that was there all along, kills included."""
    rig.broker.topics().create(name, 1, {})
    source = rig.broker.source(name)
    source.assign({0: 0})
    read: list[StreamRecord] = []
    reading = threading.Thread(target=lambda: read.extend(until(source, RECORDS)))
    reading.start()
    publisher = rig.broker.publisher()
    for number in range(RECORDS):
        publisher.send(name, 0, b"key", b"%d" % number, {})
        if number in (RECORDS // 4, RECORDS // 2):
            mortal.kill()
            restarting = threading.Thread(target=mortal.start)
            restarting.start()
        if number == RECORDS // 2 - 1:
            restarting.join()
    restarting.join()
    publisher.flush(SECONDS_MAX)
    publisher.close()
    reading.join()
    assert source.marks() == {0: Marks(0, RECORDS)}
    source.close()
    assert [record.value for record in read] == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_broker_that_is_away_is_told_from_one_that_is_silent(
    mortal: BrokerProcess, rig: KafkaRig, name: str, how: str
) -> None:
    """With nothing to read a poll is empty; with no broker that answers it raises; back again, it goes on where it was.

    What it had acknowledged before it was killed is there, under the same address.
    """
    rig.broker.topics().create(name, 1, {})
    source = rig.broker.source(name)
    source.assign({0: 0})
    assert source.poll(10, 0.2).records == ()
    publisher = rig.broker.publisher()
    publisher.send(name, 0, b"key", b"acknowledged", {})
    publisher.flush(SECONDS_MAX)
    assert [record.value for record in until(source, 1)] == [b"acknowledged"]
    assert mortal.pid is not None
    assert written_outside(mortal) == set()
    (mortal.kill if how == "killed" else partial(os.kill, mortal.pid, signal.SIGSTOP))()
    assert is_told(source)
    with pytest.raises(BrokerUnavailableError):
        rig.broker.source(name)
    (mortal.start if how == "killed" else partial(os.kill, mortal.pid, signal.SIGCONT))()
    publisher.send(name, 0, b"key", b"back", {})
    publisher.flush(SECONDS_MAX)
    assert source.marks() == {0: Marks(0, 2)}
    assert [record.value for record in until(source, 2)] == [b"back"]
    source.assign({0: 0})
    assert [record.value for record in until(source, 2)] == [b"acknowledged", b"back"]
    publisher.close()
    source.close()


def written_outside(broker: BrokerProcess) -> set[str]:
    """Files that the broker has open outside its folder, besides the system's and its jars."""
    links = []
    for place in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(place))
    files = {link for link in links if link.startswith("/") and not link.endswith(".jar")}
    system = ("/usr/", "/proc/", "/sys/", "/dev/", "/etc/", str(broker.folder))
    return {file for file in files if not file.startswith(system)}


def is_told(source: RecordSource) -> bool:
    """Whether polls end in an error before long; the first may be silent, until it is known that nobody is there."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            source.poll(10, 0.2)
        except BrokerUnavailableError:
            return True
    return False


def test_retention_by_time_removes_offsets_and_says_so(rig: KafkaRig, name: str) -> None:
    """The broker's own retention, not a request of ours: the low mark moves, and a journal below it is RECOVERY_BLOCKED."""
    rig.broker.topics().create(name, 1, {"retention.ms": "200", "segment.ms": "100", "segment.bytes": "1048576"})
    publisher = rig.broker.publisher()
    source = rig.broker.source(name)
    deadline = time.monotonic() + SECONDS_MAX
    while source.marks()[0].low == 0:
        assert time.monotonic() < deadline
        publisher.send(name, 0, b"key", bytes(300_000), {})
        publisher.flush(SECONDS_MAX)
    publisher.close()
    with pytest.raises(RecoveryBlockedError):
        source.assign({0: 0})
    marks = source.marks()[0]
    source.assign({0: marks.high})
    source.close()


def test_a_compacted_topic_is_read_over_its_holes(rig: KafkaRig, name: str) -> None:
    """Offsets that compaction took show as a jump; every offset up to the high mark is a record or absent, none is missed."""
    keep_late = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    rig.broker.topics().create(name, 1, {**keep_late, "delete.retention.ms": "0", "max.compaction.lag.ms": "100"})
    publisher = rig.broker.publisher()
    for number in range(100):
        publisher.send(name, 0, b"key-%d" % (number % 2), b"%d" % number, {})
    publisher.flush(SECONDS_MAX)
    deadline = time.monotonic() + SECONDS_MAX
    while True:  # each further record lets the segment before it be compacted
        publisher.send(name, 0, b"roll", b"roll", {})
        publisher.flush(SECONDS_MAX)
        source = rig.broker.source(name)
        high = source.marks()[0].high
        source.assign({0: 0})
        records = until(source, high)
        source.close()
        if len(records) < 100:
            break
        assert time.monotonic() < deadline
    publisher.close()
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] < high
    kept = {record.key: record.value for record in records}
    assert (kept[b"key-0"], kept[b"key-1"]) == (b"98", b"99")


def test_an_open_transaction_holds_the_mark_until_it_ends(rig: KafkaRig, name: str) -> None:
    """What is not committed is beyond the mark and not delivered; committed, it is; the marker at the end is absent."""
    rig.broker.topics().create(name, 1, {})
    producer = Producer({"bootstrap.servers": rig.bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(name, b"open", b"key", 0)
    producer.flush(SECONDS_MAX)
    publisher = rig.broker.publisher()
    publisher.send(name, 0, b"key", b"behind", {})
    publisher.flush(SECONDS_MAX)
    publisher.close()
    source = rig.broker.source(name)
    assert source.marks() == {0: Marks(0, 0)}
    source.assign({0: 0})
    assert source.poll(10, 0.3).next_offsets == {}
    producer.commit_transaction(SECONDS_MAX)
    records = until(source, 3)
    assert [record.value for record in records] == [b"open", b"behind"]
    assert source.marks() == {0: Marks(0, 3)}
    source.close()


def test_a_partition_added_under_a_reader_stops_it(rig: KafkaRig, name: str) -> None:
    """Records go on arriving in the partitions that it knows, and it says all the same that keys may have moved."""
    rig.broker.topics().create(name, 2, {})
    source = rig.broker.source(name)
    source.assign({0: 0, 1: 0})
    publisher = rig.broker.publisher()
    rig.broker.topics().add_partitions(name, 3)
    publisher.send(name, 0, b"key", b"value", {})
    publisher.flush(SECONDS_MAX)
    publisher.close()
    with pytest.raises(PartitionsChangedError):
        source.poll(10, 1.0)
    source.close()
