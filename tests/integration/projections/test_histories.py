"""Read models in a real PostgreSQL over random histories: the rows are the fold, however they came about."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.rebuilding.opening import rebuild_blocking
from projections.registry import PROJECTIONS
from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE
from services.store.application import Log
from tests.support.histories import History, histories
from tests.support.read_models import (
    ASYNCHRONOUS,
    INLINE_NAMES,
    bring_forward,
    crash_at,
    empty_database,
    empty_projection,
    execute,
    expected,
    served,
    store,
)
from tests.support.store import opened

random_histories = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@random_histories
@given(history=histories())
def test_inline_rows_are_the_fold_of_the_events(log: Log, database: str, history: History) -> None:
    """What the append function wrote into the outbox and the lease guard is what folding the log's events gives."""
    empty_database(database)
    events = store(log, history)
    assert len(events) == len(history.events)
    for name in INLINE_NAMES:
        assert served(log, name) == expected(name, events)


@random_histories
@given(
    history=histories(),
    limit=st.sampled_from((1, 2, 3, 7, 1000)),
    crashes=st.sets(st.integers(0, 5)),
    where=st.sampled_from((POSITION_COMMIT_BEFORE, POSITION_COMMIT_AFTER)),
)
def test_any_cut_into_batches_and_any_crash_gives_the_fold(
    log: Log, database: str, history: History, limit: int, crashes: set[int], where: str
) -> None:
    """Rows equal the fold for any batch size, with processes dying just before or just after commits of rows and position."""
    empty_database(database)
    events = store(log, history)
    for name in ASYNCHRONOUS:
        progress = bring_forward(database, name, limit, crash_at(crashes, where))
        assert progress.position == len(events)
        assert served(log, name) == expected(name, events)


@settings(random_histories, max_examples=15)
@given(history=histories(), damage=st.sampled_from(("nothing", "emptied", "old rows")), seen=st.integers(0, 100))
def test_a_rebuild_gives_the_same_rows(log: Log, database: str, history: History, damage: str, seen: int) -> None:
    """Any projection, inline ones too, emptied, or still holding the rows of an earlier day: a rebuild gives the fold."""
    empty_database(database)
    before = [append for append in history.appends if append.events[0].event_id.int & 0xFFFF <= seen]
    store(log, History(history.events, tuple(before)))
    for name in ASYNCHRONOUS:
        bring_forward(database, name)
    events = store(log, History(history.events, history.appends[len(before) :]))
    for projection in PROJECTIONS.values():
        if damage == "emptied":
            empty_projection(database, projection)
        rebuilt = rebuild_blocking(database, projection, "test")
        assert rebuilt is not None
        assert rebuilt.position == len(events)
        assert served(log, projection.name) == expected(projection.name, events)
    left = execute(database, "SELECT count(*) FROM finaz.projections WHERE role <> 'active'")
    assert left == [(0,)]
