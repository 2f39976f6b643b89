"""Wires staging: who stages, who reads, and who looks after the staged rows, all in the process that may.

What must stay true: an embedded ClickHouse (`chdb://…`) is opened by the API's process alone, which therefore stages, too; with a
server the projector stages, and the API only reads. Nothing is opened before it is needed. Without a DSN nothing is staged.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from deployment import wiring
from deployment.settings import Settings
from deployment.storage import blob_store
from domain.errors import InputError

if TYPE_CHECKING:
    from api.parts import Probe
    from projections.projector import Projector
    from projections.rebuilding.rebuildable import Builder, Open, Rebuildable
    from projections.runner import Report, Runner
    from services.ports import BlobStore
    from services.staging import Staging
    from services.store.application import Log

API: Final = "api"
PROJECTOR: Final = "projector"
"""The components that can host staging."""

STAGING: Final = ("staging", "staging_reconciler")
"""What a host of staging runs, by name: the projection, and the process manager that looks after its rows."""


def host_of(settings: Settings) -> str | None:
    """The component whose process stages; None where nothing is staged."""
    if settings.clickhouse_dsn is None:
        return None
    return API if settings.clickhouse_dsn.startswith("chdb://") else PROJECTOR


@contextmanager
def staging_of(settings: Settings, log: "Log") -> Iterator["Staging"]:
    """The use cases of reading staged values, for the API's process."""
    from projections.staging.clickhouse import FeatureValues
    from projections.staging.postgres import StagedAttempts
    from projections.status import Projections
    from services.adapters.staged_tables import staged_tables
    from services.runs import Runs
    from services.staging import Staging

    host = host_of(settings)
    values = None if settings.clickhouse_dsn is None else FeatureValues(settings.clickhouse_dsn)
    engine = "none" if host is None else "embedded" if host == API else "server"
    try:
        yield Staging(Runs(log), StagedAttempts(log.pool), Projections(log.pool), values, staged_tables, engine, host)
    finally:
        if values is not None:
            values.close()


def hosted_apart(settings: Settings) -> bool:
    """Whether only the API's process can open ClickHouse."""
    return host_of(settings) == API


def is_staging(job: tuple[str, str, str]) -> bool:
    """Whether a job (kind, target, id) looks at staged rows: a rebuild of staging, or an audit."""
    kind, target, _ = job
    return (kind == "rebuild" and target == STAGING[0]) or kind == "audit"


def staging_target(settings: Settings, blobs: "BlobStore") -> dict[str, "Open"]:
    """Staging as something that can be rebuilt, where there is a ClickHouse."""
    if settings.clickhouse_dsn is None:
        return {}
    dsn, values = settings.required_postgres_dsn(), settings.clickhouse_dsn

    def opened(builder: "Builder") -> "Rebuildable":
        from projections.rebuilding.staging import StagingRebuild
        from projections.staging.clickhouse import FeatureValues
        from projections.staging.delivery import Stager
        from services import faultpoints

        stager = Stager(FeatureValues(values), blobs.get, faultpoints.point)
        return StagingRebuild(dsn, stager, builder, faultpoints.point)

    return {STAGING[0]: opened}


def staging_probe(settings: Settings) -> "Probe":
    """Says which process stages. Always ready: nothing else waits for staging."""
    host = host_of(settings)
    said = {None: "off", API: "embedded; this process stages", PROJECTOR: "a server; the projector stages"}[host]

    async def probe() -> str:
        return said

    return probe


@asynccontextmanager
async def staging_runners(
    settings: Settings, component: str, only: tuple[str, ...], report: "Report"
) -> AsyncIterator[list["Runner"]]:
    """The runners of staging and of its reconciler (`only`: of these), if this component hosts them; their threads are the
    caller's. Raises `InputError` for one that is asked for and hosted elsewhere.
    """
    wanted = [name for name in STAGING if not only or name in only]
    if host_of(settings) != component or not wanted:
        if only and wanted:
            where = host_of(settings) or "nothing: FINAZ_CLICKHOUSE_DSN is not set"
            raise InputError(f"{wanted[0]!r} does not run here", at="--only", expected=f"it in {where}")
        yield []
        return
    from projections.runner import Runner
    from projections.staging.clickhouse import FeatureValues
    from projections.staging.delivery import Stager
    from projections.staging.postgres import StagedAttempts, StagingRepairs, StagingSession
    from projections.staging.projection import MODEL
    from services import faultpoints
    from services.adapters.manager_runner import manager_runner
    from services.process_managers.staging_reconciler import StagingReconciler
    from services.staged_rows import Parts, StagedRowsReconciliation

    assert settings.clickhouse_dsn is not None
    dsn, owner = settings.required_postgres_dsn(), f"staging_{uuid4().hex}"
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(wiring.opened_log(settings))
        blobs = blob_store(settings)
        staged, looked_at = FeatureValues(settings.clickhouse_dsn), FeatureValues(settings.clickhouse_dsn)
        stack.callback(staged.close)
        stack.callback(looked_at.close)
        stager = Stager(staged, blobs.get, faultpoints.point)
        repairs = StagingRepairs(dsn, Stager(looked_at, blobs.get, faultpoints.point))
        parts = Parts(looked_at, StagedAttempts(log.pool), repairs)
        reconciler = StagingReconciler(log, StagedRowsReconciliation(log, blobs, parts))
        poll_seconds = settings.projection_poll_seconds
        runners: list[Runner] = [
            Runner(
                MODEL,
                lambda: StagingSession(dsn, stager, owner),
                poll_seconds=poll_seconds,
                report=report,
                point=faultpoints.point,
            ),
            manager_runner(dsn, log.pool, reconciler, owner, poll_seconds=poll_seconds, report=report),
        ]
        runners = [runner for runner in runners if runner.name in wanted]
        wiring.woken(stack, dsn, runners)
        yield runners


@asynccontextmanager
async def hosted(settings: Settings, report: "Report") -> AsyncIterator["Projector | None"]:
    """Stage in threads of this process, the API's, for as long as this lasts, if it is the one that stages."""
    from projections.projector import Projector

    if not hosted_apart(settings):
        yield None
        return
    from deployment.jobs_wiring import job_runners

    async with (
        staging_runners(settings, API, (), report) as runners,
        job_runners(settings, report, staging=True) as jobs,
    ):
        projector = Projector([*runners, *jobs])  # type: ignore[list-item] # started, woken and stopped alike
        projector.start()
        try:
            yield projector
        finally:
            await asyncio.to_thread(projector.stop)
