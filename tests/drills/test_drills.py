"""The drills, small: real processes are killed, and what must hold holds. Times are reported by the drill, not asserted here."""

import json
import subprocess
import sys
from typing import Any

import pytest

SECONDS_MAX = 240


def drilled(*arguments: str) -> dict[str, Any]:
    """The JSON report of a drill."""
    command = [sys.executable, "-P", "-m", "deployment", "drill", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.stdout, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("runs", [20])
def test_the_worker_of_runs_in_flight_is_killed_and_another_takes_over(runs: int) -> None:
    """All succeed, none is lost, none published twice, no overtaken owner writes; something was orphaned."""
    report = drilled("kill-worker", "--runs", str(runs), "--seed", "1")
    assert report["submitted"] >= runs
    assert report["succeeded"] == report["submitted"]
    assert (report["lost"], report["published_twice"], report["late_effects"]) == (0, 0, 0)
    assert report["orphaned"] > 0


def test_every_process_is_killed_in_turn_under_load() -> None:
    """One round each: nothing acknowledged is lost, nothing happens twice, no alert is left."""
    report = drilled("soak", "--rounds", "5", "--seed", "1")
    assert report["ok"], report
    assert sorted(report["kills"]) == ["api", "manager", "postgres", "projector", "worker-1"]
