"""The stream server: no more runs than slots; runs that fail are left alone for a growing time; all are handed back at the end."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from domain.errors import RunCancelledError, RunFailedError, StoreUnavailableError
from domain.runs.aggregate import RunState
from domain.stream.errors import RecoveryBlockedError, StreamFenceStaleError, StreamLeaseHeldError
from services.stream_parts import StreamEnd, StreamOutcome
from services.stream_server import COOLING_RUNS_MAX, COOLING_SECONDS, StreamServer


class Market:
    """Runs to be had, and what becomes of whoever works on them."""

    def __init__(self, *run_ids: str) -> None:
        self.unowned_now = list(run_ids)
        self.worked: list[str] = []
        self.owners = 0
        self.behave: Callable[[str, threading.Event], Any] = lambda run_id, stop: None
        self.seconds = 0.0

    def unowned(self, limit: int) -> Sequence[str]:
        return self.unowned_now[:limit]

    def owner(self) -> "Market":
        self.owners += 1
        return self

    def run(self, run_id: str, stop: threading.Event) -> StreamOutcome:
        self.worked.append(run_id)
        self.behave(run_id, stop)
        return StreamOutcome(run_id=run_id, end=StreamEnd.STOPPED, state=RunState.RUNNING)

    def server(self, slots: int = 2, **more: Any) -> StreamServer:
        return StreamServer(self, self.owner, slots, 0.01, monotonic=lambda: self.seconds, **more)


def raising(error: Exception) -> Callable[[str, threading.Event], Any]:
    def behave(run_id: str, stop: threading.Event) -> None:
        raise error

    return behave


def test_no_more_runs_than_slots_each_under_an_owner_of_its_own() -> None:
    """Two of three are worked on; the third when one is done; none twice at once."""
    market = Market("a", "b", "c")
    going = threading.Event()
    market.behave = lambda run_id, stop: going.wait(20)
    server = market.server(slots=2)
    assert server.run_once() == 2
    assert server.run_once() == 0
    assert (server.in_flight, market.owners) == (2, 2)
    going.set()
    assert server.drained(20)
    market.unowned_now = ["c"]
    assert server.run_once() == 1
    assert server.drained(20)
    assert sorted(market.worked) == ["a", "b", "c"]


def test_a_run_that_cannot_be_gone_on_with_is_left_alone_for_a_growing_time() -> None:
    """1, 2, 5, 15, 60, 60 seconds; a success makes it count anew."""
    market = Market("a")
    market.behave = raising(RecoveryBlockedError("gone"))
    server = market.server()
    for seconds in (*COOLING_SECONDS, COOLING_SECONDS[-1]):
        assert server.run_once() == 1
        assert server.drained(20)
        market.seconds += seconds - 0.5
        assert server.run_once() == 0
        market.seconds += 0.5
    market.behave = lambda run_id, stop: None
    assert server.run_once() == 1
    assert server.drained(20)
    assert server.run_once() == 1
    assert server.drained(20)


def test_what_others_won_and_what_has_ended_needs_no_rest() -> None:
    """Somebody else's lease, a fence that was overtaken, a run that failed or was cancelled."""
    for error in (
        StreamLeaseHeldError("held"),
        StreamFenceStaleError("overtaken"),
        RunFailedError("failed"),
        RunCancelledError("cancelled"),
    ):
        market = Market("a")
        market.behave = raising(error)
        server = market.server()
        for _ in range(2):
            assert server.run_once() == 1
            assert server.drained(20)


def test_a_defect_in_a_run_ends_neither_the_server_nor_the_others() -> None:
    """An exception that nobody foresaw is one run's."""
    market = Market("a", "b")
    market.behave = lambda run_id, stop: (_ for _ in ()).throw(ZeroDivisionError()) if run_id == "a" else None
    server = market.server()
    assert server.run_once() == 2
    assert server.drained(20)
    assert sorted(market.worked) == ["a", "b"]


def test_a_limited_number_of_rests_is_remembered() -> None:
    """Beyond it the oldest is forgotten, and tried again at once."""
    market = Market()
    market.behave = raising(RecoveryBlockedError("gone"))
    server = market.server()
    for number in range(COOLING_RUNS_MAX + 1):
        server._cool(f"run-{number}", well=False)
    assert len(server._cooling) == COOLING_RUNS_MAX
    assert server._may_start("run-0")
    assert not server._may_start("run-1")


def test_it_serves_until_it_is_stopped_and_hands_back_then() -> None:
    """A store that is away is waited for; `stop` reaches every run."""
    market = Market("a", "b")
    looks: list[int] = []

    def unowned(limit: int) -> Sequence[str]:
        looks.append(limit)
        if len(looks) == 1:
            raise StoreUnavailableError("away")
        if len(looks) == 2:
            raise ZeroDivisionError
        return market.unowned_now

    market.unowned = unowned  # type: ignore[method-assign]
    handed: list[str] = []
    working = threading.Semaphore(0)

    def behave(run_id: str, stop: threading.Event) -> None:
        working.release()
        assert stop.wait(20)
        handed.append(run_id)

    market.behave = behave
    told: list[str] = []
    server = market.server(tell=lambda event: told.append(event.name))
    thread = threading.Thread(target=server.run)
    thread.start()
    for _ in range(2):
        assert working.acquire(timeout=20)
    server.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert sorted(handed) == ["a", "b"]
    assert told[:2] == ["stream.away", "stream.defect"]
