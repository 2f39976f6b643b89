"""Serves STREAM runs that nobody types a command for: takes queued ones and those whose owner is gone, a few at once.

Each run has a thread and an owner id of its own, and the same claim, lease and fence as a worker started by hand: several
servers and workers may be at it, one gets the run. What must stay true: no more runs than slots; a run that could not be gone
on with is left alone for a growing time, so that it does not spin; `stop` hands all runs back in bounded time. A crash leaves
RUNNING runs whose leases expire.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from domain.errors import FinazError, InfrastructureError, RunCancelledError, RunFailedError
from domain.stream.errors import StreamFenceStaleError, StreamLeaseHeldError
from services.stream_parts import OnStreamEvent, StreamEvent, StreamOutcome, no_listener

COOLING_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How long a run is left alone after the first, second, … time that it could not be gone on with; the last one repeats."""

COOLING_RUNS_MAX: Final = 10_000
"""Runs whose cooling is remembered; more are forgotten, the oldest first, and tried again at once."""

LOOK_RUNS: Final = 50
"""Runs that one look asks for besides the free slots, since some of them may be cooling."""

HAND_BACK_SECONDS_MAX: Final = 20.0
"""How long `run` waits for its runs to be handed back after `stop`."""

_log: Final = logging.getLogger("finaz.stream_worker")

_OTHERS_WON: Final = (StreamLeaseHeldError, StreamFenceStaleError)
_ENDED: Final = (RunFailedError, RunCancelledError)


class UnownedRuns(Protocol):
    """Which runs may be had. Implemented by `services.store.stream_queue.StreamQueue`."""

    def unowned(self, limit: int) -> Sequence[str]:
        """The ids of up to `limit` runs that nobody owns now, in queue order: a hint. Raises `StoreUnavailableError`."""
        ...


class Owner(Protocol):
    """What works on one run: a `StreamWorker` under an owner id of its own."""

    def run(self, run_id: str, stop: threading.Event) -> StreamOutcome: ...


class StreamServer:
    """One server. `make_owner` gives a worker under a new owner id for each run."""

    def __init__(
        self,
        runs: UnownedRuns,
        make_owner: Callable[[], Owner],
        slots: int,
        poll_seconds: float = 1.0,
        tell: OnStreamEvent = no_listener,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._make_owner = make_owner
        self._slots = slots
        self._poll_seconds = poll_seconds
        self._tell = tell
        self._monotonic = monotonic
        self._threads: dict[str, threading.Thread] = {}
        self._cooling: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()

    @property
    def in_flight(self) -> int:
        """Runs that are worked on."""
        with self._lock:
            return len(self._threads)

    def wake(self) -> None:
        """Look now. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Hand all runs back; `run` returns then. From any thread."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.run_once()
            except InfrastructureError as error:
                self._tell(StreamEvent(name="stream.away", detail=str(error), error=error))
            except Exception as error:
                _log.exception("a look for runs failed")
                self._tell(StreamEvent(name="stream.defect", detail=str(error), error=error))
            self._wake.wait(self._poll_seconds)
        self.drained(HAND_BACK_SECONDS_MAX)

    def run_once(self) -> int:
        """Start working on what can be had, as far as there are slots. How many were started."""
        free = self._slots - self.in_flight
        if free <= 0 or self._stop.is_set():
            return 0
        wanted = [run_id for run_id in self._runs.unowned(free + LOOK_RUNS) if self._may_start(run_id)][:free]
        for run_id in wanted:
            thread = threading.Thread(target=self._serve, args=(run_id,), name="finaz-stream-run", daemon=True)
            with self._lock:
                self._threads[run_id] = thread
            thread.start()
        return len(wanted)

    def drained(self, seconds: float) -> bool:
        """Whether all runs were left within the time."""
        until = self._monotonic() + seconds
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, until - self._monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _may_start(self, run_id: str) -> bool:
        with self._lock:
            _, until = self._cooling.get(run_id, (0, float("-inf")))
            return run_id not in self._threads and self._monotonic() >= until

    def _serve(self, run_id: str) -> None:
        try:
            self._make_owner().run(run_id, self._stop)
            self._cool(run_id, well=True)
        except (*_OTHERS_WON, *_ENDED) as error:
            _log.info("left %s: %s", run_id, error)
            self._cool(run_id, well=True)
        except FinazError as error:
            _log.warning("%s could not be gone on with: %s", run_id, error)
            self._cool(run_id, well=False)
        except Exception:
            _log.exception("unexpected end of the work on %s", run_id)
            self._cool(run_id, well=False)
        finally:
            with self._lock:
                self._threads.pop(run_id, None)
            self.wake()

    def _cool(self, run_id: str, *, well: bool) -> None:
        with self._lock:
            times, _ = self._cooling.pop(run_id, (0, 0.0))
            if well:
                return
            seconds = COOLING_SECONDS[min(times, len(COOLING_SECONDS) - 1)]
            self._cooling[run_id] = (times + 1, self._monotonic() + seconds)
            if len(self._cooling) > COOLING_RUNS_MAX:
                del self._cooling[next(iter(self._cooling))]
