"""Benchmarks at a tiny scale: they run to the end and report their fields. Nothing here looks at a time.

The peers' environments are never made here; the raw loop stands for every contender.
"""

from pathlib import Path

import msgspec
import pytest

from deployment.bench import contenders, pickup, runs
from deployment.embedded import EmbeddedPostgres


def silent(sentence: str) -> None:
    """Progress that nobody reads."""


def test_runs_end_to_end_report_rates_ratios_and_versions() -> None:
    """Every contender has a figure with a ratio to the raw loop."""
    answer = runs.compare((contenders.RAW, contenders.RAW_SINGLE), 1, 0.005, silent)
    assert [figure["label"] for figure in answer["figures"]] == [contenders.RAW.name, contenders.RAW_SINGLE.name]
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in answer["figures"])
    assert answer["figures"][0]["ratio"] == 1.0
    assert answer["jobs"] == 10
    assert set(answer["versions"][contenders.RAW.name]) == {"python", "psycopg"}


def test_idle_pick_up_reports_both_spans_and_an_aim() -> None:
    """Percentiles since the acknowledgement and since the call, and the ratio to the last contender."""
    answer = pickup.compare((contenders.RAW, contenders.RAW_NOTIFY), 1, 0.025, silent)
    assert len(answer["figures"]) == 8
    assert [aim["what"] for aim in answer["aims"]] == ["idle pick-up p50, raw loop, batch 50 to raw NOTIFY loop"]


def test_a_contender_that_dies_is_named_with_what_it_wrote(tmp_path: Path) -> None:
    """No trial hangs or passes for done because a process is gone."""
    broken = tmp_path / "broken_jobs.py"
    broken.write_text("raise RuntimeError('cannot be loaded')\n")
    contender = msgspec.structs.replace(contenders.RAW, name="broken", file=broken)
    with EmbeddedPostgres() as server, pytest.raises(contenders.TrialFailedError, match="cannot be loaded") as failed:
        contenders.trial(contender, contenders.python_of(contender, silent), server, 1)
    assert failed.value.at == "broken"
