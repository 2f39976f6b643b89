"""States from snapshots: always what a replay gives, whatever happens to the snapshots."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from domain.errors import UndecodableEventError
from domain.events import Recorded
from services.store.application import Log
from services.store.states import Fold
from tests.support.store import facts, opened


class Count(msgspec.Struct, frozen=True):
    """How many events, and the last version seen."""

    events: int
    last: int = 0


class Counting:
    """A fold that counts the events it is given."""

    def __init__(self, schema: int = 1, snapshot_events: int = 5) -> None:
        self.folded = 0
        self.fold: Fold[Count] = Fold(
            name="count",
            schema=schema,
            initial=lambda stream: Count(0),
            evolve=self._evolve,
            to_document=msgspec.to_builtins,
            from_document=lambda document: msgspec.convert(document, Count),
            snapshot_events=snapshot_events,
        )

    def _evolve(self, count: Count, recorded: Recorded) -> Count:
        self.folded += 1
        return Count(count.events + 1, recorded.version)


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        log.append_blocking(facts("run/x", *range(1, 13)))
        yield log


def read(log: Log, counting: Counting) -> tuple[int, int]:
    """The state, and how many events were folded for it."""
    counting.folded = 0
    state = log.read_state_blocking("run/x", counting.fold)
    assert state.state == Count(state.version, state.version)
    return state.version, counting.folded


def snapshots(log: Log) -> list[Any]:
    return log.pool.rows("SELECT version, topic FROM finaz.snapshots ORDER BY version")


def test_a_long_stream_is_read_from_its_last_snapshot(log: Log) -> None:
    """After a long replay a snapshot is taken; later reads fold only what came after it; older snapshots go."""
    counting = Counting()
    assert read(log, counting) == (12, 12)
    assert read(log, counting) == (12, 0)
    log.append_blocking(facts("run/x", 13, 14))
    assert read(log, counting) == (14, 2)
    log.append_blocking(facts("run/x", 15, 16, 17))
    assert read(log, counting) == (17, 5)
    assert snapshots(log) == [(17, "snapshot.count.v1")]


def test_a_snapshot_of_another_schema_is_passed_over(log: Log) -> None:
    """New code replays from nothing and takes its own; old code beside it still gets the right state."""
    assert read(log, Counting(schema=1)) == (12, 12)
    assert read(log, Counting(schema=2)) == (12, 12)
    assert read(log, Counting(schema=2)) == (12, 0)
    assert read(log, Counting(schema=1))[0] == 12


def test_a_snapshot_that_cannot_be_read_is_dropped(log: Log) -> None:
    """Rubbish in the cache costs a replay, never an answer."""
    counting = Counting()
    read(log, counting)
    for rubbish in ("not json", '{"wrong":1}', "null"):
        log.pool.rows("UPDATE finaz.snapshots SET state = %(state)s", {"state": rubbish})
        assert read(log, counting) == (12, 12)
        assert read(log, counting) == (12, 0)


def test_without_any_snapshot_the_answer_is_the_same(log: Log) -> None:
    """The table may be emptied at any time."""
    counting = Counting()
    read(log, counting)
    log.pool.rows("TRUNCATE finaz.snapshots")
    assert read(log, counting) == (12, 12)


async def test_an_unknown_stream_is_the_initial_state(log: Log) -> None:
    """Version 0, and the database's clock all the same."""
    state = await log.read_state("run/nothing", Counting().fold)
    assert (state.state, state.version, state.from_version) == (Count(0), 0, 0)
    assert state.now <= log.now()


def test_an_event_that_cannot_be_read_stops_its_readers_and_names_itself(log: Log) -> None:
    """Readers of its stream are told stream, version and position; readers of the log first get what stands before it."""
    log.pool.rows(
        "INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)"
        " VALUES (13, 13, now(), gen_random_uuid(), 'run/x', 'lease.granted.v1', '{\"owner\":7}', '')"
    )
    assert [r.position for r in log.read_log(10, 10)] == [11, 12]
    with pytest.raises(UndecodableEventError, match="run/x version 13") as caught:
        log.read_log(12, 10)
    assert caught.value.context["position"] == 13
    with pytest.raises(UndecodableEventError, match="position 13"):
        log.read_streams_blocking(["run/x"])
    assert len(log.read_streams_blocking(["run/y"]).streams["run/y"]) == 0
