"""The processes: each opens its parts, says that it is ready, works until it is told to stop, and closes what it opened.

What must stay true: a process outlives its database (its parts wait and try again) and ends within a bounded time after SIGTERM,
with status 0; only what it cannot ever do (a wrong setting, a place that is taken) ends it with an error. Every process start has
a new owner id, so nobody takes over leases by having a name.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog

from deployment import wiring
from deployment.audit_wiring import sealer_loops
from deployment.lifeline import Lifeline
from deployment.settings import Settings
from deployment.staging_wiring import PROJECTOR, STAGING, hosted, staging_runners
from domain.errors import InfrastructureError

JOBS_NICE: Final = 10
"""How much a process of jobs gives way to others on its machine: they take long anyway, and those who wait come first."""

BATCH_STOP_SECONDS_MAX: Final = 15.0
"""How long a projector's or a manager's threads may take to end their batch; then it is cut off, undone and repeated later."""

CUT_OFF_SECONDS_MAX: Final = 2.0
"""How long a thread that was cut off may take to end before the process ends without it."""

if TYPE_CHECKING:
    pass

T = TypeVar("T")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.process")


def run_uvloop(main: Coroutine[Any, Any, T]) -> T:
    """Run a process's main coroutine on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def serve_api(settings: Settings, listener: socket.socket, line: Lifeline) -> None:
    """Serve HTTP on a listening socket until told to stop."""
    from api.app import create_app
    from api.server import make_server

    host, port = listener.getsockname()[:2]
    async with line, wiring.api_parts(settings) as parts, hosted(settings, _report):
        server = make_server(create_app(parts), host, port, on_ready=lambda _: line.ready())
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment] # the lifeline has them
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopped = asyncio.create_task(line.stop.wait())
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        server.should_exit = True
        await serving
        if not server.started:
            raise InfrastructureError("the server did not start; the log says why", at=f"{host}:{port}")
    _log.info("stopped", component="api")


async def work(settings: Settings, label: str, line: Lifeline) -> None:
    """Execute runs until told to stop."""
    async with line, wiring.batch_worker(settings, label) as worker:
        line.ready()
        await worker.run(line.stop)


async def serve_streams(settings: Settings, label: str, line: Lifeline) -> None:
    """Work on stream runs until told to stop, then hand them back."""
    from deployment.collecting import rare_collections
    from deployment.stream_wiring import stream_server
    from domain.market.pipeline import warm_up

    async with line, stream_server(settings, label) as server:
        await asyncio.to_thread(warm_up)
        with rare_collections():
            serving = asyncio.create_task(asyncio.to_thread(server.run))
            line.ready()
            await line.stop.wait()
            server.stop()
            await serving
    _log.info("stopped", component="stream-server")


async def project(settings: Settings, only: tuple[str, ...], line: Lifeline) -> None:
    """Keep the read models up to date until told to stop, each in a thread of its own."""
    others = tuple(name for name in only if name not in STAGING)
    async with line, staging_runners(settings, PROJECTOR, only, _report) as staging:
        if only and not others:
            await _run_threads(staging, line)
            return
        async with wiring.projection_runners(settings, others, _report) as runners:
            await _run_threads([*runners, *staging], line)


async def run_jobs(settings: Settings, line: Lifeline) -> None:
    """Execute jobs until told to stop, then hand back what is being executed."""
    from deployment.jobs_wiring import job_runners

    os.nice(JOBS_NICE)
    async with line, job_runners(settings, _report) as runners:
        await _run_threads(runners, line)


async def manage(settings: Settings, only: tuple[str, ...], line: Lifeline) -> None:
    """Run the process managers, and seal the log, until told to stop, each in a thread of its own; first tidy up the blobs."""
    threading.Thread(
        target=_sweep, args=(settings,), name="finaz-sweep", daemon=True
    ).start()  # a long walk delays no stop
    async with line, wiring.manager_runners(settings, only, _report) as runners:
        with sealer_loops(settings, only, _report) as sealers:
            await _run_threads([*runners, *sealers], line)


def _sweep(settings: Settings) -> None:
    from deployment.storage import sweep_leftovers

    try:
        if (swept := sweep_leftovers(settings)) > 0:
            _log.info("swept", leftovers=swept)
    except OSError as error:  # they are in nobody's way; the next start tries again
        _log.warning("not swept", error=str(error))


async def _run_threads(runners: Sequence[Any], line: Lifeline) -> None:
    from projections.projector import Projector

    projector = Projector(runners)
    projector.start()
    line.ready()
    await line.stop.wait()
    for name in await asyncio.to_thread(projector.stop, BATCH_STOP_SECONDS_MAX, CUT_OFF_SECONDS_MAX):
        _log.warning("cut off", projection=name)


def _report(event: str, details: Mapping[str, Any]) -> None:
    """What a runner tells, as a line of the log: at `warning` where something failed, at `debug` where it just went on."""
    failed = "error" in details or "failure" in details
    tell = _log.warning if failed else _log.debug if event == "projection_moved" else _log.info
    tell(event, **msgspec.to_builtins(details, enc_hook=str))
