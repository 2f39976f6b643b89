"""Listing runs: from the read model, so that pages are cheap, in the form in which a run is shown anywhere else.

What must stay true: a principal that doesn't operate sees its own runs only, whatever it asks for; with `position`, the page has
seen that position or nothing is answered. The read model informs and never decides: whoever acts on a run folds its stream.
"""

import asyncio
from datetime import datetime
from typing import Final, Protocol

import msgspec

from domain.errors import NotFoundError
from domain.runs.aggregate import RunState
from projections.reading import PAGE_ROWS_MAX, Page
from projections.runs.postgres import TAGS_MAX, RunFilter
from projections.runs.projection import NAME, RunRow
from services.runs import RunView, view_of_row

LIST_LIMIT_MAX: Final = PAGE_ROWS_MAX
"""Runs of one page."""

LIST_TAGS_MAX: Final = TAGS_MAX
"""Tags of one query."""

RUN_STATES: Final = tuple(state.value for state in RunState if state is not RunState.ABSENT)
"""The states that a listed run can be in."""


class RunRows(Protocol):
    """The read model's reader (`projections.runs.postgres.RunsReader`). Blocks."""

    def list(self, wanted: RunFilter = ..., cursor: str | None = None, limit: int = ...) -> Page[RunRow]: ...


class Positions(Protocol):
    """Knows and waits for positions (`projections.status.Projections`)."""

    def high_water_mark(self) -> int: ...

    async def wait_for(self, name: str, position: int, timeout_seconds: float) -> int: ...


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to list. `tags`: all of them; `states`: any of them; `requested_from` included, `requested_to` not."""

    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mode: str | None = None
    sweep_id: str | None = None
    requested_from: datetime | None = None
    requested_to: datetime | None = None
    cursor: str | None = None
    limit: int = 50
    position: int = 0
    timeout_seconds: float = 5.0


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, newest first; the cursor of the page after it (None: this is the last); the position that the page shows."""

    items: tuple[RunView, ...]
    next_cursor: str | None
    position: int


class RunListing:
    """The use case of listing runs."""

    def __init__(self, rows: RunRows, positions: Positions) -> None:
        self._rows = rows
        self._positions = positions

    async def list(self, principal: str, query: RunQuery, operates: bool = False) -> RunPage:
        """A page. Raises `CursorInvalidError`, and `WaitTimeoutError` or `ProjectionStoppedError` while waiting.

        A position that the log doesn't have was never anybody's: `NotFoundError`, without waiting.
        """
        if query.position:
            if query.position > await asyncio.to_thread(self._positions.high_water_mark):
                raise NotFoundError("the log has no such position", at="query.position", expected="one of an answer")
            await self._positions.wait_for(NAME, query.position, query.timeout_seconds)
        wanted = RunFilter(
            principal=None if operates else principal,
            states=query.states,
            tags=query.tags,
            mode=query.mode,
            sweep_id=query.sweep_id,
            requested_from=query.requested_from,
            requested_to=query.requested_to,
        )
        page = await asyncio.to_thread(self._rows.list, wanted, query.cursor, query.limit)
        return RunPage(
            items=tuple(view_of_row(row) for row in page.items), next_cursor=page.next_cursor, position=page.position
        )
