"""How read models are read: one statement at a time over whatever runs it, and pages with opaque cursors.

What must stay true: a cursor says where the last page ended, in an order that no event changes, and for which query; given with
another query, or damaged, it is refused. Reading holds nothing open: a crash leaves nothing.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from domain.canonical import address_of
from domain.errors import BodyInvalidError, CursorInvalidError

PAGE_ROWS_MAX: Final = 200
"""Rows of one page."""

_PLACE_MAX: Final = 2**63 - 1
_DIGEST_CHARACTERS: Final = 16
_ADDRESS_PREFIX: Final = len("sha256:")

R = TypeVar("R")


class Query(Protocol):
    """Runs one statement and returns its rows (`services.store.connections.Pool` does). Blocks; any thread may call it.

    Raises `StoreUnavailableError` when the database is away.
    """

    def rows(self, statement: str, arguments: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class Page(msgspec.Struct, Generic[R], frozen=True):
    """Some rows, the cursor of the page after it (None: this is the last), and the position that the page shows."""

    items: tuple[R, ...]
    next_cursor: str | None
    position: int


def cursor_of(place: int, query: Any) -> str:
    """The cursor after `place` for a query (any value with a canonical form)."""
    return urlsafe_b64encode(f"{place}.{_digest(query)}".encode()).decode().rstrip("=")


def place_of(cursor: str, query: Any) -> int:
    """Where the page before ended. Raises `CursorInvalidError`."""
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("ascii")
        place, _, digest = text.partition(".")
        number = int(place) if place.isdigit() else -1
    except ValueError:
        number, digest = -1, ""
    if not 0 <= number <= _PLACE_MAX or cursor_of(number, query) != cursor:
        wrong_query = 0 <= number <= _PLACE_MAX and len(digest) == _DIGEST_CHARACTERS
        raise CursorInvalidError(
            "the cursor belongs to another query" if wrong_query else "the cursor is damaged",
            at="cursor",
            expected="a next_cursor of the same query",
        )
    return number


def checked_limit(limit: int) -> int:
    """The number of rows asked for, if it is one: 1 to `PAGE_ROWS_MAX`."""
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise BodyInvalidError(f"a page of {limit} rows", at="limit", expected=f"1 to {PAGE_ROWS_MAX}")
    return limit


def page_of(rows: Sequence[R], limit: int, places: Sequence[int], query: Any, position: int) -> Page[R]:
    """The page that `limit + 1` rows asked for make: the extra one only tells that there is another page."""
    more = len(rows) > limit
    return Page(tuple(rows[:limit]), cursor_of(places[limit - 1], query) if more else None, position)


def _digest(query: Any) -> str:
    return address_of(query)[_ADDRESS_PREFIX:][:_DIGEST_CHARACTERS]
