"""Rebuild jobs on a real PostgreSQL: beside what is served, compared with it, switched once, whoever dies at which step."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from domain.errors import BodyInvalidError, ProjectionUnknownError
from domain.events import Recorded
from domain.jobs import aggregate
from domain.jobs.errors import JobRunningError
from projections.errors import CodeVersionError
from projections.position import CopyState
from projections.postgres import PostgresSession, RowStore
from projections.projector import projector
from projections.rebuilding import inline, postgres, rebuildable
from projections.registry import PROJECTIONS
from projections.runner import run_once
from projections.status import Projections
from services import faultpoints
from services.job_kinds import JobKind
from services.job_runner import JobRunner, living_in
from services.jobs import Jobs, JobView
from services.rebuild import RebuildKind, left_behind
from services.store.application import Log
from tests.support.histories import History, seeded_history
from tests.support.memory_blobs import MemoryBlobs
from tests.support.read_models import (
    ASYNCHRONOUS,
    INLINE_NAMES,
    bring_forward,
    execute,
    expected,
    served,
    session_of,
    store,
    stored,
)
from tests.support.store import opened

HISTORY = seeded_history(23, 200)
LOAD = seeded_history(29, 20_000)
TTL_SECONDS = 0.6
PATIENCE_SECONDS = 60.0
STEPS = sorted(name for name in faultpoints.POINTS if name.startswith("copy_"))


class CrashError(BaseException):
    """The process dies: nothing may catch it."""


def patiently() -> Iterator[None]:
    """Again and again, a moment apart, until the caller has what it waits for; fails after `PATIENCE_SECONDS`."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends_at:
        yield
        threading.Event().wait(0.02)
    pytest.fail(f"waited {PATIENCE_SECONDS} seconds for nothing")


class Rig:
    """Rebuild jobs over a database."""

    def __init__(self, dsn: str, log: Log) -> None:
        self.dsn = dsn
        self.log = log
        self.blobs = MemoryBlobs()
        self.projections = Projections(log.pool)
        from deployment.jobs_wiring import rebuild_targets

        kind = RebuildKind(rebuild_targets(dsn), self.blobs, self.projections.note)
        self.kinds: dict[str, JobKind] = {kind.name: kind}
        self.jobs = Jobs(log, self.kinds)

    def request(self, name: str, **document: Any) -> str:
        return asyncio.run(self.jobs.request("rebuild", name, document, "ana")).job_id

    def runner(self, owner: str, ttl_seconds: float = TTL_SECONDS) -> JobRunner:
        return JobRunner(self.log, self.kinds, owner, living_in(self.log.pool), ttl_seconds=ttl_seconds)

    def view(self, job_id: str) -> JobView:
        return asyncio.run(self.jobs.get(job_id))

    def done(self, name: str, **document: Any) -> JobView:
        """Ask for a rebuild and have it executed to an end of its attempt."""
        job_id = self.request(name, **document)
        self.runner("a").run_once()
        return self.view(job_id)

    def until_taken(self, owner: str, ttl_seconds: float = TTL_SECONDS) -> None:
        """Have it taken up as soon as its dead owner's lease has run out, within `PATIENCE_SECONDS`."""
        runner = self.runner(owner, ttl_seconds)
        for _ in patiently():
            if runner.run_once() is not None:
                return

    def report(self, view: JobView) -> Any:
        assert view.report is not None
        return json.loads(self.blobs.get(view.report))["difference"]

    def roles(self, name: str) -> list[str]:
        rows = execute(self.dsn, "SELECT role FROM finaz.projections WHERE name = %s ORDER BY generation", name)
        return [role for (role,) in rows]


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def rig(database: str, log: Log) -> Rig:
    return Rig(database, log)


def stored_and_served(rig: Rig, name: str = "runs", count: int = 120) -> list[Recorded]:
    """Some history, and a projection brought up to it."""
    events = store(rig.log, History(HISTORY.events, HISTORY.appends[:count]))
    if name in ASYNCHRONOUS:
        bring_forward(rig.dsn, name)
    return events


@contextmanager
def writing(log: Log) -> Iterator[None]:
    """A writer in another thread, for exactly as long as the block takes."""
    failed, begun, finished = list[BaseException](), threading.Event(), threading.Event()

    def write() -> None:
        try:
            for append in LOAD.appends:
                if finished.is_set():
                    return
                log.append_blocking(append)
                begun.set()
            raise AssertionError("the load was over before the block")
        except BaseException as error:
            failed.append(error)
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        finished.set()
        writer.join()
    assert not failed, failed


def cancels_at(where: str, rig: Rig, job_id: str, runner: JobRunner) -> Callable[[str], None]:
    """An operator cancels the job while its runner stands at a point, and the next beat sees it."""

    def point(name: str) -> None:
        if name == where:
            faultpoints.arm(None)
            asyncio.run(rig.jobs.cancel(job_id, "bo"))
            attempt = runner._attempt
            assert attempt is not None
            attempt.beat()

    return point


def dies_at(where: str) -> Callable[[str], None]:
    def point(name: str) -> None:
        if name == where:
            raise CrashError

    return point


def test_a_rebuild_of_each_projection_under_load_ends_equal(rig: Rig, subtests: pytest.Subtests) -> None:
    """While a writer appends and the served copies are kept up to date: 0 differences at one position, then the switch."""
    with projector(rig.dsn, "test"), writing(rig.log):
        for name in PROJECTIONS:
            with subtests.test(name=name):
                view = rig.done(name, switch="if_equal")
                assert view.error is None
                assert view.result is not None
                counts = {kind: view.result[kind] for kind in ("missing", "extra", "different")}
                assert (view.state, counts) == ("SUCCEEDED", {"missing": 0, "extra": 0, "different": 0})
    events = stored(rig.log)
    for name in PROJECTIONS:
        with subtests.test(name=name):
            if name in ASYNCHRONOUS:
                bring_forward(rig.dsn, name)
                assert rig.roles(name) == ["retired", "active"]
            assert served(rig.log, name) == expected(name, events)


@pytest.mark.parametrize("name", ["runs", "outbox"])
def test_killed_at_any_step_a_rebuild_is_gone_on_with_and_switches_once(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The dead runner's job is taken up when its lease has run out; what is served is right throughout, and one switch is made."""
    monkeypatch.setattr(postgres, "AHEAD_TRIES_MAX", 1)
    stored_and_served(rig, name)
    assert rig.done(name).state == "SUCCEEDED"
    walked = set()
    for step in STEPS:
        with subtests.test(step=step):
            if name in ASYNCHRONOUS:
                bring_forward(rig.dsn, name)
            job_id = rig.request(name)
            with faultpoints.armed(dies_at(step)):
                try:
                    rig.runner("a").run_once()
                except CrashError:
                    walked.add(step)
                    assert rig.view(job_id).state == "RUNNING"
            if step in walked:
                rig.until_taken("b")
            view = rig.view(job_id)
            assert (view.state, view.attempts) == ("SUCCEEDED", 1 + (step in walked))
            if name in ASYNCHRONOUS:
                bring_forward(rig.dsn, name)
                assert rig.projections.status(name).generation == (view.result or {})["generation"]
                assert "building" not in rig.roles(name)
            assert served(rig.log, name) == expected(name, stored(rig.log))
    skipped = {} if name in ASYNCHRONOUS else {"copy_attach", "copy_drop"}
    assert walked == {step for step in STEPS if step.split(".")[0] not in skipped}


def test_a_planted_difference_is_reported_before_the_switch(rig: Rig) -> None:
    """A row changed by hand, one removed, one invented: told apart, with both versions, and nothing is switched if not equal."""
    events = stored_and_served(rig)
    right = expected("runs", events)
    changed, removed = sorted(right)[:2]
    execute(rig.dsn, "UPDATE finaz.runs_g1 SET priority = priority + 1000 WHERE run_id = %s", changed)
    execute(rig.dsn, "DELETE FROM finaz.runs_g1 WHERE run_id = %s", removed)
    execute(
        rig.dsn,
        'INSERT INTO finaz.runs_g1 SELECT (json_populate_record(r, \'{"run_id": "run_nobody"}\')).*'
        " FROM finaz.runs_g1 AS r LIMIT 1",
    )
    view = rig.done("runs", switch="if_equal")
    assert (view.state, view.error and view.error.code) == ("FAILED", "ROWS_DIFFER")
    found = rig.report(view)
    assert (found["missing"], found["extra"], found["different"]) == (1, 1, 1)
    by_kind = {sample["kind"]: sample for sample in found["samples"]}
    assert by_kind["missing"]["key"] == {"run_id": removed}
    assert by_kind["missing"]["served"] is None
    assert by_kind["extra"]["key"] == {"run_id": "run_nobody"}
    assert by_kind["extra"]["rebuilt"] is None
    assert by_kind["different"]["key"] == {"run_id": changed}
    assert by_kind["different"]["served"]["priority"] == by_kind["different"]["rebuilt"]["priority"] + 1000
    assert rig.roles("runs") == ["active"]
    assert served(rig.log, "runs") != right
    mended = rig.done("runs")
    assert mended.result is not None
    assert mended.result["different"] == 1
    bring_forward(rig.dsn, "runs")
    assert served(rig.log, "runs") == expected("runs", stored(rig.log))


@pytest.mark.parametrize("name", INLINE_NAMES)
def test_a_planted_difference_in_an_inline_projection_is_reported_and_put_right(rig: Rig, name: str) -> None:
    """The same for rows that are written in the append."""
    events = stored_and_served(rig, name)
    key = "key" if name == "outbox" else "resource"
    rows = execute(rig.dsn, f"SELECT {key} FROM finaz.{name} ORDER BY 1 LIMIT 2")  # names of ours
    execute(rig.dsn, f"UPDATE finaz.{name} SET position = position + 1000 WHERE {key} = %s", rows[0][0])
    execute(rig.dsn, f"DELETE FROM finaz.{name} WHERE {key} = %s", rows[1][0])
    view = rig.done(name, switch="on_confirmation")
    assert view.state == "AWAITING"
    assert view.summary is not None
    assert (view.summary["missing"], view.summary["extra"], view.summary["different"]) == (1, 0, 1)
    assert {s["kind"]: s["key"][key] for s in rig.report(view)["samples"]} == {
        "different": rows[0][0],
        "missing": rows[1][0],
    }
    asyncio.run(rig.jobs.confirm(view.job_id, "bo"))
    rig.runner("b").run_once()
    assert rig.view(view.job_id).state == "SUCCEEDED"
    assert served(rig.log, name) == expected(name, stored(rig.log))
    assert len(events) < rig.log.high_water_mark()


def test_a_switch_waits_for_its_confirmation_and_the_old_copy_can_be_served_again(rig: Rig) -> None:
    """AWAITING with the report; confirmed, the new copy catches up and is served; rolled back, the old one is, caught up too."""
    stored_and_served(rig, count=60)
    view = rig.done("runs", switch="on_confirmation")
    assert (view.state, rig.roles("runs")) == ("AWAITING", ["active", "building"])
    with pytest.raises(JobRunningError):
        rig.request("runs")
    store(rig.log, History(HISTORY.events, HISTORY.appends[60:90]))
    asyncio.run(rig.jobs.confirm(view.job_id, "bo"))
    rig.runner("b").run_once()
    assert rig.roles("runs") == ["retired", "active"]
    assert served(rig.log, "runs") == expected("runs", stored(rig.log))
    store(rig.log, History(HISTORY.events, HISTORY.appends[90:]))
    bring_forward(rig.dsn, "runs")
    back = rig.done("runs", action="roll_back")
    assert back.error is None
    assert (back.state, back.result and back.result["generation"]) == ("SUCCEEDED", 1)
    assert rig.roles("runs") == ["active", "retired"]
    assert served(rig.log, "runs") == expected("runs", stored(rig.log))
    assert rig.done("runs", action="drop_old").result == {"dropped": 1}
    assert rig.roles("runs") == ["active"]
    assert rig.done("runs", action="roll_back").error.code == "NO_OLD_COPY"  # type: ignore[union-attr]
    actions = [entry.action for entry in rig.projections.entries("runs", 10)]
    assert actions == ["drop-old", "roll-back", "rebuild"]


@pytest.mark.parametrize("name", ["runs", "outbox"])
def test_cancelled_at_any_step_nothing_is_left_and_the_old_rows_are_served(
    rig: Rig, name: str, subtests: pytest.Subtests
) -> None:
    """Asked for at any point before the switch: CANCELLED, the copy beside is dropped."""
    events = stored_and_served(rig, name)
    right = expected(name, events)
    for step in STEPS:
        if step.split(".")[0] in ("copy_switch", "copy_drop") or (name == "outbox" and step.startswith("copy_attach")):
            continue
        with subtests.test(step=step):
            job_id = rig.request(name)
            runner = rig.runner("a")
            with faultpoints.armed(cancels_at(step, rig, job_id, runner)):
                runner.run_once()
            assert rig.view(job_id).state == "CANCELLED"
            assert rig.roles("runs") == ["active"]
            assert right.items() <= served(rig.log, name).items()
    assert rig.done(name).state == "SUCCEEDED"


def test_cancelled_while_it_waits_the_copy_is_dropped(rig: Rig) -> None:
    """And an old copy that was to be served again is kept."""
    stored_and_served(rig)
    rig.done("runs")
    bring_forward(rig.dsn, "runs")
    view = rig.done("runs", action="roll_back", switch="on_confirmation")
    assert (view.state, rig.roles("runs")) == ("AWAITING", ["building", "active"])
    asyncio.run(rig.jobs.cancel(view.job_id, "bo"))
    rig.runner("a").run_once()
    assert (rig.view(view.job_id).state, rig.roles("runs")) == ("CANCELLED", ["retired", "active"])


def test_a_runner_that_was_overtaken_switches_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped just before the switch until its lease is over and another has done the job: no second switch."""
    monkeypatch.setattr(postgres, "AHEAD_TRIES_MAX", 1)
    stored_and_served(rig)
    job_id = rig.request("runs")

    def point(at: str) -> None:
        if at == rebuildable.COPY_SWITCH_BEFORE:
            faultpoints.arm(None)
            attempt = late._attempt
            assert attempt is not None
            attempt._renewed = float("inf")  # it is stopped: its beat is, too
            rig.until_taken("b")

    late = rig.runner("a")
    with faultpoints.armed(point):
        late.run_once()
    view = rig.view(job_id)
    assert (view.state, view.owner, view.token) == ("SUCCEEDED", "b", 2)
    assert rig.roles("runs") == ["retired", "active"]
    assert [entry.action for entry in rig.projections.entries("runs", 10)] == ["rebuild"]


@pytest.mark.parametrize("name", ["leases", "lease_guard"])
def test_a_poison_event_fails_the_job_by_name_and_the_old_rows_stay(rig: Rig, name: str) -> None:
    """Category, stream, topic and position are in the error; nothing is left beside."""
    stored_and_served(rig, name)
    place = rig.log.high_water_mark() + 1
    execute(
        rig.dsn,
        "INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)"
        " VALUES (%s, 1, clock_timestamp(), gen_random_uuid(), 'lease/x', 'exploded.v1', '{}', 'x')",
        place,
    )
    before = served(rig.log, name)
    view = rig.done(name)
    assert view.error is not None
    assert (view.state, view.error.code) == ("FAILED", "PROJECTION_STOPPED")
    for part in (str(place), "lease/x", "exploded.v1", "UNKNOWN_TOPIC"):
        assert part in view.error.message
    assert before.items() <= served(rig.log, name).items()
    assert "building" not in rig.roles(name)


@pytest.mark.parametrize("name", ["runs", "outbox"])
def test_an_empty_store_is_rebuilt(empty_log: Log, rig: Rig, name: str) -> None:
    """Nothing but the job's own events: it ends, with nothing to compare."""
    view = rig.done(name, switch="if_equal")
    assert (view.state, view.result and view.result["served_rows"]) == ("SUCCEEDED", 0)


@pytest.fixture
def empty_log(log: Log) -> Log:
    assert log.high_water_mark() == 0
    return log


def test_what_is_asked_for_is_checked_before_anything_happens(rig: Rig) -> None:
    """An unknown projection, a wrong switch, too long a time: refused by name."""
    for target, document, error in (
        ("nothing", {}, ProjectionUnknownError),
        ("runs", {"switch": "maybe"}, BodyInvalidError),
        ("runs", {"keep_seconds": -1.0}, BodyInvalidError),
        ("runs", {"surprise": 1}, BodyInvalidError),
    ):
        with pytest.raises(error):
            rig.request(target, **document)
    assert rig.log.high_water_mark() == 0


def test_an_old_copy_is_dropped_when_its_time_is_over(rig: Rig) -> None:
    """By a runner that has nothing else to do; not before, and not while it is being rebuilt."""
    stored_and_served(rig)
    rebuild = rig.kinds["rebuild"]
    assert isinstance(rebuild, RebuildKind)
    rig.done("runs", keep_seconds=3600.0)
    assert rebuild.drop_expired(rig.projections.expired) == []
    execute(rig.dsn, "UPDATE finaz.projections SET drop_after = now() WHERE role = 'retired'")
    with psycopg.connect(rig.dsn, autocommit=True) as somebody:
        somebody.execute("SELECT pg_advisory_lock(hashtextextended('finaz.projections/runs/building', 0))")
        assert rebuild.drop_expired(rig.projections.expired) == []
    done: list[str] = []

    def tidy() -> list[str]:
        done.extend(rebuild.drop_expired(rig.projections.expired))
        return done

    runner = JobRunner(rig.log, rig.kinds, "idle", list, idle=tidy)
    runner._tidy()
    runner._tidy()
    assert done == ["dropped 1 old copies of runs"]
    assert rig.roles("runs") == ["active"]


def test_what_a_job_leaves_that_ends_by_its_deaths_is_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its attempts die with a copy beside: FAILED, and the copy goes when a runner has nothing else to do; an old copy is kept
    again; what a living job builds stays, also while it waits for a confirmation."""
    monkeypatch.setattr(aggregate, "ATTEMPTS_MAX", 2)
    stored_and_served(rig)
    rebuild = rig.kinds["rebuild"]
    assert isinstance(rebuild, RebuildKind)
    left = partial(left_behind, rig.projections.beside, living_in(rig.log.pool))
    for document, kept in (({}, ["active"]), ({"action": "roll_back"}, ["retired", "active"])):
        if document:
            rig.done("runs")
            bring_forward(rig.dsn, "runs")
        job_id = rig.request("runs", **document)
        for attempt in range(aggregate.ATTEMPTS_MAX):
            with faultpoints.armed(dies_at(rebuildable.COPY_COMPARE_BEFORE)), pytest.raises(CrashError):
                rig.until_taken(f"dying-{attempt}", ttl_seconds=1.2)
            assert rebuild.drop_left(left) == []
        runner = rig.runner("last")
        for _ in patiently():
            if rig.view(job_id).state != "RUNNING":
                break
            runner.run_once()
        error = rig.view(job_id).error
        assert error is not None
        assert (error.code, rig.projections.beside()) == ("ATTEMPTS_EXHAUSTED", [("runs", job_id)])
        assert rebuild.drop_left(left) == ["dropped what a rebuild of runs had left"]
        assert rig.roles("runs") == kept
    waiting = rig.done("runs", switch="on_confirmation")
    assert (waiting.state, rebuild.drop_left(left)) == ("AWAITING", [])
    assert "building" in rig.roles("runs")
    with psycopg.connect(rig.dsn, autocommit=True) as somebody:
        somebody.execute("SELECT pg_advisory_lock(hashtextextended('finaz.projections/runs/building', 0))")
        assert rebuild.drop_left(lambda: ["runs"]) == []


def test_a_projection_changed_in_code_is_rebuilt_and_says_so_until_then(rig: Rig) -> None:
    """Newer code stops at the old copy and wants a rebuild, whose copy has the new version; older code keeps off it; an old
    copy of another version is not rolled back to, and a half-built one of another version is begun anew."""
    stored_and_served(rig)
    projection = PROJECTIONS["runs"]
    newer = replace(projection.model, version=projection.model.version + 1)
    assert isinstance(projection.rows, RowStore)
    with closing(PostgresSession(rig.dsn, newer, projection.rows, "newer")) as session:
        progress = run_once(session, newer)
    assert progress.failure is not None
    assert (progress.state, progress.failure.code) == (CopyState.STOPPED, "CODE_VERSION_DIFFERS")
    assert "rebuild it" in progress.failure.reason
    status = rig.projections.status("runs")
    assert (status.code_version, status.failure and status.failure.code) == (
        projection.model.version,
        "CODE_VERSION_DIFFERS",
    )
    job_id = rig.request("runs")
    with faultpoints.armed(dies_at("copy_attach.before")), pytest.raises(CrashError):
        rig.runner("older").run_once()
    rig.kinds["rebuild"] = RebuildKind(
        {"runs": lambda builder: postgres.CopyRebuild(rig.dsn, newer, projection.rows, builder)},  # type: ignore[arg-type]
        rig.blobs,
        rig.projections.note,
    )
    rig.until_taken("newer")
    assert rig.view(job_id).state == "SUCCEEDED"
    status = rig.projections.status("runs")
    assert (status.code_version, status.state, status.failure) == (newer.version, CopyState.RUNNING, None)
    with session_of(rig.dsn, "runs") as session, pytest.raises(CodeVersionError):
        run_once(session, projection.model)
    back = rig.done("runs", action="roll_back")
    assert back.error is not None
    assert back.error.code == "CODE_VERSION_DIFFERS"
    assert rig.roles("runs") == ["retired", "active"]


def _newer_code(rig: Rig) -> None:
    projection = PROJECTIONS["runs"]
    newer = replace(projection.model, version=projection.model.version + 1)
    rig.kinds["rebuild"] = RebuildKind(
        {"runs": lambda builder: postgres.CopyRebuild(rig.dsn, newer, projection.rows, builder)},  # type: ignore[arg-type]
        rig.blobs,
        rig.projections.note,
    )


def _copy_lost(rig: Rig) -> None:
    execute(rig.dsn, "DELETE FROM finaz.projections WHERE name = 'runs' AND role = 'building'")
    execute(rig.dsn, "DROP TABLE finaz.runs_g2")


@pytest.mark.parametrize("change", [_newer_code, _copy_lost])
def test_only_the_copy_that_was_confirmed_is_served(rig: Rig, change: Callable[[Rig], None]) -> None:
    """Where it is gone by the time that somebody confirms, the job fails, whoever dies meanwhile; another is not served unseen."""
    stored_and_served(rig)
    view = rig.done("runs", switch="on_confirmation")
    assert view.state == "AWAITING"
    change(rig)
    asyncio.run(rig.jobs.confirm(view.job_id, "bo"))
    for step in ("copy_drop.before", "copy_drop.after", "nowhere"):
        if rig.view(view.job_id).state != "FAILED":
            with suppress(CrashError), faultpoints.armed(dies_at(step)):
                rig.until_taken(step)
    ended = rig.view(view.job_id)
    assert ended.error is not None
    assert (ended.state, ended.error.code) == ("FAILED", "COPY_GONE")
    assert rig.roles("runs") == ["active"]
    assert rig.projections.status("runs").generation == 1


@pytest.mark.parametrize("at_once", [1, 1000])
def test_more_wrong_rows_than_one_statement_takes_are_put_right_in_parts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Up to `SWITCH_ROWS_MAX` in one statement at one position, beyond it `REPAIR_ROWS_MAX` at a time; either way all of them."""
    monkeypatch.setattr(inline, "SWITCH_ROWS_MAX", at_once)
    monkeypatch.setattr(inline, "REPAIR_ROWS_MAX", 3)
    stored_and_served(rig, "outbox")
    execute(rig.dsn, "UPDATE finaz.outbox SET priority = priority + 1000")
    view = rig.done("outbox")
    assert view.result is not None
    assert view.result["different"] == view.result["served_rows"] > 3
    assert served(rig.log, "outbox") == expected("outbox", stored(rig.log))


def test_living_jobs_are_found_slot_by_slot(rig: Rig) -> None:
    """Those that have not ended, the oldest first; those that ended, and slots with a long past, are passed over."""
    living = living_in(rig.log.pool)
    assert list(living()) == []
    for _ in range(3):
        asyncio.run(rig.jobs.cancel(rig.request("runs"), "ana"))
    made = [(name, rig.request(name)) for name in ("outbox", "runs", "leases")]
    asyncio.run(rig.jobs.cancel(made[1][1], "ana"))
    assert list(living()) == [("rebuild", "outbox", made[0][1]), ("rebuild", "leases", made[2][1])]
