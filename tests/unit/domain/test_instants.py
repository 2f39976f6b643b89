"""Instants: aware, to the microsecond, one text each."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InstantInvalidError
from domain.instants import format_instant, format_micros, from_micros, parse_instant, to_micros

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
INSTANTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES)


@given(INSTANTS)
def test_the_text_of_an_instant_gives_it_back(instant: datetime) -> None:
    """Round trip, whatever the zone; and the text is the same for every zone of one instant."""
    text = format_instant(instant)
    assert parse_instant(text) == instant
    assert text == format_instant(instant.astimezone(UTC))
    assert parse_instant(instant.isoformat()) == instant
    assert from_micros(to_micros(instant)) == instant
    assert format_micros(to_micros(instant)) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2026-01-05T09:00:00Z", "2026-01-05T09:00:00Z"),
        ("2026-01-05t09:00:00.250000000z", "2026-01-05T09:00:00.25Z"),
        ("2026-01-05T10:00:00.5+01:00", "2026-01-05T09:00:00.5Z"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
    ],
)
def test_every_spelling_has_one_text(text: str, canonical: str) -> None:
    """Case, zone and trailing zeros say nothing."""
    assert format_instant(parse_instant(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-05T09:00:00",
        "2026-01-05 09:00:00Z",
        "2026-01-05",
        "2026-02-30T00:00:00Z",
        "2026-01-05T24:00:00Z",
        "2026-01-05T09:00:00.0000001Z",
        "2026-01-05T09:00:00.Z",
        "2026-01-05T09:00:00+25:00",
        "2026-01-05T09:00:60Z",
        "２０２６-01-05T09:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "",
        "now",
    ],
)
def test_what_is_no_instant_is_refused_with_its_place(text: str) -> None:
    """Naive, impossible, too fine or merely similar: never guessed."""
    with pytest.raises(InstantInvalidError) as refused:
        parse_instant(text, at="$.as_of")
    assert refused.value.at == "$.as_of"


def test_a_naive_datetime_has_no_text() -> None:
    """An instant without a zone is a bug, not midnight somewhere."""
    with pytest.raises(InstantInvalidError):
        format_instant(datetime(2026, 1, 5))
