"""Rebuilding an asynchronous projection in PostgreSQL: another copy, of the next generation, and a switch at one position.

What must stay true: readers see the old rows or the new ones, never a mixture and never none; positions never go back; a second
rebuild of one projection is refused; an attempt that was overtaken switches nothing (its session is ended, and the copy's row
carries the token of who builds it). A crash leaves the old copy being served and one beside it, with which the same job goes on and
which any other job drops.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from domain.errors import ProjectionStoppedError, RebuildRunningError, StaleFenceError, StoreUnavailableError
from projections.errors import CodeVersionError, CopyGoneError, NoOldCopyError, PositionPassedError
from projections.folding import Folded, ReadModel
from projections.log import Failure, StoredEvent
from projections.position import Copy, CopyRole, category_of
from projections.postgres import LogSession, PostgresSession, RowStore
from projections.rebuilding.ahead import ReadAhead
from projections.rebuilding.comparing import COMPARE_SECONDS_MAX, difference
from projections.rebuilding.loading import LoadingSession
from projections.rebuilding.pipeline import Pipeline
from projections.rebuilding.rebuildable import (
    COPY_ATTACH_AFTER,
    COPY_ATTACH_BEFORE,
    COPY_COMPARE_AFTER,
    COPY_COMPARE_BEFORE,
    COPY_CREATE_AFTER,
    COPY_CREATE_BEFORE,
    COPY_DROP_AFTER,
    COPY_DROP_BEFORE,
    COPY_SWITCH_AFTER,
    COPY_SWITCH_BEFORE,
    Builder,
    Difference,
    Goal,
    Pulse,
    Rebuilt,
)
from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE, Point, nowhere, run_once

REBUILD_EVENTS_MAX: Final = 5000
"""Events folded into one transaction by a rebuild."""

DROP_TRIES_MAX: Final = 20
"""Times that dropping an old copy is tried while somebody reads it; then it is left to the next rebuild."""

DROP_PAUSE_SECONDS: Final = 0.2
"""Seconds between two tries, in which other readers pass."""

EVICT_TRIES_MAX: Final = 50
"""Times that a claim is asked for again while the server ends the session that was overtaken."""

EVICT_PAUSE_SECONDS: Final = 0.1

AHEAD_TRIES_MAX: Final = 100
"""Times that a comparison looks whether the served copy has come to where ours is, before ours is made anew."""

AHEAD_PAUSE_SECONDS: Final = 0.1


class _BuildSession(PostgresSession[Any, Any]):
    """A session on the copy that is being built. It reads ahead on a second connection, and not beyond `goal`, if there is one."""

    def __init__(self, dsn: str, model: ReadModel[Any, Any], rows: RowStore[Any, Any, Any], owner: str) -> None:
        super().__init__(dsn, model, rows, owner, CopyRole.BUILDING)
        self.goal: int | None = None
        self._ahead = read_ahead(dsn, model)

    def look(self) -> Copy:
        """See `projections.runner.Session`."""
        seen = super().look()
        if self.goal is None or self.goal >= seen.high_water_mark:
            return seen
        return msgspec.structs.replace(seen, high_water_mark=self.goal)

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        """See `projections.runner.Session`."""
        return self._ahead.read(after, up_to, limit)

    def close(self) -> None:
        """End both sessions."""
        super().close()
        self._ahead.close()


class CopyRebuild:
    """The rebuild of one asynchronous projection: `projections.rebuilding.rebuildable.Rebuildable`."""

    def __init__(
        self,
        dsn: str,
        model: ReadModel[Any, Any],
        rows: RowStore[Any, Any, Any],
        builder: Builder,
        point: Point = nowhere,
        session: _BuildSession | None = None,
    ) -> None:
        self._dsn = dsn
        self._model = model
        self._rows = rows
        self._builder = builder
        self._point = point
        self._given = {"name": model.name, **msgspec.structs.asdict(builder), "code_version": model.version}
        self._session = session or _BuildSession(dsn, model, rows, builder.owner)
        self._from_old = False

    @property
    def name(self) -> str:
        return self._model.name

    def claim(self) -> None:
        """See `Rebuildable`."""
        claim(self._session, self._given)

    def switched(self) -> Rebuilt | None:
        """See `Rebuildable`."""
        generation, position, _, job_id = self._session.row("served", self._given)
        return Rebuilt(self.name, generation, position) if job_id == self._builder.job_id else None

    def begin(self, *, from_old: bool = False, confirmed: bool = False) -> None:
        """See `Rebuildable`."""
        self._from_old = from_old
        if self._session.find("adopt_building", self._given) is not None:
            return
        self.drop_built()
        if confirmed:
            raise CopyGoneError(
                "the copy that was confirmed is gone: other code runs now, or the database was restored",
                at=self.name,
                expected="another rebuild, compared and confirmed",
            )
        self._point(COPY_CREATE_BEFORE)
        if from_old:
            self._take_old()
        else:
            with self._session.transaction() as cursor:
                (generation,) = self._session.row("insert_building", self._given)
                self._rows.create(cursor, generation)
        self._point(COPY_CREATE_AFTER)

    def catch_up(self, pulse: Pulse, goal: Goal) -> int:
        """See `Rebuildable`. Rows first; the other indexes of the copy are built when the goal is reached."""
        session = self._session
        while True:
            session.goal = self._served_position() if goal is Goal.SERVED else None
            seen = session.look()
            if seen.lag_events > REBUILD_EVENTS_MAX:
                self._fold_far(pulse, seen)
            progress = run_once(session, self._model, REBUILD_EVENTS_MAX, self._point)
            if progress.failure is not None:
                raise stopped(self.name, progress.failure)
            pulse.reached(progress.position, progress.high_water_mark)
            if progress.caught_up:
                self._attach(pulse)
                return progress.position

    def compare(self, pulse: Pulse) -> Difference:
        """See `Rebuildable`.

        One repeatable-read transaction sees the served copy as it is at one instant, folds ours up to that copy's position, and
        compares the two. So both are at exactly one position, and nobody is held up.
        """
        session = self._session
        self._wait_until_served_is_not_behind(pulse)
        self._point(COPY_COMPARE_BEFORE)
        with session.transaction():
            session.change("repeatable")
            session.change("take_long")
            generation, position, _, _ = session.row("served", self._given)
            session.goal = position
            ours = session.look()
            while ours.position < position:
                progress = run_once(session, self._model, REBUILD_EVENTS_MAX)
                if progress.failure is not None:
                    raise stopped(self.name, progress.failure)
                pulse.alive()
                ours = session.look()
            pulse.alive(COMPARE_SECONDS_MAX)
            table = f"finaz.{self.name}_generations"
            found = difference(
                session.fetch, table, self._rows.table(generation), self._rows.table(ours.generation), position
            )
        pulse.alive()
        self._point(COPY_COMPARE_AFTER)
        return found

    def switch(self, pulse: Pulse, keep_seconds: float) -> Rebuilt:
        """See `Rebuildable`. Holds the served copy, folds what it has and ours has not, and has them change places."""
        session = self._session
        pulse.alive()
        self._point(COPY_SWITCH_BEFORE)
        with session.transaction():
            check_fence(session, self._given)
            position, generation = session.row("lock_served", self._given)
            session.goal = None
            while session.look().position < position:
                progress = run_once(session, self._model, REBUILD_EVENTS_MAX)
                if progress.failure is not None:
                    raise stopped(self.name, progress.failure)
            session.change("retire", {**self._given, "keep_seconds": keep_seconds})
            served = session.find("activate", {**self._given, "served": generation})
            if served is None:
                raise StaleFenceError("another attempt builds this copy", at=self.name, token=self._builder.token)
        self._point(COPY_SWITCH_AFTER)
        with suppress(StoreUnavailableError):  # somebody still reads it: the next one drops it
            self._drop("delete_retired", {"which": "older"})
        return Rebuilt(self.name, *served)

    def drop_built(self) -> None:
        """See `Rebuildable`."""
        self._session.change("retire_building", self._given)
        self._drop("delete_building")

    def drop_old(self, *, expired_only: bool) -> int:
        """See `Rebuildable`."""
        return self._drop("delete_retired", {"which": "expired" if expired_only else "all"})

    def close(self) -> None:
        """See `Rebuildable`."""
        let_go(self._session)

    # ---------------------------------------------------------------- the steps' parts

    def _fold_far(self, pulse: Pulse, seen: Copy) -> None:
        """Fold up to the mark that was seen: read, fold and write at once. An event that goes wrong is for `run_once` to name."""
        session, mark = self._session, seen.high_water_mark
        loading = LoadingSession(self._dsn, self._model, self._rows, seen.generation)

        def write(position: int, folded: Folded[Any, Any]) -> None:
            here = msgspec.structs.replace(seen, position=position)
            with session.moving(here):
                if folded.rows:
                    session.save(here, folded.rows)
                session.move(here, folded.up_to, None)
                self._point(POSITION_COMMIT_BEFORE)
            self._point(POSITION_COMMIT_AFTER)

        pipeline: Pipeline[Any, Any] = Pipeline(
            self._model,
            session.read,
            loading.load,
            write,
            seen.position,
            batch_events_max=REBUILD_EVENTS_MAX,
            fresh=seen.position == 0,
        )
        try:
            while pipeline.step(mark):
                pulse.reached(pipeline.position, mark)
            pipeline.flush()
        finally:
            pipeline.close()
            loading.close()

    def _take_old(self) -> None:
        found = self._session.find("retired", self._given)
        if found is None:
            raise NoOldCopyError("no old copy is kept", at=self.name, expected="a rebuild that kept one")
        if found[0] != self._model.version:
            raise CodeVersionError(
                f"the old copy was made by version {found[0]} of the projection, this process has {self._model.version}",
                at=self.name,
                expected="a process with that version",
            )
        self._session.row("take_retired", self._given)

    def _served_position(self) -> int:
        return int(self._session.row("served", self._given)[1])

    def _wait_until_served_is_not_behind(self, pulse: Pulse) -> None:
        """A copy never goes back: where ours is ahead, the served one must come up to it, or ours is made anew."""
        for _ in range(AHEAD_TRIES_MAX):
            position, state = self._session.row("served", self._given)[1:3]
            if position >= self._session.look().position:
                return
            if state != "running":
                break
            pulse.alive()
            time.sleep(AHEAD_PAUSE_SECONDS)
        if self._from_old:
            raise PositionPassedError("the old copy is further than the served one, which does not move", at=self.name)
        self.drop_built()
        self.begin()
        self.catch_up(pulse, Goal.SERVED)

    def _attach(self, pulse: Pulse) -> None:
        """Build the other indexes, one after the other, and make the copy a part of the table; events go on arriving."""
        session = self._session
        generation = session.look().generation
        if session.row("is_attached", {"copy": self._rows.table(generation)})[0]:
            return
        self._point(COPY_ATTACH_BEFORE)
        definitions = session.find_all("indexes", {"table": f"finaz.{self.name}_generations"})
        for number, (definition,) in enumerate(definitions):
            pulse.alive(COMPARE_SECONDS_MAX)
            with session.transaction() as cursor:
                session.change("take_long")
                self._rows.create_index(cursor, generation, number, definition)
        with session.transaction() as cursor:
            session.change("take_long")
            self._rows.attach(cursor, generation)
        pulse.alive()
        self._point(COPY_ATTACH_AFTER)

    def _drop(self, statement: str, more: Mapping[str, Any] | None = None) -> int:
        """Drop what nobody is served from, without making readers queue behind one that takes long."""
        given = {**self._given, **(more or {})}
        for _ in range(DROP_TRIES_MAX - 1):
            with suppress(StoreUnavailableError):
                return self._try_to_drop(statement, given)
            time.sleep(DROP_PAUSE_SECONDS)
        return self._try_to_drop(statement, given)

    def _try_to_drop(self, statement: str, given: Mapping[str, Any]) -> int:
        with self._session.transaction() as cursor:
            self._session.change("wait_little")
            dropped = self._session.find_all(statement, given)
            if dropped:
                self._point(COPY_DROP_BEFORE)
            for (generation,) in dropped:
                self._rows.drop(cursor, generation)
        if dropped:
            self._point(COPY_DROP_AFTER)
        return len(dropped)


def read_ahead(dsn: str, model: ReadModel[Any, Any]) -> ReadAhead:
    """Reads the model's events ahead, on a connection of its own."""
    session = LogSession(dsn, model)
    return ReadAhead(session.read, session.close)


def claim(session: LogSession, given: Mapping[str, Any]) -> None:
    """One rebuild at a time; the claim goes with the session. Who holds the job's lease ends the session of who held it before."""
    for left in reversed(range(EVICT_TRIES_MAX)):
        if session.row("claim_rebuild", given)[0]:
            check_fence(session, given)
            return
        if not given["token"] or not session.find_all("evict_rebuild", given) or not left:
            check_fence(session, given)
            break
        time.sleep(EVICT_PAUSE_SECONDS)
    raise RebuildRunningError("it is being rebuilt already", at=str(given["name"]))


def check_fence(session: LogSession, given: Mapping[str, Any]) -> None:
    """Raises `StaleFenceError` unless the job's lease is ours and live, where there is one."""
    if given["token"] and session.find("fence", given) is None:
        raise StaleFenceError(f"token {given['token']} no longer has the job", at=str(given["job_id"]))


def let_go(session: LogSession) -> None:
    """Give the claim back now: the server ends a session some time after its client has left."""
    with suppress(StoreUnavailableError):
        session.find("let_go_rebuild")
    session.close()


@contextmanager
def at_one_instant(session: LogSession) -> Iterator[None]:
    """A transaction of which everything that is read is of one instant."""
    with session.transaction():
        session.change("repeatable")
        session.change("take_long")
        yield


def stopped(name: str, failure: Failure) -> ProjectionStoppedError:
    """The error of a rebuild that met an event which it cannot apply."""
    return ProjectionStoppedError(
        f"the rebuild met {failure.topic} of {failure.stream} at position {failure.position}, which it cannot apply "
        f"({category_of(failure.code).value}): {failure.reason}",
        at=name,
        expected="events that follow one another; the old rows are served on",
        position=failure.position,
        stream=failure.stream,
        topic=failure.topic,
        reason=failure.reason,
        failure=failure.code,
    )
