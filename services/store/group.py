"""Group work: requests of many callers are carried out together, by one thread.

The thread takes whatever has queued while it was busy with the last group, and waits for nothing. Callers wait by an asyncio
future or by blocking; the answers to the callers of one event loop cost one `call_soon_threadsafe` per group.

What must stay true: the queue is bounded (`OverloadedError`); every request is answered, also when the thread dies (its callers
get `StoreUnavailableError`: the outcome is unknown, make the request again) and after `close`; a thread that died is replaced.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from domain.errors import OverloadedError, StoreUnavailableError

CLOSE_SECONDS_MAX: Final = 30.0
"""Seconds that `close` waits for the thread to finish what had queued."""

_log: Final = logging.getLogger("finaz.store")

Q = TypeVar("Q")
R = TypeVar("R")


class Ticket(Generic[Q, R]):
    """One request, its answer, and who waits for it. Made by the caller, answered once by the thread."""

    __slots__ = ("answer", "done", "error", "future", "loop", "request", "told")

    def __init__(self, request: Q, loop: asyncio.AbstractEventLoop | None) -> None:
        self.request = request
        self.answer: R | None = None
        self.error: BaseException | None = None
        self.told = False
        self.loop = loop
        self.future: asyncio.Future[R] | None = None
        self.done: threading.Lock | None = None
        if loop is not None:
            self.future = loop.create_future()
        else:
            self.done = threading.Lock()
            self.done.acquire()

    @property
    def answered(self) -> bool:
        return self.answer is not None or self.error is not None

    def wait(self) -> R:
        """Block until answered."""
        assert self.done is not None
        self.done.acquire()
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def resolve(self) -> None:
        """Hand the answer to the waiting coroutine; runs in its loop."""
        future = self.future
        if future is None or future.done():
            return  # the caller was cancelled; the work was done all the same
        if self.error is not None:
            future.set_exception(self.error)
        else:
            assert self.answer is not None
            future.set_result(self.answer)


Take = Callable[[deque[Ticket[Q, R]]], list[Ticket[Q, R]]]
Run = Callable[[list[Ticket[Q, R]]], None]


class Group(Generic[Q, R]):
    """A thread that answers tickets in groups.

    `take` moves tickets out of the queue into the next group (at least one if there are any); `run` sets `answer` or `error`
    of each. What `run` leaves unanswered, by raising or otherwise, is answered with `StoreUnavailableError`.
    """

    def __init__(self, name: str, take: Take[Q, R], run: Run[Q, R], *, queue_max: int) -> None:
        self.name = name
        self.queue_max = queue_max
        self.restarts = 0
        """How often the thread died and was replaced."""
        self._take = take
        self._run = run
        self._queue: deque[Ticket[Q, R]] = deque()
        self._wake = threading.Event()
        self._idle = False
        self._ringing: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._current: list[Ticket[Q, R]] = []
        self._thread = self._start()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def ask(self, request: Q) -> R:
        """Have the request carried out, and block until it is."""
        return self._submit(Ticket(request, None)).wait()

    def ask_soon(self, request: Q) -> "asyncio.Future[R]":
        """Have the request carried out; to be awaited in the running event loop."""
        ticket: Ticket[Q, R] = Ticket(request, asyncio.get_running_loop())
        self._submit(ticket)
        assert ticket.future is not None
        return ticket.future

    def close(self) -> None:
        """Finish what has queued, then end the thread. Requests made from now on are refused."""
        with self._lock:
            self._closed = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS_MAX)
        self._fail(self._drain(), "the store is closed")

    def _submit(self, ticket: Ticket[Q, R]) -> Ticket[Q, R]:
        if self._closed:
            raise StoreUnavailableError("the store is closed", at=self.name)
        if len(self._queue) >= self.queue_max:
            raise OverloadedError(f"{self.queue_max} requests wait already", at=self.name)
        self._queue.append(ticket)
        if self._idle:
            self._ring(ticket.loop)
        if self._closed and not self._thread.is_alive():
            self._fail(self._drain(), "the store is closed")
        return ticket

    def _ring(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wake the thread: at once, or when the loop has gone through everything that is ready now.

        Tasks that one group woke ask again one after the other; so they meet in one group instead of leaving the first alone.
        """
        if loop is None:
            self._wake.set()
        elif self._ringing is not loop:  # a loop that stopped before it rang keeps only its own callers waiting
            self._ringing = loop
            loop.call_soon(self._rung)

    def _rung(self) -> None:
        self._ringing = None
        self._wake.set()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._main, name=f"finaz-{self.name}", daemon=True)
        thread.start()
        return thread

    def _main(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            _log.exception("the thread %s died and is replaced", self.name)
            self._fail(self._current, f"the thread of {self.name} died, the outcome is unknown", error)
            with self._lock:
                self.restarts += 1
                if not self._closed:
                    self._thread = self._start()

    def _loop(self) -> None:
        while True:
            self._current = self._take(self._queue)
            if self._current:
                self._run(self._current)
                self._answer(self._current)
                self._current = []
            elif self._closed:
                return
            else:
                self._idle = True
                if not self._queue and not self._closed:
                    self._wake.wait()
                self._idle = False
                self._wake.clear()

    def _answer(self, tickets: Iterable[Ticket[Q, R]]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Ticket[Q, R]]] = {}
        for ticket in tickets:
            if not ticket.answered:
                ticket.error = StoreUnavailableError("the request was not answered", at=self.name)
            if ticket.told:
                continue
            ticket.told = True
            if ticket.done is not None:
                ticket.done.release()
            elif ticket.loop is not None:
                loops.setdefault(ticket.loop, []).append(ticket)
        for loop, theirs in loops.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, theirs)

    def _drain(self) -> list[Ticket[Q, R]]:
        drained: list[Ticket[Q, R]] = []
        with suppress(IndexError):
            while True:
                drained.append(self._queue.popleft())
        return drained

    def _fail(self, tickets: list[Ticket[Q, R]], detail: str, cause: BaseException | None = None) -> None:
        for ticket in tickets:
            if not ticket.answered:
                ticket.error = StoreUnavailableError(detail, at=self.name)
                ticket.error.__cause__ = cause
        self._answer(tickets)


def _resolve(tickets: list[Ticket[Any, Any]]) -> None:
    for ticket in tickets:
        ticket.resolve()
