"""Records per second of the stream worker, against a bare `consume(500)` loop over the same topic.

200 000 records of some 200 bytes at scale 1, 100 keys over 4 partitions, an EMA of each key. The worker decodes, deduplicates
by identity, applies the op, journals, and commits a checkpoint each second under its fence in PostgreSQL; the bare loop does
nothing with what it reads. Both run in this process, one after the other, on Apache Kafka where a JDK and Maven are found, else
on the embedded broker; after them those of `stream_peers.py`, in processes of their own.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from deployment.bench.figures import aim, answer, figure, ratio
from deployment.bench.stream_peers import NOTES, READERS, Contest, Reader, Topic
from deployment.brokers.apache import apache_kafka
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.jars import KAFKA_JARS
from deployment.collecting import rare_collections
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from domain.canonical import address_of, canonical
from domain.identity import run_id_of, run_stream
from domain.instants import EPOCH
from domain.market.arrivals import partition_of
from domain.market.flow import FlowSpec, flow_body, parse_flow
from domain.market.pipeline import warm_up
from domain.market.records import MarketEvent, encode_event
from domain.runs.messages import Mode, RunRequested, RunSpec
from projections.inline import INLINE
from services.adapters.kafka import KafkaBroker
from services.cas import DirectoryBlobStore
from services.ports import Append, BlobStore, NewEvent
from services.store.application import Log
from services.stream_parts import StreamEnd, StreamEvent, StreamSettings
from services.stream_worker import StreamWorker

RECORDS: Final = 200_000
KEYS: Final = 100
PARTITIONS: Final = 4
TOPIC: Final = "finaz-bench.stream.v1"
CONSUME: Final = 500
EMA_LENGTH: Final = 20

AIM_OF_BARE: Final = 0.33
"""What a loop without any of the guarantees, but with a local journal, reached (docs/benchmarks.md)."""


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure worker, bare loop and the peers in turn."""
    return compare(READERS, repeats, scale, report)


def compare(readers: Sequence[Reader], repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """As `run`, against these readers; without any, only worker and bare loop are measured."""
    records = max(1000, int(RECORDS * scale))
    contest = Contest(readers, report)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finaz-")))
        database = stack.enter_context(EmbeddedPostgres())
        migrate(database.dsn())
        process = stack.enter_context(embedded_broker() if KAFKA_JARS.missing() else apache_kafka())
        broker = KafkaBroker(process.bootstrap)
        stack.callback(broker.close)
        log = stack.enter_context(Log(database.dsn(), INLINE))
        blobs = DirectoryBlobStore(folder / "cas")
        report(f"stream: publishing {records} records to {process.name}")
        size = published(broker, records)
        warm_up()
        ours, bare, commits, grown, micros = [], [], [], [], []
        for number in range(repeats):
            report(f"stream: repeat {number + 1}, the bare loop")
            bare.append(records / _bare(process.bootstrap, records))
            report(f"stream: repeat {number + 1}, the worker")
            read = worker_read(log, blobs, broker, records)
            ours.append(records / read.seconds)
            micros.append(read.cpu_seconds / records * 1e6)
            commits.append(float(len(read.memory)))
            grown.append(read.second_half_mebibytes)
            contest.measure(
                Topic(
                    bootstrap=process.bootstrap,
                    topic=TOPIC,
                    partitions=PARTITIONS,
                    records=records,
                    length=EMA_LENGTH,
                )
            )
        times = ratio(ours, bare)
        return answer(
            f"How fast does a worker read {records} records of {size} bytes, all of which are taken?",
            [
                figure("worker", ours, "records/s", ratio=times),
                figure("bare consume(500)", bare, "records/s"),
                *contest.figures(bare),
                figure("checkpoints of a run", commits, "commits"),
                figure("memory grown in a run's second half", grown, "MiB"),
            ],
            [aim("worker to bare consume(500)", times, at_least=AIM_OF_BARE), *contest.aims(ours)],
            [
                f"{KEYS} keys, {PARTITIONS} partitions, an EMA of each; a checkpoint each second, and one at the end.",
                "Seconds are those from the worker's first poll to its last commit: all journalled, ticks and state safe.",
                *(NOTES if readers else ()),
                *contest.notes,
            ],
            records=records,
            processor=[figure("worker", micros, "µs/record"), *contest.processor()],
            versions={"broker": process.name, **contest.versions},
        )


def published(broker: KafkaBroker, records: int) -> int:
    """Publish the records; the bytes of one."""
    broker.topics().create(TOPIC, PARTITIONS, {"cleanup.policy": "delete"})
    publisher = broker.publisher()
    keys = [f"bench.instrument-{number:03d}" for number in range(KEYS)]
    size = 0
    for number in range(records):
        instrument = keys[number % KEYS]
        key = instrument.encode()
        at = 1_767_603_600_000_000 + number * 10_000
        event = MarketEvent(
            event_id=f"bench.event.{number:09d}",
            instrument=instrument,
            event_time=at,
            available_at=at + 250_000,
            revision=0,
            values={"close": 100.0 + number % 97 / 8, "volume": float(number % 1000)},
        )
        value = encode_event(event)
        size = max(size, len(value))
        headers = {"load_id": b"bench.0", "index": b"%d" % number, "kind": b"EVENT"}
        publisher.send(TOPIC, partition_of(key, PARTITIONS), key, value, headers)
    publisher.flush(120.0)
    publisher.close()
    return size


def _bare(bootstrap: str, records: int) -> float:
    """Seconds that a loop needs that does nothing with what it reads, from its first record on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid4().hex}",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    began, seen = time.perf_counter(), 0
    while seen < records:
        seen += sum(message.error() is None for message in consumer.consume(CONSUME, 1.0))
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


class Read(NamedTuple):
    """What a worker needed for all records; `memory` has, for each commit, the records so far and the MiB this process held."""

    seconds: float
    cpu_seconds: float
    memory: tuple[tuple[int, float], ...]

    def mebibytes_at(self, share: float) -> float:
        """Held at the first commit with that share of all records."""
        return next(mebibytes for seen, mebibytes in self.memory if seen >= self.memory[-1][0] * share)

    @property
    def second_half_mebibytes(self) -> float:
        """Grown by from the first commit beyond half of the records to the last."""
        return self.mebibytes_at(1.0) - self.mebibytes_at(0.5)


def worker_read(log: Log, blobs: BlobStore, broker: KafkaBroker, records: int) -> Read:
    """Have a worker read so many records of an endless run."""
    run_id = _requested(log, blobs, bench_flow())
    began = last = began_cpu = last_cpu = 0.0
    memory: list[tuple[int, float]] = []

    def tell(event: StreamEvent) -> None:
        nonlocal began, last, began_cpu, last_cpu
        if event.name == "stream.reading":
            began, began_cpu = time.perf_counter(), time.process_time()
        if event.name == "stream.committed":
            last, last_cpu = time.perf_counter(), time.process_time()
            memory.append((event.records, _resident_mebibytes()))

    how = StreamSettings(total_records=records)
    worker = StreamWorker(log, blobs, broker, how, f"bench_{uuid4().hex}", tell)
    with rare_collections():  # as the commands do
        outcome = worker.run(run_id, threading.Event())
    assert (outcome.end, memory[-1][0]) == (StreamEnd.TOTAL_REACHED, records)
    return Read(last - began, last_cpu - began_cpu, tuple(memory))


def _resident_mebibytes() -> float:
    """What this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _requested(log: Log, blobs: BlobStore, flow: FlowSpec) -> str:
    body = flow_body(flow)
    body_hash = address_of(["bench", uuid4().hex])
    run_id = run_id_of("bench", "runs.create", uuid4().hex, body_hash)
    spec = RunSpec(
        mode=Mode.STREAM,
        flow=blobs.put(canonical(body)),
        flow_name=flow.name,
        snapshot="",
        as_of=EPOCH,
        deadline_seconds=3600,
        topic=TOPIC,
        bounded=False,
    )
    requested = RunRequested(run_id=run_id, principal="bench", spec=spec, body_hash=body_hash)
    log.append_blocking(Append(events=(NewEvent(run_stream(run_id), 1, requested, uuid4()),)))
    return run_id


def bench_flow() -> FlowSpec:
    """An EMA of each of the keys."""
    keys = [f"bench.instrument-{number:03d}" for number in range(KEYS)]
    nodes = [
        {
            "id": f"ema-{number}",
            "op": "ema",
            "inputs": [{"column": "close", "instrument": key}],
            "parameters": {"length": EMA_LENGTH},
        }
        for number, key in enumerate(keys)
    ]
    return parse_flow(
        {
            "version": 1,
            "name": "bench",
            "source": {"instruments": keys},
            "clock": {"kind": "event"},
            "nodes": nodes,
            "outputs": [{"name": node["id"], "node": node["id"]} for node in nodes],
        }
    )
