"""The library's own test cases, unmodified, on our recorders; and its repository, notification log and snapshots on our log."""

from collections.abc import Iterator
from typing import Any
from unittest import TestCase
from uuid import uuid4

import pytest
from eventsourcing.persistence import IntegrityError, Tracking
from eventsourcing.tests.persistence import (
    AggregateRecorderTestCase,
    ApplicationRecorderTestCase,
    ProcessRecorderTestCase,
    TrackingRecorderTestCase,
)

from domain.errors import StaleFenceError
from domain.events import Recorded
from services.ports import Append, Fence, Vacant
from services.store.application import Log
from services.store.recorder import LogRecorder, SnapshotRecorder
from tests.support.store import RESOURCE, fact, granted, new, opened


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


class OnOurLog(TestCase):
    """Gives the library's test cases a recorder on a fresh database; our stream names are texts."""

    log: Log

    @pytest.fixture(autouse=True)
    def _log(self, log: Log) -> None:
        self.log = log

    def new_originator_id(self) -> str:
        return f"test/{uuid4()}"


class TestApplicationRecorder(OnOurLog, ApplicationRecorderTestCase[LogRecorder]):
    """Insert, select, page, conflict, and no reader misses an event under concurrent writers."""

    def create_recorder(self) -> LogRecorder:
        assert isinstance(self.log.recorder, LogRecorder)
        return self.log.recorder

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestTrackingRecorder(OnOurLog, TrackingRecorderTestCase):
    """Tracking positions only grow, and can be waited for."""

    def create_recorder(self) -> LogRecorder:
        assert isinstance(self.log.recorder, LogRecorder)
        return self.log.recorder


class TestProcessRecorder(OnOurLog, ProcessRecorderTestCase):
    """Events and the tracking position are one."""

    def create_recorder(self) -> LogRecorder:
        assert isinstance(self.log.recorder, LogRecorder)
        return self.log.recorder


class TestSnapshotRecorder(OnOurLog, AggregateRecorderTestCase):
    """The cache of states keeps the library's contract of an aggregate recorder."""

    def create_recorder(self) -> SnapshotRecorder:
        return SnapshotRecorder(self.log.pool)


# ------------------------------------------------------------------------------------------------ the application


class Tally:
    """An aggregate for the library: how many events a stream has."""

    snapshot_topic = "snapshot.tally.v1"

    def __init__(self, id: str, version: int, principals: tuple[str, ...]) -> None:
        self.id = id
        self.version = version
        self.principals = principals

    def snapshot_state(self) -> Any:
        return list(self.principals)


def project(tally: Tally | None, events: Any) -> Tally | None:
    for event in events:
        if isinstance(event, Recorded):
            known = tally.principals if tally else ()
            tally = Tally(event.stream, event.version, (*known, event.event.principal))  # type: ignore[attr-defined]
        else:
            tally = Tally(event.originator_id, event.originator_version, tuple(event.state))
    return tally


def test_the_repository_folds_our_events_and_starts_from_a_snapshot(log: Log) -> None:
    """`repository.get` gives the state at any version; after `take_snapshot` only the rest is read."""
    log.save(*(new("run/x", version, fact(f"p{version}")) for version in range(1, 6)))
    tally = log.repository.get("run/x", projector_func=project)
    assert (tally.version, tally.principals) == (5, ("p1", "p2", "p3", "p4", "p5"))
    assert log.repository.get("run/x", version=2, projector_func=project).principals == ("p1", "p2")
    log.take_snapshot("run/x", projector_func=project)
    log.save(new("run/x", 6, fact("p6")))
    read: list[int] = []

    def counting(tally: Tally | None, events: Any) -> Tally | None:
        events = list(events)
        read.append(len(events))
        return project(tally, events)

    assert log.repository.get("run/x", projector_func=counting).principals[-1] == "p6"
    assert read == [2]  # the snapshot and one event


def test_saving_goes_through_the_one_append_function(log: Log) -> None:
    """`save` takes a guard and moves the guard row; versions in conflict are the library's error."""
    log.save(new(f"lease/{RESOURCE}", 1, granted(1)), guard=Vacant(RESOURCE, 0))
    log.save(new("run/x", 1, fact()), guard=Fence(RESOURCE, "A", 1))
    with pytest.raises(StaleFenceError):
        log.save(new("run/x", 2, fact()), guard=Fence(RESOURCE, "B", 1))
    with pytest.raises(IntegrityError):
        log.save(new("run/x", 1, fact()))
    assert [n.id for n in log.notification_log["1,10"].items] == [1, 2]
    assert [r.notification.id for r in log.save(new("run/x", 2, fact()))] == [3]


def test_subscriptions_deliver_our_events(log: Log) -> None:
    """What a subscription delivers maps back to the event, with its place and metadata."""
    log.append_blocking(append_of(1))
    with log.recorder.subscribe(gt=0) as subscription:
        first = log.mapper.to_domain_event(next(subscription))
        log.append_blocking(append_of(2))
        second = log.mapper.to_domain_event(next(subscription))
    assert [first, second] == list(log.read_log(0, 10))


def test_the_environment_is_not_read(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's settings in `os.environ` change nothing."""
    monkeypatch.setenv("PERSISTENCE_MODULE", "eventsourcing.sqlite")
    monkeypatch.setenv("FINAZ_CIPHER_KEY", "x")
    monkeypatch.setenv("CREATE_TABLE", "y")
    with opened(database) as log:
        assert dict(log.env) == {"CREATE_TABLE": "n", "IS_SNAPSHOTTING_ENABLED": "y"}
        assert log.append_blocking(append_of(1)).position == 1


def test_tracking_of_the_library_is_ours(log: Log) -> None:
    """`Tracking` of the library and of the ports name the same row."""
    recorder = log.recorder
    assert isinstance(recorder, LogRecorder)
    recorder.insert_tracking(Tracking("reader", 7))
    assert recorder.max_tracking_id("reader") == 7


def append_of(version: int) -> Append:
    return Append(events=(new("run/x", version, fact(f"p{version}")),))
