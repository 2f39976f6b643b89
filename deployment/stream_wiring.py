"""The composition root of streams: the broker, and stream workers under owner ids of their own.

What must stay true: as in `deployment.wiring`; opening a worker touches neither database nor broker.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from uuid import uuid4

import structlog

from deployment import wiring
from deployment.broker_wiring import configured_broker
from deployment.settings import Settings
from deployment.storage import blob_store, disk_free
from projections.inline import INLINE
from services.adapters.kafka import KafkaBroker
from services.broker import Broker
from services.store.application import Log
from services.store.notifications import OUTBOX
from services.store.stream_queue import StreamQueue
from services.stream_parts import StreamEvent, StreamSettings
from services.stream_server import StreamServer
from services.stream_worker import StreamWorker

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.stream_worker")

_LEVELS: Final = {
    "stream.renewed": logging.DEBUG,
    "stream.waiting": logging.DEBUG,
    "stream.stalled": logging.WARNING,
    "stream.away": logging.WARNING,
    "stream.pressure": logging.WARNING,
    "stream.lease_lost": logging.WARNING,
    "stream.failed": logging.WARNING,
    "stream.blocked": logging.ERROR,
    "stream.defect": logging.ERROR,
}


@contextmanager
def stream_worker(settings: Settings, how: StreamSettings, group: str = "finaz") -> Iterator[StreamWorker]:
    """A stream worker for one run, under a new owner id."""
    broker = configured_broker(settings, group=group)
    log = Log(settings.required_postgres_dsn(), INLINE)
    try:
        yield made_worker(settings, how, log, broker)
    finally:
        log.close()
        broker.close()


def made_worker(settings: Settings, how: StreamSettings, log: Log, broker: Broker) -> StreamWorker:
    """A worker on parts that are open."""
    owner = f"stream_{uuid4().hex}"
    _log.info("stream.opened_worker", owner=owner, label=how.label)
    return StreamWorker(log, blob_store(settings), broker, how, owner, log_stream_event, disk_free=disk_free(settings))


@asynccontextmanager
async def opened_parts(settings: Settings) -> AsyncIterator[tuple[Log, KafkaBroker]]:
    """Log and broker for several workers of one process."""
    broker = configured_broker(settings)
    try:
        async with wiring.opened_log(settings) as log:
            yield log, broker
    finally:
        await asyncio.to_thread(broker.close)


@asynccontextmanager
async def stream_server(settings: Settings, label: str) -> AsyncIterator[StreamServer]:
    """A server of STREAM runs, woken by notification. It runs in a thread of the caller's."""
    how = StreamSettings(label=label or "stream-server", lease_ttl_seconds=settings.lease_ttl_seconds)
    async with opened_parts(settings) as (log, broker):
        server = StreamServer(
            StreamQueue(log.pool),
            lambda: made_worker(settings, how, log, broker),
            settings.stream_slots,
            settings.worker_poll_seconds,
            log_stream_event,
        )
        with log.listener.waker(OUTBOX, poll_seconds=settings.worker_poll_seconds) as waker:
            waking = asyncio.create_task(_forward(waker, server))
            try:
                yield server
            finally:
                waking.cancel()
                await asyncio.gather(waking, return_exceptions=True)


async def _forward(waker: Any, server: StreamServer) -> None:
    async for _ in waker.wakes_async():
        server.wake()


def log_stream_event(event: StreamEvent) -> None:
    """What a stream worker does, as a line of the log."""
    facts: dict[str, Any] = {
        "run_id": event.run_id,
        "token": event.token,
        "position": event.position,
        "epoch": event.epoch,
    }
    facts |= {"records": event.records, "detail": event.detail, **event.facts}
    level = _LEVELS.get(event.name, logging.INFO)
    _log.log(level, event.name, **{name: value for name, value in facts.items() if value})
