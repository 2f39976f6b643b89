"""Connections to PostgreSQL: how each one is set up, and the pool for reading.

What must stay true: every connection is in autocommit, READ COMMITTED and UTC, whatever the server's defaults are, so a statement
means the same on every server; waiting for one is bounded; a connection found broken costs one retry, after which the caller is
told `StoreUnavailableError`. Nothing here holds a transaction open across a client round trip.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from domain.errors import StoreUnavailableError
from domain.log_errors import SchemaMissingError

CONNECT_SECONDS_MAX: Final = 5
"""Seconds to wait for the server to accept a connection."""

POOL_WAIT_SECONDS_MAX: Final = 10.0
"""Seconds to wait for a free connection of the pool."""

POOL_CONNECTIONS_MAX: Final = 8
"""Connections for reading that one process keeps."""

RECONNECT_SECONDS_MAX: Final = 2.0
"""Seconds for which the pool tries by itself to replace a lost connection. Its pauses double, so after a long absence of the server
it would come back late; having given up, it tries anew with the next read."""

READ_SECONDS_MAX: Final = 60
"""Seconds that one reading statement may take."""

LOCK_SECONDS_MAX: Final = 10
"""Seconds that any statement waits for a lock; who holds one for longer is stuck, and waiting would only spread that."""

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Row: TypeAlias = tuple[Any, ...]

AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)
"""Errors that mean "the server is away, starting, stopping, full or a standby": trying again may help."""

LACKING: Final = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
"""Errors that mean "this database was not migrated": see `lacking`."""

_SETUP: Final = (
    b"SET TIME ZONE 'UTC'; SET default_transaction_isolation = 'read committed';"
    b" SET idle_in_transaction_session_timeout = '30s'; SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD';"
    b" SET synchronous_commit = on; SET default_transaction_read_only = off;"
    b" SET statement_timeout = '%ds'; SET lock_timeout = '%ds'"
)

_PLAN_ONCE: Final = b"SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"

logging.getLogger("psycopg.pool").setLevel(
    logging.ERROR
)  # it warns at every attempt; we report what it means to a caller


def set_up(connection: Connection, statement_seconds_max: int = READ_SECONDS_MAX) -> None:
    """Bring a fresh connection into the state that all our statements rely on, in one round trip."""
    connection.autocommit = True
    connection.execute(_SETUP % (statement_seconds_max, LOCK_SECONDS_MAX))


def set_up_to_plan_once(connection: Connection) -> None:
    """As `set_up`, for statements whose plan is the same whatever their arguments are: each is planned once and by its indexes.

    Planning is half of what they cost, and a plan made while a table was empty must not be kept when it is full.
    """
    set_up(connection)
    connection.execute(_PLAN_ONCE)


def connect(dsn: str, statement_seconds_max: int = READ_SECONDS_MAX) -> Connection:
    """A connection of one's own, set up. Raises psycopg's errors."""
    connection = psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX)
    try:
        set_up(connection, statement_seconds_max)
    except BaseException:
        connection.close()
        raise
    return connection


def lacking(error: psycopg.Error) -> SchemaMissingError:
    """What a `LACKING` error says to people."""
    what = f"the database lacks what this version needs: {error.diag.message_primary or error}"
    return SchemaMissingError(what.strip(), expected="one that `finaz migrate` was run on")


class Pool:
    """The connections for reading of one process. Opens at the first use; methods may be called from any thread.

    `plan_once` makes them fit for a few statements that are executed all the time, and for no others.
    """

    def __init__(self, dsn: str, connections_max: int = POOL_CONNECTIONS_MAX, *, plan_once: bool = False) -> None:
        self._pool = ConnectionPool[Connection](
            dsn,
            min_size=1,
            max_size=connections_max,
            open=False,
            configure=set_up_to_plan_once if plan_once else set_up,
            timeout=POOL_WAIT_SECONDS_MAX,
            reconnect_timeout=RECONNECT_SECONDS_MAX,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_SECONDS_MAX},
        )
        self._closed = False

    def rows(self, statement: str, arguments: Mapping[str, Any] | Sequence[Any] = ()) -> list[Row]:
        """The rows of one statement. A broken connection costs one retry; then, `StoreUnavailableError`."""
        try:
            return self._rows(statement, arguments)
        except PoolTimeout as error:
            raise StoreUnavailableError(f"the database cannot be reached: {error}") from error
        except errors.QueryCanceled as error:
            raise StoreUnavailableError(f"reading took more than {READ_SECONDS_MAX} s") from error
        except AWAY:
            pass
        try:
            self._pool.check()  # replaces every idle connection that the server has dropped
            return self._rows(statement, arguments)
        except AWAY as error:
            raise StoreUnavailableError(f"the database cannot be reached: {error}".strip()) from error

    def close(self) -> None:
        """Close all connections; a closed pool stays closed."""
        self._closed = True
        self._pool.close()

    def _rows(self, statement: str, arguments: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        self._pool.open()  # does nothing where it is open
        try:
            with self._pool.connection() as connection:
                cursor = connection.execute(statement, arguments)
                return cursor.fetchall() if cursor.description is not None else []
        except LACKING as error:
            raise lacking(error) from error
