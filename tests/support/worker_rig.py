"""A batch worker with everything around it, for tests: a log, a queue, blobs, a computation that tests steer."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from domain.canonical import address_of, canonical
from domain.identity import run_id_of, run_stream
from domain.instants import parse_instant
from domain.runs.aggregate import Run
from domain.runs.messages import Mode, RunRequested, RunSpec
from services.batch_parts import Border, Computed, Output, Prepared, Tick, WorkerEvent, WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.ports import Append, BlobStore, EventLog, NewEvent, WorkQueue
from services.runs import fold_run

STAGES = ("snapshot", "clock", "ops", "persist", "publish")
FLOW = address_of("a flow")
SNAPSHOT = address_of("a snapshot")


class Steered:
    """A computation that calls back where a real one works: `on_prepare` and `on_compute` may raise, wait or look around."""

    def __init__(self) -> None:
        self.size = 1
        self.sizes: dict[str, int] = {}
        self.values: list[float | None] = [None, None, 2.0]
        self.on_prepare: Callable[[RunSpec], Any] = lambda spec: None
        self.on_compute: Callable[[Border, Tick], Any] = lambda border, tick: None
        self.computed: list[str] = []

    async def warm_up(self) -> None:
        return None

    async def rows(self, spec: RunSpec) -> int:
        return self.sizes.get(spec.snapshot, self.size)

    async def prepare(self, spec: RunSpec, tick: Tick) -> Prepared:
        self.on_prepare(spec)
        return SteeredInputs(self, spec)


class SteeredInputs:
    """What `Steered` prepares."""

    def __init__(self, steered: Steered, spec: RunSpec) -> None:
        self._steered = steered
        self._spec = spec

    def compute(self, border: Border, tick: Tick) -> Computed:
        border("ops")
        self._steered.on_compute(border, tick)
        self._steered.computed.append(self._spec.flow_name)
        artifact = canonical({"flow": FLOW, "ticks": self._steered.values})
        values_hash = address_of(self._steered.values)
        output = Output(name="ema", values_hash=values_hash, rows=3, schema="test.v1")
        return Computed(artifact=artifact, outputs=(output,))


class Happenings:
    """What workers told, in order; `wait_for` a happening instead of sleeping. `on` may act at one, from whatever thread."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []
        self.on: Callable[[WorkerEvent], None] = lambda event: None
        self._changed = threading.Condition()

    def __call__(self, event: WorkerEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        self.on(event)

    def names(self, run_id: str = "") -> list[str]:
        return [event.name for event in self.events if not run_id or event.run_id == run_id]

    def of(self, name: str) -> list[WorkerEvent]:
        return [event for event in self.events if event.name == name]

    async def wait_for(self, name: str, count: int = 1, seconds: float = 20.0) -> None:
        await asyncio.to_thread(self._wait, name, count, seconds)

    def _wait(self, name: str, count: int, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.of(name)) >= count, seconds):
                raise AssertionError(f"{name} did not happen {count} times; {self.names()}")


class Rig:
    """A log with its queue and blobs, and workers on them."""

    def __init__(self, log: EventLog, queue: WorkQueue, folder: Path) -> None:
        self.log = log
        self.queue = queue
        self.blobs: BlobStore = DirectoryBlobStore(folder)
        self.computation = Steered()
        self.happenings = Happenings()
        self.owners = 0

    def worker(self, owner: str = "", **settings: Any) -> BatchWorker:
        """A new worker, of a new owner unless one is named."""
        self.owners += 1
        settings = {"poll_seconds": 0.05, "border_read_seconds": 0.0, "grace_seconds": 0.2} | settings
        return BatchWorker(
            self.log,
            self.blobs,
            self.queue,
            WorkerSettings(**settings),
            owner or f"owner-{self.owners}",
            self.happenings,
            computation=self.computation,
        )

    async def request(self, count: int = 1, **spec: Any) -> list[str]:
        """Request runs, as admission does; their ids."""
        wanted = [requested(number, **spec) for number in range(count)]
        await asyncio.gather(
            *(
                self.log.append(Append(events=(NewEvent(run_stream(event.run_id), 1, event, uuid4()),)))
                for event in wanted
            )
        )
        return [event.run_id for event in wanted]

    async def run(self, run_id: str) -> Run:
        """The state of a run."""
        stream = run_stream(run_id)
        return fold_run(run_id, (await self.log.read_streams([stream])).streams[stream])

    async def topics(self, *streams: str) -> list[str]:
        """Topics of the streams' events, by position."""
        read = await self.log.read_streams(streams)
        events: Sequence[Any] = sorted((e for s in read.streams.values() for e in s), key=lambda e: e.position)
        return [recorded.event.topic for recorded in events]


def requested(number: int = 0, **spec: Any) -> RunRequested:
    """A request for the `number`-th of some runs."""
    fields: dict[str, Any] = {
        "mode": Mode.BATCH,
        "flow": FLOW,
        "flow_name": f"flow-{number}",
        "snapshot": SNAPSHOT,
        "as_of": parse_instant("2026-01-05T10:00:00Z"),
        "deadline_seconds": 3600,
    }
    body_hash = address_of(["body", number, uuid4().hex])
    run_id = run_id_of("ana", "runs.create", f"key-{number}", body_hash)
    return RunRequested(run_id=run_id, principal="ana", spec=RunSpec(**(fields | spec)), body_hash=body_hash)
