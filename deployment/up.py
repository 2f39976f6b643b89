"""Everything on one machine: the database, the broker, the schema, a token, and the components under a supervisor.

`finaz up`, the demo, the drills and the tests all start through `machine()`, so what they show is what an operator runs. Without
a folder everything lives in a temporary one and is removed at the end; without a DSN an embedded PostgreSQL is started in it,
without a broker's address an embedded broker.

What must stay true: when `machine()` has been left, no process that it started is alive and no temporary file is there; a process
killed half-way leaves a temporary folder at most, since components, database and broker end by themselves. All waits are bounded.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from deployment.brokers.embedded import embedded_broker
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from deployment.settings import without_broker
from deployment.supervision import (
    STOP_SECONDS_MAX,
    Component,
    ComponentFailedError,
    Supervisor,
    Tell,
    finaz_component,
    listening_socket,
)
from domain.errors import InfrastructureError

READY_SECONDS_MAX: Final = 120.0
"""How long the components may take until all are ready, on a cold and busy machine."""

SERVER_LOOK_SECONDS: Final = 0.5
"""How often an embedded server is looked after; it is started again when it is gone."""

HAND_BACK_SECONDS_MAX: Final = 20.0
"""How long a worker may take to hand back what it did not finish, before it is killed."""

CLICKHOUSE: Final = "FINAZ_CLICKHOUSE_DSN"

LOG_FILE: Final = "components.log"
LOG_TAIL_BYTES: Final = 8192

DEVELOPMENT_PRINCIPAL: Final = "developer"
_TOKEN_FILE: Final = "development-token"


@dataclass(frozen=True)
class Plan:
    """What to start. `environment` is that of every component before what `machine()` adds to it."""

    environment: Mapping[str, str]
    folder: Path | None = None
    postgres_dsn: str | None = None
    kafka_bootstrap: str | None = None
    tokens_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    workers: int = 1
    streams: bool = True
    """Whether stream runs are served, where there is a broker; else they wait for a `finaz stream-worker`."""
    managers: int = 1
    """Processes of the process managers: one of each manager is at work, the others stand by."""
    worker_grace_seconds: float = 10.0
    """How long a worker may go on after SIGTERM, by its settings; it is not killed before it has handed back."""
    stage: bool = False
    """Whether published features are staged in an embedded ClickHouse, where the environment names no other."""
    quiet: bool = False
    """Whether components write to the file `LOG_FILE` in the folder instead of standard error."""


class Machine:
    """What runs: where the API listens, a token for it, and the supervisor that keeps it alive."""

    def __init__(
        self, url: str, token: str, dsn: str, bootstrap: str | None, folder: Path, supervisor: Supervisor
    ) -> None:
        self.url = url
        self.token = token
        self.dsn = dsn
        self.bootstrap = bootstrap
        """The broker's address; None where there is none, nor an embedded one installed."""
        self.folder = folder
        self._supervisor = supervisor
        self.database: EmbeddedPostgres | None = None
        self.failed: asyncio.Task[None] | None = None
        """Ends, with the error, if a component cannot be kept alive."""

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each component that runs now, by name."""
        return self._supervisor.pids

    def log_tail(self) -> str:
        """The end of what quiet components wrote."""
        file = self.folder / LOG_FILE
        return file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace") if file.exists() else ""


@asynccontextmanager
async def machine(plan: Plan, tell: Tell, stop: asyncio.Event | None = None) -> AsyncIterator[Machine]:
    """Start everything, yield when all is ready (or `stop` is set before that), and end everything.

    Raises typed errors; then, too, everything is ended.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = _folder(plan, stack)
        database: EmbeddedPostgres | None = None
        dsn = plan.postgres_dsn
        if dsn is None:
            tell("database_starting", folder=str(folder / "postgres"))
            database = EmbeddedPostgres(folder / "postgres")
            await _kept(database, "database", stack, tell)
            dsn = database.dsn()
        bootstrap = plan.kafka_bootstrap or await _broker(folder / "broker", stack, tell)
        applied = await asyncio.to_thread(migrate, dsn)
        tell("database_ready", migrations_applied=len(applied))
        tokens_file = plan.tokens_file or folder / "tokens.json"
        token = await asyncio.to_thread(_development_token, folder, tokens_file)
        listener = stack.enter_context(listening_socket(plan.host, plan.port))
        host, port = listener.getsockname()[:2]
        environment = {
            **(plan.environment if plan.kafka_bootstrap else without_broker(plan.environment)),
            "FINAZ_POSTGRES_DSN": dsn,
            "FINAZ_DATA_DIR": str(folder),
            "FINAZ_TOKENS_FILE": str(tokens_file),
        } | ({} if bootstrap is None else {"FINAZ_KAFKA_BOOTSTRAP": bootstrap})
        if plan.stage and CLICKHOUSE not in environment:
            environment |= _clickhouse(folder / "clickhouse", tell)
        output = stack.enter_context((folder / LOG_FILE).open("ab")).fileno() if plan.quiet else None
        patience = max(STOP_SECONDS_MAX, plan.worker_grace_seconds + HAND_BACK_SECONDS_MAX)
        components = _components(plan, listener.fileno(), streams=plan.streams and bootstrap is not None)
        supervisor = Supervisor(components, environment, tell, output, patience)
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        made = Machine(url, token, dsn, bootstrap, folder, supervisor)
        made.database = database
        async with _supervised(supervisor, stop or asyncio.Event()) as made.failed:
            yield made


class Server(Protocol):
    """An embedded server that can be started, looked after and closed."""

    pid: int | None

    def start(self) -> None: ...

    def is_running(self) -> bool: ...

    def close(self) -> None: ...


async def _broker(folder: Path, stack: contextlib.AsyncExitStack, tell: Tell) -> str | None:
    """The address of an embedded broker, started in the folder; None, told, where it isn't installed."""
    try:
        broker = embedded_broker(folder)
    except InfrastructureError as error:
        tell("broker_absent", error=str(error))
        return None
    tell("broker_starting", folder=str(folder), broker=broker.name)
    await _kept(broker, "broker", stack, tell)
    tell("broker_ready", bootstrap=broker.bootstrap)
    return broker.bootstrap


def _clickhouse(folder: Path, tell: Tell) -> dict[str, str]:
    """The setting of an embedded ClickHouse in the folder, which the API opens when it first needs it; none where there is none."""
    if find_spec("chdb") is None:
        tell("clickhouse_absent", expected="pip install 'finaz-runtime[embedded]'")
        return {}
    return {CLICKHOUSE: f"chdb://{folder}"}


async def _kept(server: Server, name: str, stack: contextlib.AsyncExitStack, tell: Tell) -> None:
    """Start an embedded server, keep it alive until the stack is left, then close it."""
    stack.push_async_callback(asyncio.to_thread, server.close)
    await asyncio.to_thread(server.start)
    stack.push_async_callback(_cancelled, asyncio.create_task(_keep(server, name, tell)))


async def _keep(server: Server, name: str, tell: Tell) -> None:
    """Start an embedded server again whenever it is gone, for ever: the components wait for it meanwhile."""
    while True:
        await asyncio.sleep(SERVER_LOOK_SECONDS)
        try:
            if await asyncio.to_thread(server.is_running):
                continue
            tell(f"{name}_died")
            await asyncio.to_thread(server.start)
            tell(f"{name}_restarted", pid=server.pid)
        except InfrastructureError as error:
            tell(f"{name}_not_restarted", error=str(error))


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _supervised(supervisor: Supervisor, stop_early: asyncio.Event) -> AsyncIterator["asyncio.Task[None]"]:
    """The supervisor's task, from the moment at which all components are ready; ended with everything it started."""
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    waits = [asyncio.create_task(supervisor.all_ready()), asyncio.create_task(stop_early.wait())]
    try:
        done, _ = await asyncio.wait({running, *waits}, timeout=READY_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        if running in done:
            running.result()
        if not done:
            raise ComponentFailedError(
                "not everything became ready", at="finaz up", expected=f"within {READY_SECONDS_MAX:g} seconds"
            )
        yield running
    finally:
        stop.set()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(running, *waits, return_exceptions=True)


def _components(plan: Plan, listener: int, *, streams: bool) -> list[Component]:
    return [
        finaz_component("api", "api", "--listener", str(listener), descriptors=(listener,)),
        finaz_component("projector", "projector"),
        *(finaz_component(f"manager-{n + 1}" if n else "manager", "manager") for n in range(plan.managers)),
        finaz_component("jobs", "jobs"),
        *([finaz_component("streams", "stream-server", "--label", "streams")] if streams else []),
        *(finaz_component(f"worker-{n + 1}", "worker", "--label", f"worker-{n + 1}") for n in range(plan.workers)),
    ]


def _folder(plan: Plan, stack: contextlib.AsyncExitStack) -> Path:
    """The data folder: the one given, or a temporary one that goes at the end, after everything that is in it."""
    if plan.folder is not None:
        plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return plan.folder.resolve()
    made = Path(tempfile.mkdtemp(prefix="finaz-"))
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return made.resolve()


def _development_token(folder: Path, tokens_file: Path) -> str:
    """The token of the developer, the same as long as the folder lives; readable by this account only."""
    from api.auth import Scope, add_token, entry_of, load_tokens, mint_token

    place = folder / _TOKEN_FILE
    token = place.read_text("ascii").strip() if place.exists() else ""
    if token:
        entry = entry_of(token, DEVELOPMENT_PRINCIPAL, Scope)
    else:
        token, entry = mint_token(DEVELOPMENT_PRINCIPAL, Scope, label="finaz up")
        _write_whole(place, token)
    if all(known.sha256 != entry.sha256 for known in load_tokens(tokens_file)):
        add_token(tokens_file, entry)
    return token


def _write_whole(place: Path, text: str) -> None:
    """Write a file that only this account can read, whole or not at all: a full disk or a crash leaves no half of a secret."""
    descriptor, temporary = tempfile.mkstemp(prefix=".token-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
