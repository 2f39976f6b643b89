"""`finaz` as a person runs it: a process of its own, its output, its exit status; and `finaz up` for the length of a block."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-P", "-m", "deployment")
SECONDS_MAX = 120.0


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and with those given."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FINAZ_")}
    return {**kept, **settings}


def finaz(*arguments: str, stdin: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in an environment that has just these settings."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(**settings),
        cwd=CHECKOUT,
    )


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Up:
    """A running `finaz up --json`: what it announced, and the lines of its log as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.log: list[dict[str, Any]] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"finaz up ended with {process.wait()}: {self.log[-20:]}"
        self.announced: dict[str, Any] = json.loads(line)
        self.url: str = self.announced["url"]
        self.token: str = self.announced["token"]
        self.pids: dict[str, int] = self.announced["pids"]
        self.folder = Path(self.announced["folder"])

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a command that talks to it."""
        return {"FINAZ_API_URL": self.url, "FINAZ_TOKEN": self.token}

    def finaz(self, *arguments: str, stdin: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
        """Run a command against it."""
        return finaz(*arguments, stdin=stdin, **{**self.settings, **settings})

    def answer(self, *arguments: str, **options: Any) -> Any:
        """The document that a command answers with `--json`; the command must succeed."""
        done = self.finaz(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_for_log(self, event: str, **facts: Any) -> dict[str, Any]:
        """The next line of the log with this event and these facts."""
        while True:
            line = self._lines.get(timeout=SECONDS_MAX)
            assert line is not None, "finaz up has ended"
            entry = self._entry(line)
            if entry.get("event") == event and facts.items() <= entry.items():
                return entry

    def wait_for_all(self, names: Iterable[str], events: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """The next lines in which each component, by its name, has these events one after the other; several at the same time."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        while any(len(entries) < len(events) for entries in found.values()):
            line = self._lines.get(timeout=SECONDS_MAX)
            assert line is not None, "finaz up has ended"
            entry = self._entry(line)
            entries = found.get(entry.get("component", ""))
            if entries is not None and len(entries) < len(events) and entry.get("event") == events[len(entries)]:
                entries.append(entry)
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(self._entry(line))
            self._lines.put(line)
        self._lines.put(None)

    @staticmethod
    def _entry(line: str) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            return {"text": line}
        return entry


@contextmanager
def finaz_up(*arguments: str, **settings: str) -> Iterator[Up]:
    """`finaz up` on a free port; ended at the end, whatever happened."""
    process = subprocess.Popen(
        [*COMMAND, "up", "--json", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**settings),
        cwd=CHECKOUT,
    )
    try:
        yield Up(process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
