"""Batch workers on a real PostgreSQL: many on one queue, each run once; late, killed and stopped ones; the database away."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from deployment.embedded import EmbeddedPostgres
from domain.canonical import address, canonical, parse
from domain.errors import RunFinishedError
from domain.events import Recorded
from domain.identity import run_stream
from domain.runs.aggregate import RunState, decide
from domain.runs.messages import RequeueReason, RequeueRun, RunCancellationRequested
from services.admission import Admissions
from services.batch_parts import WorkerEvent, WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.event_ids import new_event_id
from services.ports import Append, NewEvent, Vacant
from services.requests import parse_run_body
from services.run_appends import head_of, streams_of
from services.runs import Runs, RunView
from services.store.application import Log
from services.store.notifications import OUTBOX
from services.store.work_queue import OutboxQueue
from tests.support.fixture_market import GOLDEN, body, flow, store_snapshot
from tests.support.logs import opened
from tests.support.worker_rig import Happenings, Rig

ROOT = Path(__file__).parents[3]


class Floor:
    """A log, blobs with the fixture, and what tests do with them."""

    def __init__(self, dsn: str, log: Log, folder: Path) -> None:
        self.dsn = dsn
        self.log = log
        self.folder = folder
        self.blobs = DirectoryBlobStore(folder)
        self.snapshot = store_snapshot(self.blobs)
        self.admissions = Admissions(log, self.blobs)
        self.happenings = Happenings()

    async def submit(self, count: int, **changes: Any) -> list[str]:
        wanted = parse_run_body(body(self.snapshot, **changes))
        keys = [f"key-{time.monotonic_ns()}-{n}" for n in range(count)]
        submitted = await asyncio.gather(*(self.admissions.submit_run("ana", key, wanted) for key in keys))
        return [s.run_id for s in submitted]

    def worker(self, owner: str, log: Log | None = None, **settings: Any) -> BatchWorker:
        log = log or self.log
        chosen = WorkerSettings(**({"poll_seconds": 0.1} | settings))
        return BatchWorker(
            log,
            self.blobs,
            OutboxQueue(log.pool),
            chosen,
            owner,
            self.happenings,
            wakeups=log.listener.waker(OUTBOX),
        )

    async def view(self, run_id: str) -> RunView:
        return await Runs(self.log).get(run_id, "ana")

    async def everything(self) -> Sequence[Recorded]:
        return await asyncio.to_thread(self.log.read_log, 0, 1_000_000)

    async def count(self, topic: str) -> Counter[str]:
        """How often the event happened, per stream."""
        return Counter(recorded.stream for recorded in await self.everything() if recorded.event.topic == topic)

    async def check_all_golden(self, run_ids: Sequence[str], attempts: int = 1) -> None:
        """Each succeeded with the golden, published once, started once."""
        for run_id in run_ids:
            view = await self.view(run_id)
            assert view.state is RunState.SUCCEEDED, view
            assert [result.values_hash for result in view.results] == [GOLDEN]
            assert view.attempts <= attempts
        streams = {run_stream(run_id) for run_id in run_ids}
        started, published = await self.count("run.started.v1"), await self.count("run.result_published.v1")
        assert set(started) == set(published) == streams
        assert max(started.values()) <= attempts
        assert set(published.values()) == {1}

    def process(self, **settings: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.support.worker_process", self.dsn, str(self.folder)]
        return subprocess.Popen(
            [*command, msgspec.json.encode(settings).decode()], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )


@pytest.fixture
def floor(database: str, tmp_path: Path) -> Iterator[Floor]:
    with opened(database) as log:
        yield Floor(database, log, tmp_path / "cas")


async def working(*workers: BatchWorker) -> tuple[asyncio.Event, list["asyncio.Task[None]"]]:
    stop = asyncio.Event()
    return stop, [asyncio.create_task(worker.run(stop)) for worker in workers]


async def stopped(stop: asyncio.Event, tasks: list["asyncio.Task[None]"]) -> None:
    stop.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def until_line(process: "subprocess.Popen[str]", name: str) -> None:
    """Read the process's happenings until one of this name."""

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(name):
                return
        raise AssertionError(f"the worker ended without {name}")

    await asyncio.wait_for(asyncio.to_thread(read), 60)


# ------------------------------------------------------------------------------------------------ many workers


async def test_the_fixture_run_reaches_the_golden(floor: Floor) -> None:
    """Admitted, executed, published: the result's artifact is a FeatureBatch whose values have the golden address."""
    (run_id,) = await floor.submit(1)
    result = await floor.worker("A").run_one()
    assert result is not None
    assert (result.run_id, result.output, result.values_hash, result.rows) == (run_id, "ema", GOLDEN, 6)
    data = floor.blobs.get(result.artifact)
    assert address(data) == result.artifact
    values = [tick["values"]["ema"] for tick in parse(data)["ticks"]]
    assert address(canonical(values)) == GOLDEN
    assert (result.flow, result.inputs) == ((await floor.view(run_id)).flow, (floor.snapshot,))


async def test_workers_share_a_queue_and_each_run_is_executed_once(floor: Floor) -> None:
    """Three workers with stores of their own, one of them a process: every run is started exactly once, and succeeds."""
    run_ids = await floor.submit(60)
    process = floor.process()
    try:
        with opened(floor.dsn) as second:
            workers = (floor.worker("A", reserve_max=7), floor.worker("B", second, reserve_max=5))
            await until_line(process, "run.claimed")
            stop, tasks = await working(*workers)
            run_ids += await floor.submit(60)
            while (await floor.count("run.succeeded.v1")).total() < 120:  # noqa: ASYNC110 -- another process's runs
                await asyncio.sleep(0.05)
            await stopped(stop, tasks)
    finally:
        process.terminate()
        assert process.wait(30) == 0
    await floor.check_all_golden(run_ids)


async def test_workers_that_ignore_reservations_still_execute_each_run_once(floor: Floor) -> None:
    """A reservation is a hint: with the same candidates given to all at once, the append decides, and losers let go."""
    run_ids = await floor.submit(20)

    class Everybody(OutboxQueue):
        async def reserve(self, *args: Any) -> Sequence[str]:
            return run_ids

    workers = [floor.worker(owner) for owner in "ABC"]
    for worker in workers:
        worker._queue = Everybody(floor.log.pool)
    counts = await asyncio.gather(*(worker.run_once() for worker in workers))
    assert sum(counts) == 20
    await floor.check_all_golden(run_ids)
    assert len(floor.happenings.of("run.lost_race")) == 40


async def test_a_notification_wakes_an_idle_worker(floor: Floor) -> None:
    """A run posted to an idle worker whose poll is an hour away is picked up."""
    stop, tasks = await working(floor.worker("A", poll_seconds=3600.0))
    await floor.happenings.wait_for("worker.idle")
    await asyncio.sleep(0)
    await floor.submit(1)
    await floor.happenings.wait_for("run.succeeded")
    await stopped(stop, tasks)


# ------------------------------------------------------------------------------------------------ clocks


@pytest.mark.parametrize("offset", [-3600, 3600])
async def test_a_workers_clock_an_hour_off_changes_nothing(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Wall clock wrong, process and session in other time zones: leases, deadlines and due times are the database's."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET TimeZone TO 'Asia/Kolkata'").format(name))
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + offset)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with opened(database) as log:
            floor = Floor(database, log, tmp_path / "cas")
            in_time = await floor.submit(3, deadline_seconds=60)
            await floor.worker("A").run_once()
            await floor.check_all_golden(in_time)
            (view,) = [await floor.view(in_time[0])]
            assert view.started_at is not None
            assert abs((view.started_at - view.requested_at).total_seconds()) < 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_service_reads_a_wall_clock() -> None:
    """Nothing in domain, services or projections asks this machine what time it is; time that decides is the database's.

    Sweeping old temporary files and the prefix of event ids decide nothing.
    """
    asked = ("datetime.now(", "time.time(", "utcnow(", "date.today(", "time.time_ns(")
    allowed = {"services/cas.py", "services/event_ids.py"}
    found = [
        f"{path}: {call}"
        for layer in ("domain", "services", "projections")
        for path in (ROOT / layer).rglob("*.py")
        for call in asked
        if call in path.read_text(encoding="utf-8") and str(path.relative_to(ROOT)) not in allowed
    ]
    assert found == []


# ------------------------------------------------------------------------------------------------ late and hung


async def test_a_late_wake_publishes_nothing(floor: Floor, tmp_path: Path) -> None:
    """A computes past its lease, B takes over and publishes under token 2; A, waking, is refused and adds no event."""
    rig = Rig(floor.log, OutboxQueue(floor.log.pool), tmp_path / "cas")
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    loop, taken_over, computing = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(computing.set)
        taken_over.wait(60)

    rig.computation.on_compute = compute
    late = asyncio.create_task(rig.worker("A", lease_ttl_seconds=2.0, border_read_seconds=60.0).run_once())
    await asyncio.wait_for(computing.wait(), 60)
    await rig.happenings.wait_for("run.stalled")
    rig.computation.on_compute = lambda border, tick: None
    await orphaned(floor, run_id)
    assert await rig.worker("B").run_once() == 1
    before = await asyncio.to_thread(floor.log.high_water_mark)
    taken_over.set()
    await asyncio.wait_for(late, 60)
    assert await asyncio.to_thread(floor.log.high_water_mark) == before
    run = await rig.run(run_id)
    assert (run.state, run.token, run.owner) == (RunState.SUCCEEDED, 2, "B")
    assert [e.run_id for e in rig.happenings.of("run.lease_lost")] == [run_id]


async def orphaned(floor: Floor, run_id: str) -> None:
    """Put an orphan back into the queue when its lease has run out, as orphan recovery does."""
    while True:
        read = await floor.log.read_streams(streams_of([run_id]))
        head = head_of(run_id, read)
        if not head.lease.is_live(read.now):
            break
        await asyncio.sleep(0.02)
    token = head.lease.token
    events = decide(head.run, RequeueRun(token=token, reason=RequeueReason.ORPHANED), read.now)
    news = tuple(NewEvent(run_stream(run_id), head.run_version + 1, event, new_event_id()) for event in events)
    await floor.log.append(Append(events=news, guard=Vacant(run_id, token)))


async def test_a_long_run_keeps_its_lease_by_heartbeats(floor: Floor, tmp_path: Path) -> None:
    """A run several TTLs long is renewed under one token while it makes progress, and succeeds."""
    rig = Rig(floor.log, OutboxQueue(floor.log.pool), tmp_path / "cas")
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    renewed = lambda: len(rig.happenings.of("lease.renewed"))  # noqa: E731

    def compute(border: Any, tick: Any) -> None:
        while renewed() < 6:
            tick()
            time.sleep(0.01)

    rig.computation.on_compute = compute
    await asyncio.wait_for(rig.worker("A", lease_ttl_seconds=3.0).run_once(), 60)
    run = await rig.run(run_id)
    assert (run.state, run.attempts, run.token) == (RunState.SUCCEEDED, 1, 1)


# ------------------------------------------------------------------------------------------------ faults of the input


async def test_faults_of_the_input_end_runs_at_once(floor: Floor) -> None:
    """A snapshot that went missing, one that rotted, a flow that rotted: FAILED, code and place told, delivered; no loop."""
    chunk = parse(floor.blobs.get(floor.snapshot))["chunks"][0]["address"]
    runs = {}
    for damaged, spoil, code in (
        (chunk, "remove", "BLOB_MISSING"),
        (chunk, "rot", "BLOB_CORRUPT"),
        (floor.snapshot, "rot", "BLOB_CORRUPT"),
    ):
        (run_id,) = await floor.submit(1)
        (path,) = floor.folder.rglob(damaged.removeprefix("sha256:"))
        good = path.read_bytes()
        path.unlink() if spoil == "remove" else path.write_bytes(good[:-1] + b"X")
        assert await floor.worker(f"{spoil}-{code}").run_once() == 1
        path.write_bytes(good)
        runs[run_id] = (code, damaged)
    (late,) = await floor.submit(1, flow=flow(length=7))
    flow_address = (await floor.view(late)).flow
    (path,) = floor.folder.rglob(flow_address.removeprefix("sha256:"))
    path.write_bytes(b"{}")
    assert await floor.worker("flow").run_once() == 1
    runs[late] = ("BLOB_CORRUPT", flow_address)
    for run_id, (code, at) in runs.items():
        view = await floor.view(run_id)
        assert (view.state, view.errors[0].code, view.errors[0].at) == (RunState.FAILED, code, at)
    assert await floor.worker("again").run_once() == 0


async def test_cancelling_works_in_each_state(floor: Floor) -> None:
    """Queued: ended, never executed. Running: ended at a border. After the end: `RUN_FINISHED`."""
    (queued,) = await floor.submit(1)
    assert (await Runs(floor.log).cancel(queued, "ana")).state is RunState.CANCELLED
    (running,) = await floor.submit(1)

    def cancel(event: WorkerEvent) -> None:
        if event.stage == "clock":
            asked = RunCancellationRequested(run_id=running, principal="ana")
            floor.log.append_blocking(Append(events=(NewEvent(run_stream(running), 3, asked, new_event_id()),)))

    floor.happenings.on = cancel
    await floor.worker("A").run_once()
    view = await floor.view(running)
    assert (view.state, view.cancellation_requested, view.results) == (RunState.CANCELLED, True, ())
    for finished in (queued, running):
        with pytest.raises(RunFinishedError):
            await Runs(floor.log).cancel(finished, "ana")
    assert await floor.worker("B").run_once() == 0


# ------------------------------------------------------------------------------------------------ stopping and crashing


async def test_sigterm_hands_back_what_is_running(floor: Floor) -> None:
    """A real process, stopped in the middle: it exits 0 in bounded time, leaves no run RUNNING, and another finishes them."""
    run_ids = await floor.submit(4)
    process = floor.process(pace_seconds=600.0, grace_seconds=0.2)
    try:
        for _ in run_ids:
            await until_line(process, "run.claimed")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 40) == 0
    finally:
        process.kill()
        process.wait()
    assert {(await floor.view(run_id)).state for run_id in run_ids} == {RunState.QUEUED}
    assert (await floor.count("run.requeued.v1")).total() == 4
    while (await floor.count("run.succeeded.v1")).total() < 4:
        await floor.worker("next").run_once()
    await floor.check_all_golden(run_ids, attempts=2)
    assert {(await floor.view(run_id)).token for run_id in run_ids} == {2}


async def test_nothing_acknowledged_is_lost_when_postgresql_dies_under_load(
    mortal_postgres: EmbeddedPostgres, mortal_database: str, tmp_path: Path
) -> None:
    """Killed with SIGKILL and started again while runs are admitted and executed: each admitted run succeeds, published once."""
    with opened(mortal_database) as log:
        floor = Floor(mortal_database, log, tmp_path / "cas")
        workers = [floor.worker(owner, lease_ttl_seconds=20.0) for owner in "AB"]
        stop, tasks = await working(*workers)
        acknowledged: list[str] = []
        unsure: list[str] = []
        wanted = parse_run_body(body(floor.snapshot))
        enough = asyncio.Event()

        async def client(name: int) -> None:
            number = 0
            while not enough.is_set() and number < 400:
                number += 1
                key = f"{name}-{number}"
                try:
                    acknowledged.append((await floor.admissions.submit_run("ana", key, wanted)).run_id)
                except Exception:
                    unsure.append(key)
                    await asyncio.sleep(0.05)

        clients = [asyncio.create_task(client(n)) for n in range(4)]
        for kill in (1, 2):
            await floor.happenings.wait_for("run.succeeded", 40 * kill, seconds=60)
            await asyncio.to_thread(mortal_postgres.kill)
            await asyncio.to_thread(mortal_postgres.start)
        await floor.happenings.wait_for("run.succeeded", 120, seconds=60)
        enough.set()
        await asyncio.gather(*clients)
        again = [await floor.admissions.submit_run("ana", key, wanted) for key in unsure]
        acknowledged += [submitted.run_id for submitted in again]  # the run that it got then, or one now
        await until_done(floor, set(acknowledged))
        await stopped(stop, tasks)
        started = await floor.count("run.started.v1")
        await floor.check_all_golden(acknowledged, attempts=max(started.values()))


async def until_done(floor: Floor, run_ids: set[str]) -> None:
    """Wait for the runs; what was left running by a claim or end that could not be written goes back when its lease ends."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        views = [await floor.view(run_id) for run_id in run_ids]
        unfinished = [view for view in views if view.state in (RunState.QUEUED, RunState.RUNNING)]
        if not unfinished:
            return
        for view in unfinished:
            if view.state is RunState.RUNNING and view.run_id not in {
                e.run_id for e in floor.happenings.of("run.stage")
            }:
                await orphaned(floor, view.run_id)
        await asyncio.sleep(0.2)
    raise AssertionError(f"{len(unfinished)} runs do not end: {unfinished[0]}")
