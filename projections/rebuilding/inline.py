"""Rebuilding a projection that is written inside the append: folded aside, then put right in place.

Its rows are part of every append, so there is no moment at which readers could be given another table without holding up
writers. Instead the rows that differ, and only those, are made right by one statement under the append lock, all at one position;
where events keep changing too many of them, some at a time. What must stay true: the append lock is held for one statement and
never across a round trip; a row that an event has touched since the fold is left alone until the fold has caught up with it. There
is no old copy to go back to, on purpose: leases and deliveries are judged by these rows, and rows that the events do not make would
let an overtaken owner write, or deliver twice. The comparison's report has samples of the rows as they were. A crash leaves a table
of which some rows are put right, or none.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.errors import OverloadedError
from projections.errors import NoOldCopyError
from projections.folding import Folded, ReadModel, batch_of, fold
from projections.postgres import InlineRows, LogSession
from projections.rebuilding.comparing import COMPARE_SECONDS_MAX, difference
from projections.rebuilding.pipeline import Pipeline
from projections.rebuilding.postgres import (
    REBUILD_EVENTS_MAX,
    at_one_instant,
    check_fence,
    claim,
    let_go,
    read_ahead,
    stopped,
)
from projections.rebuilding.rebuildable import (
    COPY_COMPARE_AFTER,
    COPY_COMPARE_BEFORE,
    COPY_CREATE_AFTER,
    COPY_CREATE_BEFORE,
    COPY_SWITCH_AFTER,
    COPY_SWITCH_BEFORE,
    Builder,
    Difference,
    Goal,
    Pulse,
    Rebuilt,
)
from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE, SPAN_POSITIONS_MAX, Point, nowhere

SWITCH_ROWS_MAX: Final = 20_000
"""Rows that are put right by one statement, all at one position. It holds the append lock for less than a second."""

SWITCH_TRIES_MAX: Final = 10
"""Times that this is tried while events keep changing the rows in question; then they are put right some at a time."""

REPAIR_ROWS_MAX: Final = 500
"""Rows that are put right under one hold of the append lock, where it is done some at a time."""

REPAIR_PASSES_MAX: Final = 100
"""Times that this catches up with keys that keep changing, before it gives up."""


class InlineRebuild:
    """The rebuild of one inline projection: `projections.rebuilding.rebuildable.Rebuildable`."""

    def __init__(
        self,
        dsn: str,
        model: ReadModel[Any, Any],
        rows: InlineRows[Any, Any],
        builder: Builder,
        point: Point = nowhere,
    ) -> None:
        self._model = model
        self._rows = rows
        self._point = point
        self._given = {"name": model.name, **msgspec.structs.asdict(builder)}
        self._session = LogSession(dsn, model)
        self._ahead = read_ahead(dsn, model)
        self._mark = 0

    @property
    def name(self) -> str:
        return self._model.name

    def claim(self) -> None:
        """See `Rebuildable`."""
        claim(self._session, self._given)

    def switched(self) -> Rebuilt | None:
        """See `Rebuildable`. A row that is right stays right: doing it again does no harm."""
        return None

    def begin(self, *, from_old: bool = False, confirmed: bool = False) -> None:
        """See `Rebuildable`. What is aside goes with the session, so an attempt always starts from nothing, confirmed or not:
        what is put right is what differs from the events then.
        """
        if from_old:
            raise NoOldCopyError(
                "it is written with the events and put right in place: no old copy is kept, since a fence or a delivery must"
                " never be judged by rows that the events do not make",
                at=self.name,
                expected="a projection with a copy of its own; to undo what code has done, start code that is right and rebuild",
            )
        self._point(COPY_CREATE_BEFORE)
        self._execute("aside")
        self._point(COPY_CREATE_AFTER)

    def catch_up(self, pulse: Pulse, goal: Goal) -> int:
        """See `Rebuildable`. What is served is always at the end of the log."""
        mark = self._session.high_water_mark()
        if mark - self._mark > REBUILD_EVENTS_MAX:
            self._fold_far(pulse, mark)
        while self._mark < mark:
            with self._session.transaction():
                self._fold_batch(mark)
                self._point(POSITION_COMMIT_BEFORE)
            self._point(POSITION_COMMIT_AFTER)
            pulse.reached(self._mark, mark)
        pulse.reached(self._mark, mark)
        return self._mark

    def compare(self, pulse: Pulse) -> Difference:
        """See `Rebuildable`. One transaction sees the end of the log and the rows served then, and folds those aside up to it."""
        self._point(COPY_COMPARE_BEFORE)
        with at_one_instant(self._session):
            self._fold_to_end()
            pulse.alive(COMPARE_SECONDS_MAX)
            table = f"finaz.{self.name}"
            found = difference(self._session.fetch, table, table, "pg_temp.rebuilt", self._mark)
        pulse.alive()
        self._point(COPY_COMPARE_AFTER)
        return found

    def switch(self, pulse: Pulse, keep_seconds: float) -> Rebuilt:
        """See `Rebuildable`."""
        pulse.alive()
        self._point(COPY_SWITCH_BEFORE)
        if not any(self._put_right_at_once(pulse) for _ in range(SWITCH_TRIES_MAX)):
            self._put_right_by_parts(pulse)
        self._point(COPY_SWITCH_AFTER)
        return Rebuilt(self.name, 1, self._mark)

    def drop_built(self) -> None:
        """See `Rebuildable`. It goes with the session."""

    def drop_old(self, *, expired_only: bool) -> int:
        """See `Rebuildable`. There is none."""
        return 0

    def close(self) -> None:
        """See `Rebuildable`."""
        self._ahead.close()
        let_go(self._session)

    # ---------------------------------------------------------------- the steps' parts

    def _fold_far(self, pulse: Pulse, mark: int) -> None:
        """Fold up to the mark: read, fold and write at once. An event that goes wrong is for `_fold_batch` to name."""
        session, rows = self._session, self._rows

        def load(keys: Sequence[Any]) -> Mapping[Any, Any]:
            with session.transaction() as cursor:
                return rows.load(cursor, keys)

        def write(position: int, folded: Folded[Any, Any]) -> None:
            with session.transaction() as cursor:
                if folded.rows:
                    rows.save(cursor, folded.rows)
                self._point(POSITION_COMMIT_BEFORE)
            self._point(POSITION_COMMIT_AFTER)
            self._mark = folded.up_to

        pipeline: Pipeline[Any, Any] = Pipeline(
            self._model,
            self._ahead.read,
            load,
            write,
            self._mark,
            batch_events_max=REBUILD_EVENTS_MAX,
            fresh=self._mark == 0,
            one_connection=True,
        )
        try:
            while pipeline.step(mark):
                pulse.reached(pipeline.position, mark)
            pipeline.flush()
        finally:
            pipeline.close()

    def _fold_batch(self, mark: int) -> None:
        """Fold one batch aside, in the caller's transaction."""
        model = self._model
        up_to = min(mark, self._mark + SPAN_POSITIONS_MAX)
        stored = self._ahead.read(self._mark, up_to, REBUILD_EVENTS_MAX)
        batch = batch_of(model, stored, stored[-1].position if len(stored) == REBUILD_EVENTS_MAX else up_to)
        with self._session.transaction() as cursor:
            folded = fold(model, self._rows.load(cursor, batch.keys), batch)
            if folded.failure is not None:
                raise stopped(model.name, folded.failure)
            if folded.rows:
                self._rows.save(cursor, folded.rows)
        self._mark = folded.up_to

    def _fold_to_end(self) -> None:
        """Fold aside up to the log's end as the caller's transaction sees it."""
        mark = self._session.high_water_mark()
        while self._mark < mark:
            self._fold_batch(mark)

    def _put_right_at_once(self, pulse: Pulse) -> bool:
        """Make every row that differs right, all at one position, or none: False if events have touched some meanwhile."""
        self._find_what_differs()
        pulse.alive()
        wrong = int(self._session.row("count_todo")[0])
        if wrong > SWITCH_ROWS_MAX:
            return False
        if not wrong:
            return True
        self._execute("take", {"limit": SWITCH_ROWS_MAX})
        self._repair(whole=True)
        touched = self._session.row("count_touched")[0]
        self._session.change("forget_touched")
        self._session.change("forget_chunk")
        return not touched

    def _put_right_by_parts(self, pulse: Pulse) -> None:
        self._find_what_differs()
        for _ in range(REPAIR_PASSES_MAX):
            while self._execute("take", {"limit": REPAIR_ROWS_MAX}):
                pulse.alive()
                self._repair(whole=False)
            if not self._touched():
                return
            with at_one_instant(self._session):
                self._fold_to_end()
        raise OverloadedError("some rows changed faster than they could be compared", at=self.name)

    def _find_what_differs(self) -> None:
        """List the keys whose rows differ, both sides at one position."""
        with at_one_instant(self._session):
            self._fold_to_end()
            self._session.change("forget_todo")
            self._execute("todo_all")

    def _repair(self, *, whole: bool) -> None:
        statement = self._rows.statement("repair")
        filled = statement.replace("{mark}", str(int(self._mark))).replace("{whole}", "true" if whole else "false")
        with self._session.transaction() as cursor:
            check_fence(self._session, self._given)
            cursor.execute(filled)

    def _touched(self) -> int:
        """Make what was touched the next thing to do, and return how many keys that are."""
        with self._session.transaction():
            touched = self._session.change("take_touched")
            self._session.change("forget_touched")
        return touched

    def _execute(self, kind: str, arguments: Mapping[str, Any] | None = None) -> int:
        with self._session.transaction() as cursor:
            return cursor.execute(self._rows.statement(kind), arguments).rowcount
