"""Migrations: numbered SQL files that bring a database to what this version of the code needs.

`migrations/NNNN_name.before.sql` runs before new code starts and must suit the old code too; `NNNN_name.after.sql` runs when the
old code is gone. A file may include another by a line `-- include: PATH` (from the top of the installed packages), and its checksum
covers what is included.

What must stay true: one migrates at a time (an advisory lock); each file runs in a transaction of its own together with the record
that it ran; an applied file never changes (its checksum is compared, a difference refused) and never vanishes. A crash leaves a
prefix of the files applied, whole; running again goes on from there.
"""

import hashlib
import itertools
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, Literal

import msgspec
import psycopg
from psycopg.abc import Query

from domain.errors import FinazError, StoreUnavailableError

Stage = Literal["before", "after"]

LOCK_SECONDS_MAX: Final = 120
"""Seconds to wait for another process that is migrating the same database."""

CONNECT_SECONDS_MAX: Final = 10
"""Seconds to wait for a connection."""

_LOCK_KEY: Final = int.from_bytes(b"finaz mi", "big")  # an advisory lock is named by a bigint
_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.(before|after)\.sql\Z")
_INCLUDE: Final = re.compile(r"^-- include: (\S+)$", re.MULTILINE)

_RECORDS: Final = """
CREATE SCHEMA IF NOT EXISTS finaz;
CREATE TABLE IF NOT EXISTS finaz.migrations (
    number integer NOT NULL,
    stage text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT migrations_pkey PRIMARY KEY (number, stage)
)"""


class MigrationError(FinazError):
    """The migrations and the database do not fit: an applied one was changed or is missing, or one failed."""

    code = "MIGRATION_FAILED"


class Migration(msgspec.Struct, frozen=True):
    """One file: its number, stage and name, and its SQL with everything included."""

    number: int
    stage: Stage
    name: str
    sql: str

    @property
    def title(self) -> str:
        return f"{self.number:04d}_{self.name}.{self.stage}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode("utf-8")).hexdigest()


def migrations(folder: Traversable | None = None) -> list[Migration]:
    """All migrations of this version of the code, in their order: by number, `before` ahead of `after`."""
    folder = folder or files("deployment") / "migrations"
    found = [_read(file) for file in folder.iterdir() if file.name.endswith(".sql")]
    found.sort(key=lambda m: (m.number, m.stage == "after"))
    for one, next_one in itertools.pairwise(found):
        if one.number == next_one.number and one.stage == next_one.stage:
            raise MigrationError(f"{one.title} and {next_one.title} have one number", at=next_one.title)
    return found


def migrate(dsn: str, stage: Stage | None = None, known: Sequence[Migration] | None = None) -> list[str]:
    """Apply what is missing, of one stage or of both, and return the titles of what was applied, in order.

    Safe to run from many processes at once: one works, the others wait and find nothing left. Raises `MigrationError` and
    `StoreUnavailableError`.
    """
    known = migrations() if known is None else known
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX) as connection:
            connection.execute(f"SET lock_timeout = '{LOCK_SECONDS_MAX}s'")
            connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK_KEY,))
            connection.execute("SET lock_timeout = 0")
            _execute_script(connection, _RECORDS)
            return _apply(connection, known, stage)  # the lock goes with the connection
    except psycopg.OperationalError as error:
        raise StoreUnavailableError(f"cannot migrate: {error}".strip()) from error


def pending(dsn: str, known: Sequence[Migration] | None = None) -> list[str]:
    """Titles of the migrations that the database lacks, changing nothing; for readiness. Raises as `migrate` does."""
    known = migrations() if known is None else known
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX) as connection:
            row = connection.execute("SELECT to_regclass('finaz.migrations') IS NOT NULL").fetchone()
            applied = _applied(connection) if row is not None and row[0] else {}
    except psycopg.OperationalError as error:
        raise StoreUnavailableError(f"cannot read the migrations: {error}".strip()) from error
    _check(known, applied)
    return [m.title for m in known if (m.number, m.stage) not in applied]


def _apply(connection: psycopg.Connection[Any], known: Sequence[Migration], stage: Stage | None) -> list[str]:
    applied = _applied(connection)
    _check(known, applied)
    done: list[str] = []
    for migration in known:
        if (migration.number, migration.stage) in applied or (stage is not None and migration.stage != stage):
            continue
        try:
            with connection.transaction():
                _execute_script(connection, migration.sql)
                connection.execute(
                    "INSERT INTO finaz.migrations (number, stage, name, checksum) VALUES (%s, %s, %s, %s)",
                    (migration.number, migration.stage, migration.name, migration.checksum),
                )
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            raise MigrationError(f"it failed and was rolled back: {error}".strip(), at=migration.title) from error
        done.append(migration.title)
    return done


def _applied(connection: psycopg.Connection[Any]) -> dict[tuple[int, str], tuple[str, str]]:
    rows = connection.execute("SELECT number, stage, name, checksum FROM finaz.migrations").fetchall()
    return {(number, stage): (name, checksum) for number, stage, name, checksum in rows}


def _check(known: Sequence[Migration], applied: dict[tuple[int, str], tuple[str, str]]) -> None:
    """Refuse changed files. Applied files that this code does not know are those of newer code, whose `before` suits us."""
    for migration in known:
        name, checksum = applied.get((migration.number, migration.stage), (migration.name, migration.checksum))
        if checksum != migration.checksum or name != migration.name:
            raise MigrationError(
                "it was changed after it had been applied to this database",
                at=migration.title,
                expected="a new migration with a number of its own",
            )
    newest = max((m.number for m in known), default=0)
    numbers = {(m.number, m.stage) for m in known}
    for number, stage in applied:
        if number <= newest and (number, stage) not in numbers:
            raise MigrationError(
                f"migration {number:04d} ({stage}) was applied and its file is gone", at=f"{number:04d}"
            )


def _execute_script(connection: psycopg.Connection[Any], sql: str) -> None:
    script: Query = sql.encode("utf-8")  # bytes without arguments: several statements, no placeholders
    connection.execute(script)


def _read(file: Traversable) -> Migration:
    match = _FILE.match(file.name)
    if match is None:
        raise MigrationError(
            f"{file.name!r} is no migration", at=file.name, expected="NNNN_name.before.sql or NNNN_name.after.sql"
        )
    sql = _INCLUDE.sub(lambda m: _included(m[1]), file.read_text(encoding="utf-8"))
    stage: Stage = "before" if match[3] == "before" else "after"
    return Migration(int(match[1]), stage, match[2], sql)


def _included(path: str) -> str:
    package, _, rest = path.partition("/")
    return files(package).joinpath(rest).read_text(encoding="utf-8")
