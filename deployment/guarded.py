"""The owner's side of a guarded server: starts its guard (`deployment.guarding`), asks it, and ends it.

What must stay true: the server is gone when its owner is gone, however the owner went; a guard that does not answer in time is an
error and never a wait for ever, and `close()` leaves nothing even then. A crash of the owner leaves nothing; a guard that died is
replaced at the next request.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from domain.errors import InfrastructureError

REPLY_SECONDS_MARGIN: Final = 60.0
"""How much longer than all its own limits together a guard may take over one request; beyond, it hangs."""

LOG_TAIL_BYTES: Final = 4096

_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[1])


class GuardedServer(ABC):
    """One server in one folder. Use it as a context manager, or call `start()` and `close()`.

    `folder` keeps what the server has and can be started again later; without one the server is temporary and its folder is removed
    at `close()` or when this process dies. `users`, a file, lets several processes share a server, whose folder goes when the last
    of them has gone. Methods are blocking and may be called from any thread, one at a time. The process that makes this object
    must stay alive as long as the server is wanted.
    """

    error: ClassVar[type[InfrastructureError]]
    """What every failure is raised as."""
    guard_module: ClassVar[str]
    """The module whose `main()` is the guard."""
    folder_prefix: ClassVar[str]
    """How the names of temporary folders begin."""

    def __init__(self, folder: Path | str | None, *, users: Path | None = None) -> None:
        self.temporary = folder is None
        made = Path(tempfile.mkdtemp(prefix=self.folder_prefix)) if folder is None else Path(folder)
        self.folder = made.resolve()
        self.pid: int | None = None
        """The process id of the server's first process; None while it doesn't run as far as the last request told."""
        self._users = users
        self._closed = False
        self._guard: subprocess.Popen[bytes] | None = None
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

    # ---------------------------------------------------------------- what a kind of server adds

    @abstractmethod
    def start(self) -> None:
        """Start the server and return when it serves; one that runs stays as it is."""

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """What the guard is to know; `folder`, `remove`, `owner` and `users` are added."""

    @property
    @abstractmethod
    def reply_seconds(self) -> float:
        """The longest that one request to the guard may take."""

    # ---------------------------------------------------------------- what all of them do

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would."""
        self.tell(do="kill")

    def is_running(self) -> bool:
        """Whether the server's first process is alive now."""
        self.tell(do="status")
        return self.pid is not None

    def close(self) -> None:
        """Stop the server, end its guard, and remove the folder if it was temporary: the end of this object.

        A server with `users` goes on until the last of them has let go. Calling it again does nothing.
        """
        self._closed = True
        guard, self._guard, self.pid = self._guard, None, None
        if guard is not None:
            assert guard.stdin is not None
            assert guard.stdout is not None
            guard.stdin.close()
            if self._users is None:
                _ended(guard, self.reply_seconds)
            guard.stdout.close()
        if self.temporary and self._users is None:  # done already, unless there was no guard or it had to be killed
            shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self, size_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of what the server wrote."""
        log = self.folder / "log"
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size_bytes))
            return file.read().decode("utf-8", "replace")

    def failed(self, why: str) -> InfrastructureError:
        """The error to raise."""
        return self.error(why, at=str(self.folder))

    def tell(self, **request: Any) -> None:
        """Ask a guard that there is; none has nothing to be told."""
        if self._guard is not None:
            self.ask(**request)

    def ask(self, **request: Any) -> None:
        """Have the guard (a new one, where there is none alive) do something; afterwards `pid` is as it says."""
        with self._requests:
            if self._closed:
                raise self.failed("closed; make another object for the folder")
            if self._guard is None or self._guard.poll() is not None:
                self._guard = self._guarded()
            line = self._exchange(self._guard, json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(line)
        self.pid = answer.get("pid")
        if "refused" in answer:
            raise self.failed(answer["refused"])

    def _exchange(self, guard: "subprocess.Popen[bytes]", request: bytes) -> bytes:
        assert guard.stdin is not None
        assert guard.stdout is not None
        answer = b""
        deadline = time.monotonic() + self.reply_seconds
        try:
            guard.stdin.write(request)
            while not answer.endswith(b"\n"):
                ready, _, _ = select.select([guard.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self.failed("the guard does not answer")
                part = os.read(guard.stdout.fileno(), 65536)
                if not part:
                    raise BrokenPipeError
                answer += part
        except BrokenPipeError:
            self.pid = None
            raise self.failed(f"the guard ended with status {guard.wait()}:\n{self.log_tail()}") from None
        return answer

    def _guarded(self) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = {
            **self.plan(),
            "folder": str(self.folder),
            "remove": self.temporary or self._users is not None,
            "owner": os.getpid(),
            "users": None if self._users is None else str(self._users),
        }
        # Isolated, so that nothing of the owner's environment reaches it; our package stands last on its path.
        program = f"import sys; sys.path.append({_PACKAGE_ROOT!r}); from {self.guard_module} import main; main()"
        command = [sys.executable, "-I", "-S", "-c", program, json.dumps(plan)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
            )


def _ended(guard: "subprocess.Popen[bytes]", seconds_max: float) -> None:
    """Wait until a guard has stopped its server; one that doesn't in time is killed, and the kernel ends the server."""
    try:
        guard.wait(seconds_max)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
