"""The stream worker on the real log and a real broker: the goldens, and what brokers do to a worker that is reading."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployment.brokers.process import BrokerProcess
from domain.checkpoints.messages import CheckpointCommitted
from domain.market.arrivals import partition_of
from domain.market.records import MarketEvent, encode_event
from domain.runs.aggregate import RunState
from domain.runs.messages import ResultPublished
from domain.stream.errors import PartitionsChangedError, RecoveryBlockedError
from domain.stream.messages import Pressure, PressureEntered, RecordsOmitted
from projections.inline import INLINE
from projections.outbox.projection import KIND_RUN
from services.adapters.kafka import KafkaBroker
from services.batch_parts import WorkerSettings
from services.broker import RECORD_BYTES_MAX
from services.cas import DirectoryBlobStore
from services.store.application import Log
from services.store.stream_queue import StreamQueue
from services.store.work_queue import OutboxQueue
from services.stream_parts import StreamEnd, StreamEvent
from tests.support.broker_rigs import KafkaRig
from tests.support.brokers import RunningBroker
from tests.support.fixture_market import GOLDEN, START
from tests.support.stream_rig import FIXTURE_COUNTS, THIRTEEN_COUNTS, StreamRig, fixture_log, publish_log

KEY = b"fixture.fx-0"
PARTITIONS = 4
HOME = partition_of(KEY, PARTITIONS)
COPIES = 100_000


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with Log(database, INLINE) as opened:
        yield opened


@pytest.fixture
def kafka(broker: RunningBroker) -> Iterator[KafkaRig]:
    rig = KafkaRig(broker.bootstrap)
    yield rig
    rig.broker.close()


@pytest.fixture
def rig(log: Log, tmp_path: Path, kafka: KafkaRig) -> StreamRig:
    return StreamRig(log, DirectoryBlobStore(tmp_path / "cas"), kafka.broker)


@pytest.fixture
def topic() -> str:
    return f"stream-{uuid4().hex}"


def golden(rig: StreamRig, run_id: str, counts: dict[str, int], token: int = 1) -> None:
    published = rig.of(run_id, ResultPublished)
    assert [(event.token, event.result.values_hash) for event in published] == [(token, GOLDEN)]
    assert rig.counts(run_id) == counts


def event(number: int, text: str = "") -> bytes:
    """The canonical bytes of one of the instrument's events; `text` stands for its close, as it is."""
    made = MarketEvent(
        event_id=f"e{number}",
        instrument=KEY.decode(),
        event_time=START + number * 1_000_000,
        available_at=START + number * 1_000_000,
        revision=0,
        values={"close": float(number)},
    )
    data = encode_event(made)
    return data.replace(f'"close":{float(number)}'.encode(), f'"close":{text}'.encode()) if text else data


def publish(rig: StreamRig, topic: str, *values: bytes, settings: dict[str, str] | None = None) -> None:
    """Values under the selected instrument's key, in a topic that is created if need be."""
    if rig.broker.topics().describe(topic) is None:
        rig.broker.topics().create(topic, PARTITIONS, {"cleanup.policy": "delete", **(settings or {})})
    publisher = rig.broker.publisher()
    for value in values:
        publisher.send(topic, HOME, KEY, value, {})
    publisher.flush(60.0)
    publisher.close()


@pytest.mark.parametrize(("loads", "counts"), [(1, FIXTURE_COUNTS), (13, THIRTEEN_COUNTS)])
def test_the_fixture_reaches_the_golden(rig: StreamRig, topic: str, loads: int, counts: dict[str, int]) -> None:
    """6/15/1/1 of one load, 6/195/13/85 of thirteen, and the golden values."""
    publish_log(rig.broker, topic, fixture_log(), loads)
    run_id = rig.request(topic)
    assert rig.work(run_id, checkpoint_records=50).end is StreamEnd.FINISHED
    golden(rig, run_id, counts)


def test_who_may_be_offered_a_stream_run(rig: StreamRig, log: Log, topic: str) -> None:
    """A server of streams, while nobody owns it: queued, handed back, or expired. A batch worker, never."""
    publish_log(rig.broker, topic, fixture_log())
    run_id = rig.request(topic, bounded=False)
    streams, batches = StreamQueue(log.pool), OutboxQueue(log.pool)
    lanes = WorkerSettings().lanes

    def offered() -> bool:
        assert batches.reserve_blocking(KIND_RUN, lanes, 10, "batch", 0.1) == []
        return list(streams.unowned(10)) == [run_id]

    assert "STREAM" not in lanes
    assert offered()
    stop = threading.Event()
    thread = threading.Thread(target=rig.worker(lease_ttl_seconds=20.0).run, args=(run_id, stop))
    thread.start()
    rig.happenings.wait_for("stream.committed")
    assert not offered()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert offered()
    assert rig.work(run_id, total_records=0).token == 2
    assert offered()


def test_an_owner_is_taken_over_at_its_last_commit(rig: StreamRig, topic: str) -> None:
    """The real clock ends the first owner's lease; the second goes on, and everything is counted once."""
    publish_log(rig.broker, topic, fixture_log(), 13)
    run_id = rig.request(topic)

    class Crash(BaseException):
        """The process dies here."""

    def die(event: StreamEvent) -> None:
        if event.name == "stream.committed" and event.epoch == 3:
            raise Crash

    rig.happenings.on = die
    with pytest.raises(Crash):
        rig.work(run_id, checkpoint_records=40, lease_ttl_seconds=4.0)
    rig.happenings.on = lambda event: None
    rig.work(run_id, standby=True)
    golden(rig, run_id, THIRTEEN_COUNTS, token=2)


def test_a_broker_that_is_killed_under_a_running_worker_is_waited_for(
    log: Log, tmp_path: Path, mortal_broker: BrokerProcess, topic: str
) -> None:
    """Killed and started again: the worker goes on where it was; nothing is lost and nothing counted twice."""
    broker = KafkaBroker(mortal_broker.bootstrap, patience_seconds=0.5)
    rig = StreamRig(log, DirectoryBlobStore(tmp_path / "cas"), broker)
    publish_log(broker, topic, fixture_log(), 13)
    run_id = rig.request(topic)
    worker = rig.worker(checkpoint_records=40, checkpoint_seconds=3600.0, pace=60.0)
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(worker.run(run_id, threading.Event())))
    thread.start()
    rig.happenings.wait_for("stream.committed", 2)
    mortal_broker.kill()
    mortal_broker.start()
    thread.join(120)
    broker.close()
    assert [outcome.state for outcome in outcomes] == [RunState.SUCCEEDED]
    golden(rig, run_id, THIRTEEN_COUNTS)


def test_a_hole_that_retention_made_is_said_and_not_jumped_over(rig: StreamRig, kafka: KafkaRig, topic: str) -> None:
    """`RECOVERY_BLOCKED`: recorded, the lease given back, the checkpoint as it was."""
    publish_log(rig.broker, topic, fixture_log(), 13)
    run_id = rig.request(topic)
    rig.work(run_id, total_records=120, checkpoint_records=60)
    needed = rig.of(run_id, CheckpointCommitted)[-1].next_offsets
    partition = 3 if needed["3"] < 221 else 0
    kafka.delete_records(topic, partition, needed[str(partition)] + 1)
    with pytest.raises(RecoveryBlockedError):
        rig.work(run_id)
    word = rig.of(run_id, PressureEntered)[-1]
    assert word.state is Pressure.RECOVERY_BLOCKED
    assert word.reason.startswith("RECOVERY_BLOCKED: ")
    assert rig.topics(run_id)[-1] == "lease.released.v1"
    assert rig.of(run_id, CheckpointCommitted)[-1].next_offsets == needed


def test_a_partition_that_is_added_under_a_running_worker_stops_it(rig: StreamRig, topic: str) -> None:
    """`PARTITIONS_CHANGED`, and again for whoever tries to go on."""
    publish_log(rig.broker, topic, fixture_log())
    run_id = rig.request(topic, bounded=False)
    added = threading.Event()

    def add(event: StreamEvent) -> None:
        if event.name == "stream.committed" and not added.is_set():
            added.set()
            rig.broker.topics().add_partitions(topic, PARTITIONS + 1)

    rig.happenings.on = add
    for _ in range(2):
        with pytest.raises(PartitionsChangedError):
            rig.work(run_id)
        assert rig.of(run_id, PressureEntered)[-1].reason.startswith("PARTITIONS_CHANGED: ")


def test_a_log_whose_last_offset_is_no_record_comes_to_its_end(rig: StreamRig, kafka: KafkaRig, topic: str) -> None:
    """Transactions leave markers, aborted ones offsets without records: absent, and the marks are reached."""
    publish(rig, topic, event(0), event(1))
    kafka.transaction(topic, HOME, [event(2)], commit=True)
    kafka.transaction(topic, HOME, [event(3), event(4)], commit=False)
    run_id = rig.request(topic)
    rig.work(run_id)
    counts = rig.counts(run_id)
    offsets = rig.of(run_id, CheckpointCommitted)[-1].next_offsets[str(HOME)]
    assert counts == {"consumed": 2, "filtered": 1, "absent": offsets - 3}  # the transactions' keys are not selected


def test_large_records_and_truncated_ones_stop_nothing(rig: StreamRig, topic: str) -> None:
    """5 MB that can be read are consumed, 5 MB that cannot are set aside with their bytes; so is a value cut short."""
    sizes = {"max.message.bytes": str(RECORD_BYTES_MAX)}
    large = event(1, "1." + "0" * 5_000_000)
    publish(rig, topic, event(0), large, b"x" * 5_000_000, event(2)[:-9], event(3), settings=sizes)
    run_id = rig.request(topic)
    rig.work(run_id)
    assert rig.counts(run_id) == {"consumed": 3, "omitted": 2}
    assert rig.batch(run_id).values("ema") == [None, None, (0.0 + 1.0 + 3.0) / 3]
    kept = [item.quarantine for omitted in rig.of(run_id, RecordsOmitted) for item in omitted.items]
    assert len(kept) == 2
    assert all(address and rig.blobs.has(address) for address in kept)


def test_a_hundred_thousand_copies_in_a_row_leave_nothing_behind(rig: StreamRig, topic: str) -> None:
    """All are recognised by their identity; state and journal are as small as after one."""
    publish(rig, topic, event(0), *([event(1)] * COPIES), event(2), event(3))
    run_id = rig.request(topic)
    rig.work(run_id, checkpoint_seconds=1.0)
    assert rig.counts(run_id) == {"consumed": 4, "duplicates_skipped": COPIES - 1}
    assert rig.batch(run_id).values("ema") == [None, None, 1.0, 2.0]
    from services.checkpoints import Checkpoints
    from services.stream_claim import plan_of

    spec = rig.run(run_id).spec
    assert spec is not None
    manifest = Checkpoints(rig.log, rig.blobs).restore(run_id, plan_of(spec, PARTITIONS)).manifest
    assert manifest is not None
    assert len(rig.blobs.get(manifest.state)) < 4096
    assert manifest.sink.accepted == 4
