"""When a batch worker looks at its queue: at once when idle, and not again before what it took is claimed."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from domain.runs.messages import RunStarted
from services.ports import Append, Appended
from tests.support.memory_log import MemoryLog
from tests.support.memory_queue import MemoryQueue
from tests.support.worker_rig import Rig


class SlowClaims(MemoryLog):
    """A log that answers a claim only when `answering` is set; `claiming` tells that one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming = asyncio.Event()
        self.answering = asyncio.Event()

    async def append(self, append: Append) -> Appended:
        if any(isinstance(new.event, RunStarted) for new in append.events):
            self.claiming.set()
            await self.answering.wait()
        return await super().append(append)


class CountingQueue(MemoryQueue):
    """A queue that remembers how much each reservation gave."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.given: list[int] = []

    async def reserve(self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float) -> Sequence[str]:
        keys = await super().reserve(kind, lanes, limit, owner, seconds)
        self.given.append(len(keys))
        return keys


async def test_what_comes_due_while_claims_are_under_way_is_one_round(tmp_path: Path) -> None:
    """However often the worker is woken meanwhile; nothing is left behind."""
    log = SlowClaims()
    queue = CountingQueue(log)
    rig = Rig(log, queue, tmp_path / "cas")
    worker, stop = rig.worker(poll_seconds=60.0), asyncio.Event()
    await rig.request()
    running = asyncio.create_task(worker.run(stop))
    await log.claiming.wait()
    for priority in range(1, 6):
        await rig.request(priority=priority)
        worker.wake()
        await asyncio.sleep(0)
    assert queue.given == [1]
    log.answering.set()
    await rig.happenings.wait_for("run.succeeded", 6)
    assert [given for given in queue.given if given] == [1, 5]
    stop.set()
    await running


async def test_a_full_round_is_followed_by_another_without_a_wake_up(tmp_path: Path) -> None:
    """More than one reservation's worth is worked off, whatever the poll is."""
    log = MemoryLog()
    queue = CountingQueue(log)
    rig = Rig(log, queue, tmp_path / "cas")
    worker, stop = rig.worker(poll_seconds=60.0, reserve_max=4), asyncio.Event()
    await rig.request(10)
    running = asyncio.create_task(worker.run(stop))
    await rig.happenings.wait_for("run.succeeded", 10)
    assert [given for given in queue.given if given] == [4, 4, 2]
    stop.set()
    await running


async def test_rounds_gather_while_runs_are_in_flight(tmp_path: Path) -> None:
    """A busy worker leaves `gather_seconds` between two rounds; what comes due meanwhile is one round."""
    log = MemoryLog()
    queue = CountingQueue(log)
    rig = Rig(log, queue, tmp_path / "cas")
    released = threading.Event()
    rig.computation.size = 10**9
    rig.computation.on_compute = lambda border, tick: released.wait(20)
    worker, stop = rig.worker(poll_seconds=60.0, gather_seconds=0.5, thread_slots=8), asyncio.Event()
    await rig.request()
    running = asyncio.create_task(worker.run(stop))
    await rig.happenings.wait_for("run.claimed")
    for _ in range(5):
        await rig.request()
        worker.wake()
        await asyncio.sleep(0)
    await rig.happenings.wait_for("run.claimed", 6)
    assert [given for given in queue.given if given] == [1, 5]
    released.set()
    await rig.happenings.wait_for("run.succeeded", 6)
    stop.set()
    await running


async def test_a_full_house_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """However the limits stand to each other, a worker at its limit takes more as soon as runs have ended."""
    for in_flight_max, reserve_max in ((1, 50), (3, 3), (5, 2)):
        log = MemoryLog()
        rig = Rig(log, MemoryQueue(log), tmp_path / f"cas-{in_flight_max}")
        worker = rig.worker(poll_seconds=60.0, in_flight_max=in_flight_max, reserve_max=reserve_max)
        await rig.request(12)
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        await rig.happenings.wait_for("run.succeeded", 12)
        stop.set()
        await running
