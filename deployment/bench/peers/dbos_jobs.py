"""DBOS: workflows without steps on a queue polled every 50 ms, the workflow id as the dedup key; the (empty) result is stored."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

dbos: Any = importlib.import_module("dbos")  # only in the peer's own environment

QUEUE = "no_ops"
POLL_SECONDS = 0.05
APPLICATION_VERSION = "1"


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("dbos", "sqlalchemy", "psycopg")}


def launch(plan: dict[str, Any], ran: Callable[[str], None]) -> None:
    """Start the peer in this process with the workflow registered."""

    async def no_op(key: str) -> None:
        ran(key)

    dbos.DBOS(
        config={
            "name": "bench",
            "system_database_url": plan["dsn"],
            "application_version": APPLICATION_VERSION,
            "log_level": "ERROR",
        }
    )
    dbos.DBOS.workflow(name="no_op")(no_op)
    dbos.DBOS.launch()


async def prepare(plan: dict[str, Any]) -> None:
    """Migrate the peer's schema and register the queue."""

    def migrate() -> None:
        launch(plan, lambda key: None)
        dbos.DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS)
        dbos.DBOS.destroy()

    await asyncio.to_thread(migrate)


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Enqueue with the key as the workflow id, through the peer's client."""
    client = await asyncio.to_thread(dbos.DBOSClient, system_database_url=plan["dsn"])

    async def submit(key: str) -> None:
        options = {
            "queue_name": QUEUE,
            "workflow_name": "no_op",
            "workflow_id": key,
            "app_version": APPLICATION_VERSION,
        }
        await client.enqueue_async(options, key)

    yield submit
    await asyncio.to_thread(client.destroy)


async def work(plan: dict[str, Any], ran: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run the peer until `stop`."""
    await asyncio.to_thread(launch, plan, ran)
    await stop.wait()
    await asyncio.to_thread(dbos.DBOS.destroy)
