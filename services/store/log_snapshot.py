"""The log and the served rows as one snapshot of the database sees them, read in streams: for audits and exports.

What must stay true: everything that is read through one `LogSnapshot` is of one instant, whatever is appended meanwhile; nobody is
locked out; nothing is written, so a crash leaves nothing. While it is open the database keeps dead rows for it: that is its price,
and a client that stops for `IDLE_SECONDS_MAX` loses it.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import uuid4

import psycopg

from domain.errors import StoreUnavailableError
from projections.statements import statements
from services.store.connections import AWAY, CONNECT_SECONDS_MAX, LACKING, Connection, Pool, Row, lacking

FETCH_ROWS: Final = 5000
"""Rows of one round trip: so many are in memory."""

PAGE_ROWS: Final = 2000
"""Rows of one page where the next is read ahead: two of them are in memory."""

IDLE_SECONDS_MAX: Final = 600
"""Seconds for which the client may do nothing before the server ends its snapshot."""

STATEMENT_SECONDS_MAX: Final = 600
"""Seconds that one statement (one page of a long reading) may take."""

_AHEAD: Final = "finaz-snapshot-ahead"

_SQL: Final = statements("services.store", "log_snapshot.sql")

ChainRow: TypeAlias = tuple[Any, ...]
"""What the hash chain takes: position, version, microseconds, event id and causation id as text, stream, topic, correlation,
principal, document; then the chain value, and event id, causation id and instant as they are."""


class LogSnapshot:
    """One snapshot. Blocks; one thread at a time. Everything raises `StoreUnavailableError` when the database is away."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ahead = ThreadPoolExecutor(1, _AHEAD)

    def close(self) -> None:
        """End it, and its transaction, which has written nothing; not before the thread has let go of the connection."""
        self._ahead.shutdown(wait=True, cancel_futures=True)
        self._connection.close()

    def head(self) -> tuple[int, bytes, datetime]:
        """The last position (0: an empty log), its chain value, and the database's clock."""
        position, now, chain = self._one("head")
        return position, bytes(chain) if chain is not None else bytes(32), now.astimezone(UTC)

    def streams(self) -> int:
        """How many streams there are, about: those whose beginning is there."""
        return int(self._one("count_streams")[0])

    def positions(self) -> dict[str, int]:
        """How far the served copy of each projection is."""
        return dict(self.rows(_SQL["positions"]))

    def code_versions(self) -> dict[str, int]:
        """Which version of each projection's code made the served copy."""
        return dict(self.rows(_SQL["code_versions"]))

    def skips(self) -> dict[str, frozenset[int]]:
        """By projection: the events that an operator has had it pass over."""
        found: dict[str, set[int]] = {}
        for name, position in self.rows(_SQL["skips"]):
            found.setdefault(name, set()).add(position)
        return {name: frozenset(positions) for name, positions in found.items()}

    def chain_at(self, position: int) -> bytes | None:
        """The chain value at a position, None where there is no row; 32 zero bytes at 0."""
        if position == 0:
            return bytes(32)
        rows = list(self.rows(_SQL["chain_at"], {"position": position}))
        return bytes(rows[0][0]) if rows else None

    def events(self, after: int, up_to: int) -> Iterator[ChainRow]:
        """Events with after < position <= up_to, in order."""
        return self.rows(_SQL["events"], {"after": after, "up_to": up_to})

    def stream(self, name: str) -> Iterator[ChainRow]:
        """All events of one stream, in order."""
        return self.rows(_SQL["events_of_stream"], {"stream": name})

    def category(self, name: str) -> Iterator[ChainRow]:
        """All events of the streams of a category, stream by stream."""
        return self.rows(_SQL["events_of_category"], {"first": f"{name}/", "beyond": f"{name}0"})

    def snapshots(self) -> Iterator[Any]:
        """The snapshots of states: stream, version, topic of the fold, document."""
        return self.rows(_SQL["snapshots"])

    def event_pages(self, after: int, up_to: int) -> Iterator[Sequence[ChainRow]]:
        """The same in pages, see `pages`."""
        return self.pages(_SQL["events"], {"after": after, "up_to": up_to})

    def pages(self, statement: str, arguments: Any = None) -> Iterator[Sequence[Any]]:
        """The rows of any statement that reads, `PAGE_ROWS` at a time; a thread fetches the next page while one is looked at."""
        with _away(), self._connection.cursor(f"read_{uuid4().hex}") as cursor:
            cursor.execute(statement, arguments, binary=True)
            rows: Sequence[Any] = cursor.fetchmany(PAGE_ROWS)
            while len(rows) == PAGE_ROWS:
                ahead = self._ahead.submit(cursor.fetchmany, PAGE_ROWS)
                yield rows
                rows = ahead.result()
            if rows:
                yield rows

    def rows(self, statement: str, arguments: Any = None) -> Iterator[Any]:
        """The rows of any statement that reads, `FETCH_ROWS` at a time."""
        with _away(), self._connection.cursor(f"read_{uuid4().hex}") as cursor:
            cursor.itersize = FETCH_ROWS
            cursor.execute(statement, arguments, binary=True)
            while rows := cursor.fetchmany(FETCH_ROWS):
                yield from rows

    def _one(self, name: str) -> Row:
        return next(iter(self.rows(_SQL[name])))


@contextmanager
def log_snapshot(dsn: str) -> Iterator[LogSnapshot]:
    """A snapshot on a connection of its own. Raises `StoreUnavailableError`."""
    with _away():
        connection = psycopg.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_SECONDS_MAX, application_name="finaz snapshot"
        )
    snapshot = LogSnapshot(connection)
    try:
        with _away():
            limits = {"idle": f"{IDLE_SECONDS_MAX}s", "statement": f"{STATEMENT_SECONDS_MAX}s"}
            connection.execute(_SQL["patience"], limits)
            connection.execute(_SQL["begin"])
        yield snapshot
    finally:
        snapshot.close()


@contextmanager
def _away() -> Iterator[None]:
    try:
        yield
    except AWAY as error:
        raise StoreUnavailableError(f"the database cannot be read: {error}".strip()) from error
    except LACKING as error:
        raise lacking(error) from error


class SealableChain:
    """`services.seals.SealableLog` over a pool of connections."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def head(self) -> tuple[int, bytes, datetime]:
        """See `SealableLog`."""
        position, now, chain = self._pool.rows(_SQL["head"])[0]
        return position, bytes(chain) if chain is not None else bytes(32), now.astimezone(UTC)

    def chain_at(self, position: int) -> bytes | None:
        """See `SealableLog`."""
        rows = self._pool.rows(_SQL["chain_at"], {"position": position})
        return bytes(rows[0][0]) if rows else None
