"""The arithmetic of benchmarks, the registry's tolerance, the table, and what the peers are pinned by."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from deployment.bench import figures, registry
from deployment.cli import bench as command

PEERS = Path(command.__file__).parent.parent / "bench" / "peers"
REQUIREMENTS = sorted(PEERS.glob("*.txt"))
VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=30)


@given(VALUES, st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_with_that_share_at_or_below_it(values: list[float], share: float) -> None:
    """Nothing is interpolated, and no smaller value would do."""
    found = figures.percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


@given(VALUES)
def test_a_ratio_to_itself_is_one(values: list[float]) -> None:
    """Ratios are taken pair by pair."""
    assert figures.ratio(values, values) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("value", "bound", "met", "missed_by"),
    [
        (0.5, {"at_least": 0.5}, True, 0.0),
        (0.4, {"at_least": 0.5}, False, 0.2),
        (3.0, {"at_most": 3.0}, True, 0.0),
        (4.5, {"at_most": 3.0}, False, 0.5),
    ],
)
def test_an_aim_says_by_which_share_it_was_missed(
    value: float, bound: dict[str, float], met: bool, missed_by: float
) -> None:
    """Both kinds of bound, met at the bound itself."""
    aim = figures.aim("x", value, **bound)
    assert (aim["met"], aim["missed_by"]) == (met, pytest.approx(missed_by))


def test_a_benchmark_that_fails_is_an_error_in_the_answer_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that isn't there loses nobody else's figures."""
    monkeypatch.setattr(registry, "BENCHMARKS", {"missing": "deployment.bench.no_such_module"})
    answers = registry.run_benchmarks(["missing"], 3, 1.0, lambda sentence: None)
    assert answers["failed"] == ["missing"]
    assert "no_such_module" in answers["benchmarks"]["missing"]["error"]


def test_the_table_shows_ratio_aim_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """For people, with by how much an aim was missed; a benchmark that failed says why."""
    ours = figures.figure("ours", [1.0, 2.0, 3.0], "jobs/s", ratio=0.25)
    answer = figures.answer(
        "How fast?",
        [ours],
        [figures.aim("ours to theirs", 0.25, at_least=0.5)],
        ["noted"],
        versions={"theirs": {"peer": "1.6.0"}, "lib": "2"},
    )
    command.show(
        {
            "measured_at": "2026-01-05T09:00:00+00:00",
            "seconds": 1.0,
            "machine": registry.machine(),
            "repeats": 3,
            "scale": 1.0,
            "benchmarks": {"one": answer, "two": {"error": "it broke"}},
            "aims_met": 0,
            "aims_missed": 1,
        }
    )
    shown = capsys.readouterr().out
    for text in (
        "How fast?",
        "jobs/s",
        "0.250",
        "≥ 0.5",
        "missed by 50%",
        "noted",
        "it broke",
        "theirs: peer 1.6.0",
        "lib: 2",
    ):
        assert text in shown


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    """The refusal lists what there is."""
    refused = CliRunner().invoke(command.bench, ["--only", "runs,nonsense"])
    assert refused.exit_code == 2
    assert "nonsense" in refused.output


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_peers_are_pinned_by_hash_and_name_no_index(path: Path) -> None:
    """Every requirement has an exact version and a hash; no line says where to fetch it from."""
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        assert re.match(r"[a-z0-9._\[\]-]+==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", line), line
    assert "://" not in text
    assert "index" not in text


def test_each_peer_has_a_file_that_does_its_work() -> None:
    """Three run jobs, two read a topic."""
    work = {path.stem: [file.name for file in PEERS.glob(f"{path.stem}_*.py")] for path in REQUIREMENTS}
    jobs, stream = ("dbos", "pgqueuer", "procrastinate"), ("bytewax", "quixstreams")
    assert work == {name: [f"{name}_jobs.py"] for name in jobs} | {name: [f"{name}_stream.py"] for name in stream}
