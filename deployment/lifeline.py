"""The line between a component and who supervises it: told to stop, and saying that it is ready.

A component stops on SIGTERM, on SIGINT, and when the other end of its line is closed, so that a supervisor killed with SIGKILL
leaves no component behind. The line is one end of a socket pair inherited as a file descriptor; without one (a component started
by hand or by a service manager) signals alone stop it and readiness is told to nobody.

What must stay true: `stop` is set at most once and never unset; saying `ready()` never fails a component.
"""

import asyncio
import contextlib
import signal
import socket
from types import TracebackType
from typing import Final, Self

READY: Final = b"ready\n"
"""What a component writes on its line when it takes work."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Lifeline:
    """Use as an async context manager around a component's life; `descriptor` is the inherited end, or None."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.stop = asyncio.Event()
        """Set when the component must end: finish or hand back what it does, within its bounded time."""
        self._line = None if descriptor is None else socket.socket(fileno=descriptor)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop.set)
        if self._line is not None:
            self._line.setblocking(False)
            loop.add_reader(self._line, self._heard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        if self._line is not None:
            loop.remove_reader(self._line)
            self._line.close()

    def ready(self) -> None:
        """Tell the supervisor, if there is one, that this component takes work."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(READY)

    def _heard(self) -> None:
        """Something came, or the end: nobody writes to a component, so anything but "not yet" means that it must stop."""
        assert self._line is not None
        try:
            self._line.recv(64)
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(self._line)
        self.stop.set()
