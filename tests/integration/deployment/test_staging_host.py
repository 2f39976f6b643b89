"""Which process hosts staging, and that the host stages, repairs and rebuilds: all by settings, on real engines."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from deployment.jobs_wiring import job_runners, jobs
from deployment.settings import Settings, load_settings
from deployment.staging_wiring import (
    API,
    PROJECTOR,
    STAGING,
    host_of,
    hosted,
    staging_of,
    staging_probe,
    staging_runners,
)
from deployment.storage import blob_store
from deployment.wiring import opened_log
from domain.discrepancies.messages import DiscrepancyRepaired
from domain.errors import InputError
from projections.staging.clickhouse import FeatureValues, is_embedded
from projections.staging.errors import StagingOffError
from projections.staging.projection import NAME
from services.staging import ValuesQuery
from tests.integration.services.test_process_managers import until
from tests.support.staging_rig import Market, batch_of

SECONDS_MAX = 60.0


def told(event: str, details: Mapping[str, object]) -> None:
    """Nobody listens."""


def settings_of(database: str, folder: Path, clickhouse: str | None) -> Settings:
    """The settings of a system in a folder."""
    environment = {"FINAZ_POSTGRES_DSN": database, "FINAZ_DATA_DIR": str(folder), "FINAZ_PROJECTION_POLL_SEC": "0.05"}
    return load_settings(environment | ({} if clickhouse is None else {"FINAZ_CLICKHOUSE_DSN": clickhouse}))


@pytest.fixture
async def market(database: str, clickhouse: str, tmp_path: Path) -> AsyncIterator[Market]:
    """A market whose artifacts are in the folder of the settings."""
    settings = settings_of(database, tmp_path, clickhouse)
    async with opened_log(settings) as log:
        values = FeatureValues(clickhouse)
        made = Market(database, log, values)
        made.blobs = blob_store(settings)  # type: ignore[assignment]
        yield made
        values.close()


async def test_the_owner_of_the_folder_stages_repairs_and_rebuilds(
    market: Market, database: str, clickhouse: str, tmp_path: Path
) -> None:
    """Rows that were damaged are repaired, a run that is published is staged and can be read, a job stages them all anew."""
    if not is_embedded(clickhouse):
        pytest.skip("with a server, the API hosts nothing")
    settings, log = settings_of(database, tmp_path, clickhouse), market.log
    await asyncio.to_thread(market.publish, 1, batch_of(6))
    await asyncio.to_thread(market.catch_up)
    market.damage(market.attempts.visible(1)[0], "value", 2)
    async with hosted(settings, told):
        await asyncio.to_thread(until, lambda: bool(log.read_log(0, 1, (DiscrepancyRepaired.topic,))))
        run_id = await asyncio.to_thread(market.publish, 2, batch_of(5))
        position = log.high_water_mark()
        with staging_of(settings, log) as reading:
            query = ValuesQuery(run_id=run_id, position=position, timeout_seconds=SECONDS_MAX)
            assert len((await reading.page("ana", query, None, 100)).items) == 5
            assert (await reading.status()).hosted_by == API
        assert market.seen() == market.published()
        await jobs(settings, log, blob_store(settings)).request("rebuild", NAME, {}, "ana")
        await asyncio.to_thread(until, lambda: market.attempts.generation() == 2)
        assert market.seen() == market.published()


async def test_only_its_host_takes_a_rebuild_of_staging(
    market: Market, database: str, clickhouse: str, tmp_path: Path
) -> None:
    """With an embedded ClickHouse, `finaz jobs` leaves it to the API's process, which leaves all others to `finaz jobs`."""
    settings = settings_of(database, tmp_path, f"chdb://{tmp_path}/other")
    wanted = jobs(settings, market.log, blob_store(settings))
    async with job_runners(settings, told) as others:
        await asyncio.to_thread(market.publish, 1, batch_of(1))
        await wanted.request("rebuild", NAME, {}, "ana")
        assert await asyncio.to_thread(others[0].run_once) is None
    async with job_runners(settings, told, staging=True) as (mine,):
        await wanted.request("rebuild", "leases", {}, "ana")
        assert [target for _, target, _ in mine._living()] == [NAME]


@pytest.mark.parametrize(
    ("clickhouse_dsn", "host", "said"),
    [
        (None, None, "off"),
        ("chdb:///somewhere", API, "this process"),
        ("http://127.0.0.1:9/x", PROJECTOR, "the projector"),
    ],
)
async def test_the_setting_says_who_stages(
    database: str, tmp_path: Path, clickhouse_dsn: str | None, host: str | None, said: str
) -> None:
    """Nobody, the API, or the projector; the others run nothing of it, refuse to, and open nothing."""
    settings = settings_of(database, tmp_path, clickhouse_dsn)
    assert host_of(settings) == host
    assert said in str(await staging_probe(settings)())
    for component in (API, PROJECTOR):
        async with staging_runners(settings, component, (), told) as runners:
            assert [runner.name for runner in runners] == (list(STAGING) if component == host else [])
        if component != host:
            with pytest.raises(InputError, match="does not run here"):
                async with staging_runners(settings, component, STAGING[:1], told):
                    pass
    async with opened_log(settings) as log:
        with staging_of(settings, log) as reading:
            if host is None:
                with pytest.raises(StagingOffError):
                    await reading.page("ana", ValuesQuery(instrument="x"), None, 10)
            assert (await reading.status()).hosted_by == host
