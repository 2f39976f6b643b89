"""The page of faults that others had names tests that there are."""

import ast
import re

from tests.architecture.sources import ROOT

PAGE = "docs/field-reports.md"
LATER = ("comes with the stream", "comes with ClickHouse")
CITATION = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of each fault."""
    lines = (ROOT / PAGE).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]


def functions_of(path: str) -> set[str]:
    """The names of the test functions in a file; none if there is no such file."""
    file = ROOT / path
    source = file.read_text("utf-8") if file.exists() else ""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.parse(source).body if isinstance(node, functions)}


def test_every_test_that_the_page_names_exists() -> None:
    """A test that is renamed or removed is missed here, so that its fault does not lose its guard unseen."""
    cited = CITATION.findall((ROOT / PAGE).read_text("utf-8"))
    assert len(cited) > 50
    assert sorted({f"{path}::{name}" for path, name in cited if name not in functions_of(path)}) == []


def test_every_fault_has_a_test_or_says_what_it_waits_for() -> None:
    """No line without either, and every number once."""
    found = rows()
    assert [int(cells[0]) for cells in found] == list(range(1, len(found) + 1))
    assert [cells for cells in found if not CITATION.search(cells[-1]) and not cells[-1].endswith(LATER)] == []
