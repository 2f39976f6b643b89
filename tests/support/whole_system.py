"""The whole system in one process, for the walk of all fault points: it admits six runs, executes them (one of them from a topic
that each start fills with the same records), projects, recovers orphans, reconciles, and ends when everything has settled. Faults
may be planted: at a fault point, or around the append of an event of some topic, the process kills itself, stops itself, or meets
an error, once for each.

Started again with the same folder it goes on where the last one was, as a restarted service would.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import projections.runner
from domain.canonical import address_of, canonical
from domain.errors import BlobMissingError, RunFinishedError, StoreUnavailableError
from domain.identity import run_id_of, run_stream
from domain.instants import EPOCH, parse_instant
from domain.market.flow import flow_body, parse_flow
from domain.runs.messages import Mode, RunRequested, RunSpec
from projections.inline import INLINE
from projections.postgres import PostgresSession, RowStore
from projections.projector import Projector
from projections.registry import PROJECTIONS
from projections.runner import Runner
from services import effects, faultpoints
from services.adapters.manager_runner import manager_runner
from services.batch_parts import WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.ports import Append, Appended, NewEvent
from services.process_managers import orphan_recovery, reconciler
from services.process_managers.orphan_recovery import OrphanRecovery
from services.process_managers.reconciler import Reconciler
from services.recomputation import Recomputation
from services.reconciliation import Reconciliation
from services.runs import Runs
from services.served_rows import ServedRows
from services.store.application import Log
from services.store.stream_queue import StreamQueue
from services.store.work_queue import OutboxQueue
from services.stream_parts import StreamSettings
from services.stream_server import StreamServer
from services.stream_worker import StreamWorker
from tests.support.fixture_market import flow
from tests.support.memory_broker import MemoryBroker
from tests.support.stream_rig import fixture_log, publish_log
from tests.support.worker_rig import FLOW, SNAPSHOT, Steered

NAMES = ("plain", "long", "broken", "flaky", "cancelled", "stream")
TOPIC = "arrivals"
MANAGERS = (orphan_recovery.NAME, reconciler.NAME)
LEASE_TTL_SECONDS = 0.9
SETTLE_SECONDS_MAX = 40.0
STOPPED_OWNER_SECONDS = 1.0
"""After so long without a sign of life a stand-by takes over here; the product's own limit would make the walk too slow."""


@dataclass(frozen=True)
class Fault:
    """`action` (`kill`, `pause`, `error`) at the `nth` pass of `where`: a point's name, or a topic (before its append)."""

    where: str
    nth: int
    action: str

    def strike(self) -> None:
        if self.action == "error":
            raise StoreUnavailableError(f"planted at {self.where}")
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class Passes:
    """Counts what is passed, and strikes when a fault's turn has come."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.counts: Counter[str] = Counter()
        self._faults = {(fault.where, fault.nth): fault for fault in faults}
        self._lock = threading.Lock()

    def __call__(self, where: str) -> None:
        with self._lock:
            self.counts[where] += 1
            fault = self._faults.get((where, self.counts[where]))
        if fault is not None:
            fault.strike()


class WatchedLog(Log):
    """The real log; it passes the topics of an append before it is sent."""

    passes: Passes

    async def append(self, append: Append) -> Appended:
        for event in append.events:
            self.passes(event.event.topic)
        return await super().append(append)

    def append_blocking(self, append: Append) -> Appended:
        for event in append.events:
            if event.event.topic.startswith(("checkpoint.", "journal.")):
                self.passes(event.event.topic)
        return super().append_blocking(append)


def request_of(name: str) -> RunRequested:
    """The request of one of the runs: the same at every start."""
    body_hash = address_of(["whole system", name])
    if name == "stream":
        spec = RunSpec(
            mode=Mode.STREAM,
            flow=address_of(flow_body(parse_flow(flow()))),
            flow_name=name,
            snapshot="",
            as_of=EPOCH,
            deadline_seconds=3600,
            topic=TOPIC,
        )
        run_id = run_id_of("ana", "runs.create", name, body_hash)
        return RunRequested(run_id=run_id, principal="ana", spec=spec, body_hash=body_hash)
    spec = RunSpec(
        mode=Mode.BATCH,
        flow=FLOW,
        flow_name=name,
        snapshot=address_of(name) if name == "long" else SNAPSHOT,
        as_of=parse_instant("2026-01-05T10:00:00Z"),
        deadline_seconds=3600,
    )
    run_id = run_id_of("ana", "runs.create", name, body_hash)
    return RunRequested(run_id=run_id, principal="ana", spec=spec, body_hash=body_hash)


class Computing(Steered):
    """What the runs do: `long` takes longer than its lease, `broken` has bad input, `flaky` fails the first time it is tried."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.sizes = {address_of("long"): 10**9}
        self.on_prepare = self._prepare
        self.on_compute = self._compute
        self._tried = folder / "flaky-was-tried"

    def _prepare(self, spec: RunSpec) -> None:
        if spec.flow_name == "broken":
            raise BlobMissingError("the snapshot is gone", at=spec.snapshot)
        if spec.flow_name == "flaky" and not self._tried.exists():
            self._tried.touch()
            raise StoreUnavailableError("away, this once")

    def _compute(self, border: Any, tick: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            until = time.monotonic() + LEASE_TTL_SECONDS * 0.8
            while time.monotonic() < until:
                tick()
                time.sleep(0.01)


def run(dsn: str, folder: str, *faults: Fault) -> None:
    """The process: exit status 0 when everything has settled, 3 when it has not in time."""
    projections.runner.DEAD_AFTER_SECONDS = STOPPED_OWNER_SECONDS  # type: ignore[attr-defined]
    passes = Passes(faults)
    faultpoints.arm(passes)
    settled = asyncio.run(_run(dsn, Path(folder), passes))
    (Path(folder) / "passes.json").write_text(json.dumps(passes.counts))
    sys.exit(0 if settled else 3)


async def _run(dsn: str, folder: Path, passes: Passes) -> bool:
    log = WatchedLog(dsn, INLINE)
    log.passes = passes
    blobs = DirectoryBlobStore(folder / "cas")
    computing = Computing(folder)
    await _admit(log)
    worker = BatchWorker(
        log,
        blobs,
        OutboxQueue(log.pool),
        WorkerSettings(
            lease_ttl_seconds=LEASE_TTL_SECONDS, poll_seconds=0.05, border_read_seconds=0.0, grace_seconds=0.2
        ),
        uuid4().hex,
        computation=computing,
    )
    recompute = Recomputation(Steered())
    projector = Projector([*_projections(dsn), *_managers(dsn, log, blobs, recompute)])
    stop = asyncio.Event()
    working = asyncio.create_task(worker.run(stop))
    streams = _streams(log, blobs)
    streaming = threading.Thread(target=streams.run, daemon=True)
    streaming.start()
    projector.start()
    settled = await _settled(log)
    stop.set()
    await working
    streams.stop()
    await asyncio.to_thread(streaming.join)
    await asyncio.to_thread(projector.stop)
    await asyncio.to_thread(recompute.close)
    await asyncio.to_thread(log.close)
    return settled


async def _admit(log: Log) -> None:
    """Request all runs and cancel one, each under ids of its own, until it is acknowledged."""
    for name in NAMES:
        request = request_of(name)
        event = NewEvent(run_stream(request.run_id), 1, request, uuid5(NAMESPACE_OID, name))
        await _until_answered(lambda event=event: effects.append(log, Append(events=(event,))))
    runs, cancelled = Runs(log), request_of("cancelled").run_id
    try:
        await _until_answered(lambda: runs.cancel(cancelled, "ana"))
    except RunFinishedError:
        return


async def _until_answered(call: Any) -> None:
    while True:
        try:
            await call()
            return
        except StoreUnavailableError:
            await asyncio.sleep(0.01)


def _streams(log: Log, blobs: DirectoryBlobStore) -> StreamServer:
    """The server of stream runs, on a broker that has the same records at every start."""
    blobs.put(canonical(flow_body(parse_flow(flow()))))
    broker = MemoryBroker()
    publish_log(broker, TOPIC, fixture_log(), 2)
    how = StreamSettings(
        lease_ttl_seconds=LEASE_TTL_SECONDS, poll_seconds=0.02, look_seconds=0.1, checkpoint_records=10
    )
    return StreamServer(
        StreamQueue(log.pool), lambda: StreamWorker(log, blobs, broker, how, uuid4().hex), slots=1, poll_seconds=0.05
    )


def _projections(dsn: str) -> list[Runner]:
    owner = uuid4().hex
    made = []
    for projection in PROJECTIONS.values():
        if isinstance(projection.rows, RowStore):
            model, rows = projection.model, projection.rows
            made.append(
                Runner(
                    model,
                    lambda model=model, rows=rows: PostgresSession(dsn, model, rows, owner),  # type: ignore[misc]
                    poll_seconds=0.05,
                    point=faultpoints.point,
                )
            )
    return made


def _managers(dsn: str, log: Log, blobs: DirectoryBlobStore, recompute: Recomputation) -> Sequence[Runner]:
    reconciliation = Reconciliation(log, blobs, ServedRows(log.pool), recompute)
    managers = (OrphanRecovery(log), Reconciler(log, reconciliation, round_seconds=3600.0))
    return [manager_runner(dsn, log.pool, manager, uuid4().hex, poll_seconds=0.05) for manager in managers]


async def _settled(log: Log) -> bool:
    """Wait until every run has ended, everybody has seen the whole log, and nothing is due."""
    statement = (
        "SELECT (SELECT count(*) FROM finaz.outbox WHERE state <> 'delivered')"
        " + (SELECT count(*) FROM finaz.projections WHERE role = 'active' AND name = ANY (%s)"
        "    AND position < (SELECT max(position) FROM finaz.events))"
        " + (SELECT count(*) FROM finaz.manager_commands WHERE state = 'pending' AND name IN ('verify', 'recover'))"
        " + abs((SELECT count(*) FROM finaz.outbox) - %s)"
    )
    until = time.monotonic() + SETTLE_SECONDS_MAX
    while time.monotonic() < until:
        try:
            if await asyncio.to_thread(log.pool.rows, statement, [[*PROJECTIONS, *MANAGERS], len(NAMES)]) == [(0,)]:
                return True
        except StoreUnavailableError:
            pass
        await asyncio.sleep(0.02)
    return False
