"""A batch worker as a process of its own: `python -m tests.support.worker_process DSN FOLDER [SETTINGS as JSON]`.

Prints each happening as a line `name run_id`. SIGTERM stops it. `pace_seconds` makes every run last that long, in a thread.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path
from uuid import uuid4

import msgspec

from domain.runs.messages import RunSpec
from projections.inline import INLINE
from services.batch_execution import FlowComputation
from services.batch_parts import Border, Computed, Prepared, Tick, WorkerEvent, WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.store.application import Log
from services.store.notifications import OUTBOX
from services.store.work_queue import OutboxQueue


class Paced(FlowComputation):
    """The real computation, slowed down so that a run can be caught at work; a border every few milliseconds."""

    pace_seconds = 0.0

    async def rows(self, spec: RunSpec) -> int:
        return 10**9 if self.pace_seconds else await super().rows(spec)

    async def prepare(self, spec: RunSpec, tick: Tick) -> Prepared:
        return PacedInputs(await super().prepare(spec, tick), self.pace_seconds)


class PacedInputs:
    """Inputs that take their time."""

    def __init__(self, inputs: Prepared, seconds: float) -> None:
        self._inputs = inputs
        self._seconds = seconds

    def compute(self, border: Border, tick: Tick) -> Computed:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            border("ops")
            time.sleep(0.005)
        return self._inputs.compute(border, tick)


def tell(event: WorkerEvent) -> None:
    """One line per happening; stages are too many to tell."""
    if event.name != "run.stage":
        print(event.name, event.run_id, event.detail[:200], flush=True)


async def work(dsn: str, folder: Path, options: dict[str, float]) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pace = options.pop("pace_seconds", 0.0)
    settings = msgspec.convert({"poll_seconds": 0.1, "thread_slots": 8, **options}, WorkerSettings)
    blobs, log = DirectoryBlobStore(folder), Log(dsn, INLINE)
    computation = Paced(blobs, settings.cache_bytes_max, settings.inline_rows_max)
    computation.pace_seconds = pace
    worker = BatchWorker(
        log,
        blobs,
        OutboxQueue(log.pool),
        settings,
        f"worker-{uuid4()}",
        tell,
        wakeups=log.listener.waker(OUTBOX),
        computation=computation,
    )
    await worker.run(stop)
    await asyncio.to_thread(log.close)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.argv[3]) if len(sys.argv) > 3 else {}))
