"""Threads of our own for long computations, a limited number of slots of them.

Not an executor: its threads are joined when the process ends, so one that hangs would keep a stopping worker for ever. These are
daemons; what they compute has no effect by itself, so losing one loses nothing. What must stay true: a slot is free again when
its thread has ended, not when somebody stopped waiting for it.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadSlots:
    """`size` slots. Used from one event loop; `on_free` is called in it whenever one becomes free."""

    def __init__(self, size: int, on_free: Callable[[], None] = lambda: None) -> None:
        self.free = size
        self._on_free = on_free

    def take(self) -> "Slot | None":
        """A slot, or None if all are in use. Close it if it is not used."""
        if self.free <= 0:
            return None
        self.free -= 1
        return Slot(self)

    def _give_back(self) -> None:
        self.free += 1
        self._on_free()


class Slot:
    """The right to run one thread."""

    def __init__(self, slots: ThreadSlots) -> None:
        self._slots: ThreadSlots | None = slots

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run the function in a daemon thread. The future may be resolved by others meanwhile: its outcome is then dropped."""
        slots, self._slots = self._slots, None
        assert slots is not None, "a slot runs one thread"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            slots._give_back()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def main() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as caught:  # it is the waiting coroutine's to judge
                error = caught
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, result, error)

        threading.Thread(target=main, name="finaz-run", daemon=True).start()
        return future

    def close(self) -> None:
        """Give the slot back, unless its thread does that."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give_back()
