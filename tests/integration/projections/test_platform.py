"""What an operator sees of a projection beside its position: how fast it moves, what troubled it, where it is to stop."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from domain.errors import StoreUnavailableError
from projections.errors import PositionPassedError
from projections.position import ErrorCategory, category_of
from projections.postgres import PostgresSession, RowStore
from projections.registry import PROJECTIONS
from projections.runner import Runner, run_once
from projections.status import Projections
from services.store.application import Log
from tests.support.histories import seeded_history
from tests.support.read_models import bring_forward, execute, session_of, store
from tests.support.store import opened

HISTORY = seeded_history(31, 60)
PATIENCE_SECONDS = 30.0


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        store(log, HISTORY)
        yield log


@pytest.fixture
def projections(log: Log) -> Projections:
    return Projections(log.pool)


def test_how_fast_it_moves_is_reckoned_over_ten_seconds(database: str, projections: Projections) -> None:
    """Positions passed since the window began; a runner that is gone moves nothing."""
    bring_forward(database, "runs")
    execute(database, "UPDATE finaz.projections SET window_at = now() - interval '20 seconds', window_position = 0")
    with session_of(database, "runs") as session:
        seen = session.look()
    status = projections.status("runs")
    assert status.events_per_second == pytest.approx(seen.position / 20, rel=0.2)
    with session_of(database, "runs") as session:
        session.look()
    assert projections.status("runs").events_per_second == status.events_per_second  # the next window is not over
    execute(database, "UPDATE finaz.projections SET heartbeat_at = now() - interval '2 minutes'")
    assert projections.status("runs").events_per_second == 0.0


def test_what_troubled_a_runner_is_told_when_it_works_again(database: str, projections: Projections) -> None:
    """Code and reason of the last fault of the infrastructure, which stops nothing for good."""
    projection = PROJECTIONS["runs"]
    rows = projection.rows
    assert isinstance(rows, RowStore)
    moved = threading.Event()
    opens = iter([StoreUnavailableError("the server is starting up"), None])

    def open_session() -> Any:
        error = next(opens)
        if error is not None:
            raise error
        return PostgresSession(database, projection.model, rows, "test")

    runner = Runner(
        projection.model, open_session, report=lambda event, _: moved.set() if event == "projection_moved" else None
    )
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    assert moved.wait(PATIENCE_SECONDS)
    runner.stop()
    thread.join(PATIENCE_SECONDS)
    trouble = projections.status("runs").trouble
    assert trouble is not None
    assert trouble.code == "STORE_UNAVAILABLE"
    assert "starting up" in trouble.reason


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_it_pauses_exactly_at_the_position_it_was_told(
    log: Log, database: str, projections: Projections, batch: int
) -> None:
    """Whatever the batches: everything up to the position is applied, nothing behind it, until it is resumed."""
    place = log.high_water_mark() // 2
    projections.stop_at("runs", place, "to look", "ana")
    with session_of(database, "runs") as session:
        for _ in range(place + 2):
            run_once(session, PROJECTIONS["runs"].model, batch)
    status = projections.status("runs")
    assert (status.position, status.state.value, status.stop_at) == (place, "paused", None)
    assert status.lag_events == log.high_water_mark() - place
    with pytest.raises(PositionPassedError):
        projections.stop_at("runs", place + 1, "it is paused", "ana")
    projections.resume("runs", "ana")
    bring_forward(database, "runs")
    assert projections.status("runs").lag_events == 0


def test_a_stop_that_is_not_reached_stays_and_goes_with_a_resume(
    log: Log, database: str, projections: Projections
) -> None:
    """A position ahead of the log is waited for; resuming takes it back."""
    projections.stop_at("runs", log.high_water_mark() + 10, "the day after", "ana")
    bring_forward(database, "runs")
    assert projections.status("runs").stop_at == log.high_water_mark() + 10
    projections.resume("runs", "ana")
    assert projections.status("runs").stop_at is None
    assert [entry.action for entry in projections.entries("runs", 5)] == ["resume", "stop-at"]


def test_every_error_has_a_category() -> None:
    """Undecodable, unknown topic, another version of the code; everything else was refused by the fold or the table."""
    assert category_of("UNDECODABLE_EVENT") is ErrorCategory.UNDECODABLE
    assert category_of("UNKNOWN_TOPIC") is ErrorCategory.UNKNOWN_TOPIC
    assert category_of("CODE_VERSION_DIFFERS") is ErrorCategory.CODE_VERSION
    for code in ("ROWS_REFUSED", "ILLEGAL_TRANSITION", "DEFECT"):
        assert category_of(code) is ErrorCategory.REFUSED
