"""Many writers and readers at once, and clients that stop: what must hold whatever the interleaving."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import psycopg
import pytest

from deployment.embedded import EmbeddedPostgres
from domain.errors import LeaseHeldError, StaleFenceError, StoreUnavailableError, VersionConflictError
from services.ports import Append, Fence, Tracking, Vacant
from services.store import connections
from services.store.application import Log
from tests.support.store import RESOURCE, fact, facts, granted, new, opened

CHECKOUT = Path(__file__).parents[4]


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


def test_of_a_hundred_threads_at_one_version_exactly_one_wins(database: str) -> None:
    """Over two committers, as two processes have: one append is stored, the other ninety-nine are version conflicts."""
    barrier = threading.Barrier(100)

    def attempt(log: Log) -> str:
        barrier.wait()
        try:
            log.append_blocking(facts("run/x", 1))
        except VersionConflictError:
            return "conflict"
        return "won"

    with opened(database) as one, opened(database) as other, ThreadPoolExecutor(100) as executor:
        outcomes = list(executor.map(attempt, [one, other] * 50))
        assert (outcomes.count("won"), outcomes.count("conflict")) == (1, 99)
        assert one.high_water_mark() == 1


def test_no_reader_ever_misses_a_position(database: str) -> None:
    """Tailing readers see 1, 2, 3, … without a gap while several processes' committers write single and double appends."""
    writers, appends = 3, 150
    total = writers * appends * 3 // 2

    def write(log: Log, number: int) -> None:
        for index in range(appends):
            stream = f"run/{number}.{index}"
            log.append_blocking(facts(stream, 1, 2) if index % 2 else facts(stream, 1))

    def tail(log: Log) -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            high = log.high_water_mark()
            page = [r.position for r in log.read_log(len(seen), 50)]
            assert page == list(range(len(seen) + 1, len(seen) + 1 + len(page)))
            assert len(seen) + len(page) >= min(high, len(seen) + 50)
            seen += page
        return seen

    with opened(database) as reading, ThreadPoolExecutor(8) as executor:
        tails = [executor.submit(tail, reading) for _ in range(3)]
        logs = [Log(database, reading.inline) for _ in range(writers)]
        for done in [executor.submit(write, log, number) for number, log in enumerate(logs)]:
            done.result()
        assert all(each.result() == list(range(1, total + 1)) for each in tails)
        for log in logs:
            log.close()


def test_takeovers_race_and_no_overtaken_owner_writes(database: str) -> None:
    """Owners claim a lease of a few milliseconds over and over; every stored fact carries the token current at its place."""
    owners, stop = 4, threading.Event()

    def own(log: Log, owner: str) -> None:
        while not stop.is_set():
            read = log.read_streams_blocking([f"lease/{RESOURCE}", "run/x"]).streams
            token = len(read[f"lease/{RESOURCE}"])
            claim = new(f"lease/{RESOURCE}", token + 1, granted(token + 1, owner, ttl_seconds=0.01))
            try:
                log.append_blocking(Append(events=(claim,), guard=Vacant(RESOURCE, token)))
                version = len(log.read_streams_blocking(["run/x"]).streams["run/x"])
                for _ in range(50):
                    version += 1
                    fenced = Append(
                        events=(new("run/x", version, fact(str(token + 1))),), guard=Fence(RESOURCE, owner, token + 1)
                    )
                    log.append_blocking(fenced)
            except (LeaseHeldError, StaleFenceError, VersionConflictError):
                continue

    with ThreadPoolExecutor(owners) as executor, opened(database) as one, opened(database) as other:
        running = [executor.submit(own, (one, other)[n % 2], f"owner-{n}") for n in range(owners)]
        while one.high_water_mark() < 200:
            threading.Event().wait(0.01)
        stop.set()
        for each in running:
            each.result()
        token, facts_seen = 0, 0
        for recorded in one.read_log(0, 100_000):
            if recorded.stream == "run/x":
                assert recorded.event.principal == str(token)  # type: ignore[attr-defined]
                facts_seen += 1
            else:
                assert recorded.event.token == token + 1  # type: ignore[attr-defined]
                token += 1
        assert token > 1
        assert facts_seen > 1


# -------------------------------------------------------------------- nobody stalls the log


@pytest.mark.parametrize("mode", ["SHARE UPDATE EXCLUSIVE", "ACCESS SHARE"])
def test_maintenance_does_not_stall_appends(log: Log, database: str, mode: str) -> None:
    """The locks that VACUUM, ANALYZE, CREATE INDEX CONCURRENTLY and pg_dump hold leave appending alone."""
    log.append_blocking(facts("run/x", 1))
    with psycopg.connect(database) as maintenance:
        for table in ("events", "lease_guard", "outbox", "tracking"):
            maintenance.execute(f"LOCK TABLE finaz.{table} IN {mode} MODE".encode())
        assert log.append_blocking(facts("run/x", 2)).position == 2


def test_an_index_built_concurrently_does_not_stall_appends(log: Log, database: str) -> None:
    """While CREATE INDEX CONCURRENTLY waits for an old transaction, appends go on; then the index gets done."""
    log.append_blocking(facts("run/x", 1))
    with psycopg.connect(database) as old, ThreadPoolExecutor(1) as executor:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM finaz.events")
        builder = psycopg.connect(database, autocommit=True)
        building = executor.submit(builder.execute, "CREATE INDEX CONCURRENTLY topics ON finaz.events (topic)")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%%' AND wait_event_type = 'Lock'"
        while not log.pool.rows(waiting)[0][0]:
            assert not building.done()
            threading.Event().wait(0.005)
        for version in range(2, 12):
            assert log.append_blocking(facts("run/x", version)).position == version
        assert log.pool.rows(waiting)[0][0] == 1
        old.rollback()
        building.result()
        builder.close()


CLIENT = """
import sys
from uuid import uuid4
from projections.inline import INLINE
from services.store.application import Log
from tests.support.store import facts
with Log(sys.argv[1], INLINE) as log:
    for number in range(1_000_000):
        log.append_blocking(facts(f"run/{uuid4()}", *range(1, 40)))
        print(number, flush=True)
"""


def test_a_stopped_client_stalls_nobody(log: Log, database: str) -> None:
    """A process is stopped (SIGSTOP) again and again in the midst of its appends; others append undisturbed each time."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, database], stdout=subprocess.PIPE, cwd=CHECKOUT, text=True, env={**os.environ}
    )
    try:
        assert process.stdout is not None
        for version in range(1, 11):
            _read_lines(process.stdout, 3)
            process.send_signal(signal.SIGSTOP)
            log.append_blocking(facts("run/mine", version))
            process.send_signal(signal.SIGCONT)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _read_lines(stream: IO[str], count: int) -> None:
    for _ in range(count):
        assert stream.readline()


# -------------------------------------------------------------------- a server that dies


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_nothing_acknowledged_is_lost_when_the_server_dies(
    mortal_postgres: EmbeddedPostgres, mortal_database: str, how: str
) -> None:
    """PostgreSQL is killed, or restarted, under load: every acknowledged append is there, once; writers go on by themselves."""
    acknowledged: dict[str, int] = {}
    stop = threading.Event()

    def write(log: Log, number: int) -> None:
        stream, version = f"run/{number}", 0
        while not stop.is_set():
            version += 1
            append = facts(stream, version)
            while True:
                try:
                    acknowledged[str(append.events[0].event_id)] = log.append_blocking(append).position
                    break
                except StoreUnavailableError:
                    continue  # the outcome is unknown: the same append again is safe

    def until(count: int) -> None:
        while len(acknowledged) < count:
            threading.Event().wait(0.01)

    with opened(mortal_database) as log, ThreadPoolExecutor(8) as executor:
        writers = [executor.submit(write, log, number) for number in range(8)]
        for _ in range(2):
            until(len(acknowledged) + 100)
            if how == "kill":
                mortal_postgres.kill()
                mortal_postgres.start()
            else:
                mortal_postgres.restart()
        until(len(acknowledged) + 100)
        stop.set()
        for each in writers:
            each.result()
        stored = {str(r.event_id): r.position for r in log.read_log(0, 1_000_000)}
        assert acknowledged.items() <= stored.items()
        assert sorted(stored.values()) == list(range(1, len(stored) + 1))


def test_a_row_held_for_ever_is_waited_for_only_so_long(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody forgot a transaction that holds a tracking row: its mover is told within a bound, and then the others go on."""
    monkeypatch.setattr(connections, "LOCK_SECONDS_MAX", 1)
    with opened(database, retry_seconds_max=0.1) as log, psycopg.connect(database) as forgotten:
        log.append_blocking(Append(events=(), tracking=Tracking("reader", 1)))
        forgotten.execute("UPDATE finaz.tracking SET moved_at = moved_at WHERE name = 'reader'")
        with pytest.raises(StoreUnavailableError):
            log.append_blocking(Append(events=(), tracking=Tracking("reader", 2)))
        assert log.append_blocking(facts("run/x", 1)).position == 1


def test_reading_has_a_bound_in_time(log: Log) -> None:
    """A statement that takes too long ends with a typed error, and is not tried again."""
    log.pool.rows("SET statement_timeout = 20")
    with pytest.raises(StoreUnavailableError, match="took more"):
        log.pool.rows("SELECT pg_sleep(60)")
