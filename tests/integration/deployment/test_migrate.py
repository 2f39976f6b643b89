"""Migrations: every way to the newest schema ends in the same schema, and nothing applied ever changes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import errors

from deployment import migrate as module
from deployment.embedded import _binaries
from deployment.migrate import Migration, MigrationError, migrate, migrations, pending
from domain.errors import StoreUnavailableError
from projections.registry import PROJECTIONS
from projections.runs.postgres import ROWS

CHECKOUT = Path(__file__).parents[3]
TITLES = [migration.title for migration in migrations()]


def schema_of(dsn: str) -> list[str]:
    """The schema as pg_dump writes it, without what differs between any two dumps."""
    command = [str(_binaries() / "pg_dump"), "--schema-only", "--no-owner", "--schema=finaz", dsn]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in dump.splitlines() if line and not line.startswith(("--", "\\restrict", "\\unrestrict"))]


def one(number: int, sql: str, stage: module.Stage = "before", name: str = "step") -> Migration:
    return Migration(number, stage, name, sql)


RUNS_SOURCES = 80
"""The migration that brought `runs` columns, and its version 2."""

OLD_RUN = """
INSERT INTO finaz.runs_generations VALUES (
    1, 'run_1', 'QUEUED', 0, 'ana', 'STREAM', 'sha256:f', 'f', '', 'epoch', '{}', 0, 60, 'epoch', 'sha256:b', NULL, 0, 0, 0, '',
    false, '[]', '[]', 'epoch', NULL, NULL, 2, 2
)
"""

TWO = [one(1, "CREATE TABLE finaz.a ()"), one(2, "CREATE TABLE finaz.b ()")]


# -------------------------------------------------------------------- one schema, whatever the way


def test_a_migrated_database_equals_a_fresh_one(database: str, empty_database: str) -> None:
    """Applied one by one, with the code's version rising between, the dump is that of all at once."""
    known = migrations()
    for count in range(1, len(known) + 1):
        assert migrate(empty_database, known=known[:count]) == [known[count - 1].title]
    assert schema_of(empty_database) == schema_of(database)
    assert any("CREATE TABLE finaz.events" in line for line in schema_of(database))


def test_a_rolling_upgrade_equals_a_fresh_database(database: str, empty_database: str) -> None:
    """First every `before`, later every `after`: the dump is that of all in order of their numbers."""
    applied = [*migrate(empty_database, "before"), *migrate(empty_database, "after")]
    assert sorted(applied) == sorted(TITLES)
    assert schema_of(empty_database) == schema_of(database)


def test_empty_copies_are_of_this_version(database: str) -> None:
    """What a fresh database serves was made by no older code, so nothing in it waits for a rebuild."""
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT name, code_version FROM finaz.projections WHERE role = 'active'").fetchall()
    found = {name: version for name, version in rows if name in PROJECTIONS}
    assert found == {name: one.model.version for name, one in PROJECTIONS.items() if not one.inline or name in found}


def test_rows_of_an_older_version_wait_for_a_rebuild_and_are_readable(database: str, empty_database: str) -> None:
    """A copy that was written before the schema had a column stays of its version, and readers see the column empty."""
    known = migrations()
    older = [migration for migration in known if migration.number < RUNS_SOURCES]
    migrate(empty_database, known=older)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(OLD_RUN)
        connection.execute("UPDATE finaz.projections SET position = 2 WHERE name = 'runs'")
        migrate(empty_database)
        ((version,),) = connection.execute("SELECT code_version FROM finaz.projections WHERE name = 'runs'")
        ((document,),) = connection.execute("SELECT row_to_json(r)::text FROM finaz.runs AS r")
    row = ROWS.decode(document)
    assert version < PROJECTIONS["runs"].model.version
    assert (row.run_id, row.topic, row.bounded, row.continues, row.schedule) == ("run_1", None, None, None, None)


def test_migrating_again_does_nothing(database: str) -> None:
    """Everything is recorded."""
    assert migrate(database) == []
    assert pending(database) == []


def test_pending_tells_what_is_missing_and_changes_nothing(empty_database: str) -> None:
    """For readiness: an empty database lacks everything, and still has nothing afterwards."""
    assert pending(empty_database) == TITLES
    assert pending(empty_database) == TITLES
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT to_regnamespace('finaz')").fetchone() == (None,)


def test_processes_that_start_at_once_migrate_once(empty_database: str, database: str) -> None:
    """Three processes at the same time: each migration is applied by exactly one of them, and all succeed."""
    code = "import sys; from deployment.migrate import migrate; sys.stdin.readline(); print(*migrate(sys.argv[1]))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_database],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(title for titles in printed for title in titles) == sorted(TITLES)
    assert schema_of(empty_database) == schema_of(database)


# -------------------------------------------------------------------- what is refused


def test_an_applied_migration_never_changes(empty_database: str) -> None:
    """A changed text or name is refused by name, before anything new is applied."""
    migrate(empty_database, known=TWO)
    for changed in (one(1, "CREATE TABLE finaz.changed ()"), one(1, TWO[0].sql, name="renamed")):
        with pytest.raises(MigrationError, match="changed") as caught:
            migrate(empty_database, known=[changed, TWO[1], one(3, "CREATE TABLE finaz.c ()")])
        assert caught.value.at == changed.title
    with pytest.raises(MigrationError, match="changed"):
        pending(empty_database, known=[one(1, "SELECT 1"), TWO[1]])
    assert migrate(empty_database, known=TWO) == []


def test_an_applied_migration_never_vanishes(empty_database: str) -> None:
    """A file that is gone is refused; migrations of newer code than ours are not our business."""
    migrate(empty_database, known=TWO)
    with pytest.raises(MigrationError, match="gone"):
        migrate(empty_database, known=[TWO[1]])
    assert migrate(empty_database, known=[TWO[0]]) == []


def test_a_failing_migration_leaves_nothing_of_itself(empty_database: str) -> None:
    """Those before it stay, it is rolled back whole, and running again goes on from there."""
    bad = one(2, "CREATE TABLE finaz.b (); SELECT 1 / 0")
    with pytest.raises(MigrationError, match="division") as caught:
        migrate(empty_database, known=[TWO[0], bad])
    assert caught.value.at == bad.title
    assert migrate(empty_database, known=TWO) == [TWO[1].title]


@pytest.mark.parametrize("names", [["1_x.before.sql"], ["0001_x.sql"], ["0001_x.before.sql", "0001_y.before.sql"]])
def test_files_that_are_no_migrations_are_refused(tmp_path: Path, names: Sequence[str]) -> None:
    """A wrong name, and one number twice."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(MigrationError):
        migrations(tmp_path)


def test_included_files_count_in_the_checksum(tmp_path: Path) -> None:
    """A migration that includes the append function has its text, so changing the function changes the checksum."""
    (tmp_path / "0001_x.before.sql").write_text("-- include: services/store/append.sql\n")
    (migration,) = migrations(tmp_path)
    assert "CREATE OR REPLACE FUNCTION finaz.append_v1" in migration.sql
    assert migration.checksum != msgspec.structs.replace(migration, sql=migration.sql + " ").checksum


@pytest.mark.parametrize("ask", [migrate, pending])
def test_a_database_that_is_away(tmp_path: Path, ask: Callable[[str], list[str]]) -> None:
    """Told with a typed error."""
    with pytest.raises(StoreUnavailableError):
        ask(f"postgresql://postgres@/nowhere?host={tmp_path}")


def test_waiting_for_another_migration_has_an_end(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds the lock for ever: told within the limit."""
    monkeypatch.setattr(module, "LOCK_SECONDS_MAX", 0.01)
    with psycopg.connect(empty_database) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (module._LOCK_KEY,))
        with pytest.raises(StoreUnavailableError):
            migrate(empty_database)


def test_the_schema_is_ours_alone(database: str) -> None:
    """All tables are in schema finaz."""
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert rows == [("finaz",)]
        with pytest.raises(errors.UndefinedTable):
            connection.execute("SELECT * FROM public.events")
