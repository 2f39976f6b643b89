"""The supervisor keeps processes alive and leaves none behind; the decisions about restarts are a table of their own."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from deployment import supervision
from deployment.supervision import (
    RESTART_DELAY_SECONDS_MAX,
    RESTARTS_MAX,
    Component,
    ComponentFailedError,
    Supervisor,
    restart_delay_seconds,
)

OBEDIENT = """
import asyncio, sys
from deployment.lifeline import Lifeline
async def live():
    async with Lifeline(int(sys.argv[-1])) as line:
        line.ready()
        await line.stop.wait()
asyncio.run(live())
"""

DEAF = """
import signal, sys, time, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
socket.socket(fileno=int(sys.argv[-1])).send(b"ready\\n")
time.sleep(600)
"""


def component(name: str, code: str) -> Component:
    return Component(name, (sys.executable, "-c", code))


class Heard:
    """What the supervisor told, and a way to wait for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._more = asyncio.Event()

    def __call__(self, what: str, **attributes: Any) -> None:
        self.told.append((what, attributes))
        self._more.set()

    async def times(self, what: str, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.all(what)) < count:
                self._more.clear()
                await self._more.wait()

    def all(self, what: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.told if name == what]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(supervision.__file__).parents[1]), "PATH": os.environ.get("PATH", "")}


def test_delays_grow_to_a_limit_and_end() -> None:
    """Each death in a row waits at least as long as the one before, at most the named limit, and the last gives up."""
    delays = [restart_delay_seconds(deaths) for deaths in range(1, RESTARTS_MAX + 1)]
    waited = [delay for delay in delays if delay is not None]
    assert len(waited) == RESTARTS_MAX
    assert waited == sorted(waited)
    assert waited[-1] == RESTART_DELAY_SECONDS_MAX
    assert restart_delay_seconds(RESTARTS_MAX + 1) is None


async def test_starts_all_says_when_ready_and_ends_all() -> None:
    """After `stop`, `run` returns and no process that it started is alive."""
    heard, stop = Heard(), asyncio.Event()
    supervisor = Supervisor([component("a", OBEDIENT), component("b", OBEDIENT)], environment(), heard)
    running = asyncio.create_task(supervisor.run(stop))
    await asyncio.wait_for(supervisor.all_ready(), 30)
    pids = supervisor.pids
    assert set(pids) == {"a", "b"}
    stop.set()
    await asyncio.wait_for(running, 30)
    assert not any(alive(pid) for pid in pids.values())
    assert supervisor.pids == {}


async def test_a_killed_component_comes_back() -> None:
    """A component killed with SIGKILL is started again under a new process id, and both are told."""
    heard, stop = Heard(), asyncio.Event()
    supervisor = Supervisor([component("a", OBEDIENT)], environment(), heard)
    running = asyncio.create_task(supervisor.run(stop))
    await asyncio.wait_for(supervisor.all_ready(), 30)
    first = supervisor.pids["a"]
    os.kill(first, signal.SIGKILL)
    await heard.times("component_ready", 2)
    assert heard.all("component_died")[0]["status"] == "signal SIGKILL"
    assert supervisor.pids["a"] != first
    stop.set()
    await asyncio.wait_for(running, 30)


async def test_gives_up_on_what_keeps_dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A component that dies `RESTARTS_MAX` times more ends everything with a typed error that names it; the others are ended."""
    monkeypatch.setattr(supervision, "RESTARTS_MAX", 2)
    monkeypatch.setattr(supervision, "RESTART_DELAY_SECONDS_MIN", 0.001)
    heard = Heard()
    supervisor = Supervisor([component("a", OBEDIENT), component("bad", "raise SystemExit(3)")], environment(), heard)
    with pytest.raises(ComponentFailedError, match="exit status 3") as caught:
        await asyncio.wait_for(supervisor.run(asyncio.Event()), 30)
    assert caught.value.at == "component bad"
    assert len(heard.all("component_died")) == 3
    assert supervisor.pids == {}


async def test_kills_what_does_not_obey() -> None:
    """A component that ignores SIGTERM is killed after the named time."""
    heard, stop = Heard(), asyncio.Event()
    supervisor = Supervisor([component("deaf", DEAF)], environment(), heard, stop_seconds_max=0.2)
    running = asyncio.create_task(supervisor.run(stop))
    await asyncio.wait_for(supervisor.all_ready(), 30)
    pid = supervisor.pids["deaf"]
    stop.set()
    await asyncio.wait_for(running, 30)
    assert heard.all("component_killed") == [{"component": "deaf", "after_seconds": 0.2}]
    assert not alive(pid)


async def test_a_command_that_cannot_be_started_is_a_typed_error() -> None:
    """No such program: `ComponentFailedError` at once, no restarts."""
    supervisor = Supervisor([Component("none", ("/nonexistent/program",))], environment(), Heard())
    with pytest.raises(ComponentFailedError, match="cannot be started"):
        await supervisor.run(asyncio.Event())


async def test_components_end_when_their_supervisor_is_killed() -> None:
    """With the supervisor gone by SIGKILL, its component sees the end of its line and stops by itself."""
    code = f"""
import asyncio, os, sys
from deployment.supervision import Component, Supervisor
async def live():
    supervisor = Supervisor([Component("a", (sys.executable, "-c", {OBEDIENT!r}))], dict(os.environ), lambda *a, **b: None)
    task = asyncio.create_task(supervisor.run(asyncio.Event()))
    await supervisor.all_ready()
    print(supervisor.pids["a"], flush=True)
    await task
asyncio.run(live())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    pid = int(await asyncio.wait_for(process.stdout.readline(), 30))
    assert alive(pid)
    process.kill()
    await process.wait()
    await asyncio.wait_for(process.stdout.read(), 30)  # the component holds this pipe too: its end is the component's
