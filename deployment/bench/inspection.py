"""What looking at the log costs, as the log grows: each kind of look, at ten thousand, a hundred thousand, a million events.

Three logs, one of each length, are looked at in turns: what else the machine does then slows all of them. Beside the times stand
the blocks that the database touches in one look of each kind, which depend on nothing else.
"""

import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from psycopg.conninfo import conninfo_to_dict

from deployment.bench.contenders import fresh_database
from deployment.bench.figures import aim, answer, figure, median, percentile, ratio
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
    "by topic and principal": lambda look, known: look.search(Search(topics=("run.started.v1",), principal="bench")),
    "what one of two never did": lambda look, known: look.search(Search(topics=("run.failed.v1",), principal="bench")),
    "by kind of stream": lambda look, known: look.search(Search(stream_prefix="lease/", backward=True)),
}


def _id(known: _Known) -> UUID:
    event_id: UUID = known.any().event_id
    return event_id


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Looks at three logs of one past, of different lengths, in turns; see `registry.py`."""
    with EmbeddedPostgres() as server, fresh_database(server) as short, ExitStack() as stack:
        migrate(short)
        with tempfile.TemporaryDirectory() as folder:
            append_past(short, 20, DirectoryBlobStore(Path(folder)))
        looked_at: dict[int, _Looked] = {}
        for size in EVENTS:
            dsn = stack.enter_context(fresh_database(server, str(conninfo_to_dict(short)["dbname"])))
            events = lengthen(dsn, max(EVENTS_MIN, round(size * scale)))
            report(f"inspection: {events:,} events in the log")
            looked_at[events] = _Looked(dsn, stack)
        seconds: dict[int, dict[str, list[list[float]]]] = {
            events: {name: [[] for _ in range(repeats)] for name in LOOKED} for events in looked_at
        }
        for name, look in LOOKED.items():
            for repeat in range(repeats):
                for _ in range(LOOKS):
                    for events, looked in looked_at.items():
                        seconds[events][name][repeat].append(looked.timed(look))
            report(f"inspection: {name}")
        blocks = {
            events: {name: looked.blocks(look) for name, look in LOOKED.items()} for events, looked in looked_at.items()
        }
    return _answer(seconds, blocks)


class _Looked:
    """One log, looked at."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        pool = Pool(dsn, 2)
        stack.callback(pool.close)
        self._inspection = Inspection(pool)
        self._known = _Known(self._inspection, random.Random(1))
        self._counted = _Counted(pool)
        for look in LOOKED.values():
            for _ in range(10):  # statements are prepared after a few
                look(self._inspection, self._known)

    def timed(self, look: Look) -> float:
        """Seconds of one look."""
        began = time.perf_counter()
        look(self._inspection, self._known)
        return time.perf_counter() - began

    def blocks(self, look: Look) -> int:
        """Blocks of 8 KiB that the database touches in one look, wherever they were."""
        self._counted.blocks = 0
        look(Inspection(self._counted), self._known)
        return self._counted.blocks


class _Counted:
    """Reads as the pool does, and counts the blocks that each statement touches."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.blocks = 0

    def rows(self, statement: str, arguments: Any = ()) -> list[Any]:
        ((plans,),) = self._pool.rows("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, arguments)
        self.blocks += sum(plans[0]["Plan"][f"Shared {how} Blocks"] for how in ("Hit", "Read"))
        return self._pool.rows(statement, arguments)


def _answer(
    seconds: Mapping[int, Mapping[str, list[list[float]]]], blocks: Mapping[int, Mapping[str, int]]
) -> dict[str, Any]:
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
        name: ratio([median(repeat) for repeat in seconds[longest][name]], [median(r) for r in seconds[shortest][name]])
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
        blocks={f"{events:,} events": dict(kinds) for events, kinds in blocks.items()},
    )


def _repeats(kinds: Mapping[str, list[list[float]]]) -> int:
    return len(next(iter(kinds.values())))
