"""`finaz log`, `finaz audit` and `finaz seal` against a whole running system, as an operator uses them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deployment.fixture_files import fixture_path
from deployment.migrate import migrate
from tests.support.command_line import COMMAND, Up, environment, finaz, finaz_up

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """A system that has published a result."""
    with finaz_up() as here:
        flow, market = (
            str(fixture_path(name)) for name in ("flows/01_A_feature.json", "snapshots/fixture.snapshot.01.jsonl")
        )
        snapshot = here.answer("snapshot", "import", market, "--name", "s", "--format", "jsonl", "--via", "api")[
            "address"
        ]
        here.answer("run", "submit", "--flow", flow, "--snapshot", snapshot, "--wait")
        yield here


@pytest.fixture
def stream(up: Up) -> str:
    (found,) = up.answer("log", "streams", "--prefix", "run/")["items"]
    return str(found["stream"])


def told(up: Up, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command against the system, whatever its status."""
    return finaz(*arguments, FINAZ_API_URL=up.url, FINAZ_TOKEN=up.token)


def local(up: Up, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """A command on the system's database and folder."""
    return finaz(*arguments, **({"FINAZ_POSTGRES_DSN": dsn(up), "FINAZ_DATA_DIR": str(folder(up))} | settings))


def dsn(up: Up) -> str:
    return str(up.announced["dsn"])


def folder(up: Up) -> Path:
    return up.folder


def test_a_run_is_looked_at(up: Up, stream: str) -> None:
    """Its stream either way, its state then and now, what changed, what it is part of: for people and for machines."""
    events = up.answer("log", "read", stream)["items"]
    assert events[-1]["topic"] == "run.succeeded.v1"
    assert up.answer("log", "read", stream, "--backward", "--limit", "1")["items"] == [events[-1]]
    assert up.answer("log", "state", stream)["state"]["state"] == "SUCCEEDED"
    assert up.answer("log", "state", stream, "--version", "1")["state"]["state"] == "QUEUED"
    assert up.answer("log", "state", stream, "--at", events[0]["recorded_at"])["version"] == 1
    paths = [one["path"] for one in up.answer("log", "diff", stream, "1", "2")["differences"]]
    assert "$.state" in paths
    event_id = events[0]["event_id"]
    for command in ("causes", "effects"):
        for named in (event_id, str(events[0]["position"])):
            assert event_id in [one["event_id"] for one in up.answer("log", command, named)["items"]]
    found = up.answer(
        "log", "search", "--topic", "run.succeeded.v1", "--prefix", "run/", "--since", events[0]["recorded_at"]
    )
    assert found["items"] == [events[-1]]
    for arguments in (
        ("streams",),
        ("read", stream),
        ("state", stream),
        ("diff", stream, "0", "1"),
        ("tail",),
        ("search",),
    ):
        shown = told(up, "log", *arguments)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert stream.removeprefix("run/")[:20] in shown.stdout or arguments[0] == "diff"
    assert told(up, "log", "read", "run/nobody", "--json").returncode == 1


def test_what_is_misspelt_or_cut_off_is_said(up: Up, stream: str) -> None:
    """A bare id is no stream, a position beyond the end no event; an unknown topic and a list that goes on are pointed out."""
    for bare in (("read", stream[4:]), ("state", stream[4:]), ("diff", stream[4:], "0", "1"), ("causes", "999999999")):
        refused = told(up, "log", *bare)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    misspelt = told(up, "log", "search", "--topic", "run.succeded.v1")
    assert (misspelt.returncode, "run.succeeded.v1" in misspelt.stderr) == (0, True)
    cut = told(up, "log", "list", "--limit", "1")
    assert "--limit" in cut.stderr
    assert len(json.loads(told(up, "log", "list", "--limit", "1", "--json").stdout)["items"]) == 1


def test_a_rebuild_shows_what_differs_before_it_is_confirmed(up: Up, stream: str) -> None:
    """The job waits and says how to see the rows; its report names row, column and both values."""
    with psycopg.connect(dsn(up), autocommit=True) as connection:
        connection.execute("UPDATE finaz.runs_generations SET priority = 99")
        rebuild = told(up, "projection", "rebuild", "runs", "--switch", "on_confirmation")
        connection.execute("UPDATE finaz.runs_generations SET priority = 0")
    job_id = up.answer("job", "list", "--state", "AWAITING")["items"][0]["job_id"]
    assert f"finaz job show {job_id} --report" in rebuild.stderr
    shown = told(up, "job", "show", job_id, "--report").stdout.splitlines()
    assert [line.split() for line in shown if stream[4:] in line] == [[stream[4:], "different", "priority", "99", "0"]]
    assert told(up, "job", "cancel", job_id).returncode == 0
    assert told(up, "job", "watch", job_id).returncode == 1


def test_the_log_is_followed(up: Up) -> None:
    """`tail --follow` shows the end, then what comes."""
    with subprocess.Popen(
        [*COMMAND, "log", "tail", "--follow", "--lines", "1", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(FINAZ_API_URL=up.url, FINAZ_TOKEN=up.token),
        cwd=CHECKOUT,
    ) as tail:
        assert tail.stdout is not None
        last = json.loads(tail.stdout.readline())
        job = told(up, "audit", "replay", "--json")
        assert job.returncode == 0, job.stderr
        following = json.loads(tail.stdout.readline())
        tail.terminate()
    assert following["position"] == last["position"] + 1


def test_an_audit_of_a_healthy_system_is_clean(up: Up) -> None:
    """Exit status 0, the report in CAS, the outcome an event; and the same directly on the database."""
    done = told(up, "audit", "replay", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["outcome"], report["differences"], report["not_checked"]) == ("clean", 0, [])
    events = up.answer("log", "read", f"job/{report['job_id']}")["items"]
    assert (events[-1]["topic"], events[-1]["event"]["result"]["outcome"]) == ("job.succeeded.v1", "clean")
    assert events[-1]["event"]["report"] == report["report"]
    directly = local(up, "audit", "replay", "--direct", "--json")
    assert directly.returncode == 0, directly.stderr
    assert json.loads(directly.stdout)["position"] >= report["position"]
    assert "clean" in told(up, "audit", "replay").stdout


def test_seals_are_made_and_verified(up: Up, tmp_path: Path) -> None:
    """The system has sealed what it wrote; `now` seals the rest; they verify offline, against the public key alone."""
    assert local(up, "seal", "now").returncode == 0
    seals = folder(up) / "seals"
    verified = local(up, "seal", "verify", str(seals), "--json")
    assert verified.returncode == 0, verified.stderr
    found = json.loads(verified.stdout)
    assert found["seals"] >= 1
    (tmp_path / "public.hex").write_text(local(up, "seal", "public").stdout)
    alone = finaz("seal", "verify", str(seals), "--public-key", str(tmp_path / "public.hex"))
    assert (alone.returncode, alone.stderr) == (0, "")
    other = json.loads(finaz("seal", "key", "--output", str(tmp_path / "k.pem"), "--json").stdout)
    (tmp_path / "public").write_text(other["public_key"])
    wrong = finaz("seal", "verify", str(seals), "--public-key", str(tmp_path / "public"))
    assert wrong.returncode == 1
    for nothing in (tmp_path, tmp_path / "misspelt"):
        assert local(up, "seal", "verify", str(nothing)).returncode == 1
    assert finaz("seal", "key", "--output", str(tmp_path / "k.pem")).returncode == 1
    report = json.loads(told(up, "audit", "replay", "--json").stdout)
    assert report["seals"]["vouched_position"] >= found["position"]


def test_a_changed_row_is_named_and_what_cannot_be_checked_is_another_status(
    up: Up, stream: str, tmp_path: Path
) -> None:
    """Exit status 1 with the row's name; 2 where nothing answers."""
    with psycopg.connect(dsn(up), autocommit=True) as connection:
        connection.execute("UPDATE finaz.runs_generations SET priority = 99")
        file = tmp_path / "report.json"
        done = told(up, "audit", "replay", "--json", "--report", str(file))
        connection.execute("UPDATE finaz.runs_generations SET priority = 0")
    assert done.returncode == 1
    (finding,) = json.loads(file.read_text())["findings"]
    assert (finding["kind"], finding["subject"], finding["at"]) == ("ROW_DIFFERENT", f"runs {stream[4:]}", "priority")
    away = finaz("audit", "replay", "--direct", "--json", FINAZ_POSTGRES_DSN="postgresql:///x?host=/nonexistent")
    assert (away.returncode, json.loads(away.stderr)["code"]) == (2, "STORE_UNAVAILABLE")
    lost = local(up, "audit", "replay", "--direct", "--json", FINAZ_CAS_DIR=str(tmp_path / "misspelt"))
    assert (lost.returncode, json.loads(lost.stderr)["code"]) == (2, "FILE_UNAVAILABLE")
    assert not (tmp_path / "misspelt").exists()


def test_a_log_goes_to_another_store(up: Up, tmp_path: Path) -> None:
    """Exported through the API and directly, the same lines; imported, the same log, which a direct audit finds clean."""
    file, direct = tmp_path / "log.jsonl", tmp_path / "direct.jsonl"
    head = up.answer("log", "export", "--output", str(file))
    assert (
        local(up, "log", "export", "--direct", "--last", str(head["last_position"]), "--output", str(direct)).returncode
        == 0
    )
    assert file.read_bytes().splitlines()[1:] == direct.read_bytes().splitlines()[1:]
    with psycopg.connect(dsn(up), autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
    other = make_conninfo(dsn(up), dbname="other")
    migrate(other)
    taken = local(up, "log", "import", str(file), "--json", FINAZ_POSTGRES_DSN=other)
    assert taken.returncode == 0, taken.stderr
    assert json.loads(taken.stdout)["chain"] == head["chain"]
    again = local(up, "log", "import", str(file), "--json", FINAZ_POSTGRES_DSN=other)
    assert (again.returncode, json.loads(again.stderr)["code"]) == (1, "LOG_NOT_EMPTY")
    audited: dict[str, Any] = json.loads(
        local(up, "audit", "replay", "--direct", "--json", FINAZ_POSTGRES_DSN=other).stdout
    )
    assert (audited["outcome"], audited["chain_head"]) == ("clean", head["chain"])
