"""Benchmarks at a tiny scale: they run to the end and report their fields. Nothing here looks at a time.

The peers' environments are never made here; the raw loop stands for every contender.
"""

from pathlib import Path

import msgspec
import pytest

from deployment.bench import contenders, growth, pickup, runs
from deployment.bench.own import OWN
from deployment.embedded import EmbeddedPostgres
from domain.runs.messages import RunSucceeded
from projections.inline import INLINE
from services.store.application import Log


def silent(sentence: str) -> None:
    """Progress that nobody reads."""


def test_runs_end_to_end_report_rates_ratios_and_versions() -> None:
    """Every contender has a figure with a ratio to the raw loop; ours has the aims."""
    answer = runs.compare((OWN, contenders.RAW), 1, 0.005, silent)
    assert [figure["label"] for figure in answer["figures"]] == [OWN.name, contenders.RAW.name]
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in answer["figures"])
    assert answer["figures"][1]["ratio"] == 1.0
    assert answer["jobs"] == 10
    assert [aim["aim"] for aim in answer["aims"]] == ["≥ 0.5"]
    assert set(answer["versions"][contenders.RAW.name]) == {"python", "psycopg"}


def test_idle_pick_up_reports_both_spans_and_an_aim() -> None:
    """Percentiles since the acknowledgement and since the call, and the ratio to the last contender."""
    answer = pickup.compare((OWN, contenders.RAW_NOTIFY), 1, 0.025, silent)
    assert len(answer["figures"]) == 8
    assert [aim["what"] for aim in answer["aims"]] == ["idle pick-up p50, finaz to raw NOTIFY loop"]


def test_a_log_is_given_a_past_of_finished_runs_and_goes_on_from_it() -> None:
    """Each copied run has all its seven events, readable, gapless; new runs are executed on top."""
    python = contenders.python_of(OWN, silent)
    with EmbeddedPostgres() as server, contenders.fresh_database(server) as dsn:
        contenders.trial_in(dsn, OWN, python, 1, prefix="template-")
        events = growth.lengthen(dsn, 1000)
        assert 1000 <= events < 1007
        with Log(dsn, INLINE) as log:
            past = log.read_log(0, events + 1)
        assert [recorded.position for recorded in past] == list(range(1, events + 1))
        assert sum(isinstance(recorded.event, RunSucceeded) for recorded in past) == events / 7
        assert growth.lengthen(dsn, 1000) == events
        rates, waits = growth.measure(dsn, python, 1, 2, 2, "again-")
        assert [rates[0].jobs, len(waits[0].since_called)] == [2, 2]


def test_a_contender_that_dies_is_named_with_what_it_wrote(tmp_path: Path) -> None:
    """No trial hangs or passes for done because a process is gone."""
    broken = tmp_path / "broken_jobs.py"
    broken.write_text("raise RuntimeError('cannot be loaded')\n")
    contender = msgspec.structs.replace(contenders.RAW, name="broken", file=broken)
    with EmbeddedPostgres() as server, pytest.raises(contenders.TrialFailedError, match="cannot be loaded") as failed:
        contenders.trial(contender, contenders.python_of(contender, silent), server, 1)
    assert failed.value.at == "broken"
