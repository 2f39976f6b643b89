"""Runs in PostgreSQL: the rows for the runner, and the reader for everybody else.

What must stay true: a page and the position it shows come from one statement; pages are stable while runs arrive and change,
because they go by `requested_position`, which no later event changes and no rebuild either.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from domain.errors import BodyInvalidError
from domain.instants import format_instant
from projections.postgres import RowStore
from projections.reading import Page, Query, checked_limit, page_of, place_of
from projections.runs.projection import RunFold, RunRow, fold_of, row_of

ROWS: Final = RowStore[str, RunFold, RunRow](__package__, RunRow, row_of, fold_of, lambda row: row.run_id)

TAGS_MAX: Final = 16
"""Tags that one query may ask for."""

_NEWEST: Final = 2**63 - 1
_rows_of: Final = msgspec.json.Decoder(tuple[RunRow, ...]).decode


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs: each condition that is given must hold. `tags`: all of them; the rest of several: any of them.

    `requested_from` is included, `requested_to` is not; both are aware.
    """

    principal: str | None = None
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mode: str | None = None
    sweep_id: str | None = None
    requested_from: datetime | None = None
    requested_to: datetime | None = None

    def as_value(self) -> dict[str, Any]:
        """The filter as a value with a canonical form: equal filters give equal cursors."""
        value = msgspec.structs.asdict(self)
        value["states"], value["tags"] = sorted(set(self.states)), sorted(set(self.tags))
        for name in ("requested_from", "requested_to"):
            value[name] = format_instant(value[name]) if value[name] is not None else None
        return value


EVERY_RUN: Final = RunFilter()


class RunsReader:
    """Lists runs. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def get(self, run_id: str) -> RunRow | None:
        """The run's row, if the projection has come so far."""
        rows = self._query.rows(ROWS.sql["get"], {"run_id": run_id})
        return ROWS.decode(rows[0][0]) if rows else None

    def list(self, wanted: RunFilter = EVERY_RUN, cursor: str | None = None, limit: int = 50) -> Page[RunRow]:
        """Runs by the filter, newest first, at most `limit` (1 to `PAGE_ROWS_MAX`).

        Raises `CursorInvalidError`, `BodyInvalidError` (limit, tags) and `InstantInvalidError` (an instant without a zone).
        """
        limit = checked_limit(limit)
        if len(wanted.tags) > TAGS_MAX:
            raise BodyInvalidError(f"{len(wanted.tags)} tags", at="tag", expected=f"at most {TAGS_MAX}")
        query = wanted.as_value()
        before = _NEWEST if cursor is None else place_of(cursor, query)
        conditions = "\n".join(ROWS.sql[name] for name in _conditions(wanted))
        statement = ROWS.sql["list"].replace("{conditions}", conditions)
        given = msgspec.structs.asdict(wanted) | {"states": list(wanted.states), "tags": list(wanted.tags)}
        ((position, document),) = self._query.rows(statement, given | {"before": before, "limit": limit + 1})
        rows = _rows_of(document) if document is not None else ()
        return page_of(rows, limit, [row.requested_position for row in rows], query, position)


def _conditions(wanted: RunFilter) -> list[str]:
    """The names of the conditions to be put into the statement; only those asked for, so that each has its own plan."""
    names = ["where_before"]
    names += [f"where_{name}" for name in RunFilter.__struct_fields__ if getattr(wanted, name) not in (None, ())]
    return names
