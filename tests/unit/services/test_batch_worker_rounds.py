"""When a batch worker looks at its queue: at once when idle, and not again before what it took is claimed."""

import asyncio
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
