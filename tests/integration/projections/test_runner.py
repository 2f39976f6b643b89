"""Runners on a real PostgreSQL: they survive what happens to databases, and stop at what they cannot take."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from deployment.embedded import EmbeddedPostgres
from domain.errors import (
    PositionConflictError,
    ProjectionStoppedError,
    ProjectionUnknownError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from domain.events import Recorded, encode
from domain.runs.messages import RunRequested
from projections import runner as running
from projections.folding import ReadModel
from projections.position import CopyState, Health
from projections.postgres import PostgresSession, RowStore
from projections.projector import Projector, projector
from projections.registry import PROJECTIONS
from projections.runner import Runner, run_once
from projections.status import Projections
from services.store.application import Log
from services.store.notifications import EVENTS
from tests.support.histories import History, seeded_history
from tests.support.read_models import (
    ASYNCHRONOUS,
    bring_forward,
    execute,
    expected,
    served,
    session_of,
    store,
    store_all,
    stored,
)
from tests.support.store import opened

HISTORY = seeded_history(7, 60)
PATIENCE_SECONDS = 30.0
"""How long a test waits for what should happen at once on a quiet machine."""


class Reports:
    """What runners said, and a way to wait until they say something."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self._news = threading.Condition()

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        with self._news:
            self.said.append((event, details))
            self._news.notify_all()

    def wait_for(self, event: str, times: int = 1, **details: Any) -> None:
        def count() -> int:
            return sum(e == event and all(d.get(k) == v for k, v in details.items()) for e, d in self.said)

        with self._news:
            assert self._news.wait_for(lambda: count() >= times, PATIENCE_SECONDS), (event, details, self.said)


def one_runner(dsn: str, name: str, reports: Reports, owner: str = "test", **settings: Any) -> Runner:
    projection = PROJECTIONS[name]
    assert isinstance(projection.rows, RowStore)
    model = settings.pop("model", projection.model)
    return Runner(model, partial(PostgresSession, dsn, model, projection.rows, owner), report=reports, **settings)


@contextmanager
def serving(*runners: Runner) -> Iterator[Projector]:
    with Projector(runners) as projector:
        yield projector
        assert projector.stop() == ()


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def projections(log: Log) -> Projections:
    return Projections(log.pool)


def poison(log: Log, dsn: str, stream: str, topic: str = "run.exploded.v9", document: str = "{}") -> int:
    """An event that this version of the code cannot read, appended behind the log's back; its position."""
    ((position,),) = execute(
        dsn,
        """
        INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)
        SELECT max(position) + 1, 1000 + max(position), clock_timestamp(), gen_random_uuid(), %s, %s, %s, 'x' FROM finaz.events
        RETURNING position
        """,
        stream,
        topic,
        document,
    )
    assert position == log.high_water_mark()
    return int(position)


# ------------------------------------------------------------------------------------------------ wake-ups


def test_a_notification_wakes_the_runners(log: Log, database: str, projections: Projections) -> None:
    """With polling all but switched off, what is appended is projected because the log says so."""
    reports = Reports()
    runners = [one_runner(database, name, reports, poll_seconds=3600.0) for name in ASYNCHRONOUS]
    with log.listener.waker(EVENTS) as waker, Projector(runners, waker.wakes):
        reports.wait_for("projection_moved", times=3)
        events = store(log, HISTORY)
        for name in ASYNCHRONOUS:
            projections.wait_for_blocking(name, len(events), PATIENCE_SECONDS)
            assert served(log, name) == expected(name, events)


def test_without_any_notification_the_poll_delivers(log: Log, database: str, projections: Projections) -> None:
    """A NOTIFY that is lost costs at most a poll."""
    reports = Reports()
    with serving(one_runner(database, "runs", reports, poll_seconds=0.05)):
        reports.wait_for("projection_moved")
        events = store(log, HISTORY)
        projections.wait_for_blocking("runs", len(events), PATIENCE_SECONDS)
    assert served(log, "runs") == expected("runs", events)


def test_the_listening_backend_is_killed(log: Log, database: str, projections: Projections) -> None:
    """The backend of the LISTEN connection dies: wake-ups come back, and nothing that was appended meanwhile is missed."""
    reports = Reports()
    with log.listener.waker(EVENTS) as waker, Projector([one_runner(database, "runs", reports)], waker.wakes):
        for part in (0, 1, 2):
            store_all(log, HISTORY.appends[part * 20 : part * 20 + 20])
            execute(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            projections.wait_for_blocking("runs", log.high_water_mark(), PATIENCE_SECONDS)
    assert served(log, "runs") == expected("runs", stored(log))


def test_wake_ups_that_break_do_not_break_the_projections(log: Log, database: str, projections: Projections) -> None:
    """Whatever the source of wake-ups raises, the runners go on by polling, and it is asked again."""
    asked = threading.Semaphore(0)

    def broken() -> Iterator[None]:
        asked.release()
        raise RuntimeError("no wake-ups today")
        yield

    with Projector([one_runner(database, "runs", Reports(), poll_seconds=0.05)], broken):
        events = store(log, HISTORY)
        projections.wait_for_blocking("runs", len(events), PATIENCE_SECONDS)
        assert asked.acquire(timeout=PATIENCE_SECONDS)
        assert asked.acquire(timeout=PATIENCE_SECONDS)


# ------------------------------------------------------------------------------------------------ trouble with the database


def test_a_runner_whose_backend_is_killed_goes_on(log: Log, database: str, projections: Projections) -> None:
    """The runner's own session is ended in mid-work, again and again: rows are the fold, as if nothing had happened."""
    reports = Reports()
    store_all(log, HISTORY.appends)
    with serving(one_runner(database, "runs", reports, poll_seconds=0.05, batch_events_max=3)):
        for times in (1, 2, 3):
            reports.wait_for("projection_running", times=times)
            kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'finaz projection runs'"
            execute(database, kill)
            reports.wait_for("projection_retrying", times=times)
        projections.wait_for_blocking("runs", log.high_water_mark(), PATIENCE_SECONDS)
    assert served(log, "runs") == expected("runs", stored(log))


def test_the_server_is_restarted(mortal_postgres: EmbeddedPostgres, mortal_database: str) -> None:
    """PostgreSQL is killed outright and comes back: the projections come back by themselves and are right."""
    reports = Reports()
    with opened(mortal_database) as log:
        projections = Projections(log.pool)
        runners = [one_runner(mortal_database, name, reports) for name in ASYNCHRONOUS]
        with log.listener.waker(EVENTS) as waker, Projector(runners, waker.wakes):
            events = store(log, History(HISTORY.events, HISTORY.appends[:20]))
            for name in ASYNCHRONOUS:
                projections.wait_for_blocking(name, len(events), PATIENCE_SECONDS)
            mortal_postgres.kill()
            for name in ASYNCHRONOUS:
                reports.wait_for("projection_retrying", projection=name)
            mortal_postgres.start()
            events = store(log, History(HISTORY.events, HISTORY.appends[20:]))
            for name in ASYNCHRONOUS:
                projections.wait_for_blocking(name, len(events), PATIENCE_SECONDS)
                assert served(log, name) == expected(name, events)


# ------------------------------------------------------------------------------------------------ two of one name


def test_of_two_runners_one_works_and_the_other_takes_over(log: Log, database: str, projections: Projections) -> None:
    """The second stands by; when the session of the first is gone, it works."""
    first, second = Reports(), Reports()
    with serving(one_runner(database, "runs", second, "second", poll_seconds=0.05)) as standing_by:
        assert standing_by is not None
        second.wait_for("projection_running")
        with serving(one_runner(database, "runs", first, "first", poll_seconds=0.05)):
            first.wait_for("projection_standing_by", owner="second")
            events = store(log, HISTORY)
            projections.wait_for_blocking("runs", len(events), PATIENCE_SECONDS)
            assert projections.status("runs").owner == "second"
            assert standing_by.stop() == ()
            first.wait_for("projection_running")
            first.wait_for("projection_moved")
            assert projections.status("runs").owner == "first"
    assert served(log, "runs") == expected("runs", events)


def test_an_owner_that_hangs_is_put_out(
    log: Log, database: str, projections: Projections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its session, even in the middle of a transaction: the stand-by ends it and takes over, and when
    the stopped one wakes it can commit nothing."""
    monkeypatch.setattr(running, "DEAD_AFTER_SECONDS", 0.2)
    events = store(log, HISTORY)
    reports = Reports()
    with ExitStack() as woken, session_of(database, "runs", "stopped") as stopped:
        assert stopped.claim()
        seen = stopped.look()
        moving = stopped.moving(seen)
        woken.push(moving.__exit__)
        moving.__enter__()  # the process is stopped here, in the middle of its transaction
        with serving(one_runner(database, "runs", reports, "second", poll_seconds=0.05)):
            reports.wait_for("projection_owner_evicted", owner="stopped")
            projections.wait_for_blocking("runs", len(events), PATIENCE_SECONDS)
        with pytest.raises(StoreUnavailableError):
            stopped.move(seen, 1, None)  # it wakes
        woken.pop_all()
    assert projections.position("runs") == len(events)
    assert served(log, "runs") == expected("runs", events)


def test_a_second_writer_is_refused_by_the_position(log: Log, database: str) -> None:
    """Even without the claim: of two that read one position, the second to commit is refused and writes nothing."""
    store(log, HISTORY)
    with session_of(database, "runs", "first") as first, session_of(database, "runs", "second") as second:
        seen = first.look()
        assert run_once(second, PROJECTIONS["runs"].model, 5).position > 0
        rows = served(log, "runs")
        with pytest.raises(PositionConflictError), first.moving(seen):
            pytest.fail("the copy has moved on")
        with pytest.raises(PositionConflictError):
            first.move(seen, 3, None)
    assert served(log, "runs") == rows


# ------------------------------------------------------------------------------------------------ poison


@pytest.mark.parametrize(
    ("topic", "document", "code"),
    [
        ("run.exploded.v9", "{}", "UNKNOWN_TOPIC"),
        ("run.started.v1", '{"run_id":"r"}', "UNDECODABLE_EVENT"),
        ("run.succeeded.v1", '{"run_id":"never requested","token":1}', "ILLEGAL_TRANSITION"),
        ("run.requested.v1", "", "ROWS_REFUSED"),
    ],
)
def test_a_poison_event_stops_one_projection_and_is_named(
    log: Log, database: str, projections: Projections, topic: str, document: str, code: str
) -> None:
    """A projection stops right before the event, says which and why, keeps what came before, and the others go on."""
    store_all(log, HISTORY.appends[:30])
    position = poison(log, database, "run/r", topic, document or beyond_the_columns())
    store_all(log, HISTORY.appends[30:])
    reports = Reports()
    with serving(*[one_runner(database, name, reports) for name in ASYNCHRONOUS]):
        reports.wait_for("projection_stopped", projection="runs")
        projections.wait_for_blocking("leases", log.high_water_mark(), PATIENCE_SECONDS)
        with pytest.raises(ProjectionStoppedError) as stopped:
            projections.wait_for_blocking("runs", log.high_water_mark(), 0.1)
        assert stopped.value.context["position"] == position
        status = projections.status("runs")
    assert (status.state, status.position) == (CopyState.STOPPED, position - 1)
    assert status.failure is not None
    assert (status.failure.position, status.failure.topic, status.failure.code) == (position, topic, code)
    assert status.failure.stream == "run/r"
    assert status.failure.reason
    assert served(log, "runs") == expected("runs", list(log.read_log(0, position - 1)))
    others = [e for e in read_without(log, position) if e.stream.startswith("lease/")]
    assert served(log, "leases") == expected("leases", others)


def beyond_the_columns() -> str:
    """The document of a run that folds, and that no table holds."""
    (requested, *_) = [e.event for e in HISTORY.events if isinstance(e.event, RunRequested)]
    spec = msgspec.structs.replace(requested.spec, priority=2**40)
    return encode(msgspec.structs.replace(requested, run_id="r", spec=spec)).decode()


def read_without(log: Log, position: int) -> list[Recorded]:
    """The log without what stands at this position, which cannot be read or cannot follow."""
    return [*log.read_log(0, position - 1), *log.read_log(position, 10**6)]


def test_a_stopped_projection_goes_on_when_the_event_can_be_applied(
    log: Log, database: str, projections: Projections
) -> None:
    """New code that can apply the event: a runner that starts tries again, and an operator's resume does it in a running one."""
    store_all(log, HISTORY.appends)
    broken = threading.Event()
    broken.set()
    fine = PROJECTIONS["leases"].model

    def apply(row: Any, recorded: Recorded) -> Any:
        if broken.is_set() and recorded.version == 2:
            raise KeyError("a bug of the fold")
        return fine.apply(row, recorded)

    model: ReadModel[Any, Any] = ReadModel("leases", fine.categories, fine.key_of, apply, fine.version)
    reports = Reports()
    for attempt in (1, 2):
        with serving(one_runner(database, "leases", reports, model=model)):
            reports.wait_for("projection_stopped", times=attempt)
    failure = projections.status("leases").failure
    assert failure is not None
    assert "KeyError: 'a bug of the fold'" in failure.reason
    with serving(one_runner(database, "leases", reports, model=model, poll_seconds=0.05)):
        reports.wait_for("projection_stopped", times=3)
        broken.clear()
        projections.resume("leases")
        projections.wait_for_blocking("leases", log.high_water_mark(), PATIENCE_SECONDS)
    assert projections.status("leases").failure is None
    assert served(log, "leases") == expected("leases", stored(log))


# ------------------------------------------------------------------------------------------------ stopping, pausing, waiting


def test_a_projection_passes_over_what_is_not_for_it(log: Log, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing to fold for long, it moves on by `SPAN_POSITIONS_MAX` at a time, so that it beats and can be stopped."""
    monkeypatch.setattr(running, "SPAN_POSITIONS_MAX", 10)
    events = store(log, HISTORY)
    nothing: ReadModel[Any, Any] = ReadModel("leases", ("nothing",), lambda event: None, lambda row, recorded: row)
    with session_of(database, "leases") as session:
        session._categories = ["nothing"]
        positions = [run_once(session, nothing).position for _ in range(-(-len(events) // 10))]
    assert positions == [min(10 * n, len(events)) for n in range(1, len(positions) + 1)]
    assert positions[-1] == len(events)


def test_stopping_is_bounded_however_much_there_is_to_do(log: Log, database: str) -> None:
    """With a long backlog and slow folds, a stop waits for one batch at most, and what was committed stays."""
    store_all(log, HISTORY.appends)
    entered, leave = threading.Event(), threading.Event()
    fine = PROJECTIONS["runs"].model

    def apply(row: Any, recorded: Recorded) -> Any:
        entered.set()
        leave.wait(PATIENCE_SECONDS)
        return fine.apply(row, recorded)

    model: ReadModel[Any, Any] = ReadModel("runs", fine.categories, fine.key_of, apply, fine.version)
    runner = one_runner(database, "runs", Reports(), model=model, batch_events_max=2)
    projector = Projector([runner])
    projector.start()
    assert entered.wait(PATIENCE_SECONDS)
    stopper = threading.Thread(target=projector.stop, args=(PATIENCE_SECONDS,))
    stopper.start()
    leave.set()
    stopper.join(PATIENCE_SECONDS)
    assert not stopper.is_alive()
    with session_of(database, "runs") as session:
        assert session.look().position < 10
        assert session.claim()


def test_stopping_interrupts_a_statement_that_hangs(log: Log, database: str) -> None:
    """Somebody holds the projection's row: a stop does not wait for them, and says whom it cut off."""
    store_all(log, HISTORY.appends)
    with psycopg.connect(database) as somebody:
        somebody.execute("SELECT 1 FROM finaz.projections WHERE name = 'leases' FOR UPDATE")
        projector = Projector([one_runner(database, "leases", Reports())])
        projector.start()
        waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        until(lambda: len(execute(database, waiting, "finaz projection leases")) == 1)
        assert projector.stop(0.5, PATIENCE_SECONDS) == ("leases",)
    with session_of(database, "leases") as session:
        assert session.look().position == 0


def test_a_paused_projection_stays_where_it_is(log: Log, database: str, projections: Projections) -> None:
    """Paused means paused, for runners that start later too, and its health says so; resumed, it catches up."""
    half = len(HISTORY.appends) // 2
    store_all(log, HISTORY.appends[:half])
    bring_forward(database, "runs")
    projections.pause("runs")
    store_all(log, HISTORY.appends[half:])
    reports = Reports()
    with serving(one_runner(database, "runs", reports, poll_seconds=0.05)):
        reports.wait_for("projection_moved")
        status = projections.status("runs")
        assert status.health is Health.PAUSED
        assert status.lag_events > 0
        assert status.lag_seconds > 0.0
        with pytest.raises(WaitTimeoutError, match="paused"):
            projections.wait_for_blocking("runs", log.high_water_mark(), 0.1)
        projections.resume("runs")
        projections.wait_for_blocking("runs", log.high_water_mark(), PATIENCE_SECONDS)
    assert served(log, "runs") == expected("runs", stored(log))
    for name in ("outbox", "nothing"):
        with pytest.raises(ProjectionUnknownError):
            projections.pause(name)


def test_caught_up_and_dead_look_different(
    log: Log, database: str, projections: Projections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection at the log's end is caught up only while somebody says so; without a fresh heartbeat it is dead."""
    events = store(log, HISTORY)
    assert {s.name: s.health for s in projections.statuses() if s.name in ASYNCHRONOUS} == dict.fromkeys(
        ASYNCHRONOUS, Health.DEAD
    )
    with serving(one_runner(database, "runs", Reports())):
        projections.wait_for_blocking("runs", len(events), PATIENCE_SECONDS)
        status = projections.status("runs")
        assert status.health is Health.CAUGHT_UP
        assert (status.lag_events, status.lag_seconds) == (0, 0.0)
    monkeypatch.setattr("projections.position.DEAD_AFTER_SECONDS", -1.0)
    assert projections.status("runs").health is Health.DEAD
    assert projections.status("outbox").health is Health.CAUGHT_UP


async def test_one_waits_for_a_position(log: Log, database: str, projections: Projections) -> None:
    """`wait_for` returns when the projection is there, at once for inline ones, and in the time given otherwise."""
    for append in HISTORY.appends[:5]:
        await log.append(append)
    mark = await asyncio.to_thread(log.high_water_mark)
    assert await projections.wait_for("lease_guard", mark, 0.0) == mark
    with pytest.raises(WaitTimeoutError):
        await projections.wait_for("runs", mark, 0.05)
    waiting = asyncio.create_task(projections.wait_for("runs", mark, PATIENCE_SECONDS))
    await asyncio.to_thread(bring_forward, database, "runs")
    assert await waiting == mark
    with pytest.raises(ProjectionUnknownError):
        await projections.wait_for("nothing", 1, 1.0)


def test_all_projections_run_in_one_projector(log: Log, database: str, projections: Projections) -> None:
    """The projector of the registry runs every asynchronous projection, idle ones included, and stops them all."""
    with log.listener.waker(EVENTS) as waker, projector(database, "test", waker.wakes) as all_of_them:
        store_all(log, HISTORY.appends)
        for name in ASYNCHRONOUS:
            projections.wait_for_blocking(name, log.high_water_mark(), PATIENCE_SECONDS)
        assert set(all_of_them.progress()) == set(ASYNCHRONOUS)
        assert all_of_them.stop() == ()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what sends no signal."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
