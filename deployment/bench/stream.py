"""Records per second of the stream worker, against a bare `consume(500)` loop over the same topic.

200 000 records of some 200 bytes at scale 1, 100 keys over 4 partitions, an EMA of each key. The worker decodes, deduplicates
by identity, applies the op, journals, and commits a checkpoint each second under its fence in PostgreSQL; the bare loop does
nothing with what it reads. Both run in this process, one after the other, on Apache Kafka where a JDK and Maven are found, else
on the embedded broker.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from deployment.bench.figures import aim, answer, figure, ratio
from deployment.brokers.apache import apache_kafka
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.jars import missing
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

AIM_OF_BARE: Final = 0.33
"""What a loop without any of the guarantees, but with a local journal, reached (docs/benchmarks.md)."""


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure worker and bare loop in turn."""
    records = max(1000, int(RECORDS * scale))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finaz-")))
        database = stack.enter_context(EmbeddedPostgres())
        migrate(database.dsn())
        process = stack.enter_context(embedded_broker() if missing() else apache_kafka())
        broker = KafkaBroker(process.bootstrap)
        stack.callback(broker.close)
        log = stack.enter_context(Log(database.dsn(), INLINE))
        blobs = DirectoryBlobStore(folder / "cas")
        report(f"stream: publishing {records} records to {process.name}")
        size = _published(broker, records)
        warm_up()
        ours, bare, commits, grown = [], [], [], []
        for number in range(repeats):
            report(f"stream: repeat {number + 1}, the bare loop")
            bare.append(records / _bare(process.bootstrap, records))
            report(f"stream: repeat {number + 1}, the worker")
            read = _worker(log, blobs, broker, records)
            ours.append(records / read.seconds)
            commits.append(float(read.commits))
            grown.append(read.second_half_mebibytes)
        times = ratio(ours, bare)
        return answer(
            f"How fast does a worker read {records} records of {size} bytes, all of which are taken?",
            [
                figure("worker", ours, "records/s", ratio=times),
                figure("bare consume(500)", bare, "records/s"),
                figure("checkpoints of a run", commits, "commits"),
                figure("memory grown in a run's second half", grown, "MiB"),
            ],
            [aim("worker to bare consume(500)", times, at_least=AIM_OF_BARE)],
            [
                f"{KEYS} keys, {PARTITIONS} partitions, an EMA of each; a checkpoint each second, and one at the end.",
                "Seconds are those from the worker's first poll to its last commit: all journalled, ticks and state safe.",
            ],
            records=records,
            versions={"broker": process.name},
        )


def _published(broker: KafkaBroker, records: int) -> int:
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
    """What a worker needed for all records."""

    seconds: float
    commits: int
    second_half_mebibytes: float


def _worker(log: Log, blobs: BlobStore, broker: KafkaBroker, records: int) -> Read:
    """Have a worker read so many records of an endless run."""
    run_id = _requested(log, blobs, bench_flow())
    began = 0.0
    last = 0.0
    memory: list[tuple[int, float]] = []

    def tell(event: StreamEvent) -> None:
        nonlocal began, last
        if event.name == "stream.reading":
            began = time.perf_counter()
        if event.name == "stream.committed":
            last = time.perf_counter()
            memory.append((event.records, _resident_mebibytes()))

    how = StreamSettings(total_records=records)
    outcome = StreamWorker(log, blobs, broker, how, f"bench_{uuid4().hex}", tell).run(run_id, threading.Event())
    assert (outcome.end, memory[-1][0]) == (StreamEnd.TOTAL_REACHED, records)
    half = next(mebibytes for seen, mebibytes in memory if seen >= records / 2)
    return Read(last - began, len(memory), memory[-1][1] - half)


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
            "parameters": {"length": 20},
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
