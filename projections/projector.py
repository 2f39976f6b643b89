"""The projector: runs the asynchronous projections of one process, a thread each, and passes wake-ups on to them.

What must stay true: one projection's trouble never touches another's; a lost wake-up costs at most a poll; `stop` returns within
its time whatever the database does. Several projectors may run: each projection is worked on by one of them, the others stand by.
A crash leaves what each runner leaves.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from projections.position import Progress
from projections.postgres import PostgresSession, RowStore
from projections.registry import PROJECTIONS
from projections.runner import RETRY_SECONDS, Report, Runner, unheard

BATCH_STOP_SECONDS_MAX: Final = 15.0
"""Seconds that runners may take to end their batch; then it is cut off, undone and repeated later."""

CUT_OFF_SECONDS_MAX: Final = 2.0
"""Seconds that a runner that was cut off may take to end, before `stop` returns without it."""

WakeUps = Callable[[], Iterator[None]]
"""Gives an iterator that yields whenever the log may have grown, and at least every few seconds (`Waker.wakes` of the store)."""


class Projector:
    """Starts, wakes and stops runners. Use it in a `with`, or call `start` and `stop`."""

    def __init__(self, runners: Sequence[Runner], wake_ups: WakeUps | None = None) -> None:
        self.runners = tuple(runners)
        self._wake_ups = wake_ups
        self._stopping = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every runner in a thread of its own."""
        for runner in self.runners:
            self._threads[runner.name] = threading.Thread(
                target=runner.run, name=f"finaz-projection-{runner.name}", daemon=True
            )
        for thread in self._threads.values():
            thread.start()
        if self._wake_ups is not None:
            threading.Thread(target=self._pass_on, name="finaz-projection-wake-ups", daemon=True).start()

    def wake(self) -> None:
        """The log may have grown: every runner looks now."""
        for runner in self.runners:
            runner.wake()

    def stop(
        self, batch_seconds: float = BATCH_STOP_SECONDS_MAX, cut_off_seconds: float = CUT_OFF_SECONDS_MAX
    ) -> tuple[str, ...]:
        """End all runners after the batch at hand; those that need longer than `batch_seconds` by cancelling it.

        Returns the names of those that had to be cut off, ended or not: what a thread holds ends with the process.
        """
        self._stopping.set()
        for runner in self.runners:
            runner.stop()
        self._join(batch_seconds)
        late = [runner for runner in self.runners if self._threads[runner.name].is_alive()]
        # In threads: a server that hangs must not hold this up.
        cutters = [threading.Thread(target=runner.interrupt, daemon=True) for runner in late]
        for cutter in cutters:
            cutter.start()
        if late:
            until = time.monotonic() + cut_off_seconds
            self._join(cut_off_seconds)
            for cutter in cutters:
                cutter.join(max(0.0, until - time.monotonic()))
        return tuple([runner.name for runner in late])

    def progress(self) -> dict[str, Progress | None]:
        """What each runner did last, by name; None for one that stands by or is reconnecting."""
        return {runner.name: runner.progress for runner in self.runners}

    def _join(self, seconds_max: float) -> None:
        until = time.monotonic() + seconds_max
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _pass_on(self) -> None:
        """Wake the runners as long as wake-ups come; when they end in an error, ask for them again."""
        assert self._wake_ups is not None
        failures = 0
        while not self._stopping.is_set():
            try:
                for _ in self._wake_ups():
                    if self._stopping.is_set():
                        return
                    failures = 0
                    self.wake()
            except Exception:  # the runners poll meanwhile
                failures += 1
            self._stopping.wait(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])


def projector(
    dsn: str, owner: str, wake_ups: WakeUps | None = None, report: Report = unheard, names: Sequence[str] = ()
) -> Projector:
    """The projector of these asynchronous projections (none: all). `owner` is new at every start of a process."""
    runners = [
        Runner(projection.model, partial(PostgresSession, dsn, projection.model, projection.rows, owner), report=report)
        for projection in PROJECTIONS.values()
        if isinstance(projection.rows, RowStore) and (not names or projection.name in names)
    ]
    return Projector(runners, wake_ups)
