"""How commands show values to people, cut lists, and say what to do about an error."""

from typing import Any

import pytest

from deployment.cli.output import first, plain, tell_error
from domain.errors import SettingsError, UnauthenticatedError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"),
        (False, "no"),
        ([], "-"),
        ({}, "-"),
        (["A1", "A2"], "A1, A2"),
        ({"EUR": 4500, "open": True, "none": None}, "EUR 4500, open yes, none -"),
        ({"values": {"price": 101.5}}, 'values {"price": 101.5}'),
        ([{"é": [1]}], '{"é": [1]}'),
        ("text", "text"),
        (0, "0"),
    ],
)
def test_values_are_shown_as_people_read_them(value: Any, shown: str) -> None:
    """No value is shown as Python writes it."""
    assert plain(value) == shown


def test_a_list_that_is_cut_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly as many as asked for is all there is; one more is not shown but told."""
    assert (first(iter([1, 2]), 2), capsys.readouterr().err) == ([1, 2], "")
    assert first(iter([1, 2, 3]), 2) == [1, 2]
    assert "--limit" in capsys.readouterr().err


def test_errors_that_cannot_say_what_to_do_at_the_command_line_have_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """By their code, or by the setting that is missing; machines get the problem document alone."""
    for error, hint in (
        (UnauthenticatedError("there is no bearer token", at="Authorization"), "FINAZ_TOKEN"),
        (SettingsError("not set", at="FINAZ_KAFKA_BOOTSTRAP"), "--bootstrap"),
    ):
        tell_error(error, as_json=False)
        assert hint in capsys.readouterr().err.splitlines()[1]
        tell_error(error, as_json=True)
        assert len(capsys.readouterr().err.splitlines()) == 1
