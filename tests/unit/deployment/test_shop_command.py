"""What the commands of the shop make of what is typed, before anything is asked of the API."""

import pytest
from click.testing import CliRunner

from deployment.cli.shop import show


@pytest.mark.parametrize("odd", ["A1:²", "A1:٣", "A1:-1", "A1:1.5", "A1:", "A1", "", "A1:1,,A2:1"])
def test_a_price_that_is_no_whole_number_is_a_fault_of_usage(odd: str) -> None:
    """Whatever else Unicode calls a digit, it is refused with the option's name."""
    terms = ["--title", "T", "--starts-at", "2026-06-05T19:00:00Z", "--currency", "EUR", "--seats", odd]
    done = CliRunner().invoke(show, ["create", *terms])
    assert done.exit_code == 2
    assert "--seats" in done.output
