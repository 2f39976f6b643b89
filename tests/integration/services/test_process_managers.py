"""Process managers on a real PostgreSQL: nothing lost, nothing twice, whoever dies where."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from domain.errors import NotFoundError, RefusedError, StoreUnavailableError
from domain.events import Event, Recorded
from domain.identity import lease_stream, run_stream
from domain.leases.messages import LeaseGranted, LeaseRenewed
from domain.runs.messages import RunRequested, RunRequeued, RunStarted
from projections.projector import Projector
from projections.status import Projections
from services import faultpoints
from services.adapters.manager_runner import manager_runner
from services.adapters.manager_store import ManagerOperations
from services.ports import Append, Fence, NewEvent, Vacant
from services.process_managers.contract import Command, Deadline, Document, Retry, SetAside, Verdict, Want
from services.process_managers.orphan_recovery import OrphanRecovery
from services.store.application import Log
from tests.support.store import opened
from tests.support.worker_rig import requested

SECONDS_MAX = 20.0


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    """The real log."""
    with opened(database) as log:
        yield log


class Desk:
    """A manager's runner in its thread, and what it reported."""

    def __init__(self, dsn: str, log: Log, manager: Any, owner: str = "") -> None:
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.runner = manager_runner(
            dsn,
            log.pool,
            manager,
            owner or str(uuid4()),
            poll_seconds=0.05,
            report=lambda *what: self.reports.append(what),
        )
        self.projector = Projector([self.runner])

    def __enter__(self) -> "Desk":
        self.projector.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.projector.stop() == ()

    def names(self) -> list[str]:
        return [name for name, _ in self.reports]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about through the database, which sends the test no signal."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def request(log: Log, number: int = 0, **spec: Any) -> str:
    """Request a run as admission does."""
    event: RunRequested = requested(number, **spec)
    log.append_blocking(Append(events=(NewEvent(run_stream(event.run_id), 1, event, uuid4()),)))
    return event.run_id


def start(log: Log, run_id: str, token: int = 1, ttl_seconds: float = 0.2, owner: str = "gone") -> None:
    """Start the run under a new lease, as a worker does."""
    streams = log.read_streams_blocking([run_stream(run_id), lease_stream(run_id)]).streams
    run_version, lease_version = len(streams[run_stream(run_id)]), len(streams[lease_stream(run_id)])
    granted = LeaseGranted(resource=run_id, owner=owner, token=token, ttl_seconds=ttl_seconds)
    started = RunStarted(run_id=run_id, owner=owner, token=token, attempt=token)
    log.append_blocking(
        Append(
            events=(
                NewEvent(lease_stream(run_id), lease_version + 1, granted, uuid4()),
                NewEvent(run_stream(run_id), run_version + 1, started, uuid4()),
            ),
            guard=Vacant(run_id, token - 1),
        )
    )


def topics(log: Log, run_id: str) -> list[str]:
    """The topics of the run's stream."""
    events = log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)]
    return [recorded.event.topic for recorded in events]


def position(log: Log) -> int:
    """How far the manager has come."""
    ((reached,),) = log.pool.rows("SELECT position FROM finaz.projections WHERE name = 'orphan_recovery'")
    return int(reached)


def test_an_orphan_goes_back_to_the_queue_and_a_live_run_is_left_alone(database: str, log: Log) -> None:
    """Recovered once its lease has run out by the database's clock, and not before."""
    orphan, live = request(log, 1), request(log, 2)
    start(log, orphan)
    start(log, live, ttl_seconds=600.0)
    with Desk(database, log, OrphanRecovery(log)):
        until(lambda: RunRequeued.topic in topics(log, orphan))
    requeued = log.read_streams_blocking([run_stream(orphan)]).streams[run_stream(orphan)][-1]
    granted = log.read_streams_blocking([lease_stream(orphan)]).streams[lease_stream(orphan)][-1]
    assert (requeued.recorded_at - granted.recorded_at).total_seconds() >= 0.2
    assert topics(log, live) == [RunRequested.topic, RunStarted.topic]
    rows = log.pool.rows("SELECT key, state FROM finaz.outbox ORDER BY enqueued_position")
    assert rows == [(orphan, "pending"), (live, "claimed")]


def test_a_renewed_lease_moves_the_deadline(database: str, log: Log) -> None:
    """Only the last deadline of a lease is pending, and the run stays with its owner."""
    run_id = request(log)
    start(log, run_id, ttl_seconds=30.0, owner="A")
    with Desk(database, log, OrphanRecovery(log)) as desk:
        until(lambda: log.pool.rows("SELECT count(*) FROM finaz.manager_commands WHERE name = 'recover'") == [(1,)])
        before = log.pool.rows("SELECT due_at FROM finaz.manager_commands WHERE name = 'recover'")
        renewed = LeaseRenewed(resource=run_id, owner="A", token=1, ttl_seconds=30.0)
        wanted = Append(events=(NewEvent(lease_stream(run_id), 2, renewed, uuid4()),), guard=Fence(run_id, "A", 1))
        log.append_blocking(wanted)
        desk.runner.wake()
        until(lambda: log.pool.rows("SELECT due_at FROM finaz.manager_commands WHERE name = 'recover'") > before)
    assert log.pool.rows("SELECT count(*) FROM finaz.manager_commands WHERE name = 'recover'") == [(1,)]


def test_a_run_whose_worker_dies_again_and_again_ends_failed(database: str, log: Log) -> None:
    """Crashes count: after five the run is FAILED with ATTEMPTS_EXHAUSTED, and nobody picks it up again."""
    run_id = request(log)
    with Desk(database, log, OrphanRecovery(log)):
        for token in range(1, 6):
            start(log, run_id, token, ttl_seconds=0.05)
            until(lambda token=token: len(topics(log, run_id)) == 1 + 2 * token)  # type: ignore[misc]
    last = log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)][-1].event
    assert last.topic == "run.failed.v1"
    assert last.error.code == "ATTEMPTS_EXHAUSTED"  # type: ignore[attr-defined]
    assert log.pool.rows("SELECT state FROM finaz.outbox") == [("delivered",)]


def test_a_queued_run_ends_at_its_deadline_without_any_worker(database: str, log: Log) -> None:
    """DEADLINE_EXCEEDED, though nobody ever looked at it."""
    run_id = request(log, deadline_seconds=1)
    with Desk(database, log, OrphanRecovery(log)):
        until(lambda: len(topics(log, run_id)) == 2)
    last = log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)][-1].event
    assert last.error.code == "DEADLINE_EXCEEDED"  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the planted death
@pytest.mark.parametrize(
    "where",
    [faultpoints.COMMAND_BEFORE, faultpoints.APPEND_BEFORE, faultpoints.APPEND_AFTER, faultpoints.COMMAND_AFTER],
)
def test_a_crash_around_a_command_neither_loses_nor_repeats_it(database: str, log: Log, where: str) -> None:
    """The process dies at the point; its successor issues the command again, under the same ids."""
    run_id = request(log)
    start(log, run_id, ttl_seconds=0.05)
    died = threading.Event()

    def die(name: str) -> None:
        if name == where and not died.is_set():
            died.set()
            raise SystemExit  # ends the runner's thread as a kill would end its process: nothing catches it

    with faultpoints.armed(die), Desk(database, log, OrphanRecovery(log)):
        assert died.wait(SECONDS_MAX)
    with Desk(database, log, OrphanRecovery(log)):
        until(
            lambda: (
                log.pool.rows("SELECT state FROM finaz.manager_commands WHERE name = 'recover'") in ([], [("issued",)])
            )
        )
        until(lambda: RunRequeued.topic in topics(log, run_id))
    assert topics(log, run_id).count(RunRequeued.topic) == 1


def test_a_replay_from_position_0_issues_nothing_twice(database: str, log: Log) -> None:
    """Instances are made again from the log; what was issued is known by its id. Refused unless paused."""
    run_id = request(log)
    start(log, run_id, ttl_seconds=0.05)
    operations = ManagerOperations(log.pool)
    with Desk(database, log, OrphanRecovery(log)) as desk:
        until(lambda: RunRequeued.topic in topics(log, run_id))
        with pytest.raises(RefusedError):
            operations.replay("orphan_recovery")
        until(lambda: position(log) == log.high_water_mark())
        log.pool.rows("UPDATE finaz.projections SET state = 'paused' WHERE name = 'orphan_recovery'")
        before = log.pool.rows("SELECT key, state::text, deadlines::text FROM finaz.manager_instances")
        operations.replay("orphan_recovery")
        assert log.pool.rows("SELECT count(*) FROM finaz.manager_instances") == [(0,)]
        log.pool.rows("UPDATE finaz.projections SET state = 'running' WHERE name = 'orphan_recovery'")
        mark = log.high_water_mark()
        until(lambda: position(log) == mark)
        assert log.pool.rows("SELECT key, state::text, deadlines::text FROM finaz.manager_instances") == before
        assert desk.names().count("command_issued") == 1
    assert topics(log, run_id).count(RunRequeued.topic) == 1


def test_one_instance_works_and_the_other_takes_over(database: str, log: Log) -> None:
    """While the first lives the second stands by; when it stops, the second goes on from the same position."""
    with ExitStack() as first, ExitStack() as second:
        one = first.enter_context(Desk(database, log, OrphanRecovery(log), "one"))
        until(lambda: "projection_running" in one.names())
        two = second.enter_context(Desk(database, log, OrphanRecovery(log), "two"))
        until(lambda: "projection_standing_by" in two.names())
        run_id = request(log)
        start(log, run_id, ttl_seconds=0.05)
        until(lambda: RunRequeued.topic in topics(log, run_id))
        assert "command_issued" not in two.names()
        first.close()
        start(log, run_id, 2, ttl_seconds=0.05)
        until(lambda: topics(log, run_id).count(RunRequeued.topic) == 2)
        until(lambda: "command_issued" in two.names())


class Awkward:
    """A manager whose commands fail as the test wants; one command per requested run, and a deadline long past."""

    name = "orphan_recovery"  # a manager needs a row of its own in finaz.projections
    categories = ("run",)

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.error: Exception | None = None
        self.error_in_react: Exception | None = None
        self.verdict: Verdict = SetAside()

    def interested(self, event: Event) -> str | None:
        return event.run_id if isinstance(event, RunRequested) else None

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        if self.error_in_react is not None:
            raise self.error_in_react
        return (Command("do", {"key": recorded.stream}), Deadline("later", recorded.recorded_at, {"key": "late"}))

    def apply(self, state: Document, recorded: Recorded) -> Document:
        return {"seen": state.get("seen", 0) + 1}

    def execute(self, command: Command, command_id: UUID) -> None:
        self.executed.append(command.name)
        if self.error is not None:
            raise self.error

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        return Retry(0.01) if isinstance(self.verdict, Retry) and attempts < 3 else SetAside()


def test_what_fails_for_good_is_a_dead_letter_that_an_operator_revives_or_discards(database: str, log: Log) -> None:
    """Retried up to its limit, then set aside with its reason; the rest goes on; reviving tries it again."""
    request(log)
    manager, operations = Awkward(), ManagerOperations(log.pool)
    manager.error, manager.verdict = StoreUnavailableError("away"), Retry(0.01)
    with Desk(database, log, manager):
        until(lambda: len(operations.dead_letters()) == 2)
        assert sorted(manager.executed) == ["do"] * 3 + ["later"] * 3
        letters = {letter.name: letter for letter in operations.dead_letters("orphan_recovery")}
        assert "STORE_UNAVAILABLE: away" in (letters["do"].reason or "")
        assert letters["do"].attempts == 3
        manager.error = None
        operations.revive("orphan_recovery", letters["do"].command_id, "ops")
        until(lambda: len(operations.dead_letters()) == 1)
        operations.discard("orphan_recovery", letters["later"].command_id, "ops", "not needed any more")
        assert operations.dead_letters() == []
        with pytest.raises(NotFoundError):
            operations.revive("orphan_recovery", letters["later"].command_id, "ops")
        until(lambda: operations.pending("orphan_recovery") == (0, 0))
    assert manager.executed.count("do") == 4


def test_an_event_whose_reaction_fails_is_set_aside_and_the_rest_goes_on(database: str, log: Log) -> None:
    """It is named with its stream and version; it cannot be revived, only replayed; later events are reacted to."""
    run_id = request(log, 1)
    manager, operations = Awkward(), ManagerOperations(log.pool)
    manager.error_in_react = ValueError("no idea")
    with Desk(database, log, manager):
        until(lambda: len(operations.dead_letters()) == 1)
        (letter,) = operations.dead_letters()
        assert (letter.name, letter.reason) == ("react", "no idea")
        assert letter.document == {"stream": run_stream(run_id), "version": 1, "topic": RunRequested.topic}
        with pytest.raises(NotFoundError, match="by a replay"):
            operations.revive("orphan_recovery", letter.command_id, "ops")
        manager.error_in_react = None
        request(log, 2)
        until(lambda: sorted(manager.executed) == ["do", "later"])


def test_a_replay_reacts_to_what_could_not_be_reacted_to(database: str, log: Log) -> None:
    """With the fault gone, everything that the event calls for is done, once; the dead letter stays until it is discarded."""
    run_id = request(log, 1)
    manager, operations = Awkward(), ManagerOperations(log.pool)
    projections = Projections(log.pool)
    manager.error_in_react = ValueError("no idea")
    with Desk(database, log, manager):
        until(lambda: len(operations.dead_letters()) == 1)
        projections.pause(manager.name, "to be replayed", "ops")
        operations.replay(manager.name)
        assert position(log) == 0
        manager.error_in_react = None
        projections.resume(manager.name)
        until(lambda: sorted(manager.executed) == ["do", "later"])
        (letter,) = operations.dead_letters()
        assert letter.key == run_id
        operations.discard(manager.name, letter.command_id, "ops", "replayed")
    assert operations.dead_letters() == []


@pytest.mark.parametrize("zone", ["Europe/Paris", "Asia/Kolkata", "America/St_Johns"])
def test_deadlines_are_the_same_instants_in_any_time_zone(database: str, zone: str) -> None:
    """Server and sessions elsewhere: a deadline stands at the lease's expiry, what is due is recovered, what is not waits."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{connection.info.dbname}\" SET timezone = '{zone}'".encode())
    with opened(database) as log:
        orphan, live = request(log, 1), request(log, 2)
        start(log, orphan)
        start(log, live, ttl_seconds=600.0)
        with Desk(database, log, OrphanRecovery(log)):
            until(lambda: RunRequeued.topic in topics(log, orphan))
        granted = log.read_streams_blocking([lease_stream(live)]).streams[lease_stream(live)][-1]
        rows = log.pool.rows("SELECT due_at FROM finaz.manager_commands WHERE name = 'recover' AND state = 'pending'")
        assert [due_at - granted.recorded_at for (due_at,) in rows] == [timedelta(seconds=600)]
        assert topics(log, live) == [RunRequested.topic, RunStarted.topic]
