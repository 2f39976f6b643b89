"""The stage of the drill of two owners: database, broker and topic, and stream workers as processes that are stopped, woken,
killed.

What must stay true: every process that was started here is gone when the stage is left, a stopped one too; every wait is
bounded; the log is read here and written by nobody but admission and the workers.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from deployment.drills.two_owners_evidence import Actor
from deployment.fixture_files import fixture_path
from domain.canonical import parse
from domain.errors import WaitTimeoutError
from domain.events import Recorded, encode
from domain.identity import checkpoint_stream, journal_stream, lease_stream, run_stream
from domain.instants import format_instant
from projections.statements import statements
from services.ports import BlobStore
from services.store.application import Log

LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at something that nothing announces."""

WAIT_SECONDS_MAX: Final = 90.0
"""How long a process may take to do what the drill waits for."""

APPLICATION: Final = "finaz-drill-{name}"
"""How the database sessions of a process are called."""


_SQL: Final = statements("deployment.drills", "drills.sql")


class Player:
    """One stream worker as a process. Its log lines and its standard streams go to files of the stage's folder."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.name = name
        self.process = process
        self.emit_path = folder / f"{name}.emit.json"
        self._log_path = folder / f"{name}.log"

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines that it has written so far; what is no JSON is left out."""
        found = []
        for line in self._log_path.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def said(self, event: str) -> bool:
        """Whether it has written a line of that event."""
        return any(line.get("event") == event for line in self.lines())

    def state(self) -> str:
        """Its state by the kernel (`R`, `S`, `T`, …); empty if it is gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return ""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def is_over(self) -> bool:
        """Whether it has ended; a stopped process has not."""
        return self.process.poll() is not None

    def ended(self) -> int:
        """Wait for its end; its exit status."""
        try:
            return self.process.wait(WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise WaitTimeoutError(f"{self.name} did not end", at="drill") from None

    def actor(self) -> Actor:
        """What is known of it now, as evidence."""
        lines = self.lines()
        owner = next((line["owner"] for line in lines if line.get("event") == "stream.opened_worker"), "")
        problems = [line for line in lines if "code" in line and "event" not in line]
        emit = parse(self.emit_path.read_bytes()) if self.emit_path.exists() else None
        return Actor(
            name=self.name,
            owner=owner,
            pid=self.pid,
            exit_status=self.process.poll(),
            code=problems[-1]["code"] if problems else "",
            emit=emit,
            lines=tuple(line for line in lines if "event" in line),
        )


class Stage:
    """Starts players on one database, one broker and one blob store, and looks at the log. Use it in a `with`."""

    def __init__(self, dsn: str, environment: Mapping[str, str], folder: Path, log: Log, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._dsn = dsn
        self._environment = dict(environment)
        self._folder = folder
        self._log = log
        self._players: list[Player] = []

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._players:
            if not player.is_over():
                player.process.kill()  # a stopped process is killed too
                player.process.wait()

    def start(self, name: str, run_id: str, topic: str, flow: str, *options: str) -> Player:
        """Start a stream worker for the run."""
        separator = "&" if "?" in self._dsn else "?"
        dsn = f"{self._dsn}{separator}application_name={APPLICATION.format(name=name)}"
        emit = self._folder / f"{name}.emit.json"
        command = [
            *(sys.executable, "-P", "-m", "deployment", "stream-worker"),
            *("--topic", topic, "--group", f"drill-{name}", "--flow", str(fixture_path(flow)), "--run-id", run_id),
            *("--emit", str(emit), "--label", name, "--json", *options),
        ]
        with (self._folder / f"{name}.log").open("wb") as errors, (self._folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**self._environment, "FINAZ_POSTGRES_DSN": dsn},
                start_new_session=True,
            )
        player = Player(name, process, self._folder)
        self._players.append(player)
        return player

    def wait(self, what: str, wanted: Callable[[], bool], *living: Player) -> None:
        """Wait until it is so. Raises `WaitTimeoutError`, at once if a process that it depends on has ended."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while not wanted():
            for player in living:
                if player.is_over() and not wanted():
                    tail = "\n".join(json.dumps(line) for line in player.lines()[-5:])
                    raise WaitTimeoutError(f"{player.name} ended before {what}: {tail}", at="drill")
            if time.monotonic() >= until:
                raise WaitTimeoutError(f"{what} did not come", at="drill", expected=f"within {WAIT_SECONDS_MAX:g} s")
            time.sleep(LOOK_SECONDS)

    def log(self, run_id: str) -> list[dict[str, Any]]:
        """The events of the run, its lease, journal and checkpoints, by position."""
        streams = [run_stream(run_id), lease_stream(run_id), journal_stream(run_id), checkpoint_stream(run_id)]
        read = self._log.read_streams_blocking(streams)
        return [plain(e) for e in sorted((e for s in read.streams.values() for e in s), key=lambda e: e.position)]

    def manifest(self, address: str) -> dict[str, Any]:
        """A checkpoint's manifest as it lies in CAS, verified."""
        manifest: dict[str, Any] = parse(self._blobs.get(address))
        return manifest

    def now(self) -> str:
        """The database's clock."""
        return format_instant(self._log.now())

    def sessions(self, name: str) -> int:
        """Database sessions that a process of that name has, by the database."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(_SQL["sessions"], {"application": APPLICATION.format(name=name)}).fetchone()
        assert row is not None
        return int(row[0])


def plain(recorded: Recorded) -> dict[str, Any]:
    """An event as evidence."""
    return {
        "position": recorded.position,
        "stream": recorded.stream,
        "version": recorded.version,
        "topic": recorded.event.topic,
        "recorded_at": format_instant(recorded.recorded_at),
        "event": parse(encode(recorded.event)),
    }
