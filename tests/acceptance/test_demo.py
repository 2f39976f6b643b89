"""The demo, as `make demo` runs it: everything from nothing, judged by itself and once more here."""

import json
import os
import subprocess
from pathlib import Path

from deployment.fixture_run import GOLDEN
from tests.support.command_line import CHECKOUT, COMMAND, SECONDS_MAX, environment


def demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`finaz demo` without any setting, its temporary files below `tmp_path`."""
    return subprocess.run(
        [*COMMAND, "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**environment(), "TMPDIR": str(tmp_path)},
        cwd=CHECKOUT,
    )


def test_the_demo_holds(tmp_path: Path) -> None:
    """`finaz demo --json`: every run SUCCEEDED, the golden, every check held, status 0; nothing of it is left."""
    done = demo(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["values_hash"] == document["golden"] == GOLDEN
    assert {run["name"] for run in document["runs"]} == {"AAPL", "FB", "GOOG", "IBM", "MSFT", "fixture"}
    of_fixture = {run["mode"]: run["results"][0]["values_hash"] for run in document["runs"] if run["name"] == "fixture"}
    assert of_fixture == dict.fromkeys(("BATCH", "REPLAY", "STREAM"), GOLDEN)
    assert {run["state"] for run in document["runs"]} == {"SUCCEEDED"}
    assert document["events"] >= sum(run["events"] for run in document["runs"]) > 0
    assert document["seconds"] > 0
    assert all(check["held"] for check in document["checks"])
    assert os.listdir(tmp_path) == []


def test_the_demo_for_people_ends_with_the_golden(tmp_path: Path) -> None:
    """For people: results as a table, a plot for each ticker, and the golden in the last line."""
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"golden OK {GOLDEN}"
    assert all(ticker in done.stdout for ticker in ("AAPL", "FB", "GOOG", "IBM", "MSFT"))
