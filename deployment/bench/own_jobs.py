"""Ours: fixture runs, submitted by the use case of admission and executed by the batch worker, as the API and `finaz worker` do.

Nothing is left out for the benchmark: each run claims its key, takes a lease, computes, stores its artifact, and publishes under
its token; seven events. What the API adds to a submission (HTTP, the token) is measured by `admissions`. Plan: `folder` holds the
content-addressed store.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from deployment.fixture_run import PRINCIPAL, fixture_body, store_fixture_snapshot
from deployment.migrate import migrate
from projections.inline import INLINE
from services.admission import Admissions
from services.batch_parts import WorkerEvent, WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.requests import parse_run_body
from services.store.application import Log
from services.store.notifications import OUTBOX
from services.store.work_queue import OutboxQueue


def versions() -> dict[str, str]:
    """What was measured."""
    return {"finaz": version("finaz-runtime"), "psycopg": version("psycopg")}


def blob_store(plan: dict[str, Any]) -> DirectoryBlobStore:
    """The store that submitter and worker share."""
    return DirectoryBlobStore(Path(plan["folder"]) / "cas")


async def prepare(plan: dict[str, Any]) -> None:
    """Migrate the database and store the snapshot."""
    await asyncio.to_thread(migrate, plan["dsn"])
    store_fixture_snapshot(blob_store(plan))


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Admit under the key as the idempotency key."""
    blobs = blob_store(plan)
    body = parse_run_body(fixture_body(store_fixture_snapshot(blobs)))
    with Log(plan["dsn"], INLINE) as log:
        admissions = Admissions(log, blobs)

        async def submit(key: str) -> str:
            return (await admissions.submit_run(PRINCIPAL, key, body)).run_id

        yield submit


async def work(plan: dict[str, Any], ran: Callable[[str], None], stop: asyncio.Event) -> None:
    """Run one worker until `stop`; a run begins when its lease is granted and RunStarted is in the log."""

    def hear(event: WorkerEvent) -> None:
        if event.name == "run.claimed":
            ran(event.run_id)

    with Log(plan["dsn"], INLINE) as log, log.listener.waker(OUTBOX) as wakeups:
        worker = BatchWorker(
            log, blob_store(plan), OutboxQueue(log.pool), WorkerSettings(), uuid4().hex, hear, wakeups=wakeups
        )
        await worker.run(stop)
