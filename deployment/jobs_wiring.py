"""Wires jobs: which kinds there are, who asks for them and who executes them.

What must stay true: the API and the runners know the same kinds, so that what is accepted is executed. Runners have an owner id of
their own, new at every process start.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from deployment import wiring
from deployment.audit_wiring import audit_kind
from deployment.settings import Settings
from deployment.staging_wiring import hosted_apart, is_staging, staging_target
from deployment.storage import blob_store
from projections.rebuilding.rebuildable import Builder, Open, Rebuildable
from projections.registry import PROJECTIONS, Projection
from projections.runner import Report
from projections.status import Projections
from services import faultpoints
from services.job_kinds import JobKind
from services.job_runner import JobRunner, living_in, nothing_idle
from services.ports import BlobStore
from services.rebuild import KIND, RebuildKind, left_behind
from services.store.application import Log

if TYPE_CHECKING:
    from services.jobs import Jobs

RUNNERS: Final = 2
"""Jobs that one process executes at once, each in a thread."""


def job_kinds(settings: Settings, log: Log, blobs: BlobStore) -> dict[str, JobKind]:
    """Every kind of job, by name."""
    dsn = settings.required_postgres_dsn()
    targets = rebuild_targets(dsn) | staging_target(settings, blobs)
    rebuild = RebuildKind(targets, blobs, Projections(log.pool).note)
    audit = audit_kind(settings, blobs)
    return {rebuild.name: rebuild, audit.name: audit}


def rebuild_targets(dsn: str) -> dict[str, Open]:
    """Every projection that can be rebuilt, by name."""
    return {name: partial(_opened, dsn, projection) for name, projection in PROJECTIONS.items()}


def jobs(settings: Settings, log: Log, blobs: BlobStore) -> "Jobs":
    """The use cases of jobs."""
    from projections.jobs.postgres import JobsReader
    from services.jobs import Jobs

    return Jobs(log, job_kinds(settings, log, blobs), JobsReader(log.pool))


@asynccontextmanager
async def job_runners(settings: Settings, report: Report, *, staging: bool = False) -> AsyncIterator[list[JobRunner]]:
    """What executes jobs; their threads are the caller's. Where ClickHouse has one owner, only that one (`staging`) rebuilds it."""
    async with wiring.opened_log(settings) as log:
        living = living_in(log.pool)
        kinds: Mapping[str, JobKind] = await asyncio.to_thread(job_kinds, settings, log, blob_store(settings))
        rebuild, projections = kinds[KIND], Projections(log.pool)
        assert isinstance(rebuild, RebuildKind)
        left = partial(left_behind, projections.beside, living)
        drop_expired, drop_left = rebuild.drop_expired, rebuild.drop_left

        def tidy() -> list[str]:
            return [*drop_expired(projections.expired), *drop_left(left)]

        yield [
            JobRunner(
                log,
                kinds,
                f"jobs_{uuid4().hex}",
                lambda: [job for job in living() if is_staging(job) == staging or not hosted_apart(settings)],
                ttl_seconds=settings.lease_ttl_seconds,
                name=f"{'staging-' if staging else ''}jobs-{number + 1}",
                report=report,
                idle=nothing_idle if number else tidy,
            )
            for number in range(1 if staging else RUNNERS)
        ]


def _opened(dsn: str, projection: Projection, builder: Builder) -> Rebuildable:
    from projections.rebuilding.opening import opened

    return opened(dsn, projection, builder, faultpoints.point)
