"""Staged values: published features by run, output, instrument and time, in pages and as downloads; and how staging is doing.

What must stay true: a principal that doesn't operate sees its own runs only; rows come in clock order, (event_time, event_id as
bytes), then run and output; every page holds rows of recorded attempts only, and is read again if an attempt was replaced while
it was read; an answer is never silently short: where ClickHouse no longer holds what was staged, `StagingIncompleteError` says so.
Nothing is written, and no more than one page is in memory.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from domain.canonical import address_of
from domain.errors import CursorInvalidError, InputError, NotFoundError, OverloadedError, ProjectionUnknownError
from domain.instants import format_micros, to_micros
from domain.market.text_columns import EARLIEST, LATEST
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import START, FeatureValues, Place, StagedColumns
from projections.staging.errors import StagingIncompleteError, StagingOffError, StagingUnavailableError
from projections.staging.postgres import StagedAttempts
from projections.staging.projection import NAME, StagingKey
from projections.status import Projections
from services.runs import Runs

PAGE_ROWS_MAX: Final = 1000
"""Rows of one page of JSON."""

DOWNLOAD_ROWS: Final = 65_536
"""Rows of a download that are read at a time."""

OUTPUTS_MAX: Final = 2000
"""Outputs of runs that one query may look at."""

READ_TRIES_MAX: Final = 5
"""Times that a page is read whose attempts are replaced meanwhile."""

_DIGEST_CHARACTERS: Final = 16

MEDIA_TYPES: Final = {"arrow": "application/vnd.apache.arrow.stream", "csv": "text/csv"}
"""What can be downloaded, by name."""


class ValuesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for: of which run, output, instrument (None: any), `time_from` included, `time_to` not."""

    run_id: str | None = None
    output: str | None = None
    instrument: str | None = None
    time_from: datetime | None = None
    time_to: datetime | None = None
    position: int = 0
    """Staging is to have seen this position of the log first; `timeout_seconds` is how long that may take."""
    timeout_seconds: float = 5.0

    @property
    def first(self) -> int:
        """The first instant, in microseconds."""
        return EARLIEST if self.time_from is None else to_micros(self.time_from)

    @property
    def before(self) -> int:
        """The instant behind the last."""
        return LATEST + 1 if self.time_to is None else to_micros(self.time_to)


class StagedValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row: a tick of an output of a run."""

    event_time: str
    event_id: str
    run_id: str
    output: str
    instrument: str
    value: float | None


class ValuesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in clock order, the cursor of the page after it (None: this is the last), and the position staged up to."""

    items: tuple[StagedValue, ...]
    next_cursor: str | None
    position: int


class StagingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How staging is doing.

    `engine` is `embedded`, `server` or `none`; `hosted_by` the component whose process stages (`api`, `projector`, none), `owner`
    the process that does so now. `outputs` and `rows` are what readers see; attempts that are `begun`, or `abandoned` and not yet
    deleted, they don't.
    """

    engine: str
    hosted_by: str | None
    owner: str
    health: str
    state: str
    generation: int
    position: int
    lag_events: int
    lag_seconds: float
    error: str | None
    outputs: int
    rows: int
    begun: int
    abandoned: int


class Tables(Protocol):
    """Writes a download: what comes first, each page, and what comes last."""

    def head(self) -> bytes: ...

    def page(self, columns: StagedColumns) -> bytes: ...

    def end(self) -> bytes: ...


class Scope(msgspec.Struct, frozen=True):
    """The attempts that a query looks at, and the generation that they are of."""

    attempts: tuple[Attempt, ...]

    @property
    def ids(self) -> list[UUID]:
        return [attempt.attempt for attempt in self.attempts]

    @property
    def generation(self) -> int:
        return self.attempts[0].generation if self.attempts else 0

    def of(self, keys: Iterable[StagingKey]) -> "Scope":
        """Of these outputs only. Raises `StagingUnavailableError` if one has vanished."""
        wanted = set(keys)
        found = tuple(attempt for attempt in self.attempts if attempt.key in wanted)
        if len(found) != len(wanted):
            raise StagingUnavailableError("what was being read is no longer staged", at=NAME, expected="to ask again")
        return Scope(found)


class Staging:
    """The use cases of reading staged values. `values` is None where there is no ClickHouse in the settings."""

    def __init__(
        self,
        runs: Runs,
        attempts: StagedAttempts,
        projections: Projections,
        values: FeatureValues | None,
        tables: Callable[[str], Tables],
        engine: str = "none",
        hosted_by: str | None = None,
    ) -> None:
        self._runs = runs
        self._attempts = attempts
        self._projections = projections
        self._values = values
        self._tables = tables
        self._engine = engine
        self._hosted_by = hosted_by

    async def page(
        self, principal: str, query: ValuesQuery, cursor: str | None, limit: int, operates: bool = False
    ) -> ValuesPage:
        """A page of at most `limit` rows.

        Raises `StagingOffError`, `RunNotFoundError`, `InputError` for a query of nothing or of too much, `CursorInvalidError`, what
        waiting raises, `StagingIncompleteError` and other infrastructure errors.
        """
        place = place_of(cursor, query) if cursor else START
        scope, position = await self._begin(principal, query, operates, check=cursor is None)
        columns = await asyncio.to_thread(
            self._read, query, self._again(principal, query, operates), scope, place, limit + 1
        )
        items = _items(columns, limit)
        more = len(columns) > limit
        last = items[-1] if more else None
        following = None
        if last is not None:
            at = int(columns.event_times[limit - 1])
            following = cursor_of(Place(at, last.event_id, last.run_id, last.output), query)
        return ValuesPage(items=items, next_cursor=following, position=position)

    async def download(
        self, principal: str, query: ValuesQuery, form: str, operates: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """All rows as a stream of bytes, in one of `MEDIA_TYPES`. Raises as `page` does, before the first byte."""
        scope, _ = await self._begin(principal, query, operates, check=True)
        again = self._again(principal, query, operates)
        first = await asyncio.to_thread(self._read, query, again, scope, START, DOWNLOAD_ROWS)
        return self._chunks(query, again, scope, first, self._tables(form))

    async def _chunks(
        self, query: ValuesQuery, again: "Callable[[], Scope]", scope: Scope, columns: StagedColumns, table: Tables
    ) -> AsyncGenerator[bytes, None]:
        yield table.head()
        while len(columns):
            yield await asyncio.to_thread(table.page, columns)
            if len(columns) < DOWNLOAD_ROWS:
                break
            columns = await asyncio.to_thread(self._read, query, again, scope, columns.last, DOWNLOAD_ROWS)
        yield table.end()

    async def status(self) -> StagingStatus:
        """How staging is doing; where it is off, that it is."""
        return await asyncio.to_thread(self._status)

    def _status(self) -> StagingStatus:
        tally = self._attempts.tally()
        try:
            seen = self._projections.status(NAME)
        except ProjectionUnknownError:
            seen = None
        failure = seen.failure if seen else None
        return StagingStatus(
            engine=self._engine,
            hosted_by=self._hosted_by,
            owner=seen.owner if seen else "",
            health="off" if self._values is None else seen.health.value if seen else "dead",
            state=seen.state.value if seen else "running",
            generation=seen.generation if seen else 0,
            position=seen.position if seen else 0,
            lag_events=seen.lag_events if seen else 0,
            lag_seconds=seen.lag_seconds if seen else 0.0,
            error=None if failure is None else f"{failure.code} at position {failure.position}: {failure.reason}",
            outputs=tally.outputs,
            rows=tally.rows,
            begun=tally.begun,
            abandoned=tally.abandoned,
        )

    # ---------------------------------------------------------------- what a query sees

    async def _begin(self, principal: str, query: ValuesQuery, operates: bool, *, check: bool) -> tuple[Scope, int]:
        """What the query looks at, once staging is where it is to be, and up to which position that is."""
        values = self._on()
        if query.run_id is None and query.instrument is None:
            raise InputError("nothing is asked for", at="query", expected="a run_id or an instrument")
        if query.run_id is not None:
            await self._runs.get(query.run_id, principal, operates)
        if query.position:
            if query.position > await asyncio.to_thread(self._projections.high_water_mark):
                raise NotFoundError("the log has no such position", at="query.position", expected="one of an answer")
            await self._projections.wait_for(NAME, query.position, query.timeout_seconds)
        position = await asyncio.to_thread(self._attempts.position)
        scope = await asyncio.to_thread(self._again(principal, query, operates))
        if check and scope.attempts:
            await asyncio.to_thread(self._check_whole, values, scope)
        return scope, position

    def _again(self, principal: str, query: ValuesQuery, operates: bool) -> Callable[[], Scope]:
        """Finds what the query looks at now."""

        def look() -> Scope:
            found = self._attempts.visible(
                OUTPUTS_MAX + 1,
                run_id=query.run_id,
                output=query.output,
                instrument=query.instrument,
                principal=None if operates or query.run_id is not None else principal,
            )
            if len(found) > OUTPUTS_MAX:
                expected = f"at most {OUTPUTS_MAX} outputs: a run_id or an output besides"
                raise InputError("the query looks at too many runs", at="query", expected=expected)
            return Scope(tuple(found))

        return look

    def _read(
        self, query: ValuesQuery, again: Callable[[], Scope], scope: Scope, place: Place, limit: int
    ) -> StagedColumns:
        """A page of the scope's outputs, whole: what is read while an attempt is replaced is read again."""
        keys = [attempt.key for attempt in scope.attempts]
        values = self._on()
        for _ in range(READ_TRIES_MAX):
            ids = scope.ids or [UUID(int=0)]
            columns = values.page(ids, scope.generation, place, limit, query.first, query.before)
            if self._attempts.are_visible(scope.ids):
                return columns
            scope = again().of(keys)
        raise OverloadedError("the rows were replaced faster than they could be read", at=NAME)

    def _check_whole(self, values: FeatureValues, scope: Scope) -> None:
        """Raise `StagingIncompleteError` if ClickHouse lacks rows of the scope, or has too many."""
        found = values.counts(scope.ids)
        for attempt in scope.attempts:
            rows = found.get(attempt.attempt, 0)
            if rows != attempt.rows and self._attempts.are_visible([attempt.attempt]):
                raise StagingIncompleteError(
                    f"ClickHouse holds {rows} rows of output {attempt.output!r}",
                    at=attempt.run_id,
                    expected=f"{attempt.rows}; the reconciler repairs it, or a rebuild of staging",
                )

    def _on(self) -> FeatureValues:
        if self._values is None:
            raise staging_is_off()
        return self._values


def staging_is_off() -> StagingOffError:
    """What is raised where there is no ClickHouse in the settings."""
    return StagingOffError("nothing is staged here", at="FINAZ_CLICKHOUSE_DSN", expected="a ClickHouse in the settings")


def cursor_of(place: Place, query: ValuesQuery) -> str:
    """The cursor after a place, for a query."""
    return urlsafe_b64encode(msgspec.json.encode([*place, _digest(query)])).decode().rstrip("=")


def place_of(cursor: str, query: ValuesQuery) -> Place:
    """Where the page before ended. Raises `CursorInvalidError`."""
    try:
        data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        time, event_id, run_id, output, digest = msgspec.json.decode(data, type=tuple[int, str, str, str, str])
    except (ValueError, msgspec.MsgspecError):
        raise _cursor_error("the cursor is damaged") from None
    if digest != _digest(query):
        raise _cursor_error("the cursor belongs to another query")
    if not EARLIEST <= time <= LATEST or cursor_of(Place(time, event_id, run_id, output), query) != cursor:
        raise _cursor_error("the cursor is damaged")
    return Place(time, event_id, run_id, output)


def _cursor_error(sentence: str) -> CursorInvalidError:
    return CursorInvalidError(sentence, at="cursor", expected="a next_cursor of the same query")


def _digest(query: ValuesQuery) -> str:
    asked: list[Any] = [query.run_id, query.output, query.instrument, query.first, query.before]
    return address_of(asked).removeprefix("sha256:")[:_DIGEST_CHARACTERS]


def _items(columns: StagedColumns, limit: int) -> tuple[StagedValue, ...]:
    rows = zip(
        columns.event_times.tolist(),
        columns.event_ids.strings(),
        columns.run_ids,
        columns.outputs,
        columns.instruments,
        columns.values.tolist(),
        strict=True,
    )
    items = tuple(
        StagedValue(
            event_time=format_micros(time),
            event_id=event_id,
            run_id=run_id,
            output=output,
            instrument=instrument,
            value=None if value != value else value,
        )
        for time, event_id, run_id, output, instrument, value in rows
    )
    return items[:limit]
