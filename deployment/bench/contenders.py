"""One trial of one contender: fresh database, one submitting process, one worker process, the same driver for all.

A trial ends when no job remains by the contender's own table, as seen from a connection of ours that polls; then all jobs must
be there as done. What must stay true: contenders differ in their `*_jobs.py` file and in nothing else; processes end with the
trial, also when it fails.
"""

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from msgspec.structs import replace
from psycopg import sql

from deployment.bench.peers.environments import peer_python
from deployment.embedded import EmbeddedPostgres
from domain.errors import InfrastructureError

WARM_UP_JOBS: Final = 20
"""Jobs that go through before the clock starts, so that connections, plans and imports are there."""

IN_FLIGHT: Final = 8
"""Jobs submitted at once."""

DONE_POLL_SECONDS: Final = 0.005
"""Seconds between two looks at how many jobs are done: the resolution of a trial."""

TRIAL_SECONDS_MAX: Final = 300.0
"""Seconds after which a trial is given up."""

STOP_SECONDS_MAX: Final = 15.0
"""Seconds that a contender's process may take to end; then it is killed."""

CACHE: Final = Path(".bench")
"""Where the peers' environments are kept, below the current folder."""

_PEERS: Final = Path(__file__).parent / "peers"


class TrialFailedError(InfrastructureError):
    """A contender did not finish its jobs; the text ends with what it wrote to standard error."""

    code = "BENCH_TRIAL_FAILED"


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who runs jobs. `remaining` and `done` count jobs in SQL; `peer` names the pinned environment, None for our own."""

    name: str
    file: Path
    remaining: str
    done: str
    peer: str | None = None
    options: Mapping[str, Any] = {}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial measured. Latencies are in seconds, one per job, empty unless jobs were submitted singly."""

    jobs: int
    submit_seconds: float
    total_seconds: float
    submitter_cpu_seconds: float
    worker_cpu_seconds: float
    since_acknowledged: tuple[float, ...]
    since_called: tuple[float, ...]
    versions: Mapping[str, str]

    @property
    def jobs_per_second(self) -> float:
        """Jobs per second from the first submission to the last job seen done."""
        return self.jobs / self.total_seconds

    @property
    def submitted_per_second(self) -> float:
        """Jobs per second accepted, with the worker working meanwhile."""
        return self.jobs / self.submit_seconds


RAW: Final = Contender(
    name="raw loop, batch 50",
    file=_PEERS / "raw_jobs.py",
    remaining="SELECT count(*) FROM job WHERE state IN ('queued', 'running')",
    done="SELECT count(*) FROM job WHERE state = 'done'",
    options={"batch": 50, "notify": False},
)
RAW_SINGLE: Final = replace(RAW, name="raw loop, batch 1", options={"batch": 1, "notify": False})
RAW_NOTIFY: Final = replace(RAW, name="raw NOTIFY loop", options={"batch": 50, "notify": True})
PEERS: Final = (
    Contender(
        name="pgqueuer",
        file=_PEERS / "pgqueuer_jobs.py",
        remaining="SELECT count(*) FROM pgqueuer",
        done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        peer="pgqueuer",
    ),
    Contender(
        name="procrastinate",
        file=_PEERS / "procrastinate_jobs.py",
        remaining="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        peer="procrastinate",
    ),
    Contender(
        name="DBOS",
        file=_PEERS / "dbos_jobs.py",
        remaining="SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')",
        done="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        peer="dbos",
    ),
)


def python_of(contender: Contender, report: Callable[[str], None]) -> Path:
    """The Python that runs the contender; makes its environment at need. Raises `PeerUnavailableError`."""
    return Path(sys.executable) if contender.peer is None else peer_python(contender.peer, CACHE, report)


@contextmanager
def fresh_database(server: EmbeddedPostgres, template: str = "template1") -> Iterator[str]:
    """A new database on the server, dropped afterwards; gives its DSN. A `template` that is copied must have no connections."""
    name = f"trial_{time.monotonic_ns()}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            yield server.dsn(name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def trial(
    contender: Contender, python: Path, server: EmbeddedPostgres, jobs: int, *, pause_seconds: float = 0.0
) -> Trial:
    """Run `jobs` jobs through the contender in a fresh database.

    With `pause_seconds` they are submitted one by one, that long after one another, else `IN_FLIGHT` at once. Raises
    `TrialFailedError`.
    """
    with fresh_database(server) as dsn:
        return trial_in(dsn, contender, python, jobs, pause_seconds=pause_seconds)


def trial_in(
    dsn: str, contender: Contender, python: Path, jobs: int, *, pause_seconds: float = 0.0, prefix: str = ""
) -> Trial:
    """As `trial`, in a database that may have a past; `prefix` keeps the keys apart from those used in it."""
    plan = {
        "dsn": dsn,
        "jobs": jobs,
        "in_flight": IN_FLIGHT,
        "warm_up": WARM_UP_JOBS,
        "pause_seconds": pause_seconds,
        "prefix": prefix,
        **contender.options,
    }
    with tempfile.TemporaryDirectory(prefix="finaz-bench-") as folder:
        plan = {**plan, "folder": folder}
        with _role(contender, python, "prepare", plan) as preparing:
            versions = _answer(preparing)["versions"]
        with psycopg.connect(plan["dsn"], autocommit=True) as connection:
            done_before = _count(connection, contender.done)
        with (
            _role(contender, python, "work", plan) as worker,
            _role(contender, python, "submit", plan) as submitter,
            psycopg.connect(plan["dsn"], autocommit=True) as connection,
        ):
            _answer(submitter)
            _wait_until_done(connection, contender, worker)
            _tell(submitter, "go")
            submitted = _answer(submitter)
            ended = _wait_until_done(connection, contender, worker)
            _tell(worker, "stop")
            worked = _answer(worker)
            done = _count(connection, contender.done) - done_before
    if not done == worked["ran"] == plan["warm_up"] + plan["jobs"] or worked["repeated"]:
        raise TrialFailedError(
            f"{done} jobs done, {worked['ran']} ran, {worked['repeated']} of them twice", at=contender.name
        )
    return _measured(plan, submitted, worked, ended, versions)


def _measured(plan: Mapping[str, Any], submitted: Any, worked: Any, ended: float, versions: Mapping[str, str]) -> Trial:
    started = worked["started"]
    return Trial(
        jobs=plan["jobs"],
        submit_seconds=submitted["ended"] - submitted["began"],
        total_seconds=ended - submitted["began"],
        submitter_cpu_seconds=submitted["cpu_seconds"],
        worker_cpu_seconds=worked["cpu_seconds"],
        since_acknowledged=tuple(max(0.0, started[key] - at) for key, at in submitted["acknowledged"].items()),
        since_called=tuple(started[key] - at for key, at in submitted["called"].items()),
        versions=versions,
    )


# ------------------------------------------------------------------ processes


@contextmanager
def _role(
    contender: Contender, python: Path, role: str, plan: Mapping[str, Any]
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [str(python), "-I", str(_PEERS / "driver.py"), str(contender.file), role, json.dumps(plan)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, start_new_session=True
        )
        try:
            yield process
        except _SilentError as silence:
            if silence.process is not process:
                raise
            errors.seek(0)
            text = errors.read().decode("utf-8", "replace").strip()[-2000:]
            raise TrialFailedError(f"{role} ended early or hung: {text}", at=contender.name) from None
        finally:
            _end(process)


class _SilentError(Exception):
    """The process said nothing more, or got nothing done."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(process)
        self.process = process


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _tell(process: "subprocess.Popen[bytes]", word: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()


def _answer(process: "subprocess.Popen[bytes]") -> Any:
    """The next JSON line; whatever else the contender's libraries print is passed over."""
    assert process.stdout is not None
    deadline = time.monotonic() + TRIAL_SECONDS_MAX
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = process.stdout.readline() if ready else b""
        if not line:
            raise _SilentError(process)
        if line.startswith(b"{"):
            return json.loads(line)


def _count(connection: psycopg.Connection[Any], statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    return int(row[0]) if row else 0


def _wait_until_done(
    connection: psycopg.Connection[Any], contender: Contender, worker: "subprocess.Popen[bytes]"
) -> float:
    """Wait until no submitted job remains; the instant at which that was seen."""
    connection.execute(
        "SET enable_seqscan = off"
    )  # a long past of done jobs costs the look nothing where there is an index
    deadline = time.monotonic() + TRIAL_SECONDS_MAX
    while _count(connection, contender.remaining):
        if worker.poll() is not None or time.monotonic() > deadline:
            raise _SilentError(worker)
        time.sleep(DONE_POLL_SECONDS)
    return time.monotonic()
