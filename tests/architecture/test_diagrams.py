"""The architecture page shows the tables that the code interprets."""

from pathlib import Path

from deployment.diagrams import TABLES, render

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_diagrams_are_those_of_the_code() -> None:
    """Run `python -m deployment.diagrams` after changing a table; every table has its diagram."""
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page
    for name in TABLES:
        assert f"<!-- diagram: {name} -->" in page
    assert "--> [*]" in page
