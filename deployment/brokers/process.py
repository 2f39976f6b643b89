"""A broker as a process of this machine: started, stopped, killed and started again, on loopback, in one folder.

What kind of broker it is stands in a `Recipe`; the work is done by a guard, `guard.py`, which says what a crash leaves.
What must stay true: the broker is gone when its owner is gone, however the owner went; a folder can always be started again, on the
same ports; nothing listens beyond 127.0.0.1; nothing outside the folder is touched.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deployment.guarded import REPLY_SECONDS_MARGIN, GuardedServer
from domain.errors import FinazError, InfrastructureError
from services.adapters.kafka import KafkaBroker
from services.adapters.kafka_security import PLAINTEXT, BrokerSecurity

HOST: Final = "127.0.0.1"

START_SECONDS_MAX: Final = 60.0
"""A start, recovery of the log included, before it counts as failed."""

STOP_SECONDS_MAX: Final = 15.0
"""Each step of a stop: as asked, then kill."""

LOCK_SECONDS_MAX: Final = 20.0
"""Waiting for the folder's previous owner to finish its stop."""

PORT_TRIES_MAX: Final = 4
"""A free port can be taken by somebody else before the broker has it: then others are drawn, at the first start of a folder."""

READY_LOOK_SECONDS: Final = 0.02
READY_ANSWER_SECONDS_MAX: Final = 2.0

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
    security: BrokerSecurity = PLAINTEXT
    """How clients speak to it, this process among them, which asks whether it is ready."""


class BrokerProcess(GuardedServer):
    """One broker, as `GuardedServer` has it. Raises `EmbeddedBrokerError`."""

    error = EmbeddedBrokerError
    guard_module = "deployment.brokers.guard"
    folder_prefix = "finaz-broker-"

    def __init__(self, recipe: Recipe, folder: Path | str | None = None, *, users: Path | None = None) -> None:
        super().__init__(folder, users=users)
        self.recipe = recipe

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
        self.tell(do="stop")

    def restart(self) -> None:
        """Stop and start; clients are cut off and find it again under the same address."""
        self.stop()
        self.start()

    @property
    def reply_seconds(self) -> float:
        """See `GuardedServer`."""
        return START_SECONDS_MAX + LOCK_SECONDS_MAX + 2 * STOP_SECONDS_MAX + REPLY_SECONDS_MARGIN

    def plan(self) -> dict[str, Any]:
        """See `brokers.guard.BrokerGuard`."""
        return {
            "environment": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **self.recipe.environment},
            "stop_seconds": STOP_SECONDS_MAX,
            "lock_seconds": LOCK_SECONDS_MAX,
        }

    def failed(self, why: str) -> InfrastructureError:
        """See `GuardedServer`; it names the kind of broker."""
        return super().failed(f"{self.recipe.name}: {why}")

    # ---------------------------------------------------------------- a start

    def _start_on(self, ports: Ports) -> None:
        for command in self.recipe.prepare(self.folder, ports):
            self.ask(do="run", command=list(command), seconds=START_SECONDS_MAX)
        self.ask(do="start", command=list(self.recipe.command(self.folder, ports)))
        try:
            self._wait_until_ready(ports[0])
        except BaseException:
            self.kill()
            raise
        _write_whole(self.folder / "ports.json", json.dumps(list(ports)))

    def _wait_until_ready(self, port: int) -> None:
        """It takes connections and answers a client, and it is still alive then: another process may have had the port."""
        deadline = time.monotonic() + START_SECONDS_MAX
        client = KafkaBroker(f"{HOST}:{port}", self.recipe.security, request_seconds_max=READY_ANSWER_SECONDS_MAX)
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
        if not self.is_running():
            raise self._failed("it ended while starting")

    def _failed(self, why: str) -> InfrastructureError:
        return self.failed(f"{why}:\n{self.log_tail()}")

    def _known_ports(self) -> Ports:
        place = self.folder / "ports.json"
        return tuple(json.loads(place.read_text(encoding="ascii"))) if place.exists() else ()


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


def _write_whole(place: Path, text: str) -> None:
    temporary = place.with_suffix(".new")
    temporary.write_text(text, encoding="ascii")
    temporary.replace(place)
