"""A past for benchmarks that look at logs: finished runs, appended by the append function itself, so that every hash is right."""

import asyncio
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from domain.admission.messages import KeyClaimed
from domain.canonical import address_of
from domain.events import Event, Metadata
from domain.identity import admission_stream, lease_stream, run_id_of, run_stream
from domain.leases.messages import LeaseGranted, LeaseReleased
from domain.runs.messages import Mode, ResultPublished, ResultRef, RunRequested, RunSpec, RunStarted, RunSucceeded
from projections.inline import INLINE
from projections.postgres import PostgresSession, RowStore
from projections.registry import PROJECTIONS
from projections.runner import run_once
from services.ports import Append, BlobStore, NewEvent
from services.store.application import Log

EVENTS_OF_A_RUN: Final = 7

AT_ONCE: Final = 500
"""Runs appended at once."""

_AS_OF: Final = datetime(2026, 1, 5, 10, tzinfo=UTC)
_OPERATION: Final = "runs.create"


def append_past(dsn: str, runs: int, blobs: BlobStore, prefix: str = "past") -> int:
    """Append so many finished runs, whose one artifact is stored; the log's last position."""
    artifact = blobs.put(b'{"ticks":[]}')
    log = Log(dsn, INLINE)
    try:

        async def all_of_them() -> None:
            for first in range(0, runs, AT_ONCE):
                some = range(first, min(runs, first + AT_ONCE))
                await asyncio.gather(*(log.append(_finished(f"{prefix}-{n}", artifact)) for n in some))

        asyncio.run(all_of_them())
        return log.high_water_mark()
    finally:
        log.close()


def catch_up(dsn: str) -> None:
    """Bring every asynchronous read model to the end of the log."""
    for projection in PROJECTIONS.values():
        if isinstance(projection.rows, RowStore):
            session = PostgresSession(dsn, projection.model, projection.rows, "bench")
            try:
                while not run_once(session, projection.model, 5000).caught_up:
                    pass
            finally:
                session.close()


def _finished(key: str, artifact: str) -> Append:
    body_hash = address_of(["body", key])
    run_id = run_id_of("bench", _OPERATION, key, body_hash)
    spec = RunSpec(
        mode=Mode.BATCH, flow=artifact, flow_name="bench", snapshot=artifact, as_of=_AS_OF, deadline_seconds=3600
    )
    result = ResultRef(
        output="ema", artifact=artifact, values_hash=address_of([]), rows=0, schema="bench", flow=artifact, inputs=()
    )
    streams: dict[str, list[Event]] = {
        admission_stream("bench", _OPERATION, key): [
            KeyClaimed(principal="bench", operation=_OPERATION, key=key, body_hash=body_hash, subject_ids=(run_id,))
        ],
        run_stream(run_id): [
            RunRequested(run_id=run_id, principal="bench", spec=spec, body_hash=body_hash),
            RunStarted(run_id=run_id, owner="bench", token=1, attempt=1),
            ResultPublished(run_id=run_id, token=1, result=result),
            RunSucceeded(run_id=run_id, token=1),
        ],
        lease_stream(run_id): [
            LeaseGranted(resource=run_id, owner="bench", token=1, ttl_seconds=60.0),
            LeaseReleased(resource=run_id, owner="bench", token=1),
        ],
    }
    events = tuple(
        NewEvent(stream, version, event, uuid4())
        for stream, facts in streams.items()
        for version, event in enumerate(facts, 1)
    )
    return Append(events=events, metadata=Metadata(correlation_id=run_id, principal="bench"))
