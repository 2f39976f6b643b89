"""The process between an owner and a broker that it started: starts the broker, watches the owner, cleans up after both.

It runs as a script of its own (`python -I -S guard.py '{...}'`), with the standard library only and one thread, so that forking is
safe and the kernel's parent-death signal means what it says. Requests are lines of JSON on standard input, each answered by one
line on standard output. The owner is either the process at the other end (end of input means that it is gone) or everybody who
holds a shared lock on the file `users` (then the broker ends when the last has let go, however it went).

What must stay true: the broker never outlives its owner by more than the stop limit, nor this process at all (Linux: the kernel
kills it); a folder has one guard (a lock that dies with the process). A crash half-way leaves: of the owner, nothing; of this
process, a broker that the kernel kills and, elsewhere than on Linux, that the next start of the folder kills; of the broker, its
folder, which the next start goes on from.
"""

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

POLL_SECONDS: Final = 0.005
OWNER_POLL_SECONDS: Final = 0.5
"""How often the owner is looked at; end of input tells sooner where there is one owner."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log longer than this is started anew at the next start."""
REMOVE_TRIES_MAX: Final = 20

_PR_SET_PDEATHSIG = 1


class RefusedError(Exception):
    """A request that cannot be met; the text goes to the owner."""


class Guard:
    """One broker in one folder: `guard.lock`, `broker.pid`, `log`, and what the broker itself keeps."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.folder = Path(plan["folder"])
        self.environment: dict[str, str] = plan["environment"]
        self.removes: bool = plan["remove"]
        self.stop_seconds: float = plan["stop_seconds"]
        self.lock_seconds: float = plan["lock_seconds"]
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.lock: int | None = None

    # ---------------------------------------------------------------- requests

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a command of the broker's to its end; it must succeed within `seconds`."""
        self._take_lock()
        mark = self._log_size()
        self.pid = self._spawn(request["command"])
        if not self._wait_for(lambda: not self.is_running(), request["seconds"]):
            self._signal(signal.SIGKILL)
        if self.exit_status != 0:
            raise RefusedError(f"{request['command'][0]} ended with {self.exit_status}:\n{self._log_since(mark)}")
        return self.status({})

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start the broker, which need not be ready yet; a running one stays as it is."""
        self._take_lock()
        if not self.is_running():
            self._end_predecessor()
            self._log_size()
            self.pid = self._spawn(request["command"])
            (self.folder / "broker.pid").write_text(f"{self.pid}\n", encoding="ascii")
        return self.status({})

    def stop(self, _: dict[str, Any]) -> dict[str, Any]:
        """Tell the broker to stop; one that does not obey in time is killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
        return self.status({})

    def kill(self, _: dict[str, Any]) -> dict[str, Any]:
        """Kill the broker at once, as a crash would."""
        self._signal(signal.SIGKILL)
        return self.status({})

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
        """The broker's process id, or null; how it ended, if it did."""
        return {"pid": self.pid if self.is_running() else None, "ended": self.exit_status}

    def is_running(self) -> bool:
        """Whether the broker lives; notices (and reaps) one that has ended."""
        if self.pid is not None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.pid, self.exit_status = None, os.waitstatus_to_exitcode(status)
        return self.pid is not None

    def shut(self) -> None:
        """Stop the broker and remove what was temporary. Never raises: nobody is left to tell."""
        try:
            self.stop({})
        finally:
            if self.removes:
                _remove(self.folder)

    # ---------------------------------------------------------------- inside

    def _take_lock(self) -> None:
        if self.lock is not None:
            return
        lock = os.open(self.folder / "guard.lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not self._wait_for(lambda: _is_taken(lock, fcntl.LOCK_EX), self.lock_seconds):
            holder = os.read(lock, 64).decode("ascii", "replace").strip()
            os.close(lock)
            raise RefusedError(f"the folder {self.folder} is in use by the process with id {holder}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self.lock = lock

    def _end_predecessor(self) -> None:
        """Kill a broker that a killed guard left; a process that merely has the same number is left alone."""
        try:
            pid = int((self.folder / "broker.pid").read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        if os.fsencode(self.folder) in command:
            os.kill(pid, signal.SIGKILL)
            self._wait_for(lambda: not Path(f"/proc/{pid}").exists(), self.stop_seconds)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the running broker and wait for its end, within the limit."""
        if self.is_running():
            assert self.pid is not None
            os.kill(self.pid, number)
            self._wait_for(lambda: not self.is_running(), self.stop_seconds)

    def _spawn(self, command: list[str]) -> int:
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        parent = os.getpid()
        self.exit_status = None
        child = os.fork()
        if child == 0:
            try:
                self._become(command, log, nothing, parent)
            except BaseException as error:  # a forked child must never return into the parent's code
                os.write(log, f"cannot execute {command[0]}: {error}\n".encode())
                os._exit(127)
        os.close(log)
        os.close(nothing)
        return child

    def _become(self, command: list[str], log: int, nothing: int, parent: int) -> NoReturn:
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(0o077)
        os.chdir(self.folder)
        _die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execve(command[0], command, self.environment)

    def _log_size(self) -> int:
        log = self.folder / "log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.unlink()
        return log.stat().st_size if log.exists() else 0

    def _log_since(self, mark: int) -> str:
        with (self.folder / "log").open("rb") as log:
            log.seek(mark)
            return log.read(8192).decode("utf-8", "replace").strip()

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                return condition()
            time.sleep(POLL_SECONDS)
        return True


def _is_taken(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _die_with_parent(parent: int) -> None:
    """Let the kernel kill the broker when this process's parent dies (Linux; elsewhere the next start of the folder does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _remove(folder: Path) -> None:
    for _ in range(REMOVE_TRIES_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_SECONDS * 10)


def _owned(plan: dict[str, Any]) -> Callable[[], bool]:
    """Whether anybody still wants the broker."""
    if plan["users"] is None:
        return lambda: os.getppid() == plan["owner"]
    users = os.open(plan["users"], os.O_RDWR | os.O_CREAT, 0o600)

    def is_used() -> bool:
        if not _is_taken(users, fcntl.LOCK_EX):
            return True
        fcntl.flock(users, fcntl.LOCK_UN)
        return False

    return is_used


def _serve(guard: Guard, plan: dict[str, Any]) -> None:
    """Answer requests until the owner is gone or somebody asks this process to end."""
    handlers = {name: getattr(guard, name) for name in ("run", "start", "stop", "kill", "status")}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ended: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: ended.append(number))
    owned, listened, pending = _owned(plan), [0, woken], b""
    while not ended and owned():
        ready, _, _ = select.select(listened, [], [], OWNER_POLL_SECONDS)
        guard.is_running()  # a broker that ended by itself is reaped now, not at the next request
        if woken in ready:
            os.read(woken, 4096)
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data and plan["users"] is None:
            return
        if not data:  # one of several users has gone
            listened = [woken]
            continue
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                os.write(1, json.dumps(_answer(handlers, json.loads(line))).encode() + b"\n")
            except BrokenPipeError:
                return


def _answer(handlers: dict[str, Any], request: dict[str, Any]) -> Any:
    try:
        return handlers[request["do"]](request)
    except (RefusedError, OSError) as error:
        return {"refused": str(error)}


def main() -> None:
    """Serve the owner, then clean up."""
    plan = json.loads(sys.argv[1])
    guard = Guard(plan)
    try:
        _serve(guard, plan)
    finally:
        guard.shut()


if __name__ == "__main__":
    main()
