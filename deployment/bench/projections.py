"""Projections: how fast they are rebuilt, against reading the same events bare, and how much that slows live writers.

A trial reads every event of a projection's categories without decoding it, then rebuilds the projection from nothing (folding,
writing, building the indexes, the switch), in the same log, back to back. Writers are measured in turns with nothing going on and
with one rebuild after another going on in a process of its own, as a job's runner has it: a few callers that submit as fast as they
are answered up to a stated rate, which is how a system that is not at its limit looks.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import psycopg

from deployment.bench.contenders import fresh_database, python_of, trial_in
from deployment.bench.figures import aim, answer, figure, percentile, ratio
from deployment.bench.growth import EVENTS_OF_A_RUN, lengthen
from deployment.bench.own import OWN
from deployment.bench.registry import Report
from deployment.components import JOBS_NICE
from deployment.embedded import EmbeddedPostgres
from domain.identity import run_stream
from domain.runs.messages import RunCancellationRequested
from projections.inline import INLINE
from projections.postgres import LogSession
from projections.rebuilding.opening import rebuild_blocking
from projections.rebuilding.postgres import REBUILD_EVENTS_MAX
from projections.registry import PROJECTIONS
from services.ports import Append, NewEvent
from services.store.application import Log

EVENTS: Final = 200_000
"""Events in the log at scale 1."""

EVENTS_MIN: Final = 2_000

NAMES: Final = ("runs", "publications", "leases", "outbox", "lease_guard")
"""Projections that a log of runs fills."""

RATIO_AIM: Final = 0.3
"""A third of a bare read."""

SLOWED_AIM: Final = 0.9
"""Live writers keep nine tenths of what they do undisturbed."""

WRITERS: Final = 8
"""Callers, each with one append under way."""

APPENDS_PER_SECOND: Final = 400
"""What all writers together submit, at most."""

WRITING_SECONDS: Final = 6.0
"""Length of one turn of the writers at scale 1."""

WRITING_SECONDS_MIN: Final = 0.5

BUILDERS_NICE: Final = JOBS_NICE
"""As `finaz jobs` does."""

_BUILDER: Final = """
import os, sys
from projections.rebuilding.opening import rebuild_blocking
from projections.registry import PROJECTIONS
os.nice(int(sys.argv[2]))
rebuilt = 0
while True:
    rebuild_blocking(sys.argv[1], PROJECTIONS[sys.argv[3]], f"bench-{os.getpid()}-{rebuilt}")
    rebuilt += 1
    print(rebuilt, flush=True)
"""


_END_SESSIONS: Final = (
    b"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a WHERE a.application_name LIKE 'finaz projection %'"
)


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of each projection, then of writers with and without a rebuild; see `registry.py`."""
    bare: dict[str, list[float]] = {name: [] for name in NAMES}
    rebuilt: dict[str, list[float]] = {name: [] for name in NAMES}
    with EmbeddedPostgres() as server, fresh_database(server) as dsn:
        trial_in(dsn, OWN, python_of(OWN, report), EVENTS_OF_A_RUN, prefix="template-")
        mark = lengthen(dsn, max(EVENTS_MIN, round(EVENTS * scale)))
        report(f"projections: {mark:,} events in the log")
        for repeat in range(repeats):
            for name in NAMES:
                count, seconds = _read_bare(dsn, name, mark)
                bare[name].append(count / seconds)
                rebuilt[name].append(count / _rebuild(dsn, name))
                report(
                    f"projections {repeat + 1}/{repeats}: {name} {rebuilt[name][-1]:,.0f} of {bare[name][-1]:,.0f}/s"
                )
        alone, beside = _writers(dsn, repeats, max(WRITING_SECONDS_MIN, WRITING_SECONDS * scale), report)
    return _answer(mark, bare, rebuilt, alone, beside)


def _read_bare(dsn: str, name: str, mark: int) -> tuple[int, float]:
    """Events of the projection's categories, and the seconds that reading them took."""
    session = LogSession(dsn, PROJECTIONS[name].model)
    try:
        began, count, position = time.perf_counter(), 0, 0
        while True:
            found = session.read(position, mark, REBUILD_EVENTS_MAX)
            count += len(found)
            if len(found) < REBUILD_EVENTS_MAX:
                return count, time.perf_counter() - began
            position = found[-1].position
    finally:
        session.close()


def _rebuild(dsn: str, name: str) -> float:
    began = time.perf_counter()
    rebuild_blocking(dsn, PROJECTIONS[name], f"bench-{uuid4().hex}")
    return time.perf_counter() - began


class _Turn:
    """What the writers did in one turn: appends a second, and how long the slow ones took."""

    def __init__(self, latencies: Sequence[float], seconds: float) -> None:
        self.rate = len(latencies) / seconds
        self.p50_ms = percentile(latencies, 0.5) * 1000
        self.p99_ms = percentile(latencies, 0.99) * 1000


def _writers(dsn: str, repeats: int, seconds: float, report: Report) -> tuple[list[_Turn], list[_Turn]]:
    """Turns of the writers: undisturbed, and beside rebuilds of `runs`."""
    alone, beside = [], []
    for repeat in range(repeats):
        alone.append(asyncio.run(_turn(dsn, seconds)))
        with _builder(dsn, "runs"):
            beside.append(asyncio.run(_turn(dsn, seconds)))
        report(f"projections {repeat + 1}/{repeats}: writers {beside[-1].rate:.0f} of {alone[-1].rate:.0f} appends/s")
    return alone, beside


async def _turn(dsn: str, seconds: float) -> _Turn:
    latencies: list[float] = []
    log = Log(dsn, INLINE)
    try:
        began = time.perf_counter()
        await asyncio.gather(*(_write(log, began + seconds, latencies) for _ in range(WRITERS)))
        return _Turn(latencies, time.perf_counter() - began)
    finally:
        await asyncio.to_thread(log.close)


async def _write(log: Log, until: float, latencies: list[float]) -> None:
    """One caller: an append, and a pause that keeps all of them to the stated rate."""
    stream, version = run_stream(f"run_{uuid4().hex}{uuid4().hex}"), 0
    pause = WRITERS / APPENDS_PER_SECOND
    while (began := time.perf_counter()) < until:
        version += 1
        event = RunCancellationRequested(run_id=stream, principal="bench")
        await log.append(Append(events=(NewEvent(f"bench/{stream}", version, event, uuid4()),)))
        ended = time.perf_counter()
        latencies.append(ended - began)
        await asyncio.sleep(max(0.0, pause - (ended - began)))


@contextlib.contextmanager
def _builder(dsn: str, name: str) -> Iterator[None]:
    """One rebuild after another, in a process of its own."""
    command = [sys.executable, "-c", _BUILDER, dsn, str(BUILDERS_NICE), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # the first one is done: all is loaded
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        _forget_copy(dsn, name)


def _forget_copy(dsn: str, name: str) -> None:
    """What the killed process left is dropped by the next rebuild; wait until its session is gone."""
    with psycopg.connect(dsn, autocommit=True) as connection, contextlib.suppress(psycopg.Error):
        connection.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'finaz projection %'"
        )
    rebuild_blocking(dsn, PROJECTIONS[name], f"bench-{os.getpid()}-{uuid4().hex}")


def _answer(
    mark: int,
    bare: dict[str, list[float]],
    rebuilt: dict[str, list[float]],
    alone: Sequence[_Turn],
    beside: Sequence[_Turn],
) -> dict[str, Any]:
    rates, disturbed = [turn.rate for turn in alone], [turn.rate for turn in beside]
    figures = []
    for name in NAMES:
        figures.append(figure(f"{name}, read bare", bare[name], "events/s"))
        told = ratio(rebuilt[name], bare[name])
        figures.append(figure(f"{name}, rebuilt", rebuilt[name], "events/s", ratio=told, against="read bare"))
    figures += [
        figure("writers, undisturbed", rates, "appends/s"),
        figure(
            "writers, beside rebuilds", disturbed, "appends/s", ratio=ratio(disturbed, rates), against="undisturbed"
        ),
        figure("an append, undisturbed, p50", [turn.p50_ms for turn in alone], "ms"),
        figure("an append, beside rebuilds, p50", [turn.p50_ms for turn in beside], "ms"),
        figure("an append, undisturbed, p99", [turn.p99_ms for turn in alone], "ms"),
        figure("an append, beside rebuilds, p99", [turn.p99_ms for turn in beside], "ms"),
    ]
    aims = [
        aim(f"rebuilding {name}, to a bare read", ratio(rebuilt[name], bare[name]), at_least=RATIO_AIM)
        for name in NAMES
    ]
    aims.append(aim("writers beside rebuilds, to undisturbed", ratio(disturbed, rates), at_least=SLOWED_AIM))
    return answer(
        f"{mark:,} events: how many events/s does a rebuild fold, against reading them bare, and what do {WRITERS} writers of "
        f"{APPENDS_PER_SECOND} appends/s together lose by it?",
        figures,
        aims,
        [
            "A rebuild is measured whole: table, rows, indexes, switch. The comparison with the served copy is not part of it."
        ],
        events=mark,
    )
