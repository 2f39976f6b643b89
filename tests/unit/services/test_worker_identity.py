"""A worker beats for what it executes itself and for nothing else, often enough; and it listens while it stops."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from domain.identity import lease_stream, run_stream
from domain.leases.messages import LeaseGranted
from domain.runs.aggregate import RunState
from domain.runs.messages import RunStarted
from services.heartbeats import Heartbeats
from services.leases import fold_lease
from services.ports import Append, NewEvent, Vacant
from services.runs import Runs
from tests.support.memory_log import MemoryLog
from tests.support.memory_queue import MemoryQueue
from tests.support.worker_rig import Rig


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def rig(log: MemoryLog, tmp_path: Path) -> Rig:
    return Rig(log, MemoryQueue(log), tmp_path / "cas")


class Watched:
    """Stands for an attempt: remembers how old a lease must be before it is renewed."""

    def __init__(self) -> None:
        self.ages: list[float] = []

    def wants_renewal(self, every_seconds: float) -> bool:
        self.ages.append(every_seconds)
        return False


@pytest.mark.parametrize("ttl_seconds", [0.1, 3.0, 30.0, 86_400.0])
async def test_a_lease_is_renewed_within_a_third_of_its_ttl(
    ttl_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age at which a renewal is wanted, and the pause until somebody looks, are together no more than a third."""
    pauses: list[float] = []
    enough, real_sleep = asyncio.Event(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            enough.set()
        await real_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    attempt: Any = Watched()
    async with Heartbeats({"run": attempt}, ttl_seconds, lambda event: None).beating():
        await enough.wait()
    assert max(pauses) + max(attempt.ages) <= ttl_seconds / 3 * (1 + 1e-9)


async def test_a_worker_restarted_under_its_old_label_keeps_nothing_alive_that_the_former_one_held(
    rig: Rig, log: MemoryLog
) -> None:
    """A label is for people: the beats of the new process are for its own runs, and the old lease runs out."""
    (orphan,) = await rig.request()
    granted = LeaseGranted(resource=orphan, owner="before", token=1, ttl_seconds=0.3, label="pod-0")
    started = RunStarted(run_id=orphan, owner="before", token=1, attempt=1)
    events = (NewEvent(lease_stream(orphan), 1, granted, uuid4()), NewEvent(run_stream(orphan), 2, started, uuid4()))
    await log.append(Append(events=events, guard=Vacant(orphan, 0)))
    (own,) = await rig.request()
    rig.computation.size = 10**9

    def compute(border: Any, tick: Any) -> None:
        while len(rig.happenings.of("lease.renewed")) < 2:
            tick()
            border("ops")

    rig.computation.on_compute = compute
    await asyncio.wait_for(rig.worker(label="pod-0", lease_ttl_seconds=0.3).run_once(), 20)
    assert {event.run_id for event in rig.happenings.of("lease.renewed")} == {own}
    assert await rig.topics(lease_stream(orphan)) == ["lease.granted.v1"]
    log.advance(0.3)
    leases = (await log.read_streams([lease_stream(orphan)])).streams[lease_stream(orphan)]
    assert not fold_lease(orphan, leases).is_live(log.now())


async def test_a_cancellation_is_honoured_while_the_worker_stops(rig: Rig) -> None:
    """Asked in the grace period, it ends the run at the next border, instead of waiting for the next worker."""
    (run_id,) = await rig.request()
    rig.computation.size = 10**9
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    async def cancel() -> None:
        await rig.happenings.wait_for("worker.stopping")
        await Runs(rig.log).cancel(run_id, "ana")

    def compute(border: Any, tick: Any) -> None:
        loop.call_soon_threadsafe(stop.set)
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(20)
        while True:
            border("ops")

    rig.computation.on_compute = compute
    await asyncio.wait_for(rig.worker(grace_seconds=20.0).run(stop), 20)
    assert (await rig.run(run_id)).state is RunState.CANCELLED
