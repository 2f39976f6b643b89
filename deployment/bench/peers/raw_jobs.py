"""The yardstick: a hand-written SKIP LOCKED loop in batches, with nothing but a table of jobs.

It stores no event, no result and no owner; a worker that dies leaves its batch running for ever. Plan: `batch` jobs are claimed
and completed by one statement each; with `notify` an insert wakes the worker, else it polls every 10 ms.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg

POLL_SECONDS = 0.01
FALLBACK_POLL_SECONDS = 1.0

TABLE = """
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dedup_key text NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'queued',
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz
);
CREATE INDEX job_queued ON job (id) WHERE state = 'queued';
"""
INSERT = "INSERT INTO job (dedup_key) VALUES (%s) ON CONFLICT (dedup_key) DO NOTHING RETURNING id"
INSERT_AND_NOTIFY = f"WITH made AS ({INSERT}) SELECT pg_notify('job', '') FROM made"
CLAIM = """
UPDATE job SET state = 'running' WHERE id IN (
    SELECT id FROM job WHERE state = 'queued' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING id, dedup_key
"""
COMPLETE = "UPDATE job SET state = 'done', finished_at = clock_timestamp() WHERE id = ANY(%s)"


def versions() -> dict[str, str]:
    """What was measured."""
    return {"psycopg": psycopg.__version__}


async def prepare(plan: dict[str, Any]) -> None:
    """Make the table."""
    async with await psycopg.AsyncConnection.connect(plan["dsn"], autocommit=True) as connection:
        await connection.execute(TABLE)


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Insert over one connection per job in flight."""
    free: list[psycopg.AsyncConnection] = []
    statement = INSERT_AND_NOTIFY if plan["notify"] else INSERT
    for _ in range(plan["in_flight"]):
        free.append(await psycopg.AsyncConnection.connect(plan["dsn"], autocommit=True))  # noqa: PERF401 - one by one

    async def submit(key: str) -> None:
        connection = free.pop()
        try:
            await connection.execute(statement, (key,))
        finally:
            free.append(connection)

    try:
        yield submit
    finally:
        for connection in free:
            await connection.close()


async def work(plan: dict[str, Any], ran: Callable[[str], None], stop: asyncio.Event) -> None:
    """Claim a batch, run it, complete it; when the queue is empty, wait to be woken or for the poll."""
    connection = await psycopg.AsyncConnection.connect(plan["dsn"], autocommit=True)
    woken = asyncio.Event()
    listening = asyncio.create_task(listen(plan["dsn"], woken)) if plan["notify"] else None
    poll_seconds = FALLBACK_POLL_SECONDS if plan["notify"] else POLL_SECONDS
    while not stop.is_set():
        woken.clear()
        jobs = await (await connection.execute(CLAIM, (plan["batch"],))).fetchall()
        for _, key in jobs:
            ran(key)
        if jobs:
            await connection.execute(COMPLETE, ([number for number, _ in jobs],))
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), poll_seconds)
    if listening is not None:
        listening.cancel()
    await connection.close()


async def listen(dsn: str, woken: asyncio.Event) -> None:
    """Set `woken` at every notification."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("LISTEN job")
        async for _ in connection.notifies():
            woken.set()
