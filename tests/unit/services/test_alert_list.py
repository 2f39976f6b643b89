"""One list of alerts from many sources."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import CursorInvalidError
from services.alert_sources import AlertView, Placed
from services.alerts import Alerts

AT = datetime(2026, 1, 5, tzinfo=UTC)


class Source:
    """Alerts at these places."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = sorted(places, reverse=True)

    def newest(self, state: str | None, before: int, limit: int) -> list[Placed]:
        return [placed(place) for place in self._places if place < before][:limit]


def placed(place: int) -> Placed:
    facts: dict[str, Any] = dict.fromkeys(
        ("source", "kind", "subject", "state", "expected", "actual", "outcome", "settle_with"), "x"
    )
    view = AlertView(**facts, run_id=None, principal=None, times_found=1, found_at=AT, changed_at=AT, position=place)
    return Placed(place, view)


def listed(sources: list[Source]) -> Alerts:
    return Alerts(None, sources, None, None)  # type: ignore[arg-type]


@given(
    places=st.dictionaries(st.integers(1, 10**6), st.integers(0, 2), max_size=30),
    limit=st.integers(1, 7),
)
def test_pages_of_all_sources_are_one_list(places: dict[int, int], limit: int) -> None:
    """However the sources' alerts lie among each other: each once, newest first, no page over its limit."""
    sources = [Source([place for place, owner in places.items() if owner == number]) for number in range(3)]
    alerts, found, cursor = listed(sources), [], None
    while True:
        page = asyncio.run(alerts.list("ALERTED", cursor, limit))
        assert len(page.items) <= limit
        found += [view.position for view in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == sorted(places, reverse=True)


def test_a_cursor_belongs_to_its_state() -> None:
    """Given with another, it is refused."""
    alerts = listed([Source([1, 2])])
    cursor = asyncio.run(alerts.list("ALERTED", None, 1)).next_cursor
    with pytest.raises(CursorInvalidError):
        asyncio.run(alerts.list("FOUND", cursor, 1))
