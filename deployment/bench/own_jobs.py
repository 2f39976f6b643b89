"""Ours: runs submitted by the use case of admission and executed by the batch worker, as the API and `finaz worker` do.

Nothing is left out for the benchmark: each run claims its key, takes a lease, computes, stores its artifact, and publishes under
its token; seven events. Its work is the least that there is: an average of one value, of a snapshot with one record. What the API
adds to a submission (HTTP, the token) is measured by `admissions`. Plan: `folder` holds the content-addressed store.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from deployment.migrate import migrate
from domain.canonical import canonical
from domain.market.flow import flow_body, parse_flow
from domain.market.records import MarketEvent
from domain.market.snapshot import build_snapshot, encode_manifest
from projections.inline import INLINE
from services.admission import Admissions
from services.batch_parts import WorkerEvent, WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.ports import BlobStore
from services.requests import RunBody, parse_run_body
from services.store.application import Log
from services.store.notifications import OUTBOX
from services.store.work_queue import OutboxQueue

PRINCIPAL: Final = "bench"

FLOW: Final = {
    "version": 1,
    "name": "no_op",
    "source": {"instruments": ["bench"]},
    "clock": {"kind": "event"},
    "nodes": [
        {
            "id": "average",
            "op": "sma",
            "op_version": 1,
            "inputs": [{"column": "close"}],
            "parameters": {"length": 1, "gap": "reject"},
        }
    ],
    "outputs": [{"name": "average", "node": "average"}],
}


def versions() -> dict[str, str]:
    """What was measured."""
    return {"finaz": version("finaz-runtime"), "psycopg": version("psycopg")}


def blob_store(plan: dict[str, Any]) -> DirectoryBlobStore:
    """The store that submitter and worker share."""
    return DirectoryBlobStore(Path(plan["folder"]) / "cas")


def store_inputs(blobs: BlobStore) -> RunBody:
    """Store a flow and a snapshot, and give the body that asks for one over the other."""
    event = MarketEvent(
        event_id="bench.1", instrument="bench", event_time=0, available_at=0, revision=0, values={"close": 1.0}
    )
    manifest, chunks = build_snapshot([event], name="bench")
    for chunk in chunks:
        blobs.put(chunk)
    return parse_run_body(
        {
            "mode": "BATCH",
            "flow": blobs.put(canonical(flow_body(parse_flow(FLOW)))),
            "snapshot": blobs.put(encode_manifest(manifest)),
            "as_of": "2026-01-06T00:00:00Z",
        }
    )


async def prepare(plan: dict[str, Any]) -> None:
    """Migrate the database and store what the runs read."""
    await asyncio.to_thread(migrate, plan["dsn"])
    store_inputs(blob_store(plan))


@contextlib.asynccontextmanager
async def submitter(plan: dict[str, Any]) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Admit under the key as the idempotency key."""
    blobs = blob_store(plan)
    body = store_inputs(blobs)
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
            log, blob_store(plan), OutboxQueue(log.hot_pool), WorkerSettings(), uuid4().hex, hear, wakeups=wakeups
        )
        await worker.run(stop)
