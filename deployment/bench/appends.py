"""Appends: fenced appends through the group commit against the stock PostgreSQL recorder of `eventsourcing`, on one server.

Ours does all that it always does: encodes the event, checks the fence, keeps versions contiguous, moves the chain, notifies. The
stock recorder is given events that are encoded already, and checks nothing but uniqueness. One event per append on both sides.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import uvloop
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deployment.bench.figures import aim, answer, figure, ratio
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from domain.events import Metadata, encode
from domain.identity import lease_stream, run_stream
from domain.leases.messages import LeaseGranted
from domain.runs.messages import RunCancellationRequested
from projections.inline import INLINE
from services.ports import Append, Fence, NewEvent, Vacant
from services.store.application import Log

TRIAL_SECONDS: Final = 2.0
"""Length of one trial at scale 1."""

TRIAL_SECONDS_MIN: Final = 0.2

IN_FLIGHT: Final = (1, 8, 32, 256)
"""Callers of ours, each with one append under way."""

THREADS: Final = (1, 8, 32)
"""Callers of the stock recorder, which blocks: a thread each."""

GROWN_TO: Final = (10_000, 100_000, 1_000_000)
"""Events in the log before the trials that show how cost grows, at scale 1."""

AIM_256: Final = 20.0
AIM_8: Final = 2.0
AIM_GROWN: Final = 1.5
"""Appends/s: 256 in flight to stock at 32 threads; 8 to stock at 8; 10 thousand events in the log to a million."""

TTL_SECONDS: Final = 86_400.0


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of both, interleaved, then of ours in logs of growing length; see `registry.py`."""
    seconds = max(TRIAL_SECONDS_MIN, TRIAL_SECONDS * scale)
    ours: dict[int, list[float]] = {count: [] for count in IN_FLIGHT}
    stock: dict[int, list[float]] = {count: [] for count in THREADS}
    grown: dict[int, list[float]] = {}
    with EmbeddedPostgres() as server:
        own_dsn, stock_dsn = _database(server.dsn(), "ours"), _database(server.dsn(), "stock")
        migrate(own_dsn)
        with Log(own_dsn, INLINE) as log:
            measure_ours(log, IN_FLIGHT[-1], TRIAL_SECONDS_MIN)  # plans, caches, connections
            for repeat in range(repeats):
                for count in IN_FLIGHT:
                    ours[count].append(measure_ours(log, count, seconds))
                    if count in stock:
                        stock[count].append(measure_stock(stock_dsn, count, seconds))
                report(f"appends {repeat + 1}/{repeats}: " + _line(ours, stock))
        for size in GROWN_TO:
            events = max(1000, round(size * scale))
            dsn = _database(server.dsn(), f"grown_{size}")
            migrate(dsn)
            fill(dsn, events)
            with Log(dsn, INLINE) as log:
                measure_ours(log, IN_FLIGHT[-1], TRIAL_SECONDS_MIN)
                grown[events] = [measure_ours(log, IN_FLIGHT[-1], seconds) for _ in range(repeats)]
            report(f"appends: {grown[events][-1]:,.0f}/s with {events:,} events in the log")
    return _answer(ours, stock, grown, seconds)


def _answer(
    ours: dict[int, list[float]], stock: dict[int, list[float]], grown: dict[int, list[float]], seconds: float
) -> dict[str, Any]:
    smallest, largest = min(grown), max(grown)
    return answer(
        "Fenced appends per second by how many callers there are, against the stock recorder; and as the log grows.",
        [
            *(figure(f"ours, {count} in flight, fenced", each, "appends/s") for count, each in ours.items()),
            *(figure(f"stock, {count} threads, unfenced", each, "appends/s") for count, each in stock.items()),
            *(
                figure(f"ours, 256 in flight, {events:,} events before", each, "appends/s")
                for events, each in grown.items()
            ),
        ],
        [
            aim("256 in flight to stock at 32 threads", ratio(ours[256], stock[32]), at_least=AIM_256),
            aim("8 in flight to stock at 8 threads", ratio(ours[8], stock[8]), at_least=AIM_8),
            aim(
                f"{smallest:,} events before to {largest:,}",
                ratio(grown[smallest], grown[largest]),
                at_most=AIM_GROWN,
            ),
        ],
        ["Client and server share the machine; the stock recorder's events are encoded beforehand, ours are not."],
        seconds=seconds,
    )


def _line(ours: dict[int, list[float]], stock: dict[int, list[float]]) -> str:
    return ", ".join(
        [f"ours {count}: {each[-1]:,.0f}/s" for count, each in ours.items()]
        + [f"stock {count}: {each[-1]:,.0f}/s" for count, each in stock.items()]
    )


# -------------------------------------------------------------------- ours


def measure_ours(log: Log, in_flight: int, seconds: float) -> float:
    """Fenced appends per second of so many coroutines in one event loop, each with a run and a lease of its own."""
    return uvloop.run(_ours(log, in_flight, seconds))


async def _ours(log: Log, in_flight: int, seconds: float) -> float:
    run_ids = [f"run_{uuid4().hex}{index:032x}" for index in range(in_flight)]
    new_id = _ids()
    await asyncio.gather(*(log.append(_grant(run_id, new_id())) for run_id in run_ids))
    counts = [0] * in_flight
    began = time.perf_counter()
    deadline = began + seconds

    async def caller(index: int) -> None:
        run_id, version = run_ids[index], 0
        stream, fence = run_stream(run_id), Fence(run_id, "bench", 1)
        metadata = Metadata(correlation_id=run_id, principal="bench")
        while not version or time.perf_counter() < deadline:
            version += 1
            event = RunCancellationRequested(run_id=run_id, principal="bench")
            await log.append(
                Append(events=(NewEvent(stream, version, event, new_id()),), guard=fence, metadata=metadata)
            )
        counts[index] = version

    callers: list[Coroutine[Any, Any, None]] = [caller(index) for index in range(in_flight)]
    await asyncio.gather(*callers)
    return sum(counts) / (time.perf_counter() - began)


def _grant(run_id: str, event_id: UUID) -> Append:
    granted = LeaseGranted(resource=run_id, owner="bench", token=1, ttl_seconds=TTL_SECONDS)
    return Append(events=(NewEvent(lease_stream(run_id), 1, granted, event_id),), guard=Vacant(run_id, 0))


def _ids() -> Callable[[], UUID]:
    """Random ids without a system call each, as far as a benchmark needs them."""
    bits = random.Random(uuid4().int).getrandbits
    return lambda: UUID(int=bits(128))


# -------------------------------------------------------------------- stock


def measure_stock(dsn: str, threads: int, seconds: float) -> float:
    """Appends per second of so many threads through the stock recorder, one connection each."""
    parts = conninfo_to_dict(dsn)
    datastore = PostgresDatastore(
        dbname=str(parts["dbname"]),
        host=str(parts["host"]),
        port=str(parts.get("port", "")),
        user=str(parts["user"]),
        password="",
        pool_size=threads,
        originator_id_type="text",
    )
    with datastore:
        recorder = PostgresApplicationRecorder(datastore, events_table_name="stored_events")
        recorder.create_table()
        deadline = time.perf_counter() + seconds
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as executor:
            counts = list(executor.map(lambda _: _stock(recorder, deadline), range(threads)))
        return sum(counts) / (time.perf_counter() - began)


def _stock(recorder: PostgresApplicationRecorder, deadline: float) -> int:
    run_id = f"run_{uuid4().hex}{0:032x}"
    stream, version = run_stream(run_id), 0
    state = encode(RunCancellationRequested(run_id=run_id, principal="bench"))
    while not version or time.perf_counter() < deadline:
        version += 1
        recorder.insert_events([StoredEvent(stream, version, RunCancellationRequested.topic, state)])
    return version


# -------------------------------------------------------------------- databases


def _database(maintenance: str, name: str) -> str:
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(maintenance, dbname=name)


_FILL: Final = """
INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, correlation_id, principal, state, chain)
SELECT n, 1, clock_timestamp(), gen_random_uuid(), 'run/run_' || md5(n::text) || md5((-n)::text), 'run.cancellation_requested.v1',
       'run_' || md5(n::text), 'bench', '{"principal":"bench","run_id":"run_' || md5(n::text) || md5((-n)::text) || '"}',
       sha256(n::text::bytea)
FROM generate_series(1, %s) AS n
"""


def fill(dsn: str, events: int) -> None:
    """Make a past: so many events in as many streams, put in directly (their chain values are of no use)."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FILL, (events,))
        connection.execute("VACUUM (ANALYZE) finaz.events")
        connection.execute("CHECKPOINT")
