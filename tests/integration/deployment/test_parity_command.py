"""`finaz parity`, and where results come from, against a running system with its broker: three modes, one hash."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.cli import main
from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF, GOLDEN, store_fixture_snapshot
from domain.canonical import address, parse
from tests.support.command_line import Up, finaz_up

FLOW = str(fixture_path("flows/01_A_feature.json"))
FAULTS = str(fixture_path("schedules/fixture.faults.01.json"))
NOBODY = "run_" + "0" * 64
GONE = {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 1, "faults": [{"event": "fixture.event.0.2", "kind": "GAP"}]}

Finaz = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with finaz_up() as here:
        yield here


@pytest.fixture(scope="module")
def asked(up: Up) -> tuple[str, ...]:
    """What all questions share: the flow, the fixture's snapshot, the instant."""
    with ApiClient(up.url, up.token) as client:
        snapshot = store_fixture_snapshot(ApiBlobStore(client))
    return ("--flow", FLOW, "--snapshot", snapshot, "--as-of", AS_OF)


@pytest.fixture
def finaz(up: Up, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Finaz:
    """A command in this process, against the system: its status and what it wrote to standard output."""
    for name, value in up.settings.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0), capfd.readouterr().out

    return run


def test_three_modes_reach_the_golden(finaz: Finaz, up: Up, asked: tuple[str, ...]) -> None:
    """BATCH, REPLAY and STREAM with the seven faults; the stream's topic is read a second time and agrees."""
    bootstrap = ("--bootstrap", up.announced["bootstrap"])
    status, out = finaz("parity", *asked, "--schedule", FAULTS, *bootstrap, "--json")
    found = json.loads(out)
    assert (status, found["equal"]) == (0, True)
    assert [run["mode"] for run in found["runs"]] == ["BATCH", "REPLAY", "STREAM"]
    assert {output["values_hash"] for run in found["runs"] for output in run["outputs"]} == {GOLDEN}
    assert len({run["artifact"] for run in found["runs"]}) == 1
    for run in found["runs"][1:]:
        assert {name: n for name, n in run["counts"].items() if n} == {
            "consumed": 6,
            "filtered": 15,
            "omitted": 1,
            "duplicates_skipped": 1,
        }
    judged = found["verdict"]
    assert (judged["verdict"]["kind"], judged["findings"]["look"]) == ("EQUAL_TO_BATCH_GOLDEN", "CHECKED")
    run_ids = [run["run_id"] for run in found["runs"]]
    assert finaz("parity", *run_ids)[0] == 0
    status, out = finaz("run", "verdict", run_ids[2], "--json")
    assert (status, json.loads(out)["findings"]["look"]) == (2, "COULD_NOT_CHECK")  # its topic was removed
    status, out = finaz("run", "contract", run_ids[2])
    assert (status, "finaz-runtime" in out) == (0, True)


def test_where_modes_part_is_shown(finaz: Finaz, asked: tuple[str, ...], tmp_path: Path) -> None:
    """An event that never arrives: the first tick that is missing, what is mismatched behind it, and exit status 1."""
    schedule = tmp_path / "gone.json"
    schedule.write_text(json.dumps(GONE))
    status, out = finaz("parity", *asked, "--schedule", str(schedule), "--json")
    found = json.loads(out)
    assert (status, found["equal"], found["verdict"]) == (1, False, None)
    (output,) = found["comparisons"][0]["outputs"]
    assert (output["missing"], output["extra"], output["mismatched"]) == (1, 0, 3)
    run_ids = [run["run_id"] for run in found["runs"]]
    status, out = finaz("parity", *reversed(run_ids))
    assert status == 1
    assert "extra: fixture.event.0.2 at 2026-01-05T09:02:00Z" in out
    assert "NOT equal" in out


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--mode", "BATCH", "--mode", "STREAM"), "SETTINGS_INVALID"),
        (("--schedule", FLOW), "SCHEDULE_INVALID"),
        (("--schedule", "nosuch.json"), "FILE_UNAVAILABLE"),
    ],
)
def test_what_cannot_be_checked_has_a_status_of_its_own(
    finaz: Finaz, asked: tuple[str, ...], more: tuple[str, ...], code: str
) -> None:
    """2, and the problem: never "equal"."""
    status, out = finaz("parity", *asked, *more, "--json")
    assert (status, json.loads(out)["equal"], json.loads(out)["problem"]["code"]) == (2, None, code)


def test_a_column_that_is_not_there_is_said_at_once(finaz: Finaz, asked: tuple[str, ...], tmp_path: Path) -> None:
    """The API refuses the run; the command shows node, place and the columns there are."""
    flow = parse(fixture_path("flows/01_A_feature.json").read_bytes())
    flow["nodes"][0]["inputs"] = [{"column": "volume"}]
    wrong = tmp_path / "flow.json"
    wrong.write_text(json.dumps(flow))
    status, out = finaz("parity", "--flow", str(wrong), *asked[2:], "--json")
    found = json.loads(out)["problem"]
    assert (status, found["code"], found["at"]) == (2, "COLUMN_UNKNOWN", "$.flow.nodes[0].inputs[0].column")
    assert found["expected"] == "one of close"


def test_runs_that_failed_or_are_not_there_cannot_be_compared(
    finaz: Finaz, asked: tuple[str, ...], tmp_path: Path
) -> None:
    """Each with the code of what happened."""
    flow = parse(fixture_path("flows/01_A_feature.json").read_bytes())
    flow["clock"] = {"kind": "interval", "length_seconds": 1, "empty_cells_max": 0}
    wrong = tmp_path / "flow.json"
    wrong.write_text(json.dumps(flow))
    status, out = finaz("parity", "--flow", str(wrong), *asked[2:], "--json")
    assert (status, json.loads(out)["problem"]["code"]) == (2, "CLOCK_GAP_TOO_LONG")
    status, out = finaz("parity", NOBODY, NOBODY, "--json")
    assert (status, json.loads(out)["problem"]["code"]) == (2, "RUN_NOT_FOUND")


@pytest.mark.parametrize("arguments", [(), (NOBODY,), (NOBODY, NOBODY, "--flow", FLOW), ("--flow", FLOW)])
def test_the_question_must_be_clear(finaz: Finaz, arguments: tuple[str, ...]) -> None:
    """Two runs or more, or a flow with its snapshot and instant."""
    assert finaz("parity", *arguments)[0] == 2


def test_a_replay_is_shown_with_its_log(finaz: Finaz, asked: tuple[str, ...], tmp_path: Path) -> None:
    """Faults for people and machines; the log as a file that hashes to its name; the contract with seed and schedule."""
    status, out = finaz("run", "submit", *asked, "--mode", "REPLAY", "--schedule", FAULTS, "--wait", "--json")
    run_id = json.loads(out)["run_id"]
    assert status == 0
    assert "SOURCE_FAILURE" in finaz("run", "replay", run_id)[1]
    found = json.loads(finaz("run", "replay", run_id, "--json")[1])
    file = tmp_path / "arrivals.jsonl"
    assert finaz("run", "replay-log", run_id, "--output", str(file))[0] == 0
    assert address(file.read_bytes()) == found["log"]
    assert json.loads(finaz("run", "contract", run_id, "--json")[1])["seed"] == 7
