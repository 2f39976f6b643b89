"""A broker as a process of this machine: started, stopped, killed and started again, on loopback, in one folder.

What kind of broker it is stands in a `Recipe`; the work is done by `guard.py`, a process of its own, whose docstring says what each
crash leaves. What must stay true: the broker is gone when its owner is gone, however the owner went; a folder can always be started
again, on the same ports; nothing listens beyond 127.0.0.1; nothing outside the folder is touched.
"""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deployment.brokers import guard
from domain.errors import FinazError, InfrastructureError
from services.adapters.kafka import KafkaBroker

HOST: Final = "127.0.0.1"

START_SECONDS_MAX: Final = 60.0
"""A start, recovery of the log included, before it counts as failed."""

STOP_SECONDS_MAX: Final = 15.0
"""Each step of a stop: as asked, then kill."""

LOCK_SECONDS_MAX: Final = 20.0
"""Waiting for the folder's previous owner to finish its stop."""

REPLY_SECONDS_MARGIN: Final = 60.0

PORT_TRIES_MAX: Final = 4
"""A free port can be taken by somebody else before the broker has it: then others are drawn, at the first start of a folder."""

READY_LOOK_SECONDS: Final = 0.02
READY_ANSWER_SECONDS_MAX: Final = 2.0
LOG_TAIL_BYTES: Final = 4096

Ports = Sequence[int]


class EmbeddedBrokerError(InfrastructureError):
    """A broker on this machine could not be started or stopped; the text ends with what its log says."""

    code = "EMBEDDED_BROKER_FAILED"


@dataclass(frozen=True)
class Recipe:
    """How one kind of broker is run in a folder; clients connect to the first of its ports."""

    name: str
    """What it is, with its version, for people."""
    ports: int
    prepare: Callable[[Path, Ports], Sequence[Sequence[str]]]
    """Makes what the broker needs in the folder and says which commands to run, each to its end, before it starts."""
    command: Callable[[Path, Ports], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)


class BrokerProcess:
    """One broker. Use it as a context manager, or call `start()` and `close()`.

    `folder` keeps the records and can be started again later; without one the broker is temporary and its folder is removed at
    `close()` or when this process dies. `users`, a file, lets several processes share a broker (see `guard.py`), whose folder goes
    when the last of them has gone. Methods are blocking and
    may be called from any thread, one at a time. Raises `EmbeddedBrokerError`.
    """

    def __init__(self, recipe: Recipe, folder: Path | str | None = None, *, users: Path | None = None) -> None:
        self.recipe = recipe
        self.temporary = folder is None
        made = Path(tempfile.mkdtemp(prefix="finaz-broker-")) if folder is None else Path(folder)
        self.folder = made.resolve()
        self.pid: int | None = None
        """The broker's process id; None while it doesn't run as far as the last request told."""
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

    @property
    def name(self) -> str:
        """What it is, with its version."""
        return self.recipe.name

    @property
    def bootstrap(self) -> str:
        """Where clients connect, `host:port`; the same from the first start of the folder on."""
        ports = self._known_ports()
        if not ports:
            raise EmbeddedBrokerError("not started yet, so it has no address", at=str(self.folder))
        return f"{HOST}:{ports[0]}"

    def start(self) -> None:
        """Start the broker and return when it answers clients; one that runs stays as it is."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tries_left = 1 if self._known_ports() else PORT_TRIES_MAX
        while True:
            tries_left -= 1
            ports = self._known_ports() or free_ports(self.recipe.ports)
            try:
                self._start_on(ports)
                return
            except EmbeddedBrokerError as error:
                if tries_left == 0 or "in use" not in str(error):
                    raise

    def stop(self) -> None:
        """Stop the broker in order. The records stay, `start()` goes on from them."""
        if self._guard is not None:
            self.pid = self._ask(do="stop")["pid"]

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would."""
        if self._guard is not None:
            self.pid = self._ask(do="kill")["pid"]

    def restart(self) -> None:
        """Stop and start; clients are cut off and find it again under the same address."""
        self.stop()
        self.start()

    def is_running(self) -> bool:
        """Whether the broker is alive now."""
        if self._guard is None:
            return False
        self.pid = self._ask(do="status")["pid"]
        return self.pid is not None

    def close(self) -> None:
        """Stop the broker, end its guard, and remove the folder if it was temporary: the end of this object.

        A broker with `users` goes on until the last of them has let go. Calling it again does nothing.
        """
        self._closed = True
        process, self._guard, self.pid = self._guard, None, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            if self._users is None:
                _ended(process)
        if self.temporary and self._users is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self, size_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of what the broker wrote."""
        log = self.folder / "log"
        return log.read_bytes()[-size_bytes:].decode("utf-8", "replace") if log.exists() else ""

    # ---------------------------------------------------------------- a start

    def _start_on(self, ports: Ports) -> None:
        for command in self.recipe.prepare(self.folder, ports):
            self._ask(do="run", command=list(command), seconds=START_SECONDS_MAX)
        self.pid = self._ask(do="start", command=list(self.recipe.command(self.folder, ports)))["pid"]
        try:
            self._wait_until_ready(ports[0])
        except BaseException:
            self.kill()
            raise
        _write_whole(self.folder / "ports.json", json.dumps(list(ports)))

    def _wait_until_ready(self, port: int) -> None:
        """It takes connections and answers a client, and it is still alive then: another process may have had the port."""
        deadline = time.monotonic() + START_SECONDS_MAX
        client = KafkaBroker(f"{HOST}:{port}", request_seconds_max=READY_ANSWER_SECONDS_MAX)
        try:
            while not (_takes_connections(port) and _answers(client)):
                self._check_alive()
                if time.monotonic() >= deadline:
                    raise self._failed(f"it was not ready within {START_SECONDS_MAX:g} seconds")
                time.sleep(READY_LOOK_SECONDS)
            self._check_alive()
        finally:
            client.close()

    def _check_alive(self) -> None:
        if self._ask(do="status")["pid"] is None:
            raise self._failed("it ended while starting")

    def _failed(self, why: str) -> EmbeddedBrokerError:
        return EmbeddedBrokerError(f"{self.recipe.name}: {why}:\n{self.log_tail()}", at=str(self.folder))

    def _known_ports(self) -> Ports:
        place = self.folder / "ports.json"
        return tuple(json.loads(place.read_text(encoding="ascii"))) if place.exists() else ()

    # ---------------------------------------------------------------- the guard

    def _ask(self, **request: Any) -> dict[str, Any]:
        with self._requests:
            if self._closed:
                raise EmbeddedBrokerError("closed; make another object for the folder", at=str(self.folder))
            if self._guard is None or self._guard.poll() is not None:
                self._guard = self._guarded()
            line = self._exchange(self._guard, json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            self.pid = None
            raise EmbeddedBrokerError(f"{self.recipe.name}: {answer['refused']}", at=str(self.folder))
        return answer

    def _exchange(self, process: "subprocess.Popen[bytes]", request: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        deadline = time.monotonic() + START_SECONDS_MAX + LOCK_SECONDS_MAX + 2 * STOP_SECONDS_MAX + REPLY_SECONDS_MARGIN
        try:
            process.stdin.write(request)
            while not answer.endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise EmbeddedBrokerError("the broker's guard does not answer", at=str(self.folder))
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    raise BrokenPipeError
                answer += part
        except BrokenPipeError:
            self.pid = None
            raise self._failed(f"its guard ended with status {process.wait()}") from None
        return answer

    def _guarded(self) -> "subprocess.Popen[bytes]":
        plan = {
            "folder": str(self.folder),
            "environment": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **self.recipe.environment},
            "remove": self.temporary or self._users is not None,
            "stop_seconds": STOP_SECONDS_MAX,
            "lock_seconds": LOCK_SECONDS_MAX,
            "owner": os.getpid(),
            "users": None if self._users is None else str(self._users),
        }
        command = [sys.executable, "-I", "-S", guard.__file__, json.dumps(plan)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
            )


def free_ports(count: int) -> Ports:
    """Ports of loopback that nobody has now."""
    places = [socket.socket() for _ in range(count)]
    try:
        for place in places:
            place.bind((HOST, 0))
        return tuple(place.getsockname()[1] for place in places)
    finally:
        for place in places:
            place.close()


def _answers(client: KafkaBroker) -> bool:
    try:
        client.topics().reach()
    except FinazError:
        return False
    return True


def _takes_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a guard has stopped its broker; one that doesn't in time is killed, and the kernel kills the broker."""
    try:
        process.wait(2 * STOP_SECONDS_MAX + REPLY_SECONDS_MARGIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _write_whole(place: Path, text: str) -> None:
    temporary = place.with_suffix(".new")
    temporary.write_text(text, encoding="ascii")
    temporary.replace(place)
