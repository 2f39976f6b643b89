"""PgQueuer over asyncpg: jobs with a dedupe key, dequeued 50 at a time, woken by notification; no result is stored."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

asyncpg: Any = importlib.import_module("asyncpg")  # only in the peer's own environment
drivers: Any = importlib.import_module("pgqueuer.db")
pgqueuer: Any = importlib.import_module("pgqueuer")
queries: Any = importlib.import_module("pgqueuer.queries")

BATCH = 50


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("pgqueuer", "asyncpg")}


async def prepare(plan: dict[str, Any]) -> None:
    """Install the peer's schema."""
    connection = await asyncpg.connect(plan["dsn"])
    await queries.Queries(drivers.AsyncpgDriver(connection)).install()
    await connection.close()


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Enqueue with the key as the dedupe key, over a connection per job in flight (a pool resets them at each use)."""
    connections = [await asyncpg.connect(plan["dsn"]) for _ in range(plan["in_flight"])]
    free = [queries.Queries(drivers.AsyncpgDriver(connection)) for connection in connections]

    async def submit(key: str) -> None:
        queue = free.pop()
        try:
            await queue.enqueue("no_op", key.encode(), dedupe_key=key)
        finally:
            free.append(queue)

    yield submit
    for connection in connections:
        await connection.close()


async def work(plan: dict[str, Any], ran: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run one queue manager until `stop`."""
    connection = await asyncpg.connect(plan["dsn"])
    manager = pgqueuer.QueueManager(queries.Queries(drivers.AsyncpgDriver(connection)))

    async def run_job(job: Any) -> None:
        ran(job.payload.decode())

    manager.entrypoint("no_op")(run_job)
    running = asyncio.create_task(manager.run(batch_size=BATCH))
    await stop.wait()
    manager.shutdown.set()
    await running
