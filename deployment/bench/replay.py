"""Replays: arrivals per second into the log, into the topic, and folded in memory by a REPLAY run.

The topic is filled as `finaz replay` does it, idempotent and acknowledged by the broker, and once more by a bare producer of the
same client that is given ready records: the ratio says what making records, headers and partitions costs. Apache Kafka where a
JDK 17 and Maven are found, else the embedded broker.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import numpy as np

from deployment.bench.figures import answer, figure, ratio
from deployment.bench.registry import Report
from deployment.brokers.process import BrokerProcess
from domain.canonical import address
from domain.errors import BlobMissingError
from domain.market.arrivals import ArrivalLog, log_lines
from domain.market.faults import FaultKind, FaultSchedule
from domain.market.flow import FlowSpec, parse_flow
from domain.market.records import MarketEvent
from domain.market.snapshot import build_snapshot, encode_manifest
from domain.stream.publication import load_ids, outgoing
from domain.stream.replayed import replayed
from services.adapters.kafka import KafkaBroker
from services.replay import drawn_schedule, made_log
from services.replay_publishing import FLUSH_SECONDS_MAX, ReplayRequest, publish

EVENTS: Final = 100_000
"""Events of the snapshot at scale 1."""

EVENTS_MIN: Final = 200
INSTRUMENTS: Final = 100
PARTITIONS: Final = 4
RATES: Final = dict.fromkeys((FaultKind.DELAY, FaultKind.REVISION, FaultKind.DUPLICATE, FaultKind.GAP), 0.01)
"""Faults; none that pauses."""

_START: Final = 1_767_603_600_000_000
_AS_OF: Final = _START + 10**12
_STEP: Final = 1_000


class _Blobs:
    """Blobs in memory: reading them costs nothing here."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        name = address(data)
        self._held[name] = data
        return name

    def get(self, name: str) -> bytes:
        if name not in self._held:
            raise BlobMissingError("no such blob", at=name)
        return self._held[name]

    def has(self, name: str) -> bool:
        return name in self._held


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Logs made, published and folded; see `registry.py`."""
    events = max(EVENTS_MIN, round(EVENTS * scale))
    blobs = _Blobs()
    snapshot = _snapshot(blobs, events)
    schedule = drawn_schedule(blobs, snapshot, _AS_OF, 7, RATES)
    rates: dict[str, list[float]] = {}

    def measured(label: str, records: int, began: float) -> None:
        rates.setdefault(label, []).append(records / (time.perf_counter() - began))
        report(f"replay: {label} {rates[label][-1]:,.0f}/s")

    with _broker() as (name, client):
        for _ in range(repeats):
            log = _measure_log(blobs, snapshot, schedule, measured)
            _measure_topic(client, log, measured)
            began = time.perf_counter()
            replayed(_flow(), log, lambda: None)
            measured("folded in memory, all instruments selected", len(log.arrivals), began)
    into_topic, bare = rates["into the topic"], rates["a bare producer of ready records"]
    ratios = {"into the topic": ratio(into_topic, bare)}
    figures = [
        figure(
            label, values, "arrivals/s", ratio=ratios.get(label), against="bare producer" if label in ratios else None
        )
        for label, values in rates.items()
    ]
    question = (
        f"a snapshot of {events} events, {INSTRUMENTS} instruments, 1% of each fault, {name}: arrivals per second?"
    )
    return answer(question, figures, arrivals=len(log.arrivals), broker=name)


def _measure_log(blobs: _Blobs, snapshot: str, schedule: FaultSchedule, measured: Any) -> ArrivalLog:
    began = time.perf_counter()
    log = made_log(blobs, snapshot, _AS_OF, schedule)
    measured("into the log, with its hash", len(log.arrivals), began)
    began = time.perf_counter()
    for _ in log_lines(log.arrivals, _AS_OF, schedule, snapshot):
        pass
    measured("lines of the log", len(log.arrivals), began)
    return log


def _measure_topic(client: KafkaBroker, log: ArrivalLog, measured: Any) -> None:
    """The same records, through our publication and by a bare producer, to a topic of their own each."""
    names = [f"bench-{uuid4().hex}" for _ in range(2)]
    for name in names:
        client.topics().create(name, PARTITIONS, {"cleanup.policy": "delete"})
    began = time.perf_counter()
    done = publish(client, log, ReplayRequest(topic=names[0]))
    measured("into the topic", done.sent, began)
    ready = list(outgoing(log.arrivals, load_ids("bare", 1), PARTITIONS, {}))
    publisher = client.publisher()
    began = time.perf_counter()
    for record in ready:
        publisher.send(names[1], record.partition, record.key, record.value, record.headers)
    publisher.flush(FLUSH_SECONDS_MAX)
    measured("a bare producer of ready records", len(ready), began)
    publisher.close()
    for name in names:
        client.topics().delete(name)


@contextmanager
def _broker() -> Iterator[tuple[str, KafkaBroker]]:
    from deployment.brokers.apache import apache_kafka
    from deployment.brokers.embedded import embedded_broker
    from deployment.brokers.jars import KAFKA_JARS

    process: BrokerProcess = apache_kafka() if KAFKA_JARS.missing() is None else embedded_broker()
    with process:
        client = KafkaBroker(process.bootstrap)
        try:
            yield process.name, client
        finally:
            client.close()


def _snapshot(blobs: _Blobs, events: int) -> str:
    values = np.random.default_rng(7).uniform(1.0, 100.0, (events, 3)).tolist()
    made = (
        MarketEvent(
            event_id=f"I{number % INSTRUMENTS}@{number}",
            instrument=f"I{number % INSTRUMENTS}",
            event_time=_START + number * _STEP,
            available_at=_START + number * _STEP + 250_000,
            revision=0,
            values={"close": close, "high": high, "volume": volume},
        )
        for number, (close, high, volume) in enumerate(values)
    )
    manifest, chunks = build_snapshot(made, name="bench")
    for chunk in chunks:
        blobs.put(chunk)
    return blobs.put(encode_manifest(manifest))


def _flow() -> FlowSpec:
    """An EMA of every instrument."""
    instruments = [f"I{number}" for number in range(INSTRUMENTS)]
    return parse_flow(
        {
            "version": 1,
            "name": "bench",
            "source": {"instruments": instruments},
            "clock": {"kind": "event"},
            "nodes": [
                {
                    "id": f"n{name}",
                    "op": "ema",
                    "inputs": [{"column": "close", "instrument": name}],
                    "parameters": {"length": 3},
                }
                for name in instruments
            ],
            "outputs": [{"name": f"o{name}", "node": f"n{name}"} for name in instruments],
        }
    )
