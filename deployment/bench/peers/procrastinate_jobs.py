"""Procrastinate: jobs with a queueing lock as the dedup key, ten at once, woken by notification; no result is stored."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

procrastinate: Any = importlib.import_module("procrastinate")  # only in the peer's own environment

CONCURRENCY = 10


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("procrastinate", "psycopg")}


def application(plan: dict[str, Any], size: int) -> Any:
    """The app over a pool of `size` connections."""
    return procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=plan["dsn"], min_size=size, max_size=size)
    )


async def prepare(plan: dict[str, Any]) -> None:
    """Apply the peer's schema."""
    app = application(plan, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def no_op(key: str) -> None:
    """The submitter's idea of the task; it is never called."""


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Defer with the key as the queueing lock."""
    app = application(plan, plan["in_flight"])
    task = app.task(name="no_op")(no_op)

    async def submit(key: str) -> None:
        await task.configure(queueing_lock=key).defer_async(key=key)

    async with app.open_async():
        yield submit


async def work(plan: dict[str, Any], ran: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run one worker until `stop`."""
    app = application(plan, CONCURRENCY)

    async def run_job(key: str) -> None:
        ran(key)

    app.task(name="no_op")(run_job)
    async with app.open_async():
        worker = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
        await stop.wait()
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
