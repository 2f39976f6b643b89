"""Rebuilding while the projection is served and events keep arriving."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from domain.errors import OverloadedError, ProjectionStoppedError, RebuildRunningError
from projections.projector import projector
from projections.rebuilding import inline
from projections.rebuilding import postgres as rebuilding
from projections.rebuilding.opening import rebuild_blocking
from projections.registry import PROJECTIONS
from projections.status import Projections
from services.store.application import Log
from tests.support.histories import History, seeded_history
from tests.support.read_models import (
    ASYNCHRONOUS,
    INLINE_NAMES,
    bring_forward,
    empty_projection,
    execute,
    expected,
    served,
    session_of,
    store,
    store_all,
    stored,
)
from tests.support.store import opened

HISTORY = seeded_history(11, 240)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def projections(log: Log) -> Projections:
    return Projections(log.pool)


@contextmanager
def writing(log: Log, history: History) -> Iterator[threading.Event]:
    """A writer in another thread, through the block and until the history is all written; the event is set once it has begun."""
    begun, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            for append in history.appends:
                log.append_blocking(append)
                begun.set()
        except BaseException as error:
            failed.append(error)
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield begun
    finally:
        writer.join()
    assert not failed, failed


def roles(dsn: str, name: str) -> list[tuple[str, ...]]:
    return execute(dsn, "SELECT role FROM finaz.projections WHERE name = %s ORDER BY generation", name)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_rebuild_under_load_ends_equal(log: Log, database: str, projections: Projections, name: str) -> None:
    """While a writer appends and the old copy is kept up to date, a rebuild ends with the fold of everything, and no position
    that a reader saw is ever taken back."""
    seen: list[int] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.is_set():
            seen.append(projections.position(name))

    watcher = threading.Thread(target=watch)
    with projector(database, "test"), writing(log, HISTORY) as begun:
        assert begun.wait(PATIENCE_SECONDS)
        watcher.start()
        try:
            for _ in range(3):
                assert rebuild_blocking(database, PROJECTIONS[name], "rebuilder") is not None
        finally:
            finished.set()
            watcher.join()
    assert seen == sorted(seen)
    if name in ASYNCHRONOUS:
        bring_forward(database, name)
        assert projections.status(name).generation == 4
    assert served(log, name) == expected(name, stored(log))


@pytest.mark.parametrize("name", INLINE_NAMES)
def test_an_emptied_inline_table_is_put_right_under_load(log: Log, database: str, name: str) -> None:
    """Rows that events keep changing are put right as well, however the changes fall between fold and repair."""
    half = len(HISTORY.appends) // 2
    store(log, History(HISTORY.events, HISTORY.appends[:half]))
    if name == "outbox":
        empty_projection(database, PROJECTIONS[name])
        execute(
            database,
            "INSERT INTO finaz.outbox SELECT 'run', 'nobody', 'BATCH', 1, 'pending', 1, now(), now(), 1, now()",
        )
    else:
        execute(database, "UPDATE finaz.lease_guard SET expires_at = expires_at + interval '1 day'")
    with writing(log, History(HISTORY.events, HISTORY.appends[half:])) as begun:
        assert begun.wait(PATIENCE_SECONDS)
        assert rebuild_blocking(database, PROJECTIONS[name], "rebuilder") is not None
    assert served(log, name) == expected(name, stored(log))


def test_a_row_that_changes_faster_than_it_is_compared_ends_the_rebuild(
    log: Log, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `REPAIR_PASSES_MAX` passes in which some row was touched, an inline rebuild says so and gives up."""
    store_all(log, HISTORY.appends[:50])
    monkeypatch.setattr(inline, "REPAIR_PASSES_MAX", 3)
    monkeypatch.setattr(inline, "REPAIR_ROWS_MAX", 7)
    monkeypatch.setattr(inline.InlineRebuild, "_put_right_at_once", lambda rebuild, pulse: False)
    monkeypatch.setattr(inline.InlineRebuild, "_touched", lambda rebuild: 1)
    with pytest.raises(OverloadedError):
        rebuild_blocking(database, PROJECTIONS["outbox"], "rebuilder")


def test_a_second_rebuild_is_refused(log: Log, database: str, subtests: pytest.Subtests) -> None:
    """While one rebuild of a projection runs, another is refused with a typed error, and changes nothing; then it may run."""
    store_all(log, HISTORY.appends[:100])
    refused: list[str | None] = []

    def try_another(name: str, position: int, mark: int) -> bool:
        with pytest.raises(RebuildRunningError) as refusal:
            rebuild_blocking(database, PROJECTIONS[name], "another")
        refused.append(refusal.value.at)
        return True

    for name in PROJECTIONS:
        with subtests.test(name=name):
            rebuilt = rebuild_blocking(database, PROJECTIONS[name], "rebuilder", partial(try_another, name))
            assert rebuilt is not None
            assert refused[-1] == name
            assert rebuild_blocking(database, PROJECTIONS[name], "another") is not None


def test_an_empty_store_is_rebuilt_at_once(log: Log, database: str, subtests: pytest.Subtests) -> None:
    """Nothing to fold: the rebuild ends at position 0."""
    for name in PROJECTIONS:
        with subtests.test(name=name):
            rebuilt = rebuild_blocking(database, PROJECTIONS[name], "rebuilder")
            assert rebuilt is not None
            assert rebuilt.position == 0
            assert served(log, name) == {}


def test_a_cancelled_rebuild_leaves_what_was_served(
    log: Log, database: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Cancelled in the middle: the old rows are served on, and nothing is left of the new ones."""
    monkeypatch.setattr(rebuilding, "REBUILD_EVENTS_MAX", 50)
    monkeypatch.setattr(inline, "REBUILD_EVENTS_MAX", 50)
    events = store(log, History(HISTORY.events, HISTORY.appends[:100]))
    for name in PROJECTIONS:
        with subtests.test(name=name):
            if name in ASYNCHRONOUS:
                bring_forward(database, name)
            assert rebuild_blocking(database, PROJECTIONS[name], "rebuilder", lambda position, mark: False) is None
            assert served(log, name) == expected(name, events)
            assert roles(database, name) == ([("active",)] if name in ASYNCHRONOUS else [])


def test_a_rebuild_that_dies_is_made_again(
    log: Log, database: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """A rebuilder that dies half-way leaves the old copy served and its own unserved; the next rebuild drops that and is right."""
    monkeypatch.setattr(rebuilding, "REBUILD_EVENTS_MAX", 50)
    monkeypatch.setattr(inline, "REBUILD_EVENTS_MAX", 50)
    events = store(log, History(HISTORY.events, HISTORY.appends[:100]))

    def die(position: int, mark: int) -> bool:
        raise KeyboardInterrupt

    for name in ASYNCHRONOUS:
        with subtests.test(name=name):
            bring_forward(database, name)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    rebuild_blocking(database, PROJECTIONS[name], "rebuilder", die)
                assert roles(database, name) == [("active",), ("building",)]
                assert served(log, name) == expected(name, events)
            assert rebuild_blocking(database, PROJECTIONS[name], "rebuilder") is not None
            assert roles(database, name) == [("active",)]
            assert served(log, name) == expected(name, events)
            tables = execute(database, "SELECT tablename FROM pg_tables WHERE tablename ~ %s", f"^{name}_g[0-9]+$")
            assert len(tables) == 1


def test_a_rebuild_that_meets_a_poison_event_names_it(log: Log, database: str, subtests: pytest.Subtests) -> None:
    """An event that cannot be applied ends the rebuild with its position, topic and reason; what was served is served on."""
    events = store(log, History(HISTORY.events, HISTORY.appends[:50]))
    for name in ASYNCHRONOUS:
        bring_forward(database, name)
    categories = sorted({projection.model.categories[0] for projection in PROJECTIONS.values()})
    for place, category in enumerate(categories, len(events) + 1):
        execute(
            database,
            """
            INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)
            VALUES (%s, 1, clock_timestamp(), gen_random_uuid(), %s, 'exploded.v1', '{}', 'x')
            """,
            place,
            f"{category}/x",
        )
    for name, projection in PROJECTIONS.items():
        with subtests.test(name=name):
            position = len(events) + 1 + categories.index(projection.model.categories[0])
            with pytest.raises(ProjectionStoppedError) as stopped:
                rebuild_blocking(database, projection, "rebuilder")
            assert stopped.value.context["position"] == position
            assert stopped.value.context["topic"] == "exploded.v1"
            assert "UNKNOWN_TOPIC" in stopped.value.context["reason"]
            assert served(log, name) == expected(name, events)
            assert roles(database, name) == ([("active",)] if name in ASYNCHRONOUS else [])


def test_a_new_copy_has_the_indexes_of_the_old_one(log: Log, database: str) -> None:
    """Queries cost the same after a rebuild: every index is there again, and the view reads the new copy only."""
    store_all(log, HISTORY.appends[:20])

    def indexes(name: str, generation: int) -> list[str]:
        rows = execute(database, "SELECT indexdef FROM pg_indexes WHERE tablename = %s", f"{name}_g{generation}")
        return sorted(definition.partition(" USING ")[2] for (definition,) in rows)

    for name in ASYNCHRONOUS:
        before = indexes(name, 1)
        assert rebuild_blocking(database, PROJECTIONS[name], "rebuilder") is not None
        assert indexes(name, 2) == before
        assert before


def test_a_reader_that_takes_long_holds_up_nobody(
    log: Log, database: str, monkeypatch: pytest.MonkeyPatch, projections: Projections
) -> None:
    """Somebody reads the old copy in a transaction that does not end: the rebuild is served all the same, other readers are not
    kept waiting, and the old copy is dropped by a later rebuild."""
    monkeypatch.setattr(rebuilding, "DROP_TRIES_MAX", 2)
    events = store(log, History(HISTORY.events, HISTORY.appends[:50]))
    bring_forward(database, "runs")
    with psycopg.connect(database) as somebody:
        (count,) = somebody.execute("SELECT count(*) FROM finaz.runs").fetchone() or (0,)
        assert count == len(expected("runs", events))
        assert rebuild_blocking(database, PROJECTIONS["runs"], "rebuilder") is not None
        assert roles(database, "runs") == [("retired",), ("active",)]
        assert projections.status("runs").generation == 2
        with psycopg.connect(database, options="-c lock_timeout=1") as another:
            assert another.execute("SELECT count(*) FROM finaz.runs").fetchone() == (count,)
    assert rebuild_blocking(database, PROJECTIONS["runs"], "rebuilder") is not None
    assert roles(database, "runs") == [("active",)]
    assert served(log, "runs") == expected("runs", events)


def test_a_rebuild_of_a_paused_projection_leaves_it_paused(log: Log, database: str, projections: Projections) -> None:
    """A rebuild brings a paused projection's rows to where the log is, and does not set it going."""
    events = store(log, History(HISTORY.events, HISTORY.appends[:20]))
    projections.pause("runs", "looking at it", "ana")
    assert rebuild_blocking(database, PROJECTIONS["runs"], "rebuilder") is not None
    status = projections.status("runs")
    assert (status.state.value, status.position) == ("paused", len(events))
    assert (status.pause_reason, status.paused_by) == ("looking at it", "ana")
    with session_of(database, "runs") as session:
        assert session.look().generation == 2


def test_a_stopped_projection_is_put_right_by_a_rebuild(log: Log, database: str, projections: Projections) -> None:
    """A projection that stopped over its own bug, now mended: a rebuild serves right rows, and no trace of the stop is left."""
    events = store(log, History(HISTORY.events, HISTORY.appends[:20]))
    execute(
        database,
        "UPDATE finaz.projections SET state = 'stopped', position = 3, error_position = 4, error_stream = 's', error_topic = 't',"
        " error_code = 'DEFECT', error_reason = 'a bug', error_at = now() WHERE name = %s",
        "runs",
    )
    assert projections.status("runs").failure is not None
    assert rebuild_blocking(database, PROJECTIONS["runs"], "rebuilder") is not None
    status = projections.status("runs")
    assert (status.failure, status.state.value, status.position) == (None, "running", len(events))
    assert served(log, "runs") == expected("runs", events)
