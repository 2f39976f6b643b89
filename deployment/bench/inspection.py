"""What looking at the log costs, as the log grows: each kind of look, at ten thousand, a hundred thousand, a million events."""

import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from deployment.bench.contenders import fresh_database
from deployment.bench.figures import aim, answer, figure, median, percentile
from deployment.bench.growth import lengthen
from deployment.bench.past import append_past
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from services.cas import DirectoryBlobStore
from services.inspection import Inspection, Search
from services.store.connections import Pool

EVENTS: Final = (10_000, 100_000, 1_000_000)
"""Events in the log, at scale 1."""

EVENTS_MIN: Final = 200

LOOKS: Final = 100
"""Looks of each kind in one repeat."""

SECONDS_AIM: Final = 0.05
"""For the 99th percentile of all looks, over the longest log."""

GROWTH_AIM: Final = 1.5
"""Times that the median of a kind of look may grow from the shortest log to the longest."""

Look = Callable[[Inspection, "_Known"], Any]


class _Known:
    """Streams, runs and events of the log, of which looks take any."""

    def __init__(self, inspection: Inspection, dice: random.Random) -> None:
        self._dice = dice
        page = inspection.search(Search(topics=("run.requested.v1",), backward=True), 500)
        early = inspection.search(Search(topics=("run.requested.v1",)), 500)
        self._events = [*page.items, *early.items]

    def any(self) -> Any:
        return self._dice.choice(self._events)


LOOKED: Final[Mapping[str, Look]] = {
    "streams, a page of 100": lambda look, known: look.streams(prefix="run/", limit=100),
    "one stream": lambda look, known: look.read(known.any().stream),
    "state": lambda look, known: look.state(known.any().stream),
    "difference": lambda look, known: look.difference(known.any().stream, 1, 2),
    "causes": lambda look, known: look.causes(_id(known)),
    "effects": lambda look, known: look.effects(_id(known)),
    "by topic": lambda look, known: look.search(Search(topics=("run.succeeded.v1",), backward=True)),
    "by correlation": lambda look, known: look.search(Search(correlation_id=known.any().correlation_id)),
    "by principal": lambda look, known: look.search(Search(principal="bench")),
    "by stream": lambda look, known: look.search(Search(stream_prefix=known.any().stream)),
    "by time": lambda look, known: look.search(Search(since=known.any().recorded_at)),
    "by topic and time": lambda look, known: look.search(
        Search(topics=("run.started.v1",), since=known.any().recorded_at)
    ),
}


def _id(known: _Known) -> UUID:
    event_id: UUID = known.any().event_id
    return event_id


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Looks at one log that is lengthened between them; see `registry.py`."""
    seconds: dict[int, dict[str, list[list[float]]]] = {}
    with EmbeddedPostgres() as server, fresh_database(server) as dsn, tempfile.TemporaryDirectory() as folder:
        migrate(dsn)
        append_past(dsn, 20, DirectoryBlobStore(Path(folder)))
        for size in EVENTS:
            events = lengthen(dsn, max(EVENTS_MIN, round(size * scale)))
            report(f"inspection: {events:,} events in the log")
            seconds[events] = _measured(dsn, repeats)
    return _answer(seconds)


def _measured(dsn: str, repeats: int) -> dict[str, list[list[float]]]:
    """Seconds of each look, by kind and repeat."""
    pool = Pool(dsn, 2)
    try:
        inspection = Inspection(pool)
        known = _Known(inspection, random.Random(1))
        for look in LOOKED.values():
            for _ in range(10):  # statements are prepared after a few
                look(inspection, known)
        return {name: [_timed(inspection, known, look) for _ in range(repeats)] for name, look in LOOKED.items()}
    finally:
        pool.close()


def _timed(inspection: Inspection, known: _Known, look: Look) -> list[float]:
    taken = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        look(inspection, known)
        taken.append(time.perf_counter() - began)
    return taken


def _answer(seconds: Mapping[int, Mapping[str, list[list[float]]]]) -> dict[str, Any]:
    shortest, longest = min(seconds), max(seconds)
    figures = []
    for events, kinds in seconds.items():
        every = [
            percentile([taken for kind in kinds.values() for taken in kind[n]], 0.99) for n in range(_repeats(kinds))
        ]
        figures.append(figure(f"all looks p99, {events:,} events", [value * 1e3 for value in every], "ms"))
        figures += [
            figure(f"{name} p50, {events:,} events", [median(repeat) * 1e3 for repeat in repeats], "ms")
            for name, repeats in kinds.items()
        ]
    worst = [
        percentile([taken for kind in seconds[longest].values() for taken in kind[n]], 0.99)
        for n in range(_repeats(seconds[longest]))
    ]
    growth = {
        name: median([median(repeat) for repeat in seconds[longest][name]])
        / median([median(repeat) for repeat in seconds[shortest][name]])
        for name in LOOKED
    }
    return answer(
        f"What does looking at the log cost, from {shortest:,} to {longest:,} events?",
        figures,
        [
            aim(f"seconds, p99 of all looks over {longest:,} events", median(worst), at_most=SECONDS_AIM),
            *(
                aim(f"{name}, {longest:,} events to {shortest:,}", value, at_most=GROWTH_AIM)
                for name, value in growth.items()
            ),
        ],
        [
            "The longer logs are copies of real runs, put in directly: their hashes are of no use, and looks do not need them."
        ],
    )


def _repeats(kinds: Mapping[str, list[list[float]]]) -> int:
    return len(next(iter(kinds.values())))
