"""What purchases need besides ours, on loopback: the sandbox gateway as a process that can be killed, and a mail server.

The demo and the drill of purchases use them. What must stay true: a gateway that is started again listens at the same address and
remembers what it did, if it keeps books in a file; whatever was started here is gone when its `with` is left, and when the process
that started it is killed.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from deployment.settings import child_environment
from domain.errors import InfrastructureError

START_SECONDS_MAX: Final = 30.0
"""How long the sandbox gateway may take to start."""

GATEWAY_KEY: Final = "sandbox-key"
WEBHOOK_SECRET: Final = "sandbox-webhook-secret"
ACCEPTED: Final = "250 accepted"


def shop_environment(gateway_url: str, smtp_port: int) -> dict[str, str]:
    """The settings of whoever is to talk to these servers; a gateway that is silent for a second has not answered."""
    return {
        "FINAZ_GATEWAY_URL": gateway_url,
        "FINAZ_GATEWAY_KEY": GATEWAY_KEY,
        "FINAZ_GATEWAY_TIMEOUT_SEC": "1",
        "FINAZ_GATEWAY_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "FINAZ_SMTP_HOST": "127.0.0.1",
        "FINAZ_SMTP_PORT": str(smtp_port),
    }


class SandboxGateway:
    """The sandbox gateway as a process of its own. Use it in a `with`; it is not started by that."""

    def __init__(
        self, file: Path | None = None, *, port: int = 0, hang_seconds: float = 2.0, webhook_url: str | None = None
    ) -> None:
        self.webhook_url = webhook_url
        self._file = file
        self._port = port
        self._hang_seconds = hang_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Where it listens, or will: its port is known once it was started, or was given."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> str:
        """Start it and return its address when it answers there. Raises `InfrastructureError`."""
        command = [sys.executable, "-P", "-m", "deployment", "sandbox-gateway", "--port", str(self._port), "--json"]
        command += ["--hang-seconds", str(self._hang_seconds)]
        command += ["--file", str(self._file)] if self._file else []
        command += ["--webhook-url", self.webhook_url] if self.webhook_url else []
        environment = child_environment() | {
            "FINAZ_GATEWAY_KEY": GATEWAY_KEY,
            "FINAZ_GATEWAY_WEBHOOK_SECRET": WEBHOOK_SECRET,
        }
        theirs, self._lifeline = os.pipe()
        command += ["--lifeline", str(theirs)]
        try:
            process = self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, env=environment, pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)
        killer = threading.Timer(START_SECONDS_MAX, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            killer.cancel()
        if not line:
            self.kill()
            raise InfrastructureError("the sandbox gateway did not start", at="sandbox-gateway", expected="its address")
        url = str(msgspec.json.decode(line)["url"])
        self._port = int(url.rpartition(":")[2])
        return url

    def kill(self) -> None:
        """`kill -9`, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            os.close(self._lifeline)
            self._process = None


def free_port() -> int:
    """A port of loopback that nobody listened at a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Offered(msgspec.Struct, frozen=True):
    """A mail that the server was offered, and whether it took responsibility for it."""

    message_id: str
    to: tuple[str, ...]
    accepted: bool


@contextmanager
def mail_server(answer: Callable[[str], str] = lambda message_id: ACCEPTED) -> Iterator[tuple[int, list[Offered]]]:
    """A mail server on loopback; its port, and what it was offered. `answer` says what it answers to a mail, by its Message-ID."""
    from aiosmtpd.controller import Controller

    offered: list[Offered] = []

    class Box:
        """Keeps what it is offered."""

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 -- the library's name
            message_id = str(message_from_bytes(envelope.content)["Message-ID"]).strip()
            said = answer(message_id)
            offered.append(Offered(message_id, tuple(envelope.rcpt_tos), said == ACCEPTED))
            return said

    port = free_port()
    controller = Controller(Box(), hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port, offered
    finally:
        with contextlib.suppress(Exception):
            controller.stop()
