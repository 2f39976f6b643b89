"""Attempts in PostgreSQL: the projector's session, repairs, and which attempts readers see.

What must stay true: an attempt becomes the one that readers see in the transaction that moves the projection's position, and in
no other way but a repair, which puts one in the place of another; at most one attempt per (generation, run, output) is recorded.
No transaction is open while ClickHouse or CAS is asked. What was abandoned is deleted in ClickHouse before it is forgotten here,
and an attempt that ClickHouse has and nobody here knows is deleted too: it was begun before its rows were inserted, so it is
nobody's any more. Commits wait for the disk.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final
from uuid import UUID

from domain.errors import PositionConflictError, RowsRefusedError, StoreUnavailableError
from projections.log import Failure
from projections.position import HEARTBEAT_SECONDS, Copy, CopyRole
from projections.postgres import CopySession, LogSession, store_errors
from projections.reading import Query
from projections.staging.attempts import Attempt, Tally, attempt_of
from projections.staging.clickhouse import FeatureValues
from projections.staging.delivery import Stager
from projections.staging.projection import MODEL, NAME, Delivery, StagingKey
from projections.statements import statements

DELIVERY_ROWS_MAX: Final = 524_288
"""Rows that are staged between two positions, unless one output alone has more."""

ABANDONED_MAX: Final = 500
"""Abandoned attempts that are deleted at once."""

TIDY_SECONDS: Final = 30.0
"""Seconds between two looks for abandoned attempts."""

SWEEP_SECONDS: Final = 600.0
"""Seconds between two looks for rows of attempts that nobody knows."""

REPAIR: Final = "repair"

_SQL: Final = statements("projections.staging", "staging.sql")


class AttemptTable:
    """The table of attempts, on a session of its own that commits synchronously."""

    def __init__(self, session: "_Statements") -> None:
        self._session = session

    def begin(self, attempts: Sequence[Attempt], purpose: str) -> None:
        """Make attempts of one generation known, before anything of them is inserted."""
        if attempts:
            arguments = {"generation": attempts[0].generation, "purpose": purpose, **_columns(attempts)}
            self._session.execute("begin", arguments)

    def record(self, attempts: Sequence[Attempt]) -> None:
        """Have readers see these, and no longer those in whose place they are. Raises `PositionConflictError`."""
        if not attempts:
            return
        arguments = {"attempts": [a.attempt for a in attempts], "instruments": [a.instrument for a in attempts]}
        self._session.execute("supersede", arguments)
        if self._session.execute("record", arguments) != len(attempts):
            raise PositionConflictError("another has abandoned these attempts", at=NAME)

    def abandon_begun(self, purpose: str) -> int:
        """Give up what was begun for a purpose and not recorded; for the only one at work on it."""
        return self._session.execute("abandon_begun", {"purpose": purpose})

    def abandon(self, attempt: Attempt) -> bool:
        """Have readers no longer see a recorded attempt."""
        return self._session.execute("abandon", {"attempt": attempt.attempt}) == 1

    def tidy(self, values: FeatureValues) -> int:
        """Delete what was abandoned, there and then here; returns how many attempts."""
        self._session.execute("abandon_generations")
        deleted = 0
        while page := [row[0] for row in self._session.query("abandoned", {"limit": ABANDONED_MAX})]:
            values.delete(page)
            deleted += self._session.execute("forget", {"attempts": page})
        return deleted

    def sweep(self, values: FeatureValues) -> int:
        """Delete rows of attempts that nobody knows; returns how many attempts."""
        swept = 0
        for page in values.attempts():
            unknown = set(page) - {row[0] for row in self._session.query("known", {"attempts": page})}
            if unknown:
                values.delete(sorted(unknown))
            swept += len(unknown)
        return swept


class _Statements(LogSession):
    """A session that executes the statements of staging."""

    def execute(self, statement: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Execute a statement, and return how many rows it changed or found."""
        with store_errors():
            return self._cursor.execute(_SQL[statement], arguments).rowcount

    def query(self, statement: str, arguments: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with store_errors():
            return self._cursor.execute(_SQL[statement], arguments).fetchall()


class _Connection(_Statements):
    """A session for repairs."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, MODEL)
        self.execute("synchronous")


class StagingSession(CopySession, _Statements):
    """A runner's session (`projections.runner.Session`) whose rows live in ClickHouse and whose position lives in PostgreSQL.

    `save` inserts, with no transaction open; `move` opens one, checks that the copy is where it was, records the attempts and
    moves the position.
    """

    def __init__(
        self,
        dsn: str,
        stager: Stager,
        owner: str,
        role: CopyRole = CopyRole.ACTIVE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(dsn, MODEL, owner, role, clock)
        self._stager = stager
        self._table = AttemptTable(self)
        self._purpose = role.value
        self._staged: list[Attempt] = []
        self._unrecorded = True
        self._moving = ExitStack()
        self._cancelled = False
        self._tidied_at = self._swept_at = float("-inf")
        self.execute("synchronous")
        self.execute("register")

    def look(self) -> Copy:
        """See `Session`; now and then it deletes what was abandoned."""
        seen = super().look()
        now = self._clock()
        if now - self._tidied_at >= TIDY_SECONDS:
            self.tidy()
        if self._swept_at > float("-inf") and now - self._swept_at >= SWEEP_SECONDS:
            self._sweep()  # not before the engine was opened for something else
        return seen

    @contextmanager
    def moving(self, seen: Copy) -> Iterator[None]:
        """See `Session`. The transaction begins with `move`, and ends with this."""
        with ExitStack() as self._moving:
            yield
        self._unrecorded = False

    def load(self, seen: Copy, keys: Sequence[StagingKey]) -> Mapping[StagingKey, Delivery]:
        """The recorded deliveries of these outputs."""
        run_ids = sorted({run_id for run_id, _ in keys})
        rows = self.query("load", {"generation": seen.generation, "run_ids": run_ids})
        found = (Delivery(run_id=r, output=o, artifact=a, rows=n, position=p) for r, o, a, n, p in rows)
        return {delivery.key: delivery for delivery in found}

    def save(self, seen: Copy, rows: Mapping[StagingKey, Delivery]) -> None:
        """Stage the deliveries under fresh attempts. Raises `RowsRefusedError` for too many at once, or for one that cannot be."""
        if len(rows) > 1 and sum(delivery.rows for delivery in rows.values()) > DELIVERY_ROWS_MAX:
            raise RowsRefusedError("too many rows for one batch", at=NAME, expected=f"at most {DELIVERY_ROWS_MAX}")
        if self._unrecorded:
            self.tidy()
        self._unrecorded = True
        if self._clock() - self._swept_at >= SWEEP_SECONDS:
            self._sweep()
        self._staged = self._stager.stage(
            rows.values(), seen.generation, lambda begun: self._table.begin(begun, self._purpose), self._beat
        )

    def move(self, seen: Copy, up_to: int, failure: Failure | None) -> None:
        """See `Session`; records what `save` has staged."""
        self._moving.enter_context(super().moving(seen))
        staged, self._staged = self._staged, []
        self._table.record(staged)
        super().move(seen, up_to, failure)

    def attempts(self, statement: str, arguments: Mapping[str, Any]) -> list[Attempt]:
        """The attempts that a statement finds."""
        return [attempt_of(row) for row in self.query(statement, arguments)]

    def cancel(self) -> None:
        """See `Session`; staging is left between two inserts."""
        self._cancelled = True
        super().cancel()

    def _beat(self) -> None:
        """A sign of life, if one is due; leaves if somebody said so."""
        if self._cancelled:
            raise StoreUnavailableError("staging was cut off; what it had inserted is deleted later")
        now = self._clock()
        if now - self._beat_at >= HEARTBEAT_SECONDS / 2:
            self.find("beat", self._copy)
            self._beat_at = now

    def _sweep(self) -> None:
        """Delete rows of attempts that nobody knows; never another system's, which this one does not know either."""
        self._stager.values.own(self.query("system")[0][0])
        self._table.sweep(self._stager.values)
        self._swept_at = self._clock()

    def tidy(self) -> None:
        """Give up what was begun and is not recorded, and delete what was abandoned."""
        self._staged = []
        self._table.abandon_begun(self._purpose)
        self._table.tidy(self._stager.values)
        self._tidied_at = self._clock()


class StagingRepairs:
    """Puts an attempt of equal content in the place of one whose rows are no longer as they were staged.

    One at a time: whoever repairs holds the claim of the process manager that finds what to repair.
    """

    def __init__(self, dsn: str, stager: Stager) -> None:
        self._dsn = dsn
        self._stager = stager

    def restage(self, delivery: Delivery, generation: int, damaged: Attempt | None) -> bool:
        """Stage an output again, from CAS, in the place of a damaged attempt (None: it is not staged at all).

        False if what readers see is no longer what was found damaged, so that there is nothing to be repaired. Raises
        `ArtifactUnusableError`, `StagingUnavailableError`, `StoreUnavailableError`.
        """
        with self._connected() as (connection, table):
            staged = self._stager.stage([delivery], generation, lambda begun: table.begin(begun, REPAIR))
            with connection.transaction():
                current = self._is_current(connection, generation, damaged)
                if current:
                    table.record(staged)
            return current

    def withdraw(self, attempt: Attempt) -> bool:
        """Have readers no longer see an attempt that stages what was never published. False if they don't see it any more."""
        with self._connected() as (connection, table), connection.transaction():
            return table.abandon(attempt)

    def _is_current(self, connection: _Statements, generation: int, damaged: Attempt | None) -> bool:
        if not connection.query("is_active", {"generation": generation}):
            return False
        return damaged is None or bool(connection.query("is_current", {"attempt": damaged.attempt}))

    @contextmanager
    def _connected(self) -> Iterator[tuple[_Statements, AttemptTable]]:
        connection = _Connection(self._dsn)
        try:
            table = AttemptTable(connection)
            table.abandon_begun(REPAIR)
            yield connection, table
            with suppress(StoreUnavailableError):  # the projector does it in time
                table.abandon_begun(REPAIR)
                table.tidy(self._stager.values)
        finally:
            connection.close()


class StagedAttempts:
    """Which attempts readers see. Blocks; any thread may call it."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def generation(self) -> int:
        """The generation that readers see; 0 where nobody has ever staged."""
        return self._served()[0]

    def position(self) -> int:
        """How far the copy is that readers see; 0 where nobody has ever staged."""
        return self._served()[1]

    def _served(self) -> tuple[int, int]:
        rows = self._query.rows(_SQL["served"])
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def visible(
        self,
        limit: int,
        *,
        run_id: str | None = None,
        output: str | None = None,
        instrument: str | None = None,
        principal: str | None = None,
    ) -> list[Attempt]:
        """The attempts that readers see of these runs, outputs, instruments (None: of any), in the order of publication."""
        arguments = {
            "limit": limit,
            "run_id": run_id,
            "output": output,
            "instrument": instrument,
            "principal": principal,
        }
        return [attempt_of(row) for row in self._query.rows(_SQL["visible"], arguments)]

    def are_visible(self, attempts: Sequence[UUID]) -> bool:
        """Whether all of these are still recorded: then nobody had begun to delete rows of them."""
        return bool(self._query.rows(_SQL["still_visible"], {"attempts": list(attempts)})[0][0] == len(attempts))

    def tally(self) -> Tally:
        """How much is staged."""
        outputs, rows, begun, abandoned = self._query.rows(_SQL["tally"])[0]
        return Tally(outputs=outputs, rows=rows, begun=begun, abandoned=abandoned)


def _columns(attempts: Sequence[Attempt]) -> dict[str, list[Any]]:
    """The attempts by column, as statements take them."""
    return {
        "attempts": [attempt.attempt for attempt in attempts],
        "run_ids": [attempt.run_id for attempt in attempts],
        "outputs": [attempt.output for attempt in attempts],
        "artifacts": [attempt.artifact for attempt in attempts],
        "rows": [attempt.rows for attempt in attempts],
        "positions": [attempt.position for attempt in attempts],
    }
