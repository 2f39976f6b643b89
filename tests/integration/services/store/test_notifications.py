"""Wake-ups: they come, they come after a connection was lost, and waiting ends without them."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from domain.runs.messages import RunRequested
from services.ports import Append
from services.store.application import Log
from services.store.notifications import EVENTS, OUTBOX, Listener
from tests.support.store import RESOURCE, facts, new, opened, spec

PATIENT = 3600.0
"""Seconds of a poll interval that no test waits for: being woken is the only way out."""


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


def listening(log: Log) -> None:
    """Return when the listener has its connection and has woken everybody once."""
    with log.listener.waker() as waker:
        while not log.pool.rows("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND state = 'idle'"):
            waker.wait(0.01)


def requested() -> Append:
    run = RunRequested(run_id=RESOURCE, principal="ana", spec=spec(), body_hash="sha256:" + "c" * 64)
    return Append(events=(new("run/" + RESOURCE, 1, run),))


def test_an_append_wakes_who_waits_for_events_and_the_outbox_who_waits_for_work(log: Log) -> None:
    """Any append wakes `EVENTS`; only one that makes an outbox row pending wakes `OUTBOX`."""
    listening(log)
    with (
        log.listener.waker(EVENTS, poll_seconds=PATIENT) as events,
        log.listener.waker(OUTBOX, poll_seconds=PATIENT) as outbox,
    ):
        log.append_blocking(facts("run/x", 1))
        assert events.wait()
        assert not outbox.wait(0.0)
        log.append_blocking(requested())
        assert outbox.wait()
        assert events.wait()


async def test_waiting_in_an_event_loop(log: Log) -> None:
    """`wait_async` and `wakes_async` are woken by appends from elsewhere; the loop is not blocked meanwhile."""
    await asyncio.to_thread(listening, log)
    seen = 0
    with log.listener.waker(EVENTS, poll_seconds=PATIENT) as waker:
        async for _ in waker.wakes_async():
            seen = len(await asyncio.to_thread(log.read_log, 0, 10))
            if seen == 3:
                break
            await log.append(facts("run/x", seen + 1))
        assert seen == 3
        assert not await waker.wait_async(0.0) or not await waker.wait_async(0.0)


def test_waiting_ends_without_a_wake_up(tmp_path: Path) -> None:
    """With no server at all, whoever waits wakes at the poll interval."""
    listener = Listener(f"postgresql://postgres@/nowhere?host={tmp_path}")
    with listener.waker(poll_seconds=0.01) as waker:
        assert not waker.wait()
        assert not asyncio.run(waker.wait_async())
    listener.close()


def test_a_lost_connection_is_replaced_and_everybody_woken(log: Log, database: str) -> None:
    """The server ends the LISTEN session: when it is back, waiters wake (a NOTIFY may have been lost), and hear again."""
    listening(log)
    with log.listener.waker(EVENTS, poll_seconds=PATIENT) as waker:
        waker.wait(0.0)
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        assert waker.wait()
        log.append_blocking(facts("run/x", 1))
        assert waker.wait()


def test_closing_wakes_and_ends_everybody(log: Log) -> None:
    """A waiter whose waker or listener is closed does not sleep on; iterations end."""
    with ThreadPoolExecutor(2) as executor:
        waker = log.listener.waker(EVENTS, poll_seconds=PATIENT)
        counting = executor.submit(lambda: sum(1 for _ in waker.wakes()))
        waker.close()
        assert counting.result() >= 0
        last = log.listener.waker(EVENTS, poll_seconds=PATIENT)
        waiting = executor.submit(last.wait)
        log.listener.close()
        waiting.result()
    assert not [t for t in threading.enumerate() if t.name == "finaz-listener"]
