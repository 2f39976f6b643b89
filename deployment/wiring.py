"""The composition root: from settings to parts that work together; the only place that knows which adapter stands behind a port.

Each function here opens what one process needs and closes it at the end, in the reverse order, also if opening fails half-way.
What must stay true: nothing below this file reads settings; opening touches no server where it can be helped, so a process starts
while its database is away and waits for it.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog

from deployment.settings import Settings
from deployment.storage import blob_store
from domain.errors import InputError
from projections.inline import INLINE
from services.batch_parts import INLINE_ROWS_MAX, WorkerEvent, WorkerSettings
from services.store.application import Log
from services.store.notifications import EVENTS, OUTBOX, Listener

if TYPE_CHECKING:
    from api.parts import ApiParts, Probe
    from projections.runner import Runner
    from services.batch_worker import BatchWorker
    from services.read_models import ReadModels

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.worker")

RECOMPUTATION_CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of parsed chunks that the reconciler keeps."""

_LEVELS: Final = {
    "run.stage": logging.DEBUG,
    "lease.renewed": logging.DEBUG,
    "worker.idle": logging.DEBUG,
    "run.claimed": logging.DEBUG,
    "run.lost_race": logging.DEBUG,
    "run.failed": logging.WARNING,
    "run.requeued": logging.WARNING,
    "run.lease_lost": logging.WARNING,
    "run.stalled": logging.WARNING,
    "run.abandoned": logging.WARNING,
    "run.unreadable": logging.ERROR,
    "run.defect": logging.ERROR,
    "worker.unavailable": logging.WARNING,
    "worker.defect": logging.ERROR,
}


@asynccontextmanager
async def opened_log(settings: Settings) -> AsyncIterator[Log]:
    """The event log of the database in the settings. Raises `SettingsError` if there is none."""
    log = Log(settings.required_postgres_dsn(), INLINE)
    try:
        yield log
    finally:
        await asyncio.to_thread(log.close)


# ------------------------------------------------------------------------------------------------ the API


@asynccontextmanager
async def api_parts(settings: Settings) -> AsyncIterator["ApiParts"]:
    """What the API is made of."""
    from api.auth import Tokens
    from api.metrics import Metrics
    from api.parts import ApiParts
    from api.tail import LogTail
    from deployment.broker_wiring import broker_opener
    from deployment.inspection_wiring import inspection_parts
    from deployment.jobs_wiring import jobs
    from deployment.purchase_wiring import purchases_of
    from deployment.staging_wiring import staging_of
    from projections.checkpoints.postgres import CheckpointsReader
    from projections.quarantine.postgres import QuarantineReader
    from projections.runs.postgres import RunsReader
    from projections.status import Projections
    from services.adapters.manager_store import ManagerOperations
    from services.admission import Admissions
    from services.alert_sources import alert_sources
    from services.alerts import Alerts
    from services.projection_operations import ProjectionOperations
    from services.read_models import ReadModels
    from services.results import Results
    from services.run_listing import RunListing
    from services.runs import Runs
    from services.shop import Shop
    from services.stream_parity import StreamParity
    from services.stream_records import StreamRecords

    dsn = settings.required_postgres_dsn()
    async with opened_log(settings) as log:
        blobs = blob_store(settings)
        projections = Projections(log.pool)
        read_models = ReadModels(projections, log.pool)
        with log.listener.waker(EVENTS) as wakeups, staging_of(settings, log) as staging:
            yield ApiParts(
                log=log,
                blobs=blobs,
                admissions=Admissions(log, blobs),
                runs=Runs(log),
                results=Results(blobs),
                listing=RunListing(RunsReader(log.pool), projections),
                alerts=Alerts(log, alert_sources(log.pool), ManagerOperations(log.pool), projections),
                jobs=jobs(settings, log, blobs),
                projection_operations=ProjectionOperations(projections, ManagerOperations(log.pool)),
                stream_records=StreamRecords(log, Runs(log), CheckpointsReader(log.pool), QuarantineReader(log.pool)),
                shop=Shop(purchases_of(settings, log), log.pool),
                read_models=read_models,
                staging=staging,
                tokens=Tokens(path=settings.required_tokens_file()),
                tail=LogTail(log, wakeups),
                **inspection_parts(dsn, log),
                metrics=Metrics(),
                probes=_probes(settings, log, read_models),
                version=version("finaz-runtime"),
                stream_parity=StreamParity(log, blobs, broker_opener(settings)),
                body_bytes_max=settings.body_size_max_bytes,
            )


def _probes(settings: Settings, log: Log, read_models: "ReadModels") -> "dict[str, Probe]":
    """What must hold for the API to be ready, by name."""
    from api.health import database_probe, migrations_probe, projections_probe
    from deployment.broker_wiring import broker_probes
    from deployment.migrate import pending
    from deployment.staging_wiring import staging_probe

    return {
        "database": database_probe(log),
        "migrations": migrations_probe(lambda: not pending(settings.required_postgres_dsn())),
        "projections": projections_probe(read_models),
        "staging": staging_probe(settings),
        **broker_probes(settings),
    }


# ------------------------------------------------------------------------------------------------ the worker


@asynccontextmanager
async def batch_worker(settings: Settings, label: str) -> AsyncIterator["BatchWorker"]:
    """A batch worker under an owner id of its own, woken by notification."""
    from services.batch_worker import BatchWorker
    from services.store.work_queue import OutboxQueue

    async with opened_log(settings) as log:
        owner = f"worker_{uuid4().hex}"
        _log.info("worker.opened", owner=owner, label=label)
        worker = BatchWorker(
            log,
            blob_store(settings),
            OutboxQueue(log.hot_pool),
            worker_settings(settings, label),
            owner,
            log_worker_event,
        )
        with log.listener.waker(OUTBOX, poll_seconds=settings.worker_poll_seconds) as waker:
            waking = asyncio.create_task(_forward(waker, worker.wake))
            try:
                yield worker
            finally:
                waking.cancel()
                await asyncio.gather(waking, return_exceptions=True)


def worker_settings(settings: Settings, label: str) -> WorkerSettings:
    """How the worker of these settings behaves."""
    return WorkerSettings(
        label=label or settings.worker_label or "",
        lease_ttl_seconds=settings.lease_ttl_seconds,
        poll_seconds=settings.worker_poll_seconds,
        grace_seconds=settings.worker_grace_seconds,
        thread_slots=settings.worker_slots,
    )


def log_worker_event(event: WorkerEvent) -> None:
    """What a worker does, as a line of the log."""
    level = _LEVELS.get(event.name, logging.INFO)
    facts = {"run_id": event.run_id, "token": event.token, "position": event.position}
    facts |= {"stage": event.stage, "detail": event.detail}
    _log.log(level, event.name, **{name: value for name, value in facts.items() if value})


async def _forward(waker: Any, wake: Callable[[], None]) -> None:
    async for _ in waker.wakes_async():
        wake()


# ------------------------------------------------------------------------------------------------ projector and managers

Report = Callable[[str, Mapping[str, Any]], None]
"""What a runner tells: a name and its details."""


@asynccontextmanager
async def projection_runners(
    settings: Settings, only: tuple[str, ...], report: Report
) -> AsyncIterator[list["Runner"]]:
    """A runner for each asynchronous projection (`only`: for these), woken by notification; their threads are the caller's."""
    from projections.postgres import PostgresSession, RowStore
    from projections.registry import PROJECTIONS
    from projections.runner import Runner

    dsn = settings.required_postgres_dsn()
    owner = f"projector_{uuid4().hex}"

    def runner(name: str) -> Runner:
        model, rows = PROJECTIONS[name].model, PROJECTIONS[name].rows
        assert isinstance(rows, RowStore)
        return Runner(
            model,
            lambda: PostgresSession(dsn, model, rows, owner),
            poll_seconds=settings.projection_poll_seconds,
            report=report,
        )

    names = [name for name, projection in PROJECTIONS.items() if not projection.inline]
    runners = [runner(name) for name in _chosen(names, only)]
    async with AsyncExitStack() as stack:
        woken(stack, dsn, runners)
        yield runners


@asynccontextmanager
async def manager_runners(settings: Settings, only: tuple[str, ...], report: Report) -> AsyncIterator[list["Runner"]]:
    """A runner for each process manager (`only`: for these), woken by notification; their threads are the caller's."""
    from deployment.purchase_wiring import RELAY, notice_relay, purchase_managers
    from services.adapters.manager_runner import manager_runner
    from services.batch_execution import FlowComputation
    from services.process_managers import orphan_recovery, reconciler
    from services.process_managers.contract import ProcessManager
    from services.recomputation import Recomputation
    from services.reconciliation import Reconciliation
    from services.served_rows import ServedRows
    from services.stream_documents import StreamDocuments

    dsn = settings.required_postgres_dsn()
    owner = f"managers_{uuid4().hex}"
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(opened_log(settings))
        blobs = blob_store(settings)
        computation = FlowComputation(blobs, RECOMPUTATION_CACHE_BYTES_MAX, INLINE_ROWS_MAX)
        recompute = Recomputation(computation, StreamDocuments(log, blobs))
        stack.callback(recompute.close)
        reconciliation = Reconciliation(log, blobs, ServedRows(log.pool), recompute)
        managers: tuple[ProcessManager, ...] = (
            orphan_recovery.OrphanRecovery(log),
            reconciler.Reconciler(log, reconciliation),
            *purchase_managers(settings, log, stack),
        )
        made = {manager.name: manager for manager in managers}
        runners = [
            manager_runner(
                dsn, log.pool, made[name], owner, poll_seconds=settings.projection_poll_seconds, report=report
            )
            for name in _chosen([*made, RELAY], only)
            if name != RELAY
        ]
        if not only or RELAY in only:
            runners.append(notice_relay(settings, log, owner, report, stack))
        woken(stack, dsn, runners)
        yield runners


def _chosen(names: list[str], only: tuple[str, ...]) -> list[str]:
    for name in only:
        if name not in names:
            raise InputError(f"there is nothing called {name!r} to run", at="--only", expected=", ".join(names))
    return [name for name in names if not only or name in only]


def woken(stack: AsyncExitStack, dsn: str, runners: list["Runner"]) -> None:
    """Wake the runners whenever the log grows, until the stack is closed."""
    listener = Listener(dsn, (EVENTS,))
    stack.callback(listener.close)
    waker = stack.enter_context(listener.waker(EVENTS))

    def forward() -> None:
        for _ in waker.wakes():
            for one in runners:
                one.wake()

    threading.Thread(target=forward, name="finaz-wakes", daemon=True).start()
