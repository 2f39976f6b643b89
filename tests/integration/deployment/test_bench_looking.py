"""The benchmarks of audits and inspection run from end to end, small; no test asserts a figure."""

import pytest

from deployment.bench import audit, inspection


def test_the_audit_is_measured_against_bare_reading() -> None:
    """Two figures, and the aim."""
    said: list[str] = []
    answer = audit.run(1, 0.005, said.append)
    assert [figure["value"] > 0 for figure in answer["figures"]] == [True, True]
    assert [aim["aim"] for aim in answer["aims"]] == ["≥ 0.5"]
    assert said


def test_every_kind_of_look_is_measured_at_three_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure for each kind and length, the percentile over all, and an aim for the growth of each kind."""
    monkeypatch.setattr(inspection, "LOOKS", 2)
    monkeypatch.setattr(inspection, "EVENTS", (300, 600, 1200))
    said: list[str] = []
    answer = inspection.run(1, 1.0, said.append)
    assert len(answer["figures"]) == 3 * (len(inspection.LOOKED) + 1)
    assert len(answer["aims"]) == 1 + len(inspection.LOOKED)
    assert [set(kinds) for kinds in answer["blocks"].values()] == [set(inspection.LOOKED)] * 3
    assert all(count > 0 for kinds in answer["blocks"].values() for count in kinds.values())
    assert said
