"""Growth: what runs end to end and idle pick-up cost when the log holds ten thousand, a hundred thousand, a million events.

The past is finished runs, seven events each, copied from one that was really executed. `appends` shows the same for bare appends.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from deployment.bench.contenders import Trial, fresh_database, python_of, trial_in
from deployment.bench.figures import aim, answer, figure, percentile, ratio
from deployment.bench.own import OWN
from deployment.bench.pickup import PAUSE_SECONDS
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from projections.statements import statements

EVENTS: Final = (10_000, 100_000, 1_000_000)
"""Events in the log before the trials, at scale 1."""

EVENTS_MIN: Final = 200

EVENTS_OF_A_RUN: Final = 7

JOBS: Final = 1000
"""Runs of one trial at scale 1."""

PICKUPS: Final = 100
"""Runs of one pick-up trial at scale 1."""

JOBS_MIN: Final = 10

RATIO_AIM: Final = 1.5
"""Times that a cost may grow from the shortest log to the longest."""

_SQL: Final = statements("deployment.bench", "growth_fill.sql")


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of ours in one log that is lengthened between them; see `registry.py`."""
    python = python_of(OWN, report)
    jobs, pickups = max(JOBS_MIN, round(JOBS * scale)), max(JOBS_MIN, round(PICKUPS * scale))
    rates: dict[int, list[Trial]] = {}
    waits: dict[int, list[Trial]] = {}
    with EmbeddedPostgres() as server, fresh_database(server) as dsn:
        trial_in(dsn, OWN, python, JOBS_MIN, prefix="template-")
        for size in EVENTS:
            events = lengthen(dsn, max(EVENTS_MIN, round(size * scale)))
            report(f"growth: {events:,} events in the log")
            rates[events], waits[events] = measure(dsn, python, repeats, jobs, pickups, f"{events}-")
            report(f"growth: {rates[events][-1].jobs_per_second:.0f} runs/s with {events:,} events before")
    return _answer(rates, waits, jobs, pickups)


def lengthen(dsn: str, events: int) -> int:
    """Give the log a past of at least so many events; how many it has."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        (run_id,) = connection.execute(_SQL["a_finished_run"].encode()).fetchone() or ("",)
        (before,) = connection.execute(_SQL["high_water_mark"].encode()).fetchone() or (0,)
        runs = max(0, -((before - events) // EVENTS_OF_A_RUN))
        plan = {"run_id": run_id, "first": before + 1, "last": before + runs}
        if runs:
            for name in ("fill_events", "fill_outbox", "fill_lease_guard"):
                connection.execute(_SQL[name].encode(), plan)
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
        (after,) = connection.execute(_SQL["high_water_mark"].encode()).fetchone() or (0,)
    return int(after)


def measure(
    dsn: str, python: Path, repeats: int, jobs: int, pickups: int, prefix: str
) -> tuple[list[Trial], list[Trial]]:
    """Trials end to end and of pick-up, alternating."""
    rates, waits = [], []
    for repeat in range(repeats):
        rates.append(trial_in(dsn, OWN, python, jobs, prefix=f"{prefix}{repeat}-"))
        waits.append(
            trial_in(dsn, OWN, python, pickups, pause_seconds=PAUSE_SECONDS, prefix=f"{prefix}{repeat}-singly-")
        )
    return rates, waits


def _answer(rates: dict[int, list[Trial]], waits: dict[int, list[Trial]], jobs: int, pickups: int) -> dict[str, Any]:
    seconds = {events: [done.total_seconds / done.jobs for done in each] for events, each in rates.items()}
    medians = {events: [percentile(done.since_acknowledged, 0.5) for done in each] for events, each in waits.items()}
    shortest, longest = min(rates), max(rates)
    return answer(
        f"What do {jobs} runs end to end and {pickups} idle pick-ups cost as the log grows?",
        [
            *(
                _figure(events, "end to end", each, 1e6, "µs/run", seconds[shortest])
                for events, each in seconds.items()
            ),
            *(_figure(events, "pick-up p50", each, 1e3, "ms", medians[shortest]) for events, each in medians.items()),
        ],
        [
            aim(
                f"{what}, {longest:,} events before to {shortest:,}",
                ratio(each[longest], each[shortest]),
                at_most=RATIO_AIM,
            )
            for what, each in (("runs end to end", seconds), ("idle pick-up p50", medians))
        ],
        jobs=jobs,
        pickups=pickups,
    )


def _figure(
    events: int, what: str, seconds: Sequence[float], factor: float, unit: str, shortest: Sequence[float]
) -> dict[str, Any]:
    values = [value * factor for value in seconds]
    return figure(f"{what}, {events:,} events before", values, unit, ratio=ratio(seconds, shortest))
