"""Events of old versions, in a real log: every reader sees them as the newest, and none skips what it does not know."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from domain import events
from domain.errors import UnknownTopicError
from domain.events import Event, Recorded, registered, upcasts
from projections.folding import ReadModel, batch_of, fold
from projections.postgres import LogSession
from projections.registry import PROJECTIONS
from projections.runner import run_once
from services.store.application import Log
from services.store.states import Fold
from tests.support.read_models import execute, session_of
from tests.support.store import opened

STORED = """
    INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)
    VALUES (%s, %s, clock_timestamp(), gen_random_uuid(), 'lease/measured', %s, %s, 'x')
"""


class Measured(Event, frozen=True, kw_only=True):
    """The newest version."""

    topic = "test.length.v2"
    metres: float


def centimetres_to_metres(document: dict[str, Any]) -> dict[str, Any]:
    """From the version before."""
    return {"metres": document["centimetres"] / 100}


@pytest.fixture
def log(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """A log with an event of each version; the newest is registered for the length of the test."""
    monkeypatch.setattr(events, "_TYPES", dict(events._TYPES))
    monkeypatch.setattr(events, "_UPCASTERS", dict(events._UPCASTERS))
    registered(Measured)
    upcasts("test.length.v1", "test.length.v2")(centimetres_to_metres)
    execute(database, STORED, 1, 1, "test.length.v1", '{"centimetres":250}')
    execute(database, STORED, 2, 2, "test.length.v2", '{"metres":0.5}')
    with opened(database) as log:
        yield log


def total(metres: float, recorded: Recorded) -> float:
    assert isinstance(recorded.event, Measured)
    return metres + recorded.event.metres


def folding(schema: int) -> "Fold[float]":
    return Fold(
        name="total",
        schema=schema,
        initial=lambda stream: 0.0,
        evolve=total,
        to_document=lambda metres: {"metres": metres},
        from_document=lambda document: msgspec.convert(document["metres"], float),
        snapshot_events=1,
    )


def test_every_reader_sees_the_newest_version(log: Log, database: str) -> None:
    """Streams, the log, a state with its snapshot, and a projection's fold: all go through the upcasters."""
    found = log.read_streams_blocking(["lease/measured"]).streams["lease/measured"]
    assert [recorded.event for recorded in found] == [Measured(metres=2.5), Measured(metres=0.5)]
    assert [recorded.event for recorded in log.read_log(0, 10)] == [Measured(metres=2.5), Measured(metres=0.5)]
    assert log.read_state_blocking("lease/measured", folding(1)).state == 3.0
    model = ReadModel[str, float](
        "test", ("lease",), lambda event: "it", lambda row, recorded: total(row or 0.0, recorded)
    )
    session = LogSession(database, model)
    try:
        assert fold(model, {}, batch_of(model, session.read(0, 10, 10), 10)).rows == {"it": 3.0}
    finally:
        session.close()


def test_a_snapshot_of_an_older_schema_is_passed_over(log: Log) -> None:
    """The state is folded anew, through the upcasters, and a snapshot of the new schema taken."""
    log.read_state_blocking("lease/measured", folding(1))
    older = log.pool.rows("SELECT version, topic FROM finaz.snapshots")
    read = log.read_state_blocking("lease/measured", folding(2))
    assert (read.state, read.from_version, len(older)) == (3.0, 0, 1)
    assert log.read_state_blocking("lease/measured", folding(2)).from_version == 2


def test_a_topic_that_nobody_knows_is_never_skipped(log: Log, database: str) -> None:
    """A projection stops before it and says which and why; readers of the stream are told; new code goes on from there."""
    execute(database, STORED, 3, 3, "test.length.v3", '{"feet":1}')
    with pytest.raises(UnknownTopicError) as refused:
        log.read_streams_blocking(["lease/measured"])
    assert "test.length.v3" in str(refused.value)
    with session_of(database, "leases") as session:
        progress = run_once(session, PROJECTIONS["leases"].model)
        assert progress.failure is not None
        assert (progress.position, progress.failure.code) == (2, "UNKNOWN_TOPIC")
        assert (progress.failure.stream, progress.failure.topic) == ("lease/measured", "test.length.v3")
        upcasts("test.length.v3", "test.length.v2")(lambda document: {"metres": document["feet"] * 0.3048})
        session.revive()
        assert run_once(session, PROJECTIONS["leases"].model).position == 3
