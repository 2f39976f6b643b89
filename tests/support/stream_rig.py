"""A stream worker with everything around it, for tests: a log, blobs, a broker, the fixture's topic, and workers on them."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from deployment.fixture_files import fixture_path
from domain.canonical import address_of, canonical, parse
from domain.identity import checkpoint_stream, journal_stream, lease_stream, run_id_of, run_stream
from domain.instants import EPOCH, parse_instant, to_micros
from domain.market.arrivals import ArrivalLog, arrival_log
from domain.market.faults import FaultSchedule, parse_schedule
from domain.market.feature_batch import FeatureBatch, parse_feature_batch
from domain.market.flow import FlowSpec, flow_body, parse_flow
from domain.runs.aggregate import Run
from domain.runs.messages import Mode, RunRequested, RunSpec
from domain.stream.publication import load_ids, outgoing
from services.broker import Broker
from services.checkpoints import CheckpointLog
from services.ports import Append, BlobStore, NewEvent
from services.runs import fold_run
from services.stream_parts import StreamEvent, StreamOutcome, StreamSettings
from services.stream_worker import StreamWorker
from tests.support.fixture_market import AS_OF, events, flow, store_snapshot

TOPIC = "arrivals"
PARTITIONS = 4
FIXTURE_COUNTS = {"consumed": 6, "filtered": 15, "omitted": 1, "duplicates_skipped": 1}
THIRTEEN_COUNTS = {"consumed": 6, "filtered": 195, "omitted": 13, "duplicates_skipped": 85}


def fixture_schedule() -> FaultSchedule:
    return parse_schedule(parse(fixture_path("schedules/fixture.faults.01.json").read_bytes()))


def fixture_log(snapshot: str = address_of("a snapshot")) -> ArrivalLog:
    """The fixture's arrival log: 23 records, 7 faults."""
    return arrival_log(events(), to_micros(parse_instant(AS_OF)), fixture_schedule(), snapshot)


def publish_log(broker: Broker, topic: str, log: ArrivalLog, loads: int = 1, partitions: int = PARTITIONS) -> None:
    """So many loads of the log, to a topic that is created if need be."""
    if broker.topics().describe(topic) is None:
        broker.topics().create(topic, partitions, {"cleanup.policy": "delete"})
    publisher = broker.publisher()
    for sent in outgoing(log.arrivals, load_ids("load", loads), partitions, {}):
        publisher.send(topic, sent.partition, sent.key, sent.value, sent.headers)
    publisher.flush(30.0)
    publisher.close()


class StreamHappenings:
    """What workers told, in order; `wait_for` a happening instead of sleeping. `on` may act at one, from whatever thread."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self.on: Callable[[StreamEvent], None] = lambda event: None
        self._changed = threading.Condition()

    def __call__(self, event: StreamEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        self.on(event)

    def of(self, name: str) -> list[StreamEvent]:
        return [event for event in self.events if event.name == name]

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def wait_for(self, name: str, count: int = 1, seconds: float = 30.0) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.of(name)) >= count, seconds):
                raise AssertionError(f"{name} did not happen {count} times; {self.names()}")


class StreamRig:
    """One log, one blob store, one broker; runs are requested as admission does it."""

    def __init__(self, log: CheckpointLog, blobs: BlobStore, broker: Broker) -> None:
        self.log = log
        self.blobs = blobs
        self.broker = broker
        self.happenings = StreamHappenings()
        self.flow: FlowSpec = parse_flow(flow())
        self.owners = 0
        self.requests = 0

    def request(self, topic: str = TOPIC, spec_flow: FlowSpec | None = None, **spec: Any) -> str:
        """Ask for a STREAM run of the fixture's flow over the topic; its id."""
        body = flow_body(spec_flow or self.flow)
        address = self.blobs.put(canonical(body))
        self.requests += 1
        fields: dict[str, Any] = {
            "mode": Mode.STREAM,
            "flow": address,
            "flow_name": body["name"],
            "snapshot": "",
            "as_of": EPOCH,
            "deadline_seconds": 3600,
            "topic": topic,
        }
        body_hash = address_of(["stream", self.requests])
        run_id = run_id_of("ana", "runs.create", f"stream-{self.requests}", body_hash)
        requested = RunRequested(run_id=run_id, principal="ana", spec=RunSpec(**(fields | spec)), body_hash=body_hash)
        self.log.append_blocking(Append(events=(NewEvent(run_stream(run_id), 1, requested, uuid4()),)))
        return run_id

    def snapshot(self) -> str:
        """The fixture's snapshot, stored."""
        return store_snapshot(self.blobs)

    def worker(
        self,
        owner: str = "",
        *,
        broker: Broker | None = None,
        disk_free: Callable[[], int] = lambda: 2**62,
        **settings: Any,
    ) -> StreamWorker:
        """A new worker, of a new owner unless one is named."""
        self.owners += 1
        settings = {"poll_seconds": 0.02, "look_seconds": 0.05, "checkpoint_seconds": 0.05} | settings
        return StreamWorker(
            self.log,
            self.blobs,
            broker or self.broker,
            StreamSettings(**settings),
            owner or f"owner-{self.owners}",
            self.happenings,
            disk_free=disk_free,
        )

    def work(self, run_id: str, **settings: Any) -> StreamOutcome:
        """Have a new worker work on the run to where it ends."""
        return self.worker(**settings).run(run_id, threading.Event())

    def run(self, run_id: str) -> Run:
        """The state of a run."""
        return fold_run(run_id, self.log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)])

    def events(self, run_id: str) -> list[Any]:
        """All events of the run, its leases, checkpoints and journal, by position."""
        streams = [run_stream(run_id), lease_stream(run_id), checkpoint_stream(run_id), journal_stream(run_id)]
        read = self.log.read_streams_blocking(streams)
        return sorted((e for s in read.streams.values() for e in s), key=lambda e: e.position)

    def topics(self, run_id: str) -> list[str]:
        return [recorded.event.topic for recorded in self.events(run_id)]

    def of(self, run_id: str, event_type: type) -> list[Any]:
        """The events of one type, in order."""
        return [recorded.event for recorded in self.events(run_id) if isinstance(recorded.event, event_type)]

    def batch(self, run_id: str) -> FeatureBatch:
        """What the run published."""
        return parse_feature_batch(self.blobs.get(self.run(run_id).results[0].artifact))

    def counts(self, run_id: str) -> dict[str, int]:
        """The treatments of the last checkpoint that have any."""
        from services.checkpoints import Checkpoints
        from services.stream_claim import plan_of

        spec = self.run(run_id).spec
        assert spec is not None
        restored = Checkpoints(self.log, self.blobs).restore(run_id, plan_of(spec, PARTITIONS))
        assert restored.manifest is not None
        return {name: count for name, count in restored.manifest.counts.items() if count}


def other_flow(instrument: str, **changes: Any) -> FlowSpec:
    return parse_flow(flow(instrument, **changes))
