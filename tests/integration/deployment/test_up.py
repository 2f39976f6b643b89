"""`finaz up` as a whole: what dies comes back, what is ended leaves nothing behind, a folder keeps what was in it."""

import os
import signal
from pathlib import Path

import psycopg

from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF
from tests.support.command_line import Up, alive, finaz_up

FLOW = str(fixture_path("flows/01_A_feature.json"))


def submit(up: Up, key: str) -> str:
    """Run the fixture flow to its end; returns the run's id."""
    file = str(fixture_path("snapshots/fixture.snapshot.01.jsonl"))
    snapshot = up.answer("snapshot", "import", file, "--name", "fixture", "--format", "jsonl", "--via", "api")[
        "address"
    ]
    run = up.answer("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--key", key, "--wait")
    assert run["state"] == "SUCCEEDED"
    found: str = run["run_id"]
    return found


def test_killed_components_come_back_and_the_end_leaves_nothing() -> None:
    """Each component killed with SIGKILL is restarted and said so, runs go on; SIGTERM ends all, with status 0 and no trace."""
    with finaz_up() as up:
        folder = up.folder
        pids = set(up.pids.values())
        for name in ("worker-1", "projector", "api"):
            os.kill(up.pids[name], signal.SIGKILL)
            assert up.wait_for_log("component_died", component=name)["status"] == "signal SIGKILL"
            pids.add(up.wait_for_log("component_started", component=name)["pid"])
            up.wait_for_log("component_ready", component=name)
        submit(up, "after the deaths")
        with psycopg.connect(up.announced["dsn"]) as connection:
            row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
        assert row is not None
        pids.add(int(row[0].splitlines()[0]))
        assert up.end() == 0
    assert [pid for pid in pids if alive(pid)] == []
    assert not folder.exists()


def test_a_kept_folder_keeps_the_runs(tmp_path: Path) -> None:
    """Started again on the same folder, `finaz up` has the same token and the same runs."""
    with finaz_up("--folder", str(tmp_path / "data")) as up:
        run_id, token = submit(up, "kept"), up.token
        assert up.end(signal.SIGINT) == 0
    with finaz_up("--folder", str(tmp_path / "data")) as up:
        assert up.token == token
        assert up.answer("run", "get", run_id)["state"] == "SUCCEEDED"
