"""Fixtures are found by name, in a checkout here and in a wheel by the packaging tests."""

import pytest

from deployment.fixture_files import fixture_path
from domain.errors import NotFoundError


def test_a_fixture_is_found_by_its_name() -> None:
    """A name below `fixtures/` gives the path of the file."""
    assert fixture_path("real/stocks.csv.gz").stat().st_size > 0


def test_a_name_that_is_no_fixture_is_refused() -> None:
    """A typed error names what was asked for."""
    with pytest.raises(NotFoundError, match=r"no fixture 'real/nothing.csv'"):
        fixture_path("real/nothing.csv")
