"""Searching the log: events for which some conditions hold, in the order of positions, a page at a time.

What must stay true: each page has a bounded price, whatever the conditions are and however long the log is. One condition is found
by its index. Of several, the first events of one are looked at; where that is not enough, the rarest drives: all its events where
they are few; where none is rare, at most `EXAMINED_MAX` events of one are looked at for a page, which then says where it got to,
and may hold fewer than asked for, even none. So a page without a next place is the last, and only that. Reads only.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from projections.reading import Query
from projections.statements import statements

FEW_EVENTS: Final = 5000
"""Events of one condition that are all looked at for one page."""

EXAMINED_FIRST: Final = 500
EXAMINED_GROWTH: Final = 8
EXAMINED_MAX: Final = 20_000
"""Events looked at first, the factor by which more are taken each further time, and all that are looked at for one page."""

LAST_CHARACTER: Final = "\U0010ffff"  # behind every name that begins as a prefix does, in the order of bytes
_SQL: Final = statements("services", "log_search.sql")


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for; everything that is given must hold. `since` includes its instant, `until` does not."""

    topics: tuple[str, ...] = ()
    principal: str | None = None
    correlation_id: str | None = None
    stream_prefix: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    backward: bool = False


class LogSearch:
    """One search for a page of events between two positions, both included, through `query`."""

    def __init__(self, query: Query, wanted: Search, first: int, last: int) -> None:
        self._query = query
        self._backward = wanted.backward
        self._bounds = {"first": first, "last": last}
        self._given = _given(wanted)

    def page(self, size: int) -> tuple[Sequence[Any], int | None]:
        """At most `size` rows, and the position behind which to go on; None where that was all."""
        if "streams" not in self._given and len(self._given) <= 1:
            rows = self._rows("found", next(iter(self._given), "positions"), size + 1)
            return rows[:size], rows[size - 1][0] if len(rows) > size else None
        positions, more = self._examined(size)
        return self._rows("at_positions", "positions", size, positions=positions) if positions else (), more

    def _examined(self, size: int) -> tuple[list[int], int | None]:
        """Positions at which all conditions hold, and the one behind which to go on."""
        found: list[int] = []
        left = EXAMINED_MAX
        # What is common is found among the first events of any condition; only what is not is worth counting for.
        chosen = len(self._given) == 1
        driver, step = self._chosen() if chosen else (self._in_order(), EXAMINED_FIRST)
        while True:
            ((count, lowest, highest, positions),) = self._rows("examined", driver, step, page=size + 1 - len(found))
            if driver == "streams" and count == step:  # they have become many since they were counted
                driver, step = self._in_order(), EXAMINED_FIRST
                continue
            found += positions
            left -= count
            if len(found) > size:
                return found[:size], found[size - 1]
            if count < step:
                return found, None
            if self._backward:
                self._bounds["last"] = lowest - 1
            else:
                self._bounds["first"] = highest + 1
            if left <= 0:
                return found, lowest if self._backward else highest
            step = min(step * EXAMINED_GROWTH, left)
            if not chosen:
                chosen = True
                driver, step = self._chosen(step)

    def _chosen(self, step: int = EXAMINED_FIRST) -> tuple[str, int]:
        """The condition that fewest events fulfil, if they are few, else one in the order of positions; and how many to look at."""
        rarest, least = self._in_order(), FEW_EVENTS + 1
        for name in self._given:
            count = self._rows("counted", name, least)[0][0]
            if count < least:
                rarest, least = name, count
        return rarest, FEW_EVENTS + 1 if rarest == "streams" else step

    def _in_order(self) -> str:
        """A condition whose events come in the order of positions."""
        return next((name for name in self._given if name != "streams"), "positions")

    def _rows(self, name: str, driver: str, limit: int, **more: Any) -> Sequence[Any]:
        """Rows of a statement; each combination of conditions is a statement of its own, with a plan of its own."""
        statement = _SQL[name].replace("{driver}", _SQL[f"of_{driver}"])
        statement = statement.replace("{conditions}", " AND ".join(_SQL[f"is_{piece}"] for piece in self._pieces(name)))
        arguments: dict[str, Any] = {**self._bounds, "limit": limit, **more}
        for given in self._given.values():
            arguments |= given
        return self._query.rows(statement.replace("{order}", "DESC" if self._backward else "ASC"), arguments)

    def _pieces(self, name: str) -> Sequence[str]:
        return ["between", *self._given] if name == "examined" else []


def _given(wanted: Search) -> dict[str, Mapping[str, Any]]:
    """The conditions that are given, and the arguments of each."""
    given: dict[str, Mapping[str, Any]] = {}
    if wanted.correlation_id is not None:
        given["correlation"] = {"correlation_id": wanted.correlation_id}
    if wanted.topics:
        given["topics"] = {"topics": list(dict.fromkeys(wanted.topics))}
    if wanted.principal is not None:
        given["principal"] = {"principal": wanted.principal}
    if wanted.stream_prefix is not None:
        given["streams"] = {"prefix": wanted.stream_prefix, "end": wanted.stream_prefix + LAST_CHARACTER}
    return given
