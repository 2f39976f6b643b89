"""The command line against a running system: each command in a process of its own, as people and scripts run it."""

import csv
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet
import pytest

from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF, GOLDEN
from domain.canonical import address, address_of, parse
from tests.integration.services.test_process_managers import until
from tests.support.command_line import Up, finaz, finaz_up

FLOW = str(fixture_path("flows/01_A_feature.json"))
GOLDEN_VALUES = [None, None, 2.0, 3.0, 4.0, 5.0]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with finaz_up() as here:
        yield here


@pytest.fixture(scope="module")
def snapshot(up: Up) -> str:
    """The fixture snapshot, imported from JSON Lines over HTTP."""
    file = str(fixture_path("snapshots/fixture.snapshot.01.jsonl"))
    answer = up.answer("snapshot", "import", file, "--name", "fixture.snapshot.01", "--format", "jsonl", "--via", "api")
    found: str = answer["address"]
    return found


@pytest.fixture(scope="module")
def succeeded(up: Up, snapshot: str) -> dict[str, Any]:
    """A run that was submitted and waited for."""
    done = up.finaz("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    run: dict[str, Any] = json.loads(done.stdout)
    return run


def refused(up: Up, code: str, *arguments: str, **settings: str) -> dict[str, Any]:
    """The problem document of a command that must fail with this code, and answer nothing."""
    done = up.finaz(*arguments, "--json", **settings)
    assert (done.returncode, done.stdout) == (1, "")
    problem: dict[str, Any] = json.loads(done.stderr)
    assert problem["code"] == code
    return problem


# ------------------------------------------------------------------------------------------------ runs


def test_a_run_from_submission_to_result(succeeded: dict[str, Any]) -> None:
    """The fixture run, submitted and waited for, has succeeded with the golden."""
    assert succeeded["state"] == "SUCCEEDED"
    (result,) = succeeded["results"]
    assert result["values_hash"] == GOLDEN
    assert result["fence_token"] == 1


def test_get_and_events(up: Up, succeeded: dict[str, Any]) -> None:
    """`run get` shows the same run; `run events` its whole history and its lease's, each stream without a gap."""
    run_id = succeeded["run_id"]
    assert up.answer("run", "get", run_id) == succeeded
    events = up.answer("run", "events", run_id)["items"]
    assert [e["position"] for e in events] == sorted({e["position"] for e in events})
    for stream in {e["stream"] for e in events}:
        versions = [e["version"] for e in events if e["stream"] == stream]
        assert versions == list(range(1, len(versions) + 1))
    human = up.finaz("run", "get", run_id)
    assert human.returncode == 0
    assert run_id in human.stdout
    assert GOLDEN in human.stdout


def test_watch_tells_every_event_and_ends(up: Up, succeeded: dict[str, Any]) -> None:
    """`run watch --json` prints the run's own events in order, one a line, the last being its end, with status 0."""
    done = up.finaz("run", "watch", succeeded["run_id"], "--json")
    assert done.returncode == 0, done.stderr
    topics = [json.loads(line)["topic"] for line in done.stdout.splitlines()]
    assert topics[0] == "run.requested.v1"
    assert topics[-1] == "run.succeeded.v1"


def test_results_in_every_format(up: Up, succeeded: dict[str, Any], tmp_path: Path) -> None:
    """JSON, CSV, Arrow and Parquet hold the same values, to standard output and to a file."""
    run_id = succeeded["run_id"]
    document = up.answer("run", "result", run_id)
    assert address_of([tick["value"] for tick in document["ticks"]]) == GOLDEN
    text = up.finaz("run", "result", run_id, "--format", "csv").stdout
    assert [row["value"] for row in csv.DictReader(io.StringIO(text))] == ["", "", "2.0", "3.0", "4.0", "5.0"]
    for form in ("arrow", "parquet"):
        file = tmp_path / f"result.{form}"
        done = up.finaz("run", "result", run_id, "--format", form, "--output", str(file))
        assert (done.returncode, done.stdout) == (0, "")
        with pa.OSFile(str(file)) as source:
            table = pa.ipc.open_file(source).read_all() if form == "arrow" else pa.parquet.read_table(source)
        assert table.column("value").to_pylist() == GOLDEN_VALUES


def test_artifact_is_what_its_address_says(up: Up, succeeded: dict[str, Any]) -> None:
    """The artifact that the result names is fetched whole: its bytes hash to the address."""
    name = succeeded["results"][0]["artifact"]
    done = up.finaz("artifact", "get", name)
    assert done.returncode == 0
    assert address(done.stdout.encode()) == name


def test_the_same_key_is_the_same_run(up: Up, snapshot: str) -> None:
    """A second submission under one key gives the same run, marked as replayed; another body under it is refused."""
    arguments = ("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--key", "twice")
    first, second = up.answer(*arguments), up.answer(*arguments)
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert first["run_id"] == second["run_id"]
    problem = refused(up, "IDEMPOTENCY_KEY_REUSED", *arguments, "--priority", "7")
    assert problem["status"] == 409


def test_sweep_and_list(up: Up, snapshot: str) -> None:
    """A sweep over instruments and parameters runs each once; the list finds them by sweep, state and tag."""
    sweep = up.answer(
        *("run", "sweep", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--wait", "--tag", "swept"),
        *("--instrument", "fixture.fx-0", "--instrument", "fixture.fx-1", "--set", "ema_close.length=2,3"),
    )
    assert len(sweep["run_ids"]) == len(set(sweep["run_ids"])) == 4
    assert {run["state"] for run in sweep["runs"]} == {"SUCCEEDED"}
    last = str(max(run["position"] for run in sweep["runs"]))
    listed = up.answer("run", "list", "--sweep", sweep["sweep_id"], "--state", "SUCCEEDED", "--position", last)
    assert {run["run_id"] for run in listed["items"]} == set(sweep["run_ids"])
    assert len(up.answer("run", "list", "--tag", "swept", "--limit", "3")["items"]) == 3
    human = up.finaz("run", "list", "--tag", "swept")
    assert all(run_id in human.stdout for run_id in sweep["run_ids"])


def test_cancel_after_the_end_is_refused(up: Up, succeeded: dict[str, Any]) -> None:
    """Cancelling a finished run: `RUN_FINISHED`, status 1."""
    assert refused(up, "RUN_FINISHED", "run", "cancel", succeeded["run_id"])["status"] == 409


def test_cancel_while_queued(up: Up, snapshot: str) -> None:
    """A run cancelled while no worker takes it ends CANCELLED, never executed; watching it ends with status 1."""
    worker = up.pids["worker-1"]
    os.kill(worker, signal.SIGSTOP)
    try:
        run_id = up.answer(
            *("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--key", "cancelled")
        )["run_id"]
        refused(up, "RUN_NOT_READY", "run", "result", run_id)
        cancelled = up.answer("run", "cancel", run_id)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (cancelled["state"], cancelled["attempts"]) == ("CANCELLED", 0)
    watched = up.finaz("run", "watch", run_id)
    assert watched.returncode == 1
    assert "RUN_CANCELLED" in watched.stderr


def test_a_replay_shows_the_faults_it_was_made_with(up: Up, snapshot: str) -> None:
    """With the seven faults of the fixture it reaches the batch's artifact; a schedule is refused for other modes."""
    faults = str(fixture_path("schedules/fixture.faults.01.json"))
    arguments = ("run", "submit", "--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF, "--schedule", faults)
    replay = up.answer(*arguments, "--mode", "REPLAY", "--wait")
    batch = up.answer(*arguments[:-2], "--wait")
    assert replay["results"][0]["values_hash"] == GOLDEN
    assert replay["results"][0]["artifact"] == batch["results"][0]["artifact"]
    assert len(replay["results"][0]["inputs"]) == 4
    refused(up, "BODY_INVALID", *arguments)


def test_a_failed_run_fails_its_command(up: Up, snapshot: str) -> None:
    """A run that ends FAILED makes `--wait` end with status 1 and the run's own code; so does watching it later."""
    flow = parse(fixture_path("flows/01_A_feature.json").read_bytes())
    # the fixture's events are further apart, which only a run can tell
    flow["clock"] = {"kind": "interval", "length_seconds": 1, "empty_cells_max": 0}
    arguments = ("run", "submit", "--flow", "-", "--snapshot", snapshot, "--as-of", AS_OF, "--key", "fails", "--wait")
    done = up.finaz(*arguments, "--json", stdin=json.dumps(flow))
    assert done.returncode == 1
    run, problem = json.loads(done.stdout), json.loads(done.stderr)
    assert run["state"] == "FAILED"
    assert problem["code"] == run["errors"][-1]["code"] == "CLOCK_GAP_TOO_LONG"
    assert up.finaz("run", "watch", run["run_id"]).returncode == 1


# ------------------------------------------------------------------------------------------------ refusals


def test_an_unknown_run(up: Up) -> None:
    """A run id that doesn't exist, and one that is none; for people it is one sentence that begins with the code."""
    refused(up, "RUN_NOT_FOUND", "run", "get", "nonsense")
    unknown = "run_" + "0" * 64
    problem = refused(up, "RUN_NOT_FOUND", "run", "get", unknown)
    human = up.finaz("run", "get", unknown)
    assert (human.returncode, human.stdout) == (1, "")
    assert human.stderr.startswith("finaz: RUN_NOT_FOUND")
    assert problem["detail"] in human.stderr
    assert human.stderr.count("\n") == 1


def test_an_unknown_token(up: Up) -> None:
    """A token that nobody knows, and none at all."""
    refused(up, "UNAUTHENTICATED", "run", "list", FINAZ_TOKEN="finaz_wrong")
    done = finaz("run", "list", "--json", FINAZ_API_URL=up.url)
    assert json.loads(done.stderr)["code"] == "UNAUTHENTICATED"


def test_a_missing_scope(up: Up, tmp_path: Path) -> None:
    """A token made by `token create` is taken up by the running API and allows what its scopes say, no more."""
    file = str(up.folder / "tokens.json")
    made = up.answer("token", "create", "--principal", "ana", "--scope", "runs:read", "--file", file)
    settings = {"FINAZ_TOKEN": made["token"]}
    while up.finaz("run", "list", **settings).returncode:  # the file is looked at once a second
        pass
    assert up.answer("run", "list", **settings)["items"] == []
    refused(up, "FORBIDDEN", "projection", "status", **settings)


def test_a_missing_snapshot(up: Up) -> None:
    """A snapshot that is not stored is refused before the key is burnt."""
    nowhere = address(b"nothing is stored under this")
    refused(up, "BLOB_MISSING", "run", "submit", "--flow", FLOW, "--snapshot", nowhere, "--as-of", AS_OF)


def test_a_bad_flow_names_its_place(up: Up, snapshot: str) -> None:
    """A flow with an op that doesn't exist is refused with the place in the body."""
    text = fixture_path("flows/01_A_feature.json").read_text().replace('"op": "ema"', '"op": "emma"')
    done = up.finaz(*("run", "submit", "--flow", "-", "--snapshot", snapshot, "--as-of", AS_OF, "--json"), stdin=text)
    problem = json.loads(done.stderr)
    assert problem["code"] == "OP_UNKNOWN"
    assert "nodes[0].op" in problem["at"]


def test_a_file_that_is_no_json(up: Up, snapshot: str, tmp_path: Path) -> None:
    """A flow file with a duplicate key, and one that isn't there: named, nothing sent."""
    file = tmp_path / "flow.json"
    file.write_text('{"version": 1, "version": 1}')
    rest = ("--snapshot", snapshot, "--as-of", AS_OF)
    assert str(file) in refused(up, "JSON_INVALID", "run", "submit", "--flow", str(file), *rest)["at"]
    refused(up, "FILE_UNAVAILABLE", "run", "submit", "--flow", str(tmp_path / "none"), *rest)


def test_a_bad_cell_is_named(up: Up, tmp_path: Path) -> None:
    """A CSV with a cell that is no number: the row and the column are named, status 1."""
    file = tmp_path / "bad.csv"
    file.write_text("instrument,event_time,close\nA,2026-01-05T09:00:00Z,1\nA,2026-01-05T09:01:00Z,one\n")
    problem = refused(up, "IMPORT_INVALID", "snapshot", "import", str(file), "--via", "api")
    assert "close" in problem["at"]
    assert "3" in problem["at"]


def test_an_api_that_is_not_there() -> None:
    """Nobody listens: `API_UNREACHABLE`, naming the address and the setting."""
    done = finaz("run", "list", "--json", FINAZ_API_URL="http://127.0.0.1:9")
    problem = json.loads(done.stderr)
    assert (done.returncode, problem["code"]) == (1, "API_UNREACHABLE")
    assert problem["at"] == "http://127.0.0.1:9"


def test_a_wrong_setting_is_named() -> None:
    """A misspelt variable stops any command that reads settings."""
    done = finaz("run", "list", FINAZ_API_ULR="x")
    assert done.returncode == 1
    assert "FINAZ_API_ULR" in done.stderr
    assert "FINAZ_API_URL" in done.stderr


# ------------------------------------------------------------------------------------------------ the rest


def test_projection_status_and_health(up: Up) -> None:
    """Every projection is listed with its position; the API is ready, with status 0."""
    found = {one["name"]: one for one in up.answer("projection", "status")["items"]}
    assert {"runs", "publications", "leases", "outbox", "lease_guard"} <= set(found)
    assert up.answer("health")["status"] == "ready"


def test_log_is_the_whole_log(up: Up, succeeded: dict[str, Any]) -> None:
    """The log is read in order and without a gap; by topic, only those; from a position, only what is behind it."""
    found = up.answer("log", "list", "--limit", "1000")["items"]
    assert [event["position"] for event in found] == list(range(1, len(found) + 1))
    requested = up.answer("log", "list", "--topic", "run.requested.v1", "--after", "1", "--limit", "1")["items"]
    assert [event["topic"] for event in requested] == ["run.requested.v1"]
    assert requested[0]["position"] > 1


def test_show_a_snapshot(up: Up, snapshot: str) -> None:
    """The manifest that an import made, by its address."""
    shown = up.answer("snapshot", "show", snapshot, "--via", "api")
    assert shown["instruments"] == ["fixture.fx-0", "fixture.fx-1", "fixture.fx-2"]
    assert shown["rows"] == 18
    assert up.finaz("snapshot", "show", snapshot, "--via", "api").returncode == 0


# ------------------------------------------------------------------------------------------------ operating


def look_at_every_run(up: Up) -> None:
    """Have the reconciler begin a round now, as the runbooks say."""
    paused = up.answer("projection", "pause", "reconciler", "--reason", "look at every run now")
    assert (paused["state"], paused["pause_reason"]) == ("paused", "look at every run now")
    assert up.answer("projection", "replay", "reconciler")["position"] == 0
    assert up.answer("projection", "resume", "reconciler")["pause_reason"] is None


def an_alert_is_settled_by_hand(up: Up, run_id: str) -> None:
    """What is wrong with the run's row is found, listed, written off with a note, and stays written off."""
    look_at_every_run(up)
    until(lambda: bool(up.answer("alert", "list")["items"]))
    (alert,) = up.answer("alert", "list")["items"]
    assert (alert["kind"], alert["run_id"]) == ("RUN_DIFFERS", run_id)
    assert run_id in up.finaz("alert", "list").stdout
    done = up.answer("alert", "resolve", "RUN_DIFFERS", run_id, "--note", "put back by hand")
    assert done["position"] > 0
    until(lambda: not up.answer("alert", "list")["items"])
    (settled,) = up.answer("alert", "list", "--state", "SETTLED", "--limit", "1")["items"]
    assert settled["outcome"] == "put back by hand"


def test_an_alert_from_the_damage_to_its_end(up: Up, succeeded: dict[str, Any]) -> None:
    """A row changed by hand is found, listed for people and machines, and resolved with a note, once."""
    run_id = succeeded["run_id"]
    change = "UPDATE finaz.runs_generations SET state = %s WHERE run_id = %s"
    with psycopg.connect(up.announced["dsn"], autocommit=True) as connection:
        assert connection.execute(change, ("FAILED", run_id)).rowcount == 1
        try:  # the damage stays until the end: a look that found it gone would settle the alert by itself
            an_alert_is_settled_by_hand(up, run_id)
        finally:
            connection.execute(change, ("SUCCEEDED", run_id))
    refused(up, "ALERT_NOT_FOUND", "alert", "resolve", "RUN_DIFFERS", run_id, "--note", "again")
    refused(up, "BODY_INVALID", "projection", "pause", "runs", "--reason", " ")
    refused(up, "PROJECTION_UNKNOWN", "projection", "resume", "outbox")


def test_dead_letters_are_revived_or_discarded(up: Up, succeeded: dict[str, Any]) -> None:
    """Listed with what failed and why; then tried again, or over."""
    assert up.answer("dead-letter", "list") == {"items": []}
    die = "UPDATE finaz.manager_commands SET state = 'dead', reason = 'no luck' WHERE manager = 'reconciler'"
    with psycopg.connect(up.announced["dsn"], autocommit=True) as connection:
        connection.execute(die)
    letters = up.answer("dead-letter", "list", "--manager", "reconciler")["items"]
    assert "no luck" in up.finaz("dead-letter", "list").stdout
    sweep, verify = (next(one["command_id"] for one in letters if one["name"] == name) for name in ("sweep", "verify"))
    assert up.answer("dead-letter", "revive", "reconciler", sweep)["state"] == "pending"
    for one in letters:
        if one["command_id"] != sweep:
            reason = ("--reason", "the next round looks at it")
            up.answer("dead-letter", "discard", "reconciler", one["command_id"], *reason)
    assert up.answer("dead-letter", "list") == {"items": []}
    refused(up, "NOT_FOUND", "dead-letter", "revive", "reconciler", verify)
    refused(up, "REFUSED", "projection", "replay", "reconciler")


def test_settings_hide_secrets() -> None:
    """`finaz settings` shows every variable, and no secret."""
    done = finaz("settings", "--json", FINAZ_TOKEN="finaz_secret", FINAZ_API_PORT="1234")
    shown = {one["variable"]: one for one in json.loads(done.stdout)["items"]}
    assert shown["FINAZ_API_PORT"]["value"] == "1234"
    assert "finaz_secret" not in done.stdout


# ------------------------------------------------------------------------------------------------ purchases


def test_a_show_and_a_purchase(up: Up) -> None:
    """Put on sale, buy, look, and what is refused; without a gateway the purchase waits, and nobody settles what is not open."""
    terms = ("--starts-at", "2026-06-05T19:00:00Z", "--currency", "EUR", "--seats", "A1:4500,A2:4600")
    made = up.answer("show", "create", "--title", "Lohengrin", *terms, "--key", "lohengrin")
    again = up.answer("show", "create", "--title", "Lohengrin", *terms, "--key", "lohengrin")
    assert again == {**made, "replayed": True}
    show = made["show_id"]
    until(lambda: any(one["show_id"] == show for one in up.answer("show", "list")["items"]))
    buying = ("--email", "ana@example.org", "--payment-method", "pm")
    bought = up.answer("purchase", "create", show, "--seat", "A1", *buying)["purchase_id"]
    refused(up, "SEATS_TAKEN", "purchase", "create", show, "--seat", "A1", *buying)
    status = up.answer("purchase", "status", bought)
    assert (status["state"], status["amount_minor"], status["next_action"]["action"]) == ("PENDING", 4500, "charge")
    until(lambda: [seat["state"] for seat in up.answer("show", "seats", show)["items"]] == ["RESERVED", "FREE"])
    listed = up.answer("purchase", "list", "--state", "PENDING")["items"]
    assert [one["purchase_id"] for one in listed] == [bought]
    assert [one["purchase_id"] for one in up.answer("purchase", "stuck", "--older", "0")["items"]] == [bought]
    refused(up, "REFUSED", "purchase", "settle", bought, "charged", "--note", "asked by phone")
    assert up.answer("purchase", "balances")["items"] == up.answer("purchase", "sales")["items"] == []
    assert up.answer("purchase", "erase-person", "ana@example.org") == {"purchase_ids": [bought]}
    text = up.finaz("purchase", "status", bought).stdout
    assert "PENDING" in text
    assert "started" in text
    assert "[" not in text
