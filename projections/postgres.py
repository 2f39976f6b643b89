"""PostgreSQL for all read models: the runner's session, and rows as JSON on their way in and out.

What must stay true: every statement that moves a position compares it first; a session works in UTC, gives up on a statement or
a lock within a stated time, and the server ends it if its process stops in the middle of a transaction. Commits of rows and
position need not wait for the disk (`synchronous_commit = off`): after a crash of the server the last of them may be gone, rows
and position alike, and are made again from the log.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import starmap
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import psycopg
from psycopg import sql

from domain.errors import NotFoundError, PositionConflictError, RowsRefusedError, StoreUnavailableError
from projections.folding import K, ReadModel
from projections.log import Failure, StoredEvent
from projections.position import HEARTBEAT_SECONDS, Copy, CopyRole, CopyState
from projections.reading import Query
from projections.statements import statements

CONNECT_SECONDS_MAX: Final = 5
"""Seconds to wait for a connection."""

STATEMENT_SECONDS_MAX: Final = 60
"""Seconds that one statement of a runner may take."""

LOCK_SECONDS_MAX: Final = 10
"""Seconds to wait for another's lock (an operator's, or a swap's)."""

IDLE_SECONDS_MAX: Final = 30
"""Seconds that a transaction may wait for its client before the server ends the session."""

CANCEL_SECONDS_MAX: Final = 2.0
"""Seconds to wait for the server to take a cancellation."""

_SQL: Final = statements("projections", "statements.sql")

R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)
"""A row of a fold, and the same as a row of its table."""


def same(row: S) -> S:
    """For folds whose rows are those of the table."""
    return row


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what the driver raises when the database is away, busy or slow into `StoreUnavailableError`."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise StoreUnavailableError(str(error).strip() or type(error).__name__) from error


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """A connection for a projection's work, in autocommit. `name` is shown in the server's list of sessions."""
    with store_errors():
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX, application_name=f"finaz projection {name}"
        )
        connection.execute(
            "SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD';"
            "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;"
            f"SET timezone = 'UTC'; SET synchronous_commit = off; SET statement_timeout = '{STATEMENT_SECONDS_MAX}s';"
            f"SET lock_timeout = '{LOCK_SECONDS_MAX}s';"
            f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS_MAX}s'".encode()
        )
    return connection


class Rows(Protocol[K, R]):
    """Where the rows of a copy are (`RowStore` for read models). Both work inside the caller's transaction."""

    def load(self, cursor: psycopg.Cursor[Any], generation: int, keys: Sequence[K]) -> Mapping[K, R]:
        """The rows of these keys that exist."""
        ...

    def save(self, cursor: psycopg.Cursor[Any], generation: int, rows: Mapping[K, R]) -> None:
        """Write the rows, whole. Raises `RowsRefusedError` for values that cannot be held."""
        ...


class RowStore(Generic[K, R, S]):
    """The rows of one read model, a table per generation.

    `flat` gives the row of the table for a row of the fold, `folded` the other way round. The package's `.sql` file has the
    statements `load` (rows of `%(keys)s`, a text[], as JSON text), `save` (upsert of `%(rows)s`, a JSON array of whole rows), both
    with `{copy}` for the table, and `all` (every row that is served). `text_of_key` says what `load` looks for: it may find more
    rows than were asked for, never fewer.
    """

    def __init__(
        self,
        package: str,
        row_type: type[S],
        flat: Callable[[R], S],
        folded: Callable[[S], R],
        key_of_row: Callable[[S], K],
        text_of_key: Callable[[K], str] = str,
    ) -> None:
        self.name = package.rpartition(".")[2]
        self.sql: Final = statements(package, f"{self.name}.sql")
        self.decode: Final = msgspec.json.Decoder(row_type).decode
        self._flat = flat
        self._folded = folded
        self._key_of_row = key_of_row
        self._text_of_key = text_of_key

    def load(self, cursor: psycopg.Cursor[Any], generation: int, keys: Sequence[K]) -> dict[K, R]:
        """The rows of these keys that exist."""
        statement = self.sql["load"].replace("{copy}", self.table(generation))
        cursor.execute(statement, {"generation": generation, "keys": [self._text_of_key(key) for key in keys]})
        rows = map(self.decode, [document for (document,) in cursor])
        return {self._key_of_row(row): self._folded(row) for row in rows}

    def save(self, cursor: psycopg.Cursor[Any], generation: int, rows: Mapping[K, R]) -> None:
        """Write the rows, whole. Raises `RowsRefusedError` for values that the columns cannot take."""
        statement = self.sql["save"].replace("{copy}", self.table(generation))
        try:
            document = msgspec.json.encode([self._flat(row) for row in rows.values()]).decode()
            cursor.execute(statement, {"generation": generation, "rows": document})
        except (psycopg.DataError, psycopg.IntegrityError, OverflowError, ValueError, TypeError) as error:
            raise RowsRefusedError(str(error).strip(), at=self.name, expected="values that its columns take") from error

    def all_rows(self, query: Query) -> dict[K, R]:
        """Every row that is being served; for tests and audits."""
        rows = map(self.decode, [document for (document,) in query.rows(self.sql["all"])])
        return {self._key_of_row(row): self._folded(row) for row in rows}

    @property
    def all_statement(self) -> str:
        """The statement that gives every row that is served, as JSON."""
        return self.sql["all"]

    def key_of(self, row: S) -> K:
        """The key of a row of the table."""
        return self._key_of_row(row)

    def row_of(self, row: R) -> S:
        """The row of the table that a row of the fold makes."""
        return self._flat(row)

    def create(self, cursor: psycopg.Cursor[Any], generation: int) -> None:
        """Make the empty table of a generation, with no index but that of its key, which every batch needs."""
        names = self._names(generation)
        cursor.execute(sql.SQL(_SQL["create_copy"]).format(**names))
        cursor.execute(_SQL["key_of_copy"], {"table": f"finaz.{self.name}_generations"})
        key = str(cursor.fetchall()[0][0])
        cursor.execute(sql.SQL(_SQL["add_key"]).format(key=sql.SQL(key), **names))

    def attach(self, cursor: psycopg.Cursor[Any], generation: int) -> None:
        """Make it a partition of the read model's table, which builds its other indexes; readers and writers go on meanwhile."""
        names = self._names(generation)
        cursor.execute(sql.SQL(_SQL["attach_copy"]).format(**names))

    def create_index(self, cursor: psycopg.Cursor[Any], generation: int, number: int, definition: str) -> None:
        """Build on the table of a generation the index that `definition` creates on the read model's."""
        create, _, what = definition.partition(" USING ")
        names = self._names(generation) | {
            "create": sql.SQL("CREATE UNIQUE" if create.startswith("CREATE UNIQUE") else "CREATE"),
            "index": sql.Identifier(f"{self.name}_g{generation:d}_{number:d}_idx"),
            "what": sql.SQL(what),  # as the database itself spells it
        }
        cursor.execute(sql.SQL(_SQL["create_index"]).format(**names))

    def drop(self, cursor: psycopg.Cursor[Any], generation: int) -> None:
        """Drop the table of a generation, if it exists."""
        cursor.execute(sql.SQL(_SQL["drop_copy"]).format(**self._names(generation)))

    def table(self, generation: int) -> str:
        """The name of the table of a generation."""
        return f"finaz.{self.name}_g{generation:d}"

    def _names(self, generation: int) -> dict[str, sql.Composable]:
        return {
            "table": sql.Identifier("finaz", f"{self.name}_generations"),
            "copy": sql.Identifier("finaz", f"{self.name}_g{generation:d}"),
            "generation": sql.Literal(generation),
        }


class InlineRows(Generic[K, R]):
    """The rows of an inline projection, for making them again: built aside in a temporary table, then put right in the real one.

    The package's `.sql` file has, each name followed by `_` and the projection's: `aside` (makes the temporary tables `rebuilt`,
    `todo`, `chunk`, `touched`), `load` and `save` (of `rebuilt`), `todo_all` (every key whose rows differ, here and there),
    `take` (moves at most `%(limit)s` keys from `todo` to `chunk`), and `repair`: one statement under the append lock that makes
    the rows of `chunk` as `rebuilt` has them, except those of streams with events after `{mark}`, which go to `touched`.
    """

    def __init__(
        self,
        package: str,
        file: str,
        name: str,
        row_type: type[R],
        key_of_row: Callable[[R], K],
        text_of_key: Callable[[K], str],
    ) -> None:
        self.name = name
        self.sql: Final = statements(package, file)
        self.decode: Final = msgspec.json.Decoder(row_type).decode
        self._key_of_row = key_of_row
        self._text_of_key = text_of_key

    def statement(self, kind: str) -> str:
        """One of the statements above."""
        return self.sql[f"{kind}_{self.name}"]

    @property
    def all_statement(self) -> str:
        """The statement that gives every row of the real table, as JSON."""
        return self.statement("all")

    def key_of(self, row: R) -> K:
        """The key of a row."""
        return self._key_of_row(row)

    def row_of(self, row: R) -> R:
        """The row itself: folds of inline projections make the rows of their tables."""
        return row

    def load(self, cursor: psycopg.Cursor[Any], keys: Sequence[K]) -> dict[K, R]:
        """The rows built aside of these keys."""
        cursor.execute(self.statement("load"), {"keys": [self._text_of_key(key) for key in keys]})
        rows = map(self.decode, [document for (document,) in cursor])
        return {self._key_of_row(row): row for row in rows}

    def save(self, cursor: psycopg.Cursor[Any], rows: Mapping[K, R]) -> None:
        """Write rows aside."""
        cursor.execute(self.statement("save"), {"rows": msgspec.json.encode(list(rows.values())).decode()})

    def all_rows(self, query: Query) -> dict[K, R]:
        """Every row of the real table; for tests and audits."""
        rows = map(self.decode, [document for (document,) in query.rows(self.statement("all"))])
        return {self._key_of_row(row): row for row in rows}


class LogSession:
    """A connection of one's own that reads the log: of `model`'s categories, in ranges of positions."""

    def __init__(self, dsn: str, model: ReadModel[Any, Any]) -> None:
        self._model = model
        self._categories = list(model.categories)
        self._connection = connect(dsn, model.name)
        self._cursor = self._connection.cursor()

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        """See `projections.runner.Session`."""
        place = {"after": after, "up_to": up_to, "limit": limit}
        wanted = {**place, "categories": self._categories, "name": self._model.name}
        with store_errors():
            self._cursor.execute(_SQL["read"], wanted, binary=True)
            return list(starmap(StoredEvent, self._cursor.fetchall()))

    def high_water_mark(self) -> int:
        """The last position of the log."""
        return int(self.row("high_water_mark")[0])

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction of several statements, none of which may take the append lock."""
        with store_errors(), self._connection.transaction():
            yield self._cursor

    def find(self, statement: str, arguments: Mapping[str, Any] | None = None) -> tuple[Any, ...] | None:
        """The first row of a statement of `projections/statements.sql`, if there is one."""
        with store_errors():
            return self._cursor.execute(_SQL[statement], arguments).fetchone()

    def find_all(self, statement: str, arguments: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of such a statement."""
        with store_errors():
            return self._cursor.execute(_SQL[statement], arguments).fetchall()

    def fetch(self, statement: str, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that was put together."""
        with store_errors():
            return self._cursor.execute(statement, arguments).fetchall()

    def row(self, statement: str, arguments: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The first row of a statement that always has one."""
        row = self.find(statement, arguments)
        assert row is not None, statement
        return row

    def change(self, statement: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Execute a statement of `projections/statements.sql` and return how many rows it changed."""
        with store_errors():
            return self._cursor.execute(_SQL[statement], arguments).rowcount

    def cancel(self) -> None:
        """From another thread: end the statement that is being executed."""
        with suppress(psycopg.Error):  # nothing left to cancel
            self._connection.cancel_safe(timeout=CANCEL_SECONDS_MAX)

    def close(self) -> None:
        """End the session; never raises."""
        self._connection.close()


class CopySession(LogSession):
    """What a runner's session (`projections.runner.Session`) does but for rows, on the copy of `model` that has this role."""

    def __init__(
        self, dsn: str, model: ReadModel[Any, Any], owner: str, role: CopyRole, clock: Callable[[], float]
    ) -> None:
        super().__init__(dsn, model)
        self._copy = {"name": model.name, "role": role.value, "owner": owner}
        self._clock = clock
        self._beat_at = float("-inf")

    def claim(self) -> bool:
        """See `Session`."""
        return self.find("claim", self._copy) is not None

    def heartbeat(self) -> tuple[str, Any]:
        """See `Session`."""
        owner, heartbeat_at = self.find("heartbeat", self._copy) or ("", None)
        return owner, heartbeat_at

    def evict(self) -> None:
        """See `Session`."""
        self.find("evict", self._copy)

    def revive(self) -> None:
        """See `Session`."""
        self.change("revive", self._copy)

    def troubled(self, code: str, reason: str) -> None:
        """See `Session`."""
        self.change("trouble", {**self._copy, "code": code, "reason": reason})

    def look(self) -> Copy:
        """See `Session`."""
        now = self._clock()
        due = now - self._beat_at >= HEARTBEAT_SECONDS / 2
        row = self.find("beat" if due else "look", self._copy)
        if row is None:
            raise NotFoundError("the projection has no such copy", at=f"{self._model.name} ({self._copy['role']})")
        if due:
            self._beat_at = now
        generation, position, state, mark, code_version = row
        return Copy(generation, position, CopyState(state), mark, code_version)

    @contextmanager
    def moving(self, seen: Copy) -> Iterator[None]:
        """See `Session`."""
        with store_errors(), self._connection.transaction():
            if self.find("lock", self._copy) != (seen.generation, seen.position, seen.state.value):
                raise PositionConflictError("the copy is not where it was", at=self._model.name)
            yield

    def move(self, seen: Copy, up_to: int, failure: Failure | None) -> None:
        """See `Session`."""
        place = {"generation": seen.generation, "from": seen.position, "up_to": up_to}
        if self.change("move", {**self._copy, **place}) != 1:
            raise PositionConflictError("another has moved the copy", at=self._model.name)
        if failure is not None:
            error = {f"error_{field}": value for field, value in msgspec.structs.asdict(failure).items()}
            self.change("stop", {**self._copy, **place, **error})


class PostgresSession(CopySession, Generic[K, R]):
    """A runner's session on a copy whose rows are in PostgreSQL: rows and position move in one transaction."""

    def __init__(
        self,
        dsn: str,
        model: ReadModel[K, R],
        rows: Rows[K, R],
        owner: str,
        role: CopyRole = CopyRole.ACTIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(dsn, model, owner, role, clock)
        self._rows = rows

    def load(self, seen: Copy, keys: Sequence[K]) -> Mapping[K, R]:
        """See `Session`."""
        with store_errors():
            return self._rows.load(self._cursor, seen.generation, keys)

    def save(self, seen: Copy, rows: Mapping[K, R]) -> None:
        """See `Session`."""
        with store_errors():
            self._rows.save(self._cursor, seen.generation, rows)
