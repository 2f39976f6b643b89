"""The page on determinism: its conditions are numbered, and each names tests that there are."""

import re

from tests.architecture.sources import ROOT
from tests.architecture.test_field_reports import CITATION, functions_of

PAGE = "docs/determinism.md"


def conditions() -> list[list[str]]:
    """The cells of each condition."""
    lines = (ROOT / PAGE).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]


def test_every_condition_is_shown_by_a_test_that_exists() -> None:
    """Numbers from 1 on, none left out; a test that is renamed or removed is missed here."""
    found = conditions()
    assert [int(cells[0]) for cells in found] == list(range(1, len(found) + 1))
    for cells in found:
        cited = CITATION.findall(cells[-1])
        assert cited, f"condition {cells[0]} is shown by nothing"
        assert [f"{path}::{name}" for path, name in cited if name not in functions_of(path)] == []
