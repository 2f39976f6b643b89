"""The benchmark of appends runs from end to end, small; no test asserts a figure."""

import pytest

from deployment.bench import appends


def test_the_benchmark_measures_both_sides_and_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures for each number of callers, for the stock recorder and for logs of three lengths, and the three aims."""
    monkeypatch.setattr(appends, "TRIAL_SECONDS_MIN", 0.02)
    monkeypatch.setattr(appends, "GROWN_TO", (1_000_000, 2_000_000, 3_000_000))
    said: list[str] = []
    answer = appends.run(1, 0.001, said.append)
    assert all(figure["value"] > 0 for figure in answer["figures"])
    assert len(answer["figures"]) == len(appends.IN_FLIGHT) + len(appends.THREADS) + len(appends.GROWN_TO)
    assert [set(aim) for aim in answer["aims"]] == [{"what", "ratio", "aim", "met", "missed_by"}] * 3
    assert said
