"""Keeps the processes of one machine alive: starts them, restarts those that die, ends them all within a bounded time.

What must stay true: a component that dies is started again after a growing delay, and said so; one that keeps dying ends
everything with `ComponentFailedError` rather than spin for ever; when `run()` returns or raises, no process that it started is
alive. If the supervisor itself is killed, its components notice by their `Lifeline` and stop by themselves.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deployment.lifeline import READY
from domain.errors import InfrastructureError

STOP_SECONDS_MAX: Final = 30.0
"""How long components may take to end after SIGTERM, unless told otherwise; then SIGKILL. Their own limits are shorter."""

RESTARTS_MAX: Final = 10
"""Deaths in a row, each before `STABLE_SECONDS`, after which everything is ended."""

STABLE_SECONDS: Final = 30.0
"""A component that lived this long is well: its next death counts as the first."""

RESTART_DELAY_SECONDS_MIN: Final = 0.1
RESTART_DELAY_SECONDS_MAX: Final = 10.0

Tell = Callable[..., None]
"""Called with the name of what happened (`component_started`, `component_died`, …) and its attributes."""


class ComponentFailedError(InfrastructureError):
    """A component died again and again, or did not become ready in time."""

    code = "COMPONENT_FAILED"


@dataclass(frozen=True)
class Component:
    """One process: its command, to which `--lifeline FD` is added; `descriptors` are inherited besides."""

    name: str
    command: tuple[str, ...]
    descriptors: tuple[int, ...] = ()


def finaz_component(name: str, *arguments: str, descriptors: tuple[int, ...] = ()) -> Component:
    """A component that is a command of ours, run by the interpreter that runs this (`-P`: the working folder imports nothing)."""
    return Component(name, (sys.executable, "-P", "-m", "deployment", *arguments), descriptors)


def restart_delay_seconds(deaths: int) -> float | None:
    """How long to wait after the `deaths`-th death in a row (from 1), or None: give up."""
    if deaths > RESTARTS_MAX:
        return None
    return min(RESTART_DELAY_SECONDS_MAX, RESTART_DELAY_SECONDS_MIN * 2.0 ** (deaths - 1))


class Supervisor:
    """Runs components until `stop` is set. `tell` hears what happens; `environment` is that of every component.

    What they write goes to `output`, a file descriptor; without one, to our own standard error.
    """

    def __init__(
        self,
        components: Sequence[Component],
        environment: Mapping[str, str],
        tell: Tell,
        output: int | None = None,
        stop_seconds_max: float = STOP_SECONDS_MAX,
    ) -> None:
        self._components = tuple(components)
        self._output = sys.stderr.fileno() if output is None else output
        self._environment = dict(environment)
        self._stop_seconds_max = stop_seconds_max
        self._tell = tell
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ready = {component.name: asyncio.Event() for component in components}
        self._stopping = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each component that runs now, by name."""
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    async def all_ready(self) -> None:
        """Return when every component has said once that it is ready."""
        for event in self._ready.values():
            await event.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep all components alive until `stop`, then end them. Raises `ComponentFailedError` if one cannot be kept alive."""
        keepers = [asyncio.create_task(self._keep(component)) for component in self._components]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *keepers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopped.cancel()
            self._stopping.set()
            await asyncio.shield(asyncio.gather(*keepers, return_exceptions=True))

    async def _keep(self, component: Component) -> None:
        """Start the component, again and again, until the supervisor stops."""
        deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._live(component)
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - began >= STABLE_SECONDS else deaths + 1
            delay = restart_delay_seconds(deaths)
            self._tell("component_died", component=component.name, status=_status_text(status), deaths=deaths)
            if delay is None:
                raise ComponentFailedError(
                    f"it died {deaths} times in a row, last with {_status_text(status)}",
                    at=f"component {component.name}",
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _live(self, component: Component) -> int:
        """Start the process once and see it to its end; returns its status (negative: the signal that ended it)."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await _started(component, theirs.fileno(), self._environment, self._output)
            self._processes[component.name] = process
            self._tell("component_started", component=component.name, pid=process.pid)
            waits = [
                asyncio.create_task(process.wait()),
                asyncio.create_task(self._stopping.wait()),
                asyncio.create_task(self._listen(component.name, ours)),
            ]
            try:
                await asyncio.wait(waits[:2], return_when=asyncio.FIRST_COMPLETED)
                return await self._ended(component.name, process)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _ended(self, name: str, process: asyncio.subprocess.Process) -> int:
        """The status of a process that has ended or is made to: SIGTERM, then SIGKILL after `stop_seconds_max`."""
        with contextlib.suppress(ProcessLookupError):
            if process.returncode is None:
                process.terminate()
        try:
            return await asyncio.wait_for(process.wait(), self._stop_seconds_max)
        except TimeoutError:
            self._tell("component_killed", component=name, after_seconds=self._stop_seconds_max)
            process.kill()
            return await process.wait()

    async def _listen(self, name: str, line: socket.socket) -> None:
        line.setblocking(False)
        with contextlib.suppress(OSError):
            while heard := await asyncio.get_running_loop().sock_recv(line, 64):
                if heard.startswith(READY):
                    self._tell("component_ready", component=name)
                    self._ready[name].set()


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound, inheritable socket that listens; port 0 takes a free one. Raises `InfrastructureError` if the place is taken.

    The supervisor holds it, so that a client who connects while the API restarts waits instead of being refused.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InfrastructureError(
            f"cannot listen: {error.strerror}",
            at=f"{host}:{port}",
            expected="a free port on an address of this machine (--port, FINAZ_API_PORT; 0 takes a free one)",
        ) from error
    os.set_inheritable(listener.fileno(), True)
    return listener


async def _started(
    component: Component, line: int, environment: Mapping[str, str], output: int
) -> asyncio.subprocess.Process:
    """The component's process: in a session of its own, so that Ctrl-C reaches the supervisor alone, which ends it in order."""
    command = (*component.command, "--lifeline", str(line))
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(*component.descriptors, line),
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ComponentFailedError(f"it cannot be started: {error}", at=f"component {component.name}") from error


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
