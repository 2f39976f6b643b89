"""`finaz up` as a whole: what dies comes back, what is ended leaves nothing behind, a folder keeps what was in it."""

import json
import os
import signal
from pathlib import Path

import psycopg

from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF
from tests.support.command_line import Up, alive, finaz, finaz_up

FLOW = str(fixture_path("flows/01_A_feature.json"))


def submit(up: Up, snapshot: str, key: str) -> str:
    """Run the fixture flow to its end; returns the run's id."""
    run = up.answer("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--key", key, "--wait")
    assert run["state"] == "SUCCEEDED"
    found: str = run["run_id"]
    return found


def database_pid(up: Up) -> int:
    """The process id of the embedded PostgreSQL."""
    with psycopg.connect(up.announced["dsn"]) as connection:
        row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
    assert row is not None
    return int(row[0].splitlines()[0])


def broker_pid(up: Up) -> int:
    """The process id of the embedded broker."""
    return int((up.folder / "broker" / "broker.pid").read_text())


def test_what_dies_comes_back_and_the_end_leaves_nothing(tmp_path: Path) -> None:
    """Each component, the database and the broker, killed with SIGKILL is started again and said so; runs go on, and are kept.

    SIGTERM and SIGINT end everything with status 0 and leave no process; started again on the folder, the token and the runs are
    what they were.
    """
    folder = str(tmp_path / "data")
    with finaz_up("--folder", folder) as up:
        file = str(fixture_path("snapshots/fixture.snapshot.01.jsonl"))
        made = finaz("snapshot", "import", file, "--name", "f", "--format", "jsonl", "--json", FINAZ_DATA_DIR=folder)
        snapshot = json.loads(made.stdout)["address"]
        before = submit(up, snapshot, "before the deaths")
        pids = {*up.pids.values(), database_pid(up), broker_pid(up)}
        names = ("worker-1", "projector", "manager", "api")
        for name in names:
            os.kill(up.pids[name], signal.SIGKILL)
        told = up.wait_for_all(names, ("component_died", "component_started", "component_ready"))
        for died, started, _ in told.values():
            assert died["status"] == "signal SIGKILL"
            pids.add(started["pid"])
        os.kill(database_pid(up), signal.SIGKILL)
        up.wait_for_log("database_died")
        pids.add(up.wait_for_log("database_restarted")["pid"])
        os.kill(broker_pid(up), signal.SIGKILL)
        up.wait_for_log("broker_died")
        pids.add(up.wait_for_log("broker_restarted")["pid"])
        after = submit(up, snapshot, "after the deaths")
        events = up.answer("run", "events", before)
        assert up.end() == 0
        assert [pid for pid in pids if alive(pid)] == []
    leftover = tmp_path / "data" / "cas" / "ab" / "cd" / ".incoming-dead"
    leftover.parent.mkdir(parents=True, exist_ok=True)
    leftover.touch()
    os.utime(leftover, (0, 0))
    with finaz_up("--folder", folder) as again:
        assert again.token == up.token
        assert again.announced["bootstrap"] == up.announced["bootstrap"]
        again.wait_for_log("swept", leftovers=1)
        assert not leftover.exists()
        assert again.answer("run", "events", before) == events
        assert again.answer("run", "get", after)["state"] == "SUCCEEDED"
        rebuilt = again.answer("projection", "rebuild", "runs")["result"]
        assert rebuilt["different"] == 0
        assert rebuilt["position"] >= max(event["position"] for event in events["items"])
        listed = again.answer("run", "list", "--position", str(rebuilt["position"]))["items"]
        assert {run["run_id"] for run in listed} == {before, after}
        pids = {*again.pids.values(), database_pid(again), broker_pid(again)}
        assert again.end(signal.SIGINT) == 0
    assert [pid for pid in pids if alive(pid)] == []
