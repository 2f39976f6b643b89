"""Admissions over HTTP: runs posted by 64 connections at once, against endpoints of the same server that do nothing.

Server, PostgreSQL and load generator are processes of their own on one machine. Every post has a key and a body of its own (the
fixture's flow, another tag); it is authenticated, read, checked and hashed, appended (two events, durable), and answered. The
endpoints that do nothing do none of it. What must stay true: nothing is left out for the benchmark; the runs in the log are counted
at the end.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import psycopg

from deployment.bench.admissions_server import PLAIN, SHORT
from deployment.bench.figures import aim, answer, figure, percentile, ratio
from deployment.bench.http_load import NUMBER
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from deployment.fixture_run import fixture_body
from deployment.migrate import migrate
from domain.errors import InfrastructureError

CONNECTIONS: Final = 64
REQUESTS: Final = 10_000
"""Requests of one trial at scale 1."""

REQUESTS_MIN: Final = 256
WARM_UP_REQUESTS: Final = 512
TRIAL_SECONDS_MAX: Final = 330
RATIO_AIM: Final = 0.5

PATHS: Final = {"admissions": "/v1/runs", "plain": PLAIN, "short": SHORT}

Trial = Mapping[str, Any]


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of admission and of both endpoints that do nothing, interleaved; see `registry.py`."""
    requests = max(REQUESTS_MIN, round(REQUESTS * scale))
    trials: dict[str, list[Trial]] = {name: [] for name in PATHS}
    with EmbeddedPostgres() as database, tempfile.TemporaryDirectory(prefix="finaz-bench-") as folder:
        migrate(database.dsn())
        with _served({"dsn": database.dsn(), "folder": folder}) as server:
            plans = _plans(server)
            for plan in plans.values():
                _trial({**_plan_of_its_own(plan), "requests": WARM_UP_REQUESTS})
            for repeat in range(repeats):
                for name, plan in plans.items():
                    trials[name].append(_trial({**_plan_of_its_own(plan), "requests": requests}))
                    report(f"admissions {repeat + 1}/{repeats}: {name} {_rate(trials[name][-1]):.0f}/s")
        _check_log(database.dsn(), WARM_UP_REQUESTS + repeats * requests)
    rates = {name: [_rate(trial) for trial in each] for name, each in trials.items()}
    to_plain, to_short = (ratio(rates["admissions"], rates[name]) for name in ("plain", "short"))
    return answer(
        f"{requests} posts over {CONNECTIONS} connections: how many are admitted, and how many answered by doing nothing?",
        [
            figure("admissions", rates["admissions"], "1/s"),
            figure("no-op, as the framework's own endpoint", rates["plain"], "1/s", ratio=to_plain),
            figure("no-op, on the short way that admission takes", rates["short"], "1/s", ratio=to_short),
            *_latencies(trials),
        ],
        [aim("admissions to a no-op endpoint of the same server", to_plain, at_least=RATIO_AIM)],
        [f"To the no-op on the short way, which hardly any server has, the ratio is {to_short:.2f}."],
        requests=requests,
        connections=CONNECTIONS,
    )


def _plans(server: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The same requests to each endpoint."""
    common = {
        "host": "127.0.0.1",
        "port": server["port"],
        "connections": CONNECTIONS,
        "method": "POST",
        "status": 202,
        "headers": {"authorization": f"Bearer {server['token']}", "content-type": "application/json"},
        "body": fixture_body(server["snapshot"], ("bench", NUMBER)),
    }
    return {name: {**common, "path": path} for name, path in PATHS.items()}


def _check_log(dsn: str, expected: int) -> None:
    """Every run that was answered as admitted is in the log."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM finaz.events WHERE topic = 'run.requested.v1'").fetchone()
    found = row[0] if row else 0
    if found != expected:
        raise InfrastructureError(f"{found} runs are in the log", at="finaz.events", expected=str(expected))


def _plan_of_its_own(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with keys that no other trial has."""
    return {**plan, "headers": {**plan["headers"], "idempotency-key": f"{uuid4().hex}-{NUMBER}"}}


@contextmanager
def _served(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The server in a process of its own; what it says of itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deployment.bench.admissions_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(plan) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise InfrastructureError("the server did not start", at="deployment.bench.admissions_server")
        yield json.loads(line)
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _trial(plan: Mapping[str, Any]) -> Trial:
    done = subprocess.run(
        [sys.executable, "-m", "deployment.bench.http_load"],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        timeout=TRIAL_SECONDS_MAX,
    )
    if done.returncode != 0:
        raise InfrastructureError(f"the load generator failed: {done.stderr[-500:]}", at="deployment.bench.http_load")
    found: Trial = json.loads(done.stdout)
    return found


def _rate(trial: Trial) -> float:
    return float(trial["requests"]) / float(trial["elapsed_seconds"])


def _latencies(trials: Mapping[str, list[Trial]]) -> list[dict[str, Any]]:
    return [
        figure(f"{name}, {label}", [percentile(trial["seconds"], share) * 1000 for trial in trials[name]], "ms")
        for name in ("admissions", "plain")
        for label, share in (("p50", 0.5), ("p99", 0.99))
    ]
