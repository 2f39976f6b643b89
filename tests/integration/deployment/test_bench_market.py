"""The benchmarks of ops and imports run to their end and answer in the agreed form, at a size that says nothing about speed."""

import json

from deployment.bench import imports, ops
from domain.market.ops import OPS


def test_ops_are_measured_each_against_somebody() -> None:
    """Every op has a figure with a ratio, and gave nearly the same values as its reference."""
    told: list[str] = []
    result = ops.run(1, 0.0005, told.append)
    assert json.loads(json.dumps(result)) == result
    assert {figure["label"].split()[0] for figure in result["figures"]} == {name for name, _ in OPS}
    assert all(figure["ratio"] > 0 and figure["largest_difference"] < 1e-3 for figure in result["figures"])
    assert len(told) == len(result["figures"])


def test_imports_are_measured_apart() -> None:
    """Speed and peak memory of each format and size, each from a process of its own."""
    result = imports.run(1, 0.0005, lambda sentence: None)
    assert json.loads(json.dumps(result)) == result
    assert [figure["unit"] for figure in result["figures"]] == ["rows/s", "MB"] * 3
    assert all(50 < figure["value"] < 2000 for figure in result["figures"] if figure["unit"] == "MB")
