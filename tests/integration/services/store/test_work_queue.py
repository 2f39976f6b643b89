"""The outbox's rows follow the events, inline; and sharing its head by reservations."""

from collections.abc import Iterator, Sequence
from threading import Barrier, Thread

import psycopg
import pytest

from domain.events import Event
from domain.runs.messages import Mode, RequeueReason, RunRequested, RunRequeued, RunStarted, RunSucceeded
from services.ports import Append
from services.store.application import Log
from services.store.work_queue import OutboxQueue
from tests.support.store import new, opened, spec

LANE = Mode.BATCH.value


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def queue(log: Log) -> OutboxQueue:
    return OutboxQueue(log.pool)


def run_of(number: int) -> str:
    return f"run_{number:064d}"


def requested(number: int, priority: int = 0, mode: Mode = Mode.BATCH) -> Event:
    return RunRequested(
        run_id=run_of(number), principal="ana", spec=spec(priority, mode), body_hash="sha256:" + "c" * 64
    )


def started(number: int) -> Event:
    return RunStarted(run_id=run_of(number), owner="A", token=1, attempt=1)


def requeued(number: int, delay_seconds: float) -> Event:
    return RunRequeued(run_id=run_of(number), token=1, reason=RequeueReason.INFRASTRUCTURE, delay_seconds=delay_seconds)


def put(log: Log, number: int, version: int, *events: Event) -> int:
    news = tuple(new("run/" + run_of(number), version + index, event) for index, event in enumerate(events))
    return log.append_blocking(Append(events=news)).position


def reserve(queue: OutboxQueue, owner: str = "A", limit: int = 50, lanes: Sequence[str] = (LANE,)) -> list[int]:
    return [int(key[4:]) for key in queue.reserve_blocking("run", lanes, limit, owner, 60.0)]


def rows(log: Log) -> list[tuple[object, ...]]:
    return log.pool.rows(
        "SELECT key, lane, priority, state, enqueued_position, position, due_at - changed_at = interval '0'"
        " FROM finaz.outbox ORDER BY key"
    )


def test_rows_follow_the_events(log: Log) -> None:
    """Created pending by the request; claimed, pending again, delivered by what follows; place and lane stay."""
    put(log, 1, 1, requested(1, priority=3))
    assert rows(log) == [(run_of(1), LANE, 3, "pending", 1, 1, True)]
    put(log, 1, 2, started(1))
    assert rows(log) == [(run_of(1), LANE, 3, "claimed", 1, 2, True)]
    put(log, 1, 3, requeued(1, 5.0))
    assert rows(log) == [(run_of(1), LANE, 3, "pending", 1, 3, False)]
    put(log, 1, 4, started(1), RunSucceeded(run_id=run_of(1), token=1))
    assert rows(log) == [(run_of(1), LANE, 3, "delivered", 1, 5, True)]


def test_the_last_event_of_each_key_wins_within_one_append(log: Log) -> None:
    """Request, start, requeue and start in a single append leave one claimed row with the place of the request."""
    put(log, 1, 1, requested(1), started(1), requeued(1, 9.0), started(1))
    put(log, 2, 1, requested(2), started(2), requeued(2, 9.0))
    assert rows(log) == [
        (run_of(1), LANE, 0, "claimed", 1, 4, True),
        (run_of(2), LANE, 0, "pending", 5, 7, False),
    ]


def test_due_items_come_in_queue_order_and_only_once(log: Log, queue: OutboxQueue) -> None:
    """By priority, then by age; only pending, due, of the lanes asked for; nobody else gets them meanwhile."""
    for number, priority in enumerate([0, 5, 0, 9, 5], 1):
        put(log, number, 1, requested(number, priority))
    put(log, 6, 1, requested(6, 7, Mode.REPLAY))
    put(log, 7, 1, requested(7, 8), started(7))
    put(log, 8, 1, requested(8, 8), started(8), requeued(8, 60.0))
    assert reserve(queue, "A", 2) == [4, 2]
    assert reserve(queue, "B", lanes=(LANE, "REPLAY")) == [6, 5, 1, 3]
    assert reserve(queue, "A", lanes=(LANE, "REPLAY")) == []


def test_only_the_hint_itself_is_not_waited_for(log: Log, queue: OutboxQueue) -> None:
    """A reservation's commit leaves the disk to its own time; what the connection does next is as durable as ever."""
    put(log, 1, 1, requested(1))
    assert reserve(queue) == [1]
    assert log.pool.rows("SHOW synchronous_commit") == [("on",)]


def test_a_released_an_ended_and_a_changed_item_are_free_again(log: Log, queue: OutboxQueue) -> None:
    """Three ways out of a reservation: given back by its owner, run out, and the item has changed since."""
    for number in (1, 2, 3):
        put(log, number, 1, requested(number))
    assert reserve(queue, "A") == [1, 2, 3]
    queue.release_blocking("run", [run_of(1), run_of(2)], "B")  # not B's
    queue.release_blocking("run", [run_of(1)], "A")
    assert reserve(queue, "B") == [1]
    put(log, 2, 2, started(2), requeued(2, 0.0))
    assert reserve(queue, "B") == [2]
    log.pool.rows("UPDATE finaz.reservations SET reserved_until = clock_timestamp() - interval '2 minutes'")
    assert reserve(queue, "C", 2) == [1, 2]
    queue.sweep()
    assert log.pool.rows("SELECT key FROM finaz.reservations ORDER BY key") == [(run_of(1),), (run_of(2),)]


def test_workers_at_once_share_without_waiting(log: Log, queue: OutboxQueue) -> None:
    """Eight workers that reserve at the same moment never get an item twice, and together get all."""
    for number in range(40):
        put(log, number + 1, 1, requested(number + 1))
    barrier, got = Barrier(8), list[list[int]]()

    def work(owner: str) -> None:
        barrier.wait()
        while mine := reserve(queue, owner, 3):
            got.append(mine)

    threads = [Thread(target=work, args=(f"worker-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got.append(reserve(queue, "last"))
    assert sorted(number for mine in got for number in mine) == list(range(1, 41))


def test_an_item_that_an_append_is_changing_is_passed_over(log: Log, queue: OutboxQueue, database: str) -> None:
    """Reserving waits for no lock: a row held by another transaction is simply not among the candidates."""
    put(log, 1, 1, requested(1))
    put(log, 2, 1, requested(2))
    with psycopg.connect(database) as other:
        other.execute("UPDATE finaz.outbox SET priority = 1 WHERE key = %s", (run_of(1),))
        assert reserve(queue) == [2]
    assert reserve(queue) == [1]


def test_a_long_past_costs_nothing(log: Log, queue: OutboxQueue) -> None:
    """With 100 000 delivered rows before it, the head is found through the index of pending rows."""
    log.pool.rows(
        "INSERT INTO finaz.outbox SELECT 'run', 'old_' || n, 'BATCH', 9, 'delivered', n, now(), now(), n, now()"
        " FROM generate_series(1, 100000) AS n"
    )
    log.pool.rows("ANALYZE finaz.outbox")
    put(log, 1, 1, requested(1))
    explained = log.pool.rows(
        "EXPLAIN SELECT key FROM finaz.outbox WHERE kind = 'run' AND lane = 'BATCH' AND state = 'pending'"
        " AND due_at <= clock_timestamp() ORDER BY priority DESC, enqueued_position LIMIT 50"
    )
    assert any("outbox_pending_idx" in line for (line,) in explained)
    assert reserve(queue) == [1]
