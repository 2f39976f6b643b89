"""What the tests of read models share: histories in a real log, projections brought forward by hand, databases made empty again."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from domain.events import Recorded
from projections.folding import fold_all
from projections.position import CopyRole, CopyState, Progress
from projections.postgres import InlineRows, PostgresSession, RowStore
from projections.registry import PROJECTIONS, Projection
from projections.runner import BATCH_EVENTS_MAX, Point, nowhere, run_once
from services.ports import Append
from services.store.application import Log
from tests.support.histories import History

ASYNCHRONOUS = tuple(name for name, projection in PROJECTIONS.items() if not projection.inline)
INLINE_NAMES = tuple(name for name, projection in PROJECTIONS.items() if projection.inline)
EVERYTHING = 10**6
"""More events than any test has."""


class CrashError(Exception):
    """What a test throws where a process could die."""


def store(log: Log, history: History) -> list[Recorded]:
    """Append the history as it is, in its order, and return the events as the log has them."""

    async def all_in_order() -> None:
        for append in history.appends:
            await log.append(append)

    asyncio.run(all_in_order())
    return stored(log)


def store_all(log: Log, appends: tuple[Append, ...], at_once: int = 1000) -> None:
    """Append many, `at_once` in flight: fast, and ordered within each stream only."""

    async def some() -> None:
        for first in range(0, len(appends), at_once):
            await asyncio.gather(*map(log.append, appends[first : first + at_once]))

    asyncio.run(some())


def stored(log: Log) -> list[Recorded]:
    """Every event of the log."""
    return list(log.read_log(0, EVERYTHING))


def expected(name: str, events: list[Recorded]) -> dict[Any, Any]:
    """The rows that the events make."""
    return fold_all(PROJECTIONS[name].model, events)


def served(log: Log, name: str) -> dict[Any, Any]:
    """The rows that are being served."""
    return PROJECTIONS[name].rows.all_rows(log.pool)


@contextmanager
def session_of(dsn: str, name: str, owner: str = "test", role: CopyRole = CopyRole.ACTIVE) -> Iterator[Any]:
    """A session on a copy of an asynchronous projection."""
    projection = PROJECTIONS[name]
    assert isinstance(projection.rows, RowStore)
    session: PostgresSession[Any, Any] = PostgresSession(dsn, projection.model, projection.rows, owner, role)
    try:
        yield session
    finally:
        session.close()


def bring_forward(dsn: str, name: str, limit: int = BATCH_EVENTS_MAX, point: Point = nowhere) -> Progress:
    """Run the projection until nothing is left, in batches of `limit`; a `CrashError` from `point` is a process that died."""
    while True:
        with session_of(dsn, name) as session:
            try:
                progress = run_once(session, PROJECTIONS[name].model, limit, point)
                while not progress.caught_up and progress.state is CopyState.RUNNING:
                    progress = run_once(session, PROJECTIONS[name].model, limit, point)
            except CrashError:
                continue
            return progress


def empty_database(dsn: str) -> None:
    """No events, no rows, every projection at 0: a test's way around an append-only log, by its owner's rights."""
    tables = ", ".join(f"finaz.{name}_generations" for name in ASYNCHRONOUS)
    execute(
        dsn,
        f"""
        ALTER TABLE finaz.events DISABLE TRIGGER events_append_only;
        TRUNCATE finaz.events, finaz.lease_guard, finaz.outbox, finaz.tracking, {tables};
        ALTER TABLE finaz.events ENABLE ALWAYS TRIGGER events_append_only;
        UPDATE finaz.projections SET position = 0, state = 'running', error_position = NULL;
        """,
    )


def empty_projection(dsn: str, projection: Projection) -> None:
    """Throw away the projection's rows, and its position with them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        table = projection.name if isinstance(projection.rows, InlineRows) else f"{projection.name}_generations"
        connection.execute(f"TRUNCATE finaz.{table}")  # a name of ours
        connection.execute("UPDATE finaz.projections SET position = 0 WHERE name = %s", (projection.name,))


def execute(dsn: str, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """One statement as an operator with psql would execute it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, arguments or None)
        return cursor.fetchall() if cursor.description else []


def crash_at(passes: set[int], where: str) -> Callable[[str], None]:
    """A point that throws `CrashError` at these passes of `where` (0 is the first)."""
    passed = 0

    def point(name: str) -> None:
        nonlocal passed
        if name == where:
            passed += 1
            if passed - 1 in passes:
                raise CrashError

    return point
