"""The guard of an embedded PostgreSQL: `deployment.guarding` says what a guard is, who its owner is, and what each crash leaves.

What must stay true beyond that: a data folder is either whole or absent. A crash half-way leaves: of this process, a server that
the kernel tells to stop and, if it still runs at the next start, that start stops; of the server, a stale `postmaster.pid` that the
next start clears; of `initdb`, a folder `data.new` that the next start throws away.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from deployment.guarding import POLL_SECONDS, Guard, RefusedError, guard_until_gone, remove

STOP_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SHARED_MEMORY_IN_USE: Final = "pre-existing shared memory block"
"""What the server says while back ends of a killed predecessor are still on their way out: worth another try."""

_PR_SET_KEEPCAPS, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 28, 47, 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_VERSION_3 = 1, 2, 0x20080522


class PostgresGuard(Guard):
    """One server in one folder: `data/`, and the folder of its socket. Its plan is made in `EmbeddedPostgres`."""

    lock_name = "owner.lock"
    end_of_guard = signal.SIGINT
    handlers = ("start", "stop", "kill", "status")

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__(plan)
        self.binaries = Path(plan["binaries"])
        self.sockets = Path(plan["sockets"])
        self.account: tuple[int, int] | None = tuple(plan["account"]) if plan["account"] else None
        self.owner_name: str = plan["owner_name"]
        self.settings: dict[str, str] = plan["settings"]
        self.start_seconds: float = plan["start_seconds"]

    # ---------------------------------------------------------------- requests

    def start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Start the server and wait until it accepts connections; a running one stays as it is."""
        if not self.is_running():
            deadline = time.monotonic() + self.start_seconds
            self.take_lock()
            self._initialise()
            self._clear_predecessor()
            self._write_access_rules()
            while not self._try_start(deadline):
                time.sleep(POLL_SECONDS * 10)
        return self.status({})

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the server as asked, harder if it does not obey in time."""
        for number in (STOP_SIGNALS[request["mode"]], signal.SIGQUIT, signal.SIGKILL):
            self.send(number)
        return self.status({})

    def stop_all(self) -> None:
        """See `Guard`."""
        self.stop({"mode": "fast"})

    def clear(self) -> None:
        """Remove the socket's folder, unless it is the folder's other owner's."""
        if self.lock is not None or self.sockets.parent != self.folder:
            remove(self.sockets)

    def enter_child(self) -> Mapping[str, str]:
        """See `Guard`."""
        os.chdir("/")
        if self.account:
            _drop_root(*self.account)
        return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

    # ---------------------------------------------------------------- the steps of a start

    def _initialise(self) -> None:
        """Make the data folder, under another name until it is whole."""
        data = self.folder / "data"
        if data.exists():
            return
        fresh = self.folder / "data.new"
        remove(fresh)
        self._own_folder(fresh)
        self.complete(
            [
                self._program("initdb"), "-D", str(fresh), "-U", "postgres", "--encoding=UTF8", "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8", "--locale=C", "--auth-local=peer", "--auth-host=reject", "--no-instructions",
            ],
            self.start_seconds,
        )  # fmt: skip
        fresh.rename(data)
        _sync_folder(self.folder)

    def _clear_predecessor(self) -> None:
        """Stop a server that still runs in our data folder, and remove the records that no server of ours stands behind.

        A process that merely has the same number (after a reboot, in a restarted container) must not block the start.
        """
        remove(self.sockets)
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
            self.wait_for(lambda: not self._is_our_server(pid), self.stop_seconds)
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
        mark = self.log_size()
        data = self.folder / "data"
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        pid = self.spawn([self._program("postgres"), "-D", str(data), "-k", str(self.sockets), *options])
        record = data / "postmaster.pid"
        in_time = self.wait_for(lambda: not self.is_running() or _is_ready(record, pid), deadline - time.monotonic())
        if in_time and self.is_running():
            return True
        self.stop({"mode": "immediate"})
        said = self.log_since(mark)
        if SHARED_MEMORY_IN_USE in said and time.monotonic() < deadline:
            return False
        why = "ended while starting" if in_time else f"did not accept connections within {self.start_seconds} seconds"
        raise RefusedError(f"the server in {self.folder} {why}:\n{said}")

    def _program(self, name: str) -> str:
        return str(self.binaries / name)

    def _own_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(folder, *self.account)


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


def main() -> None:
    """Serve one owner, then clean up."""
    guard_until_gone(PostgresGuard)
