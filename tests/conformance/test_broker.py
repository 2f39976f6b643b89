"""What every broker must do for the stream worker; each kind is one more parameter of the `rig` fixture."""

import threading
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from domain.stream.errors import (
    BrokerRefusedError,
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicExistsError,
    TopicMissingError,
)
from domain.stream.records import StreamRecord
from services.adapters.kafka_source import BATCH_RECORDS_MAX
from services.broker import RECORD_BYTES_MAX, Marks, RecordSource
from tests.support.broker_rigs import KafkaRig, MemoryRig, Rig
from tests.support.brokers import given_broker

SETTINGS = {"cleanup.policy": "delete", "max.message.bytes": str(RECORD_BYTES_MAX)}
FLUSH_SECONDS = 30.0
READ_SECONDS = 20.0
"""Limits, not waits: a healthy broker needs milliseconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind at hand; besides any other that runs somewhere, Redpanda say, by `--broker HOST:PORT`."""
    if "rig" in metafunc.fixturenames:
        given = ["given"] if given_broker(metafunc.config) else []
        metafunc.parametrize("rig", ["memory", "embedded", "apache", *given], indirect=True, scope="module")


@pytest.fixture(scope="module")
def rig(request: pytest.FixtureRequest) -> Rig:
    """A broker of one kind."""
    if request.param == "memory":
        return MemoryRig()
    if request.param == "given":
        given = given_broker(request.config)
        assert given is not None
        return KafkaRig(given.bootstrap)
    fixture = {"embedded": "embedded_broker", "apache": "kafka_broker"}[request.param]
    return KafkaRig(request.getfixturevalue(fixture).bootstrap)


@pytest.fixture
def topic(rig: Rig) -> Iterator[str]:
    """A fresh topic of four partitions."""
    name = f"conformance-{uuid4()}"
    rig.broker.topics().create(name, 4, SETTINGS)
    yield name
    rig.broker.topics().delete(name)


@pytest.fixture
def opened(rig: Rig) -> Iterator[Callable[[str], RecordSource]]:
    """Opens sources that are closed at the end."""
    made: list[RecordSource] = []

    def open_(topic: str) -> RecordSource:
        made.append(rig.broker.source(topic))
        return made[-1]

    yield open_
    for source in made:
        source.close()


def publish(rig: Rig, topic: str, *records: tuple[int, bytes | None]) -> None:
    """Publish (partition, value) records and flush."""
    publisher = rig.broker.publisher()
    for partition, value in records:
        publisher.send(topic, partition, b"key", value, {})
    publisher.flush(FLUSH_SECONDS)
    publisher.close()


def read(source: RecordSource, until: dict[int, int], limit: int = 500) -> tuple[list[StreamRecord], dict[int, int]]:
    """Poll until the next offsets of some partitions are those given; all records, and all next offsets seen."""
    records: list[StreamRecord] = []
    reached: dict[int, int] = {}
    for _ in range(10_000):
        if all(reached.get(partition) == offset for partition, offset in until.items()):
            return records, reached
        polled = source.poll(limit, READ_SECONDS)
        assert polled.next_offsets, f"nothing came; reached {reached}, wanted {until}"
        assert len(polled.records) <= limit
        for record in polled.records:
            assert record.offset < polled.next_offsets[record.partition]
        records += polled.records
        reached |= polled.next_offsets
    raise AssertionError("too many polls")


def values(records: list[StreamRecord], partition: int) -> list[bytes | None]:
    return [record.value for record in records if record.partition == partition]


# ------------------------------------------------------------------------------------------------ topics


def test_a_topic_has_the_settings_that_it_was_created_with(rig: Rig, topic: str) -> None:
    """Partitions and settings are what was asked for; settings that were not asked for have the broker's defaults."""
    found = rig.broker.topics().describe(topic)
    assert found is not None
    assert (found.name, found.partitions) == (topic, 4)
    assert {name: found.settings[name] for name in SETTINGS} == SETTINGS
    assert "retention.ms" in found.settings


def test_asking_for_a_topic_does_not_create_it(rig: Rig, opened: Callable[[str], RecordSource]) -> None:
    """Neither describing nor reading nor publishing to a topic that is not there brings it into being."""
    name = f"absent-{uuid4()}"
    with pytest.raises(TopicMissingError):
        opened(name)
    publisher = rig.broker.publisher()
    with pytest.raises(TopicMissingError):
        publisher.send(name, 0, b"key", b"value", {})
    publisher.close()
    with pytest.raises(TopicMissingError):
        rig.broker.topics().delete(name)
    with pytest.raises(TopicMissingError):
        rig.broker.topics().add_partitions(name, 2)
    assert rig.broker.topics().describe(name) is None


def test_a_topic_is_created_once(rig: Rig, topic: str) -> None:
    """Creating it again is refused, and changes nothing."""
    with pytest.raises(TopicExistsError):
        rig.broker.topics().create(topic, 2, {})
    found = rig.broker.topics().describe(topic)
    assert found is not None
    assert found.partitions == 4


def test_a_deleted_topic_is_gone(rig: Rig) -> None:
    """And another of the same name is empty."""
    name = f"conformance-{uuid4()}"
    rig.broker.topics().create(name, 1, SETTINGS)
    publish(rig, name, (0, b"a"))
    rig.broker.topics().delete(name)
    assert rig.broker.topics().describe(name) is None
    rig.broker.topics().create(name, 1, SETTINGS)
    source = rig.broker.source(name)
    assert source.marks() == {0: Marks(0, 0)}
    source.close()
    rig.broker.topics().delete(name)


def test_a_topic_made_again_is_another(rig: Rig) -> None:
    """By its identity, which stays as long as the topic does; a broker that gives none never does. Asking makes no topic."""
    name = f"conformance-{uuid4()}"
    rig.broker.topics().create(name, 1, SETTINGS)
    source = rig.broker.source(name)
    first = source.identity()
    publish(rig, name, (0, b"a"))
    assert source.identity() == first
    rig.broker.topics().delete(name)
    with pytest.raises(TopicMissingError):
        source.identity()
    assert rig.broker.topics().describe(name) is None
    rig.broker.topics().create(name, 1, SETTINGS)
    again = rig.broker.source(name)
    assert again.identity() == source.identity()
    assert bool(again.identity()) == bool(first)
    assert not first or again.identity() != first
    source.close()
    again.close()
    rig.broker.topics().delete(name)


# ------------------------------------------------------------------------------------------------ records


def test_records_are_read_as_they_were_published(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """Key, value, headers and tombstones come back to the byte, in the partition chosen, in order."""
    publisher = rig.broker.publisher()
    publisher.send(topic, 3, b"a", b"1", {"kind": b"EVENT", "index": b"0", "empty": b""})
    publisher.send(topic, 3, "é\x00".encode(), None, {"kind": b"PAUSE"})
    publisher.send(topic, 3, b"a", b"", {})
    publisher.flush(FLUSH_SECONDS)
    publisher.close()
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    records, _ = read(source, {3: 3})
    assert records == [
        StreamRecord(
            partition=3, offset=0, key=b"a", value=b"1", headers={"kind": b"EVENT", "index": b"0", "empty": b""}
        ),
        StreamRecord(partition=3, offset=1, key="é\x00".encode(), value=None, headers={"kind": b"PAUSE"}),
        StreamRecord(partition=3, offset=2, key=b"a", value=b"", headers={}),
    ]


def test_a_record_of_five_megabytes_is_read_whole(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """A large record is neither cut nor does it block the ones behind it; one beyond the limit is refused by name."""
    large = bytes(range(256)) * (5 * 1024 * 4)
    publish(rig, topic, (1, b"before"), (1, large), (1, b"behind"))
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    records, _ = read(source, {1: 3})
    assert values(records, 1) == [b"before", large, b"behind"]
    publisher = rig.broker.publisher()
    with pytest.raises(BrokerRefusedError):
        publisher.send(topic, 0, b"key", bytes(RECORD_BYTES_MAX), {})
    publisher.close()


def test_marks_are_exact_as_soon_as_a_flush_has_returned(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """What was acknowledged is below the high mark at the next look, every time; an empty partition has equal marks."""
    source = opened(topic)
    assert source.partitions == 4
    assert source.marks() == dict.fromkeys(range(4), Marks(0, 0))
    publisher = rig.broker.publisher()
    for round_ in range(1, 6):
        for _ in range(10):
            publisher.send(topic, 2, b"key", b"x", {})
        publisher.flush(FLUSH_SECONDS)
        assert source.marks() == dict.fromkeys((0, 1, 3), Marks(0, 0)) | {2: Marks(0, 10 * round_)}
    publisher.close()


def test_reading_starts_at_exactly_the_offset_given(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """For every partition by itself; assigning again forgets where reading was, and what had been fetched ahead."""
    publish(rig, topic, *((n % 2, b"%d" % (n // 2)) for n in range(200)))
    source = opened(topic)
    for first in (0, 37, 99, 3):
        source.assign({0: first, 1: 100 - first, 2: 0, 3: 0})
        records, _ = read(source, {0: 100} | ({1: 100} if first else {}), limit=7)
        assert values(records, 0) == [b"%d" % n for n in range(first, 100)]
        assert values(records, 1) == [b"%d" % n for n in range(100 - first, 100)]


def test_offsets_are_contiguous_over_many_polls(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """Each offset once, in order within its partition, whatever the limits of the polls were."""
    publish(rig, topic, *((n % 4, b"%d" % n) for n in range(4000)))
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    records, reached = read(source, dict.fromkeys(range(4), 1000), limit=333)
    assert reached == dict.fromkeys(range(4), 1000)
    for partition in range(4):
        assert [record.offset for record in records if record.partition == partition] == list(range(1000))
    source.assign(dict.fromkeys(range(4), 0))
    if isinstance(rig, KafkaRig):  # however many are asked for, so that whoever polls can stop in between
        assert len(source.poll(100_000, READ_SECONDS).records) <= BATCH_RECORDS_MAX


def test_an_empty_topic_is_silent(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """No record, no offset that moves, no error; a record that comes later is delivered."""
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    polled = source.poll(10, 0.2)
    assert (polled.records, polled.next_offsets) == ((), {})
    publish(rig, topic, (0, b"late"))
    records, _ = read(source, {0: 1})
    assert values(records, 0) == [b"late"]


def test_a_poll_ends_as_soon_as_there_is_something(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """It does not wait for as many records as it may return: one record ends a poll that might have waited for minutes."""
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    threading.Timer(0.1, publish, (rig, topic, (2, b"one"))).start()
    records, _ = read(source, {2: 1}, limit=500)
    assert values(records, 2) == [b"one"]


# ------------------------------------------------------------------------------------------------ offsets without a record


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_without_a_record_are_passed_over_and_accounted_for(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource], commit: bool
) -> None:
    """A transaction's marker takes an offset, an aborted transaction's records too; even as the last of the log they are seen."""
    publish(rig, topic, (0, b"a"))
    rig.transaction(topic, 0, [b"b", b"c"], commit=commit)
    source = opened(topic)
    assert source.marks()[0] == Marks(0, 4)
    source.assign(dict.fromkeys(range(4), 0))
    records, _ = read(source, {0: 4})
    assert values(records, 0) == ([b"a", b"b", b"c"] if commit else [b"a"])
    publish(rig, topic, (0, b"d"))
    records, _ = read(source, {0: 5})
    assert [(record.offset, record.value) for record in records] == [(4, b"d")]


def test_reading_starts_at_an_offset_without_a_record(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """A journal that stands before, within or behind a hole goes on from there; at the end of the log there is nothing to do."""
    rig.transaction(topic, 0, [b"a"], commit=False)
    publish(rig, topic, (0, b"b"))
    rig.transaction(topic, 0, [b"c"], commit=True)
    source = opened(topic)
    for first in range(5):
        source.assign({0: first, 1: 0, 2: 0, 3: 0})
        records, _ = read(source, {0: 5})
        assert values(records, 0) == ([b"b", b"c"] if first <= 2 else [b"c"] if first == 3 else [])
    source.assign({0: 5, 1: 0, 2: 0, 3: 0})
    assert source.poll(10, 0.2).next_offsets == {}


# ------------------------------------------------------------------------------------------------ pausing


def test_a_paused_partition_waits_without_loss(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """Nothing of it is delivered while it is paused, though records were fetched; afterwards each is, once; others go on."""
    publish(rig, topic, *((n % 2, b"%d" % (n // 2)) for n in range(600)))
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    records, reached = read(source, {}, limit=50)
    polled = source.poll(50, READ_SECONDS)
    records, reached = list(polled.records), dict(polled.next_offsets)
    source.pause([0])
    source.pause([0])
    while reached.get(1) != 300:
        polled = source.poll(50, READ_SECONDS)
        assert 0 not in polled.next_offsets
        records += polled.records
        reached |= polled.next_offsets
    source.pause([1, 2, 3])
    publish(rig, topic, (1, b"more"))
    assert source.poll(50, 0.2).next_offsets == {}
    source.resume([0, 1, 2, 3])
    source.resume([0])
    more, _ = read(source, {0: 300, 1: 301})
    assert values(records + more, 0) == [b"%d" % n for n in range(300)]
    assert values(records + more, 1) == [*(b"%d" % n for n in range(300)), b"more"]


def test_assigning_ends_a_pause(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """A pause belongs to the assignment that it was made in."""
    publish(rig, topic, (0, b"a"))
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    source.pause(range(4))
    source.assign(dict.fromkeys(range(4), 0))
    records, _ = read(source, {0: 1})
    assert values(records, 0) == [b"a"]


# ------------------------------------------------------------------------------------------------ what is gone


def test_what_retention_removed_blocks_recovery(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """The low mark moves; an assignment below it is refused, naming the place; one at it is not. A partition may end empty."""
    publish(rig, topic, *((n % 2, b"%d" % (n // 2)) for n in range(40)))
    rig.delete_records(topic, 0, 7)
    rig.delete_records(topic, 1, 20)
    source = opened(topic)
    assert source.marks() == {0: Marks(7, 20), 1: Marks(20, 20), 2: Marks(0, 0), 3: Marks(0, 0)}
    with pytest.raises(RecoveryBlockedError) as blocked:
        source.assign({0: 6, 1: 20, 2: 0, 3: 0})
    assert blocked.value.at is not None
    assert topic in blocked.value.at
    source.assign({0: 7, 1: 20, 2: 0, 3: 0})
    records, _ = read(source, {0: 20})
    assert values(records, 0) == [b"%d" % n for n in range(7, 20)]
    publish(rig, topic, (1, b"new"))
    records, _ = read(source, {1: 21})
    assert [(record.offset, record.value) for record in records] == [(20, b"new")]


def test_retention_under_a_reader_is_an_error_and_no_jump(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """When offsets go that were assigned and not yet delivered, the reader says so instead of starting further on."""
    publish(rig, topic, *((0, b"%d" % n) for n in range(20)))
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    read(source, {0: 20})
    source.pause([0])
    publish(rig, topic, *((0, b"%d" % n) for n in range(20)))
    rig.delete_records(topic, 0, 30)
    source.resume([0])
    for _ in range(2):  # and goes on saying so
        with pytest.raises(RecoveryBlockedError):
            source.poll(100, READ_SECONDS)


def test_a_journal_beyond_the_end_means_that_the_broker_lost_data(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """It is refused at once, instead of waiting for other records under the same offsets."""
    publish(rig, topic, (0, b"a"))
    source = opened(topic)
    with pytest.raises(RecoveryBlockedError):
        source.assign({0: 2, 1: 0, 2: 0, 3: 0})
    source.assign({0: 1, 1: 0, 2: 0, 3: 0})


# ------------------------------------------------------------------------------------------------ partitions


def test_other_partitions_than_the_topics_are_refused(
    rig: Rig, topic: str, opened: Callable[[str], RecordSource]
) -> None:
    """A journal of fewer or of more partitions does not fit."""
    source = opened(topic)
    for partitions in (3, 5):
        with pytest.raises(PartitionsChangedError):
            source.assign(dict.fromkeys(range(partitions), 0))


def test_partitions_added_are_noticed_by_who_reads(rig: Rig, topic: str, opened: Callable[[str], RecordSource]) -> None:
    """By its next look at the marks, its next assignment, and its polls; a new reader has the new number."""
    source = opened(topic)
    source.assign(dict.fromkeys(range(4), 0))
    rig.broker.topics().add_partitions(topic, 6)
    with pytest.raises(PartitionsChangedError):
        source.poll(10, 0.2)
    with pytest.raises(PartitionsChangedError):
        source.marks()
    with pytest.raises(PartitionsChangedError):
        source.assign(dict.fromkeys(range(4), 0))
    later = opened(topic)
    assert later.partitions == 6
    assert set(later.marks()) == set(range(6))
    with pytest.raises(BrokerRefusedError):
        rig.broker.topics().add_partitions(topic, 5)


def test_a_topic_deleted_under_a_reader_is_missing(rig: Rig) -> None:
    """It is told, not waited for."""
    name = f"conformance-{uuid4()}"
    rig.broker.topics().create(name, 1, SETTINGS)
    publish(rig, name, (0, b"a"))
    source = rig.broker.source(name)
    source.assign({0: 0})
    rig.broker.topics().delete(name)
    with pytest.raises(TopicMissingError):
        source.marks()
    assert is_told_that_it_is_missing(source)
    source.close()


def is_told_that_it_is_missing(source: RecordSource) -> bool:
    """Whether one of the next polls says so; one look is not believed, since the broker may only just have started."""
    for _ in range(10):
        try:
            source.poll(10, 0.2)
        except TopicMissingError:
            return True
    return False
