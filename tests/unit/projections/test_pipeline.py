"""The pipeline of a rebuild: whatever the batches, what it writes is the fold, in order, one batch at a time."""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import RowsRefusedError, StoreUnavailableError
from domain.events import Event, Recorded, encode
from domain.runs.messages import RunCancellationRequested
from projections.folding import Folded, ReadModel
from projections.log import StoredEvent
from projections.rebuilding import pipeline
from projections.rebuilding.pipeline import Pipeline

AT = datetime(2026, 1, 5, tzinfo=UTC)


def key_of(event: Event) -> str | None:
    assert isinstance(event, RunCancellationRequested)
    return event.run_id


def apply(row: tuple[int, ...] | None, recorded: Recorded) -> tuple[int, ...]:
    """Every position that touched the row, so that a row that was forgotten or written twice shows."""
    return (*(row or ()), recorded.position)


MODEL = ReadModel[str, tuple[int, ...]]("m", ("run",), key_of, apply)


def log_of(keys: Sequence[int], poison: int | None = None) -> list[StoredEvent]:
    """An event of each key, in order; `poison` (a position) has a topic that nobody knows."""
    made = []
    for position, key in enumerate(keys, 1):
        event = RunCancellationRequested(run_id=f"run_{key}", principal="ana")
        topic = "exploded.v1" if position == poison else event.topic
        made.append(
            StoredEvent(position, f"run/{key}", position, UUID(int=position), AT, topic, encode(event).decode())
        )
    return made


class Store:
    """A log to read and rows to write; writing happens in another thread, and only ever once at a time."""

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        self.events = events
        self.rows: dict[str, tuple[int, ...]] = {}
        self.position = 0
        self.loaded: list[str] = []
        self._one = threading.Lock()

    def read(self, after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        return [event for event in self.events if after < event.position <= up_to][:limit]

    def load(self, keys: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        self.loaded += keys
        return {key: self.rows[key] for key in keys if key in self.rows}

    def write(self, position: int, folded: Folded[str, tuple[int, ...]]) -> None:
        assert self._one.acquire(blocking=False)
        assert threading.current_thread() is not threading.main_thread()
        assert position == self.position
        self.rows.update(folded.rows)
        self.position = folded.up_to
        self._one.release()

    def pipeline(
        self, limit: int, *, fresh: bool = True, one_connection: bool = False, **other: Any
    ) -> Pipeline[Any, Any]:
        write = other.get("write", self.write)
        return Pipeline(
            MODEL,
            self.read,
            self.load,
            write,
            self.position,
            batch_events_max=limit,
            fresh=fresh,
            one_connection=one_connection,
        )


def expected(keys: Sequence[int]) -> dict[str, tuple[int, ...]]:
    rows: dict[str, tuple[int, ...]] = {}
    for position, key in enumerate(keys, 1):
        rows[f"run_{key}"] = (*rows.get(f"run_{key}", ()), position)
    return rows


def run(made: Pipeline[Any, Any], mark: int) -> None:
    try:
        while made.step(mark):
            pass
        made.flush()
    finally:
        made.close()


@given(
    keys=st.lists(st.integers(0, 5), max_size=40),
    limit=st.integers(1, 9),
    stop=st.integers(0, 40),
    one_connection=st.booleans(),
    known_max=st.sampled_from((0, 2, 1000)),
)
def test_what_is_written_is_the_fold(
    keys: list[int], limit: int, stop: int, one_connection: bool, known_max: int
) -> None:
    """For any batches, keys that come again in the next batch or much later, more keys than are remembered, and a second pipeline
    that goes on where the first one stopped."""
    store = Store(log_of(keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "KNOWN_KEYS_MAX", known_max)
        run(store.pipeline(limit, one_connection=one_connection), min(stop, len(keys)))
        assert store.position == min(stop, len(keys))
        run(store.pipeline(limit, fresh=store.position == 0, one_connection=one_connection), len(keys))
    assert store.rows == expected(keys)
    assert store.position == len(keys)


def test_rows_that_cannot_be_there_are_not_looked_for() -> None:
    """From nothing, only keys that were made are loaded."""
    store = Store(log_of([1, 2, 3, 1, 4]))
    run(store.pipeline(1), 5)
    assert store.loaded == ["run_1"]


def test_an_event_that_fails_ends_it_behind_what_came_before() -> None:
    """Everything before it is written; it is named."""
    store = Store(log_of([1, 2, 1, 3, 1], poison=4))
    made = store.pipeline(2)
    run(made, 5)
    assert made.failure is not None
    assert (made.failure.position, store.position) == (4, 3)
    assert store.rows == expected([1, 2, 1])


@pytest.mark.parametrize("error", [RowsRefusedError("no"), StoreUnavailableError("away")])
def test_after_an_error_nothing_more_is_written(error: Exception) -> None:
    """A refused row ends it quietly, for its owner to find the event; anything else is raised."""
    store = Store(log_of([1, 2, 3, 4]))
    tried: list[int] = []

    def write(position: int, folded: Folded[str, tuple[int, ...]]) -> None:
        tried.append(position)
        raise error

    made = store.pipeline(1, write=write)
    if isinstance(error, RowsRefusedError):
        run(made, 4)
        assert made.refused
        assert not made.step(4)
    else:
        with pytest.raises(StoreUnavailableError):
            run(made, 4)
    assert tried == [0]
    assert store.rows == {}
