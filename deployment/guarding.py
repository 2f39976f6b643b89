"""A guard: the process between an owner and a server that it started. It starts the server, watches the owner, cleans up.

A guard is a Python of its own that imports nothing but the standard library and this package's guards, and has one thread, so that
forking is safe and the kernel's parent-death signal means what it says (`deployment.guarded` starts it and asks it). Requests are
lines of JSON on standard input, each answered by one line on standard output. The owner is either the process at the other end
(end of input means that it is gone) or everybody who holds a shared lock on the file `users` (then the server ends when the last
has let go, however it went).

What must stay true: the server never outlives its owner by more than the stop limits; a folder has one guard (a lock that dies with
the process). A crash half-way leaves: of the owner, nothing (the server is stopped, a temporary folder removed); of the guard, a
server that the kernel tells to end where it can, and the next start of the folder does elsewhere; of the server, its folder.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

POLL_SECONDS: Final = 0.005
OWNER_POLL_SECONDS: Final = 0.5
"""How often the owner is looked at; end of input tells sooner, unless a forked child holds the pipe open."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log longer than this is started anew at the next start."""
LOG_SAID_BYTES_MAX: Final = 8192
"""How much of the log an error quotes."""
REMOVE_TRIES_MAX: Final = 20

_PR_SET_PDEATHSIG: Final = 1


class RefusedError(Exception):
    """A request that cannot be met; the text goes to the owner, with what the server's log says where that helps."""


class Guard(ABC):
    """One server in one folder: a lock, `log`, and what the server itself keeps. Subclasses say which server, and how it starts.

    A plan has `folder`, `remove` (the folder goes with the guard), `owner` (a process id), `users` (a file, or None), and the
    limits `stop_seconds` of each step of a stop and `lock_seconds` of waiting for the folder's previous owner to finish its own.
    """

    lock_name: ClassVar[str]
    """The file of the folder that the guard locks."""
    end_of_guard: ClassVar[signal.Signals]
    """What the kernel sends to the server when the guard dies (Linux)."""
    handlers: ClassVar[tuple[str, ...]]
    """The methods that an owner may ask for, by name."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.folder = Path(plan["folder"])
        self.removes: bool = plan["remove"]
        self.owner: int = plan["owner"]
        self.users: str | None = plan["users"]
        self.stop_seconds: float = plan["stop_seconds"]
        self.lock_seconds: float = plan["lock_seconds"]
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.lock: int | None = None

    # ---------------------------------------------------------------- requests

    def kill(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Kill the server's first process at once, as a crash would; its children follow by themselves."""
        self.send(signal.SIGKILL)
        return self.status({})

    def status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """The server's process id, or null."""
        return {"pid": self.pid if self.is_running() else None}

    def is_running(self) -> bool:
        """Whether the server's first process lives; notices (and reaps) one that has ended."""
        if self.pid is not None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.pid, self.exit_status = None, os.waitstatus_to_exitcode(status)
        return self.pid is not None

    def shut(self) -> None:
        """Stop the server and remove what was temporary. Never raises: nobody is left to tell."""
        try:
            self.stop_all()
        finally:
            self.clear()
            if self.removes:
                remove(self.folder)

    @abstractmethod
    def stop_all(self) -> None:
        """Stop the server in the gentlest way that ends it for certain."""

    def clear(self) -> None:
        """Remove what is temporary outside the folder."""
        return  # most kinds have nothing there

    # ---------------------------------------------------------------- the process

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the running server and wait for its end, within the limit."""
        if self.is_running():
            assert self.pid is not None
            os.kill(self.pid, number)
            self.wait_for(lambda: not self.is_running(), self.stop_seconds)

    def complete(self, command: Sequence[str], seconds: float) -> None:
        """Run a command to its end; it must succeed within the limit. Raises `RefusedError`."""
        mark = self.log_size()
        self.spawn(command)
        if not self.wait_for(lambda: not self.is_running(), seconds):
            self.send(signal.SIGKILL)
        if self.exit_status != 0:
            raise RefusedError(f"{command[0]} ended with {self.exit_status}:\n{self.log_since(mark)}")

    def spawn(self, command: Sequence[str]) -> int:
        """Fork and execute a program, its output going to the log; returns its process id, which is now the server's."""
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        parent = os.getpid()
        self.exit_status = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(command, log, nothing, parent)
            except BaseException as error:  # a forked child must never return into the parent's code
                os.write(log, f"cannot execute {command[0]}: {error}\n".encode())
                os._exit(127)
        os.close(log)
        os.close(nothing)
        return self.pid

    @abstractmethod
    def enter_child(self) -> Mapping[str, str]:
        """In the forked child, before the program: go where it runs, become who it runs as; returns its environment."""

    def _become(self, command: Sequence[str], log: int, nothing: int, parent: int) -> NoReturn:
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(0o077)
        environment = self.enter_child()
        _end_with_parent(parent, self.end_of_guard)  # behind a change of account, which takes the setting back
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execve(command[0], list(command), dict(environment))

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came to hold in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                return condition()
            time.sleep(POLL_SECONDS)
        return True

    # ---------------------------------------------------------------- the folder

    def take_lock(self) -> None:
        """Have the folder to ourselves, from now until this process ends. Raises `RefusedError`."""
        if self.lock is not None:
            return
        lock = os.open(self.folder / self.lock_name, os.O_RDWR | os.O_CREAT, 0o600)
        if not self.wait_for(lambda: _is_taken(lock), self.lock_seconds):
            holder = os.read(lock, 64).decode("ascii", "replace").strip()
            os.close(lock)
            raise RefusedError(f"the folder {self.folder} is in use by the process with id {holder}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self.lock = lock

    def log_size(self) -> int:
        """Where the log ends; one that is too long is started anew."""
        log = self.folder / "log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.unlink()
        return log.stat().st_size if log.exists() else 0

    def log_since(self, mark: int) -> str:
        """What was written to the log behind a place of it."""
        with (self.folder / "log").open("rb") as log:
            log.seek(mark)
            return log.read(LOG_SAID_BYTES_MAX).decode("utf-8", "replace").strip()


def remove(folder: Path) -> None:
    """Remove a folder in which a killed server's last children may still be writing."""
    for _ in range(REMOVE_TRIES_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_SECONDS * 10)


def guard_until_gone(kind: type[Guard]) -> None:
    """The whole life of a guard whose plan is the first argument: serve its owner, then clean up."""
    guard = kind(json.loads(sys.argv[1]))
    try:
        _serve(guard)
    finally:
        guard.shut()


def _serve(guard: Guard) -> None:
    """Answer requests until the owner closes the pipe, dies, or somebody asks this process to end."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ended: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: ended.append(number))
    is_wanted, listened, pending = _wanted(guard), [0, woken], b""
    while not ended and is_wanted():
        ready, _, _ = select.select(listened, [], [], OWNER_POLL_SECONDS)
        guard.is_running()  # a server that ended by itself is reaped now, not at the next request
        if woken in ready:
            os.read(woken, 4096)
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data and guard.users is None:
            return
        if not data:  # one of several users has gone
            listened = [woken]
            continue
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                os.write(1, json.dumps(_answer(guard, json.loads(line))).encode() + b"\n")
            except BrokenPipeError:
                return


def _answer(guard: Guard, request: dict[str, Any]) -> Any:
    if request["do"] not in guard.handlers:
        return {"refused": f"{request['do']!r} is not among {', '.join(guard.handlers)}"}
    try:
        return getattr(guard, request["do"])(request)
    except (RefusedError, OSError) as error:
        return {"refused": str(error)}


def _wanted(guard: Guard) -> Callable[[], bool]:
    """Whether anybody still wants the server."""
    if guard.users is None:
        return lambda: os.getppid() == guard.owner
    users = os.open(guard.users, os.O_RDWR | os.O_CREAT, 0o600)

    def is_used() -> bool:
        if not _is_taken(users):
            return True
        fcntl.flock(users, fcntl.LOCK_UN)
        return False

    return is_used


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel end the server when the guard dies (Linux; elsewhere the next start of the folder does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
