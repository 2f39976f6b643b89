"""The runner: brings one read model forward, batch by batch, and stays alive.

`run_once` reads a batch of the log after the copy's position, folds it in Python, and writes the rows and the position in one
transaction. `Runner.run` only ticks, waits, stands by, and tries again; it is the body of a thread. Why threads: a runner is a
sequence of blocking round trips on one connection of its own, its folds must not hold up an event loop that serves requests, and
a thread is supervised by a plain `try`; nothing is shared but two flags.

What must stay true: one session works on one copy (it holds a claim that goes with the session; others stand by); a stand-by
ends the session of an owner that gives no sign of life, so a stopped process stops nothing; whatever happens to the database,
the runner reconnects with growing delay; an event that cannot be taken stops this projection alone and is recorded; a stop is
never longer than one batch. A crash anywhere leaves rows and position as the last commit had them, and nothing is repeated.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from domain.errors import FinazError, PositionConflictError, RowsRefusedError
from projections.errors import CodeVersionError
from projections.folding import Batch, K, ReadModel, batch_of, fold
from projections.log import REASON_CHARACTERS_MAX, Failure, StoredEvent
from projections.position import DEAD_AFTER_SECONDS, HEARTBEAT_SECONDS, Copy, CopyState, Progress

BATCH_EVENTS_MAX: Final = 1000
"""Events folded into one transaction by a live runner."""

SPAN_POSITIONS_MAX: Final = 100_000
"""Positions that one read passes over: where few events are of a model's categories, it still moves on, and beats, in time."""

POLL_SECONDS: Final = 1.0
"""A notification can be lost; so often a runner looks by itself."""

LINGER_SECONDS: Final = 0.02
"""From one look at the log to the next, at least, once it was read to its end: under load, batches instead of single events. What
arrives after a quiet time is looked at at once."""

RETRY_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds to wait after the first, second, … failure in a row; the last one from then on."""

POSITION_COMMIT_BEFORE: Final = "position_commit.before"
POSITION_COMMIT_AFTER: Final = "position_commit.after"

R = TypeVar("R")

Point: TypeAlias = Callable[[str], None]
"""Passed before and after each commit of rows and position: where a test plants a crash."""

Alive: TypeAlias = Callable[[], object]
"""Gives a sign of life if one is due. What takes longer calls it at least every `HEARTBEAT_SECONDS`, in the runner's thread."""

Attend: TypeAlias = Callable[[Alive], float | None]
"""What else to do while the copy is caught up and claimed (a process manager issues what is due); seconds until there is more."""

Report: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""What happened, for logs and metrics: a name and its details. It must not block; what it raises is dropped."""


class Session(Protocol[K, R]):
    """One connection that works on one copy. Everything raises `StoreUnavailableError` when the database is away."""

    def claim(self) -> bool:
        """Become the only one that works on the copy; False while somebody else is."""
        ...

    def heartbeat(self) -> tuple[str, datetime | None]:
        """Who works on the copy, and its last sign of life."""
        ...

    def evict(self) -> None:
        """End the session that holds the claim."""
        ...

    def revive(self) -> None:
        """Let a copy that stopped at an event try again."""
        ...

    def troubled(self, code: str, reason: str) -> None:
        """Record the fault of the infrastructure that it has just got over."""
        ...

    def look(self) -> Copy:
        """The copy as it is, with a sign of life if one is due."""
        ...

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        """At most `limit` events of the model's categories with after < position <= up_to, in order."""
        ...

    def moving(self, seen: Copy) -> AbstractContextManager[None]:
        """A transaction that holds the copy. Raises `PositionConflictError` if it is no longer as it was seen."""
        ...

    def load(self, seen: Copy, keys: Sequence[K]) -> Mapping[K, R]:
        """The rows of these keys that exist."""
        ...

    def save(self, seen: Copy, rows: Mapping[K, R]) -> None:
        """Write the rows, whole. Raises `RowsRefusedError`."""
        ...

    def move(self, seen: Copy, up_to: int, failure: Failure | None) -> None:
        """Set the position; with a failure, stop the copy and record why. Raises `PositionConflictError`."""
        ...

    def cancel(self) -> None:
        """From another thread: end the statement that is being executed."""
        ...

    def close(self) -> None: ...


def nowhere(name: str) -> None:
    """No crash is planted."""


def unheard(event: str, details: Mapping[str, Any]) -> None:
    """Nobody listens."""


def nothing_else(alive: Alive) -> float | None:
    """Folding is all that there is to do."""
    return None


def run_once(
    session: Session[K, R], model: ReadModel[K, R], limit: int = BATCH_EVENTS_MAX, point: Point = nowhere
) -> Progress:
    """Bring the copy forward by one batch of at most `limit` events, and say how far it is.

    Raises `PositionConflictError` when the copy moved, was paused or was swapped meanwhile, and `StoreUnavailableError`; then
    nothing was written. An event that cannot be taken is no error: it stops the copy and is in the `Progress`.
    """
    seen = session.look()
    if seen.code_version != model.version and seen.state is CopyState.RUNNING:
        return _other_code(session, model, seen)
    if seen.state is not CopyState.RUNNING or not seen.lag_events:
        return Progress(model.name, seen.generation, seen.position, seen.high_water_mark, seen.state)
    up_to = min(seen.high_water_mark, seen.position + SPAN_POSITIONS_MAX)
    stored = session.read(seen.position, up_to, limit)
    batch = batch_of(model, stored, stored[-1].position if len(stored) == limit else up_to)
    while True:
        try:
            return _commit(session, model, seen, batch, point)
        except RowsRefusedError as error:
            # Some event of the batch is to blame: halve it until one event is left.
            batch = batch.halved() if batch.divisible else batch.refused(error)


def _other_code(session: Session[K, R], model: ReadModel[K, R], seen: Copy) -> Progress:
    """Rows that two versions of the code made would be neither's: newer code stops the copy, older code leaves it to newer."""
    what = (
        f"the copy was made by version {seen.code_version} of the projection, this process has version {model.version}"
    )
    if seen.code_version > model.version:
        raise CodeVersionError(what, at=model.name, expected="a process with that version")
    failure = Failure(seen.position, "", "", CodeVersionError.code, f"{what}: rebuild it")
    with session.moving(seen):
        session.move(seen, seen.position, failure)
    return Progress(model.name, seen.generation, seen.position, seen.high_water_mark, CopyState.STOPPED, 0, failure)


def _commit(session: Session[K, R], model: ReadModel[K, R], seen: Copy, batch: Batch[K], point: Point) -> Progress:
    with session.moving(seen):
        keys = batch.keys
        folded = fold(model, session.load(seen, keys) if keys else {}, batch)
        if folded.rows:
            session.save(seen, folded.rows)
        session.move(seen, folded.up_to, folded.failure)
        point(POSITION_COMMIT_BEFORE)
    point(POSITION_COMMIT_AFTER)
    state = CopyState.RUNNING if folded.failure is None else CopyState.STOPPED
    applied = len(batch.events)
    if folded.failure is not None:
        applied = sum(item.position <= folded.up_to for _, item in batch.events)
    return Progress(model.name, seen.generation, folded.up_to, seen.high_water_mark, state, applied, folded.failure)


class Vigil:
    """How long a stand-by has seen one and the same sign of life; by its own clock, from when it first saw it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: object = None
        self._since = clock()

    def is_dead(self, sign: object) -> bool:
        """Whether the sign has not changed for `DEAD_AFTER_SECONDS`."""
        if sign != self._seen:
            self._seen, self._since = sign, self._clock()
        return self._clock() - self._since >= DEAD_AFTER_SECONDS


class Runner:
    """One projection's supervised loop. `run` is the body of its thread; `wake` and `stop` may be called from any other."""

    def __init__(
        self,
        model: ReadModel[Any, Any],
        open_session: Callable[[], Session[Any, Any]],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        poll_seconds: float = POLL_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        report: Report = unheard,
        point: Point = nowhere,
        attend: Attend = nothing_else,
    ) -> None:
        self.model = model
        self.progress: Progress | None = None
        """What the last tick did; None before the first, and while another runner works on the copy."""
        self._open_session = open_session
        self._batch_events_max = batch_events_max
        self._poll_seconds = poll_seconds
        self._linger_seconds = linger_seconds
        self._report_to = report
        self._point = point
        self._attend = attend
        self._wake = threading.Event()
        self._stopping = False
        self._session: Session[Any, Any] | None = None
        self._failures = 0
        self._trouble: Exception | None = None
        self._fresh = True

    @property
    def name(self) -> str:
        return self.model.name

    def wake(self) -> None:
        """Something was appended: look now."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the batch at hand."""
        self._stopping = True
        self._wake.set()

    def interrupt(self) -> None:
        """End the statement at hand as well; what was not committed is undone."""
        session = self._session
        if session is not None:
            session.cancel()

    def run(self) -> None:
        """Keep the projection up to date until `stop`. Raises nothing: whatever goes wrong is reported and tried again."""
        while not self._stopping:
            try:
                self._serve()
            except Exception as error:  # the last resort of a supervised loop: no error may end it
                if self._stopping:
                    return
                delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures += 1
                self._trouble = error
                self.progress = None
                self._report("projection_retrying", error=str(error), kind=type(error).__name__, delay_seconds=delay)
                self._wait(delay, wakeable=False)

    def _serve(self) -> None:
        """One connection's life."""
        session = self._session = self._open_session()
        try:
            if not self._claim(session):
                return
            self._report("projection_running")
            if self._fresh:
                session.revive()
                self._fresh = False
            if self._trouble is not None:
                session.troubled(*_trouble_of(self._trouble))
                self._trouble = None
            while not self._stopping:
                self._tick(session)
        finally:
            self._session = None
            session.close()

    def _claim(self, session: Session[Any, Any]) -> bool:
        """Wait for the claim; False when stopped first."""
        vigil = Vigil()
        standing_by = False
        while not self._stopping:
            if session.claim():
                return True
            owner, heartbeat_at = session.heartbeat()
            if not standing_by:
                standing_by = True
                self.progress = None
                self._report("projection_standing_by", owner=owner)
            if vigil.is_dead((owner, heartbeat_at)):
                self._report("projection_owner_evicted", owner=owner)
                session.evict()
            self._failures = 0
            self._wait(min(self._poll_seconds, HEARTBEAT_SECONDS), wakeable=False)
        return False

    def _tick(self, session: Session[Any, Any]) -> None:
        looked_at = time.monotonic()
        self._wake.clear()
        try:
            progress = run_once(session, self.model, self._batch_events_max, self._point)
        except PositionConflictError:
            return  # paused, swapped or moved under our hands: look again
        before, self.progress = self.progress, progress
        if progress.failure is not None:
            self._report("projection_stopped", failure=progress.failure)
        elif progress.applied or before is None or before.state is not progress.state:
            self._report("projection_moved", progress=progress)
        idle = self._poll_seconds
        if progress.caught_up and progress.state is CopyState.RUNNING:
            wanted = self._attend(session.look)
            idle = idle if wanted is None else min(idle, wanted)
        self._failures = 0
        if progress.caught_up or progress.state is not CopyState.RUNNING:
            self._wait(idle, wakeable=True)
            self._wait(looked_at + self._linger_seconds - time.monotonic(), wakeable=False)

    def _wait(self, seconds: float, *, wakeable: bool) -> None:
        """Wait for a wake-up (or not even that), a stop, or the time."""
        if wakeable:
            if not self._stopping:
                self._wake.wait(seconds)
            return
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wake.clear()
            if not self._stopping:
                self._wake.wait(left)

    def _report(self, event: str, **details: Any) -> None:
        with suppress(Exception):  # a log that fails must not stop a projection
            self._report_to(event, {"projection": self.name, **details})


def _trouble_of(error: Exception) -> tuple[str, str]:
    """Code and reason of what interrupted a runner, as they are recorded."""
    code = error.code if isinstance(error, FinazError) else FinazError.code
    return code, f"{type(error).__name__}: {error}".replace("\x00", "\ufffd")[:REASON_CHARACTERS_MAX]
