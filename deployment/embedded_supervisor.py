"""The process between an owner and its embedded PostgreSQL: starts the server, watches the owner, cleans up after both.

It runs as a script of its own (`python -I -S embedded_supervisor.py '{...}'`), with the standard library only and one thread, so
that forking is safe and the kernel's parent-death signal means what it says. Requests are lines of JSON on standard input, each
answered by one line on standard output. End of input means that the owner is gone, however it went.

What must stay true: the server never outlives its owner by more than the stop limits; a folder has one supervisor (a lock
that dies with the process); a data folder is either whole or absent. A crash half-way leaves: of the owner, nothing (the server
is stopped, a temporary folder removed); of this process, a server that the kernel tells to stop and, if it still runs at the next
start, that start stops; of the server, a stale `postmaster.pid` that the next start clears; of `initdb`, a folder `data.new` that
the next start throws away.
"""

import ctypes
import errno
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
OWNER_POLL_SECONDS: Final = 1.0
"""How often the owner's process id is looked at; end of input tells sooner, unless a forked child holds the pipe open."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log longer than this is started anew at the next start."""
REMOVE_TRIES_MAX: Final = 20

STOP_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SHARED_MEMORY_IN_USE: Final = "pre-existing shared memory block"
"""What the server says while back ends of a killed predecessor are still on their way out: worth another try."""

_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 8, 28, 47, 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_VERSION_3 = 1, 2, 0x20080522


class RefusedError(Exception):
    """A request that cannot be met; the text goes to the owner, with the end of the server's log where that helps."""


class Supervisor:
    """One server in one folder: `data/`, `log`, `owner.lock`, and the folder of its socket."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.binaries = Path(plan["binaries"])
        self.folder = Path(plan["folder"])
        self.sockets = Path(plan["sockets"])
        self.account: tuple[int, int] | None = tuple(plan["account"]) if plan["account"] else None
        self.owner_name: str = plan["owner_name"]
        self.settings: dict[str, str] = plan["settings"]
        self.removes: bool = plan["remove"]
        self.start_seconds: float = plan["limits"]["start_seconds"]
        self.lock_seconds: float = plan["limits"]["lock_seconds"]
        self.stop_seconds: float = plan["limits"]["stop_seconds"]
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.lock: int | None = None

    # ---------------------------------------------------------------- requests

    def start(self, _: dict[str, Any]) -> dict[str, Any]:
        """Start the server and wait until it accepts connections; a running one stays as it is."""
        if not self.is_running():
            deadline = time.monotonic() + self.start_seconds
            self._take_lock()
            self._initialise()
            self._clear_predecessor()
            self._write_access_rules()
            while not self._try_start(deadline):
                time.sleep(POLL_SECONDS * 10)
        return self.status({})

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Stop the server as asked, harder if it does not obey in time."""
        for number in (STOP_SIGNALS[request["mode"]], signal.SIGQUIT, signal.SIGKILL):
            self._signal(number)
        return self.status({})

    def kill(self, _: dict[str, Any]) -> dict[str, Any]:
        """Kill the server's first process at once, as a crash would; its children follow by themselves."""
        self._signal(signal.SIGKILL)
        return self.status({})

    def status(self, _: dict[str, Any]) -> dict[str, Any]:
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
            self.stop({"mode": "fast"})
        finally:
            if self.lock is not None or self.sockets.parent != self.folder:  # else it is the folder's other owner's
                _remove(self.sockets)
            if self.removes:
                _remove(self.folder)

    # ---------------------------------------------------------------- the steps of a start

    def _take_lock(self) -> None:
        if self.lock is not None:
            return
        lock = os.open(self.folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)

        def taken() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                return False
            return True

        if not self._wait_for(taken, self.lock_seconds):
            holder = os.read(lock, 64).decode("ascii", "replace").strip()
            os.close(lock)
            raise RefusedError(f"the folder {self.folder} is in use by the supervisor with process id {holder}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self.lock = lock

    def _initialise(self) -> None:
        """Make the data folder, under another name until it is whole."""
        data = self.folder / "data"
        if data.exists():
            return
        fresh = self.folder / "data.new"
        _remove(fresh)
        self._own_folder(fresh)
        arguments = [
            "initdb", "-D", str(fresh), "-U", "postgres", "--encoding=UTF8", "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8", "--locale=C", "--auth-local=peer", "--auth-host=reject", "--no-instructions",
        ]  # fmt: skip
        mark = self._log_size()
        self.pid = self._spawn(arguments)
        if not self._wait_for(lambda: not self.is_running(), self.start_seconds):
            self._signal(signal.SIGKILL)
        if self.exit_status != 0:
            raise RefusedError(f"initdb failed in {self.folder}:\n{self._log_since(mark)}")
        fresh.rename(data)
        _sync_folder(self.folder)

    def _clear_predecessor(self) -> None:
        """Stop a server that still runs in our data folder, and remove the records that no server of ours stands behind.

        A process that merely has the same number (after a reboot, in a restarted container) must not block the start.
        """
        _remove(self.sockets)
        record = self.folder / "data" / "postmaster.pid"
        pid = _pid_in(record)
        if pid is None:
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not self._is_our_server(pid):
                break
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
            self._wait_for(lambda: not self._is_our_server(pid), self.stop_seconds)
        record.unlink(missing_ok=True)

    def _is_our_server(self, pid: int) -> bool:
        """Whether that process is a server at work in our data folder (its working folder is the data folder)."""
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == self.folder / "data"
        except OSError:
            if Path("/proc/self").exists():
                return False
        command = os.popen(f"ps -p {pid} -o command=").read()  # no /proc on this system
        return "postgres" in command and str(self.folder) in command

    def _write_access_rules(self) -> None:
        """Only the owner's operating-system account may connect, by the socket, as anybody."""
        data = self.folder / "data"
        for name, text in (
            ("pg_hba.conf", "local all all peer map=owner\n"),
            ("pg_ident.conf", f'owner "{self.owner_name}" all\n'),
        ):
            (data / name).write_text(text, encoding="utf-8")
            if self.account:
                os.chown(data / name, *self.account)

    def _try_start(self, deadline: float) -> bool:
        """One try. True: it accepts connections. False: worth another try. Raises `RefusedError` otherwise."""
        self._own_folder(self.sockets)
        mark = self._log_size()
        data = self.folder / "data"
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        pid = self.pid = self._spawn(["postgres", "-D", str(data), "-k", str(self.sockets), *options])
        record = data / "postmaster.pid"
        in_time = self._wait_for(lambda: not self.is_running() or _is_ready(record, pid), deadline - time.monotonic())
        if in_time and self.is_running():
            return True
        self.stop({"mode": "immediate"})
        said = self._log_since(mark)
        if SHARED_MEMORY_IN_USE in said and time.monotonic() < deadline:
            return False
        why = "ended while starting" if in_time else f"did not accept connections within {self.start_seconds} seconds"
        raise RefusedError(f"the server in {self.folder} {why}:\n{said}")

    # ---------------------------------------------------------------- processes, folders, the log

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the running server and wait for its end, within the limit."""
        if self.is_running():
            assert self.pid is not None
            os.kill(self.pid, number)
            self._wait_for(lambda: not self.is_running(), self.stop_seconds)

    def _spawn(self, arguments: list[str]) -> int:
        """Fork and execute a program of the server's, under its account, its output going to the log."""
        log = os.open(self._log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                self._become(arguments, log, nothing, parent)
            except BaseException as error:  # a forked child must never return into the parent's code
                os.write(log, f"cannot execute {arguments[0]}: {error}\n".encode())
                os._exit(127)
        os.close(log)
        os.close(nothing)
        return child

    def _become(self, arguments: list[str], log: int, nothing: int, parent: int) -> NoReturn:
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(0o077)
        os.chdir("/")
        if self.account:
            _drop_root(*self.account)
        _stop_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        program = str(self.binaries / arguments[0])
        os.execve(program, [program, *arguments[1:]], {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"})

    def _own_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(folder, *self.account)

    def _log(self) -> Path:
        return self.folder / "log"

    def _log_size(self) -> int:
        log = self._log()
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.unlink()
        return log.stat().st_size if log.exists() else 0

    def _log_since(self, mark: int) -> str:
        with self._log().open("rb") as log:
            log.seek(mark)
            return log.read(8192).decode("utf-8", "replace").strip()

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                return condition()
            time.sleep(POLL_SECONDS)
        return True


def _drop_root(uid: int, gid: int) -> None:
    """Become an unprivileged account (the server refuses root) that may still pass through root's private folders.

    The virtual environment and temporary folders of root are closed to others (mode 0700). Opening them to everybody would be
    worse than lending the server root's right to search folders and read, which its owner has anyway.
    """
    libc = ctypes.CDLL(None)
    on_linux = Path("/proc/self").exists()
    if on_linux:
        # Else `access()`, by which the programs look for each other, would not count the right lent below.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not on_linux:
        return
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    for capability in (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE):
        bit = 1 << capability
        if libc.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
            return
    libc.capset(header, (ctypes.c_uint32 * 6)())  # no right of root's to lend: keep none


def _stop_with_parent(parent: int) -> None:
    """Ask the kernel for a fast stop when the supervisor dies (Linux; elsewhere only the supervisor's own kill leaves a server)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _is_ready(record: Path, pid: int) -> bool:
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _pid_in(record: Path) -> int | None:
    try:
        return int(record.read_text(encoding="utf-8").splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a folder in which a killed server's last children may still be writing."""
    for _ in range(REMOVE_TRIES_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_SECONDS * 10)


def _serve(supervisor: Supervisor, owner: int) -> None:
    """Answer requests until the owner closes the pipe, dies, or somebody asks this process to end."""
    handlers = {name: getattr(supervisor, name) for name in ("start", "stop", "kill", "status")}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ended: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: ended.append(number))
    pending = b""
    while not ended and os.getppid() == owner:
        ready, _, _ = select.select([0, woken], [], [], OWNER_POLL_SECONDS)
        supervisor.is_running()  # a server that ended by itself is reaped now, not at the next request
        if woken in ready:
            os.read(woken, 4096)
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                answer = handlers[request["do"]](request)
            except (RefusedError, OSError) as error:
                answer = {"refused": str(error)}
            try:
                os.write(1, json.dumps(answer).encode() + b"\n")
            except BrokenPipeError:
                return


def main() -> None:
    """Serve one owner, then clean up."""
    plan = json.loads(sys.argv[1])
    supervisor = Supervisor(plan)
    try:
        _serve(supervisor, plan["owner"])
    finally:
        supervisor.shut()


if __name__ == "__main__":
    main()
