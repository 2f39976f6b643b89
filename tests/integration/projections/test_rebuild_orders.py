"""Rebuild order and interleaving never matter: whatever happens in whichever order, the rows are the fold of the events."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from projections.position import CopyState
from projections.rebuilding import inline, postgres
from projections.rebuilding.opening import opened as opened_for_rebuild
from projections.rebuilding.rebuildable import Builder, Goal
from projections.registry import PROJECTIONS
from projections.runner import run_once
from projections.status import Projections
from services.store.application import Log
from tests.support.histories import History, histories
from tests.support.read_models import (
    ASYNCHRONOUS,
    CrashError,
    bring_forward,
    empty_database,
    execute,
    expected,
    served,
    session_of,
    store,
    stored,
)
from tests.support.store import opened

NAMES = ("runs", "leases", "outbox", "lease_guard")

BATCHES = st.sampled_from((1, 2, 3, 7, 50))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("forward"), BATCHES),
        st.tuples(st.just("rebuild"), BATCHES, st.one_of(st.none(), st.integers(0, 8))),
        st.tuples(st.just("pause")),
        st.tuples(st.just("resume")),
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


class Pulse:
    """Dies at the n-th sign of life, if there is an n."""

    def __init__(self, dies_at: int | None) -> None:
        self.left = dies_at

    def reached(self, position: int, total: int) -> None:
        self.alive()

    def alive(self, quiet_seconds: float = 0.0) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise CrashError


def rebuild(dsn: str, name: str, job_id: str, dies_at: int | None) -> bool:
    """One attempt of a job at a rebuild; whether it came to its end. The comparison must find nothing."""
    pulse = Pulse(dies_at)
    attempt = opened_for_rebuild(dsn, PROJECTIONS[name], Builder(job_id, job_id))
    try:
        attempt.claim()
        if attempt.switched() is None:
            attempt.begin()
            attempt.catch_up(pulse, Goal.SERVED)
            difference = attempt.compare(pulse)
            assert difference.equal, difference
            attempt.catch_up(pulse, Goal.LOG)
            attempt.switch(pulse, 0.0)
        return True
    except CrashError:
        event(f"died {'at once' if not dies_at else 'later'}")
        return False
    finally:
        attempt.close()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories(), name=st.sampled_from(NAMES), steps=STEPS)
def test_no_order_of_appends_folds_rebuilds_crashes_and_pauses_matters(
    log: Log, database: str, history: History, name: str, steps: list[tuple[object, ...]]
) -> None:
    """Rebuilt rows equal those kept up to date, for any batches, any point of death, the served copy paused or not."""
    reset(database)
    projections = Projections(log.pool)
    left = list(history.appends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "AHEAD_TRIES_MAX", 1)
        for number, (what, *dice) in enumerate(steps):
            match what, dice:
                case "append", [int(count)]:
                    store(log, History(history.events, tuple(left[:count])))
                    del left[:count]
                case "forward", [int(batch)] if name in ASYNCHRONOUS:
                    with session_of(database, name) as session:
                        run_once(session, PROJECTIONS[name].model, batch)
                case "rebuild", [int(batch), dies_at]:
                    patch.setattr(postgres, "REBUILD_EVENTS_MAX", batch)
                    patch.setattr(inline, "REBUILD_EVENTS_MAX", batch)
                    assert dies_at is None or isinstance(dies_at, int)
                    if not rebuild(database, name, f"job-{number}", dies_at) and batch % 2:
                        assert rebuild(
                            database, name, f"job-{number}", None
                        )  # the same job goes on; else the next drops it
                case "pause", [] if name in ASYNCHRONOUS:
                    projections.pause(name, "a test", "ana")
                case "resume", [] if name in ASYNCHRONOUS:
                    projections.resume(name, "ana")
    store(log, History(history.events, tuple(left)))
    events = stored(log)
    if name in ASYNCHRONOUS:
        projections.resume(name, "ana")
        progress = bring_forward(database, name)
        assert (progress.state, progress.position) == (CopyState.RUNNING, len(events))
    assert served(log, name) == expected(name, events)


def reset(dsn: str) -> None:
    """An empty database in which every projection has one copy."""
    empty_database(dsn)
    for name, generation in execute(dsn, "SELECT name, generation FROM finaz.projections WHERE role <> 'active'"):
        execute(dsn, f"DROP TABLE finaz.{name}_g{generation}")  # names of ours
    execute(dsn, "DELETE FROM finaz.projections WHERE role <> 'active'")
    execute(dsn, "UPDATE finaz.projections SET job_id = NULL, pause_reason = NULL, paused_by = NULL, stop_at = NULL")
