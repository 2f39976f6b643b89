"""The group commit when things break: lost answers, a server away, a thread that dies, a queue that is full."""

import asyncio
import ctypes
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from domain.errors import (
    FinazError,
    OverloadedError,
    StoreUnavailableError,
    VersionConflictError,
)
from projections.inline import INLINE
from services.ports import Append, Appended, Fence, Tracking, Vacant
from services.store import connections
from services.store.application import Log
from tests.support.store import RESOURCE, facts, granted, new, opened, released
from tests.support.wire import Wire, wire_to


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def wired(database: str) -> Iterator[tuple[Wire, Log]]:
    """A log whose connections go through a wire that can lose answers."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        wire_to(database, Path(folder)) as (wire, dsn),
        opened(dsn) as log,
    ):
        yield wire, log


class Gate:
    """Holds the committer after its next call until opened; `reached` tells that it stands there."""

    def __init__(self, log: Log) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        log.committer.after_call = self._pass

    def _pass(self) -> None:
        self.reached.set()
        self._open.wait()

    def open(self) -> None:
        self._open.set()


# -------------------------------------------------------------------- lost answers


def test_an_answer_lost_after_the_commit_is_no_conflict(wired: tuple[Wire, Log]) -> None:
    """The connection dies between COMMIT and the answer: the append is made again, recognised, and stored once."""
    wire, log = wired
    log.append_blocking(facts("run/x", 1))
    wire.lose_next_answer()
    appended = log.append_blocking(facts("run/x", 2, 3))
    assert wire.lost.is_set()
    assert appended.position == 3
    assert [r.version for r in log.read_log(0, 10)] == [1, 2, 3]


def test_a_guarded_append_whose_answer_was_lost_is_no_stale_fence(wired: tuple[Wire, Log]) -> None:
    """An append that released its own lease is recognised although its guard no longer holds."""
    wire, log = wired
    log.append_blocking(Append(events=(new("lease/r", 1, granted(1)),), guard=Vacant(RESOURCE, 0)))
    wire.lose_next_answer()
    events = (new("lease/r", 2, released(1)), new("run/x", 1, released(1)))
    assert log.append_blocking(Append(events=events, guard=Fence(RESOURCE, "A", 1))).position == 3
    assert wire.lost.is_set()


def test_a_moved_position_whose_answer_was_lost_is_no_conflict(wired: tuple[Wire, Log]) -> None:
    """An append without events is recognised by its own id; made by another, the same position is a conflict."""
    wire, log = wired
    log.append_blocking(facts("run/x", 1))
    wire.lose_next_answer()
    log.append_blocking(Append(events=(), tracking=Tracking("reader", 1)))
    assert wire.lost.is_set()
    with pytest.raises(FinazError, match="POSITION_CONFLICT"):
        log.append_blocking(Append(events=(), tracking=Tracking("reader", 1)))


async def test_a_group_whose_answer_was_lost_is_stored_once_and_a_refusal_stays_one(wired: tuple[Wire, Log]) -> None:
    """Of a group made again, the stored are recognised, and those refused the first time are refused again."""
    wire, log = wired
    await log.append(facts("run/0", 1))
    wire.lose_next_answer()
    appends = [facts(f"run/{n}", 1) for n in range(30)]
    outcomes = await asyncio.gather(*map(log.append, appends), return_exceptions=True)
    assert wire.lost.is_set()
    assert isinstance(outcomes[0], VersionConflictError)
    assert sorted(o.position for o in outcomes[1:] if isinstance(o, Appended)) == list(range(2, 31))


def test_a_terminated_backend_costs_nobody_anything(log: Log, database: str) -> None:
    """The server ends all our sessions between two appends: the next ones, and reads, go on over new connections."""
    log.append_blocking(facts("run/x", 1))
    log.read_log(0, 1)
    for version in range(2, 5):
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert log.append_blocking(facts("run/x", version)).position == version
        assert log.high_water_mark() == version
        assert len(log.read_streams_blocking(["run/x"]).streams["run/x"]) == version


# -------------------------------------------------------------------- the server is away


async def test_a_server_that_stays_away_is_told_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything raises `StoreUnavailableError`, and after the last retry nothing is left waiting."""
    monkeypatch.setattr(connections, "POOL_WAIT_SECONDS_MAX", 0.2)
    log = Log(f"postgresql://postgres@/nowhere?host={tmp_path}", INLINE, retry_seconds_max=0.2)
    outcomes = await asyncio.gather(*(log.append(facts(f"run/{n}", 1)) for n in range(3)), return_exceptions=True)
    assert [type(o) for o in outcomes] == [StoreUnavailableError] * 3
    for read in (log.high_water_mark, log.now, lambda: log.read_log(0, 1), lambda: log.read_streams_blocking(["x"])):
        with pytest.raises(StoreUnavailableError):
            await asyncio.to_thread(read)
    with pytest.raises(StoreUnavailableError):
        await log.read_streams(["x"])
    await asyncio.to_thread(log.close)


def test_a_database_without_migrations_is_said_to_be_one(empty_database: str) -> None:
    """The error names what is missing, and no retry is made."""
    with opened(empty_database) as log:
        with pytest.raises(FinazError, match="finaz migrate"):
            log.append_blocking(facts("run/x", 1))
        with pytest.raises(FinazError, match="finaz migrate"):
            log.high_water_mark()


def test_close_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    """Closing ends the retries; whoever waited is told."""
    log = Log(f"postgresql://postgres@/nowhere?host={tmp_path}", INLINE, retry_seconds_max=3600.0)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(log.append_blocking, facts("run/x", 1))
        while not log.committer._group._current:
            threading.Event().wait(0.001)
        log.close()
        with pytest.raises(StoreUnavailableError):
            waiting.result()


# -------------------------------------------------------------------- the thread


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt, MemoryError])
def test_a_dead_committer_fails_its_callers_and_is_replaced(log: Log, death: type[BaseException]) -> None:
    """Whoever waited is told that the outcome is unknown; making the same append again is a repeat; others go on."""

    def die() -> None:
        log.committer.after_call = None
        raise death

    append = facts("run/x", 1)
    log.committer.after_call = die
    with pytest.raises(StoreUnavailableError, match="outcome is unknown"):
        log.append_blocking(append)
    assert log.append_blocking(append).repeated
    assert log.append_blocking(facts("run/x", 2)).position == 2
    assert log.committer.restarts == 1


def test_an_idle_committer_that_dies_is_replaced(log: Log) -> None:
    """Killed while it waits for work, with nobody to tell."""
    log.append_blocking(facts("run/x", 1))
    thread = log.committer._group._thread
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    log.committer._group._wake.set()
    thread.join()
    assert log.append_blocking(facts("run/x", 2)).position == 2


# -------------------------------------------------------------------- limits


def test_a_full_queue_refuses_and_forgets_nothing(database: str) -> None:
    """One more than may wait is `OverloadedError`; what waited is stored."""
    with opened(database, queue_max=3) as log, ThreadPoolExecutor(8) as executor:
        gate = Gate(log)
        first = executor.submit(log.append_blocking, facts("run/first", 1))
        gate.reached.wait()
        waiting = [executor.submit(log.append_blocking, facts(f"run/{n}", 1)) for n in range(3)]
        while len(log.committer) < 3:
            threading.Event().wait(0.001)
        with pytest.raises(OverloadedError):
            log.append_blocking(facts("run/one-more", 1))
        gate.open()
        assert sorted(f.result().position for f in [first, *waiting]) == [1, 2, 3, 4]


async def test_what_queued_meanwhile_goes_together(log: Log) -> None:
    """While one group is in the database, everything else that is asked for waits and then shares the next call."""
    gate = Gate(log)
    first = asyncio.ensure_future(log.append(facts("run/first", 1)))
    await asyncio.to_thread(gate.reached.wait)
    others = [asyncio.ensure_future(log.append(facts(f"run/{n}", 1))) for n in range(50)]
    await asyncio.sleep(0)
    gate.open()
    outcomes = await asyncio.gather(first, *others)
    assert len({o.recorded_at for o in outcomes}) == 2


async def test_a_bad_append_reaches_only_its_caller(log: Log) -> None:
    """What the database refuses as a whole is made again one by one: the neighbours in the group are stored."""
    await log.append(Append(events=(new("lease/a", 1, granted(5)),)))
    bad = Append(events=(new("lease/a", 2, granted(4)),))
    outcomes = await asyncio.gather(
        *(log.append(append) for append in [*(facts(f"run/{n}", 1) for n in range(5)), bad]), return_exceptions=True
    )
    assert all(isinstance(o, Appended) for o in outcomes[:5])
    assert isinstance(outcomes[5], FinazError)
    assert outcomes[5].code == "DEFECT"


# -------------------------------------------------------------------- callers that go away


async def test_a_cancelled_caller_disturbs_nobody(log: Log) -> None:
    """Its append is stored all the same, and the rest of the group is answered."""
    gate = Gate(log)
    first = asyncio.ensure_future(log.append(facts("run/first", 1)))
    await asyncio.to_thread(gate.reached.wait)
    cancelled = asyncio.ensure_future(log.append(facts("run/x", 1)))
    other = asyncio.ensure_future(log.append(facts("run/y", 1)))
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.open()
    assert (await first).position == 1
    assert (await other).position == 3
    with suppress(asyncio.CancelledError):
        await cancelled
    assert log.high_water_mark() == 3


def test_a_loop_that_ended_meanwhile_disturbs_nobody(log: Log) -> None:
    """The event loop of a caller is closed before the answer comes: the committer goes on."""
    gate = Gate(log)

    async def leave() -> None:
        task = asyncio.ensure_future(log.append(facts("run/x", 1)))
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()

    asyncio.run(leave())
    gate.open()
    assert log.append_blocking(facts("run/x", 2)).position == 2


def test_a_closed_log_refuses(log: Log) -> None:
    """After `close`, appending and reading raise, and closing again does nothing."""
    log.append_blocking(facts("run/x", 1))
    log.close()
    log.close()
    for use in (lambda: log.append_blocking(facts("run/x", 2)), lambda: log.read_log(0, 1), log.now):
        with pytest.raises(StoreUnavailableError):
            use()


def test_what_the_server_can_never_store_fails_its_own_caller_alone_and_at_once(database: str) -> None:
    """A stream name beyond an index row: an operational error by its class, and yet no reason to try the group again."""
    poison = "run/" + "".join(uuid4().hex for _ in range(250))
    with opened(database, retry_seconds_max=600) as log, ThreadPoolExecutor(5) as threads:
        good = [threads.submit(log.append_blocking, facts(f"run/{n}", 1)) for n in range(4)]
        with pytest.raises(FinazError) as refused:
            threads.submit(log.append_blocking, facts(poison, 1)).result()
        assert not isinstance(refused.value, StoreUnavailableError)
        assert sorted(one.result().position for one in good) == [1, 2, 3, 4]
