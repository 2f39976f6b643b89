"""Rebuilding in PostgreSQL.

An asynchronous projection is built as another copy, of the next generation, and swapped in at one position in one transaction.
An inline one is folded aside and put right in place, key by key under the append lock, leaving alone what events have touched
meanwhile until the fold has caught up with those.

What must stay true: readers of a copy see the old rows or the new ones, never a mixture and never none; positions never go back;
the append lock is held for one statement over at most `REPAIR_ROWS_MAX` rows; a second rebuild of one projection is refused. A
crash leaves the old copy being served and a building one that the next rebuild drops, or an inline table of which some keys are
put right.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from psycopg import sql

from domain.errors import OverloadedError, ProjectionStoppedError, RebuildRunningError, StoreUnavailableError
from projections.folding import ReadModel, batch_of, fold
from projections.log import Failure, StoredEvent
from projections.position import CopyRole
from projections.postgres import InlineRows, LogSession, PostgresSession, RowStore, store_errors
from projections.rebuilding.ahead import ReadAhead
from projections.registry import Projection
from projections.runner import SPAN_POSITIONS_MAX, run_once

REBUILD_EVENTS_MAX: Final = 5000
"""Events folded into one transaction by a rebuild."""

REPAIR_ROWS_MAX: Final = 500
"""Rows of an inline projection that are put right under one hold of the append lock."""

REPAIR_PASSES_MAX: Final = 100
"""Times that an inline rebuild catches up with keys that keep changing, before it gives up."""


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild made: the generation being served now, and the position it has reached."""

    name: str
    generation: int
    position: int


DROP_TRIES_MAX: Final = 20
"""Times that dropping an old copy is tried while somebody reads it; then it is left to the next rebuild."""

DROP_PAUSE_SECONDS: Final = 0.2
"""Seconds between two tries, in which other readers pass."""

OnProgress = Callable[[int, int], bool]
"""Called with (position, high-water mark) after every batch; False cancels the rebuild."""


def rebuild_blocking(
    dsn: str, projection: Projection, owner: str, on_progress: OnProgress = lambda position, mark: True
) -> Rebuilt | None:
    """Make the rows again from position 0 and serve them. None if `on_progress` cancelled it; then the old ones are served.

    Raises `RebuildRunningError` for a second rebuild of one projection, `ProjectionStoppedError` for an event that cannot be
    applied (the old rows are served on), `StoreUnavailableError`.
    """
    if isinstance(projection.rows, InlineRows):
        return _Repair(dsn, projection, projection.rows, on_progress).run()
    return _Build(dsn, projection, projection.rows, owner, on_progress).run()


class _BuildSession(PostgresSession[Any, Any]):
    """A session on the copy that is being built, which reads ahead on a second connection."""

    def __init__(self, dsn: str, model: ReadModel[Any, Any], rows: RowStore[Any, Any, Any], owner: str) -> None:
        super().__init__(dsn, model, rows, owner, CopyRole.BUILDING)
        self._ahead = _read_ahead(dsn, model)

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        """See `projections.runner.Session`."""
        return self._ahead.read(after, up_to, limit)

    def close(self) -> None:
        """End both sessions."""
        super().close()
        self._ahead.close()


class _Build:
    """The rebuild of an asynchronous projection."""

    def __init__(
        self, dsn: str, projection: Projection, rows: RowStore[Any, Any, Any], owner: str, on_progress: OnProgress
    ) -> None:
        self._model = projection.model
        self._rows = rows
        self._name = {"name": projection.name, "owner": owner}
        self._on_progress = on_progress
        self._session = _BuildSession(dsn, projection.model, rows, owner)

    def run(self) -> Rebuilt | None:
        session = self._session
        try:
            _claim(session, self._model.name)
            self._drop_unserved()
            self._create()
            if not self._catch_up():
                self._drop_unserved()
                return None
            self._attach()
            self._catch_up()
            rebuilt = self._swap()
            with suppress(StoreUnavailableError):  # somebody still reads the old copy: the next rebuild drops it
                self._drop_unserved()
            return rebuilt
        finally:
            _let_go(session, self._model.name)

    def _create(self) -> None:
        with self._session.transaction() as cursor:
            (generation,) = self._session.row("insert_building", self._name)
            self._rows.create(cursor, generation)

    def _attach(self) -> None:
        """Build the other indexes, which takes a while where the rows are many; events go on arriving."""
        generation = self._session.look().generation
        with self._session.transaction() as cursor:
            self._rows.attach(cursor, generation)

    def _catch_up(self) -> bool:
        """Fold up to the high-water mark; False if cancelled."""
        while True:
            progress = run_once(self._session, self._model, REBUILD_EVENTS_MAX)
            if progress.failure is not None:
                self._drop_unserved()
                raise _stopped(self._model.name, progress.failure)
            if not self._on_progress(progress.position, progress.high_water_mark):
                return False
            if progress.caught_up:
                return True

    def _swap(self) -> Rebuilt:
        """Hold the copy that is served, fold what it has and we have not, and change places with it."""
        session = self._session
        with session.transaction():
            position, generation = session.row("lock_served", self._name)
            while session.look().position < position:
                progress = run_once(session, self._model, REBUILD_EVENTS_MAX)
                if progress.failure is not None:
                    raise _stopped(self._model.name, progress.failure)
            session.change("retire", self._name)
            served = session.row("activate", {**self._name, "served": generation})
        return Rebuilt(self._model.name, *served)

    def _drop_unserved(self) -> None:
        """Drop what nobody is served from, without making readers queue behind one that takes long."""
        for _ in range(DROP_TRIES_MAX - 1):
            with suppress(StoreUnavailableError):
                self._try_to_drop()
                return
            time.sleep(DROP_PAUSE_SECONDS)
        self._try_to_drop()

    def _try_to_drop(self) -> None:
        with self._session.transaction() as cursor:
            self._session.change("wait_little")
            dropped = self._session.find_all("delete_unserved", self._name)
            for (generation,) in dropped:
                self._rows.drop(cursor, generation)


class _Repair:
    """The rebuild of an inline projection."""

    def __init__(self, dsn: str, projection: Projection, rows: InlineRows[Any, Any], on_progress: OnProgress) -> None:
        self._model = projection.model
        self._rows = rows
        self._on_progress = on_progress
        self._session = LogSession(dsn, projection.model)
        self._ahead = _read_ahead(dsn, projection.model)

    def run(self) -> Rebuilt | None:
        session = self._session
        try:
            _claim(session, self._model.name)
            self._execute("aside")
            mark = self._catch_up(0)
            if mark is None:
                return None
            self._execute("todo_all")
            for _ in range(REPAIR_PASSES_MAX):
                self._put_right(mark)
                if not self._touched():
                    return Rebuilt(self._model.name, 1, mark)
                mark = self._catch_up(mark)
                if mark is None:
                    return None
        finally:
            self._ahead.close()
            _let_go(session, self._model.name)
        raise OverloadedError("some rows changed faster than they could be compared", at=self._model.name)

    def _catch_up(self, position: int) -> int | None:
        """Fold aside from a position up to the high-water mark, and return that; None if cancelled."""
        session, model = self._session, self._model
        mark = session.high_water_mark()
        while position < mark:
            up_to = min(mark, position + SPAN_POSITIONS_MAX)
            stored = self._ahead.read(position, up_to, REBUILD_EVENTS_MAX)
            full = len(stored) == REBUILD_EVENTS_MAX
            batch = batch_of(model, stored, stored[-1].position if full else up_to)
            with session.transaction() as cursor:
                folded = fold(model, self._rows.load(cursor, batch.keys), batch)
                if folded.failure is not None:
                    raise _stopped(model.name, folded.failure)
                self._rows.save(cursor, folded.rows)
            position = folded.up_to
            if not self._on_progress(position, mark):
                return None
        return mark

    def _put_right(self, mark: int) -> None:
        """Every key of `todo`, some at a time; those that events have touched after the mark are left in `touched`."""
        repair = sql.SQL(self._rows.statement("repair")).format(mark=sql.Literal(mark))
        while self._execute("take", {"limit": REPAIR_ROWS_MAX}):
            with store_errors(), self._session.transaction() as cursor:
                cursor.execute(repair)

    def _touched(self) -> int:
        """Make what was touched the next thing to do, and return how many keys that are."""
        with self._session.transaction():
            touched = self._session.change("take_touched")
            self._session.change("forget_touched")
        return touched

    def _execute(self, kind: str, arguments: dict[str, Any] | None = None) -> int:
        with self._session.transaction() as cursor:
            return cursor.execute(self._rows.statement(kind), arguments).rowcount


def _read_ahead(dsn: str, model: ReadModel[Any, Any]) -> ReadAhead:
    session = LogSession(dsn, model)
    return ReadAhead(session.read, session.close)


def _claim(session: LogSession, name: str) -> None:
    """One rebuild at a time; the claim goes with the session."""
    (granted,) = session.row("claim_rebuild", {"name": name})
    if not granted:
        raise RebuildRunningError("it is being rebuilt already", at=name)


def _let_go(session: LogSession, name: str) -> None:
    """Give the claim back now: the server ends a session some time after its client has left."""
    with suppress(StoreUnavailableError):
        session.find("let_go_rebuild", {"name": name})
    session.close()


def _stopped(name: str, failure: Failure) -> ProjectionStoppedError:
    return ProjectionStoppedError(
        f"the rebuild met {failure.topic} at position {failure.position}, which it cannot apply: {failure.reason}",
        at=name,
        expected="events that follow one another; the old rows are served on",
        position=failure.position,
        stream=failure.stream,
        topic=failure.topic,
        reason=failure.reason,
    )
