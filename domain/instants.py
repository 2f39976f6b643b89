"""Instants: timezone-aware points in time, to the microsecond, and their one textual form.

What must stay true: an instant without a zone never gets in; two texts of one instant become one value; `format_instant` is a
function of the value alone (UTC, `Z`, fraction without trailing zeros), so hashes of documents that hold instants are stable.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from domain.errors import InstantInvalidError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WITHOUT_ZONE: Final = EPOCH.replace(tzinfo=None)
_MICROSECOND: Final = timedelta(microseconds=1)
_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})\Z", re.ASCII)


def parse_instant(text: str, *, at: str = "$") -> datetime:
    """The instant of RFC 3339 text, in UTC.

    Raises `InstantInvalidError` at `at` for text that is not RFC 3339, has no zone, is no real date, or is finer than a
    microsecond (rounding would make two events one).
    """
    match = _RFC3339.match(text)
    if match is None:
        raise InstantInvalidError(
            f"{text[:64]!r} is not an instant", at=at, expected="RFC 3339 with a zone, such as 2026-01-05T09:00:00Z"
        )
    date, time, fraction, zone = match.groups()
    if fraction and fraction[6:].strip("0"):
        raise InstantInvalidError(f"{text[:64]!r} is finer than a microsecond", at=at, expected="at most six decimals")
    micros = (fraction or "0")[:6].ljust(6, "0")
    offset = "+00:00" if zone in "Zz" else zone
    try:
        return datetime.fromisoformat(f"{date}T{time}.{micros}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise InstantInvalidError(
            f"{text[:64]!r} is no real instant", at=at, expected="a date and time that exist"
        ) from None


def format_instant(instant: datetime) -> str:
    """The one text of an aware instant: UTC, `Z`, and only as many decimals as it needs."""
    if instant.tzinfo is None:
        raise InstantInvalidError("the instant has no zone", at="instant", expected="an aware datetime")
    if instant.tzinfo is not UTC:
        instant = instant.astimezone(UTC)
    text = instant.isoformat()[: -len("+00:00")]
    return (text.rstrip("0") if "." in text else text) + "Z"


def format_micros(micros: int) -> str:
    """`format_instant(from_micros(micros))`, quicker."""
    text = (_EPOCH_WITHOUT_ZONE + timedelta(microseconds=micros)).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"


@lru_cache(maxsize=256)
def seconds_long(seconds: float) -> timedelta:
    """A duration of so many seconds. Folds need the same few again and again, and making one of a float takes a while."""
    return timedelta(seconds=seconds)


def to_micros(instant: datetime) -> int:
    """Microseconds since the UTC epoch, exactly (negative before 1970)."""
    return (instant - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant that many microseconds after the UTC epoch."""
    return EPOCH + timedelta(microseconds=micros)
