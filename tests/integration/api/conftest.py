"""The API under test."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from deployment.migrate import migrate
from tests.support.api_rig import ApiRig, api_rig


@pytest.fixture
async def api(database: str, tmp_path: Path) -> AsyncIterator[ApiRig]:
    """The API on a database of its own, with the fixture snapshot stored."""
    async with api_rig(database, tmp_path) as rig:
        yield rig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_api(
    postgres: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApiRig]:
    """As `api`, one for a whole module of tests that write nothing, or nothing that the others see."""
    name = "shared_" + request.module.__name__.rpartition(".")[2]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    dsn = make_conninfo(postgres, dbname=name)
    migrate(dsn)
    async with api_rig(dsn, tmp_path_factory.mktemp("api")) as rig:
        yield rig
