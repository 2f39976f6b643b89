"""Looking at the log: streams, events, the state of any aggregate at any time, what caused what, and search.

What must stay true: looking changes nothing and locks nothing; documents are shown as they are stored, so an event that this
version of the code cannot decode can still be looked at; every answer is bounded, and its price does not grow with the log. States
are folded from the events alone, never from a snapshot or a read model. Everything blocks: call it in a thread from an event loop.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from domain.errors import CursorInvalidError, InputError
from domain.events import Recorded
from domain.folds import fold_of, key_of
from domain.log_errors import EventNotFoundError as EventNotFoundError
from domain.log_errors import StreamNotFoundError
from projections.log import StoredEvent
from projections.reading import Query
from projections.statements import statements
from services.inspected import (
    AggregateState,
    EventChain,
    InspectedEvent,
    InspectedPage,
    StateDifference,
    StreamPage,
    StreamSummary,
    differences,
    inspected,
)
from services.log_search import LAST_CHARACTER, LogSearch
from services.log_search import Search as Search

PAGE_MAX: Final = 1000
"""Events or streams of one page."""

FOLD_PAGE_EVENTS: Final = 1000
"""Events read at a time while a state is folded: so many are in memory, however long the stream."""

CHAIN_EVENTS_MAX: Final = 1000
"""Events of one chain of causes or effects."""

VERSION_MAX: Final = 2**62
_SQL: Final = statements("services", "inspection.sql")


class Inspection:
    """Looks at the log through one pool of connections."""

    def __init__(self, query: Query) -> None:
        self._query = query

    # ---------------------------------------------------------------- streams

    def streams(self, prefix: str = "", limit: int = 100, cursor: str | None = None) -> StreamPage:
        """Streams whose names begin with `prefix` (`run/` for a category), by name. Raises `CursorInvalidError`."""
        size = _checked(limit)
        arguments = {"after": _name_of(cursor), "prefix": prefix, "end": prefix + LAST_CHARACTER, "limit": size + 1}
        found = [_summary(row) for row in self._query.rows(_SQL["streams"], arguments)]
        more = _cursor_of(found[size - 1].stream) if len(found) > size else None
        return StreamPage(items=tuple(found[:size]), next_cursor=more)

    def read(self, stream: str, beyond: int | None = None, limit: int = 100, backward: bool = False) -> InspectedPage:
        """Events of a stream with versions after `beyond`, or before it going backward. Raises `StreamNotFoundError`."""
        size = _checked(limit)
        start = (VERSION_MAX if backward else -1) if beyond is None else beyond
        statement = _SQL["read_backward" if backward else "read_forward"]
        found = self._query.rows(statement, {"stream": stream, "beyond": start, "limit": size + 1})
        if not found and beyond is None:
            raise StreamNotFoundError("the stream has no events", at=stream[:200], expected="one that `streams` lists")
        more = str(found[size - 1][2]) if len(found) > size else None
        return InspectedPage(items=tuple(inspected(row) for row in found[:size]), next_cursor=more)

    # ---------------------------------------------------------------- states

    def state(self, stream: str, version: int | None = None, at: datetime | None = None) -> AggregateState:
        """The aggregate as of a version or an instant (neither: now).

        Raises `StreamNotFoundError` where nothing had happened by then or the stream ends before the version,
        `AggregateUnknownError`, `UndecodableEventError`, and what the aggregate raises for an event that cannot follow.
        """
        fold = fold_of(stream)
        state, last = fold.initial(key_of(stream)), None
        for recorded in self._recorded(stream, -1, VERSION_MAX if version is None else version):
            if at is not None and recorded.recorded_at > at:
                break
            state, last = fold.evolve(state, recorded), recorded
        if last is None or (version is not None and last.version != version and at is None):
            ends = "nothing had happened by then" if last is None else f"the stream ends at version {last.version}"
            raise StreamNotFoundError(ends, at=stream[:200], expected="an event as early as that")
        return AggregateState(
            stream=stream,
            version=last.version,
            position=last.position,
            recorded_at=last.recorded_at,
            state=_builtins(state),
        )

    def difference(self, stream: str, from_version: int, to_version: int) -> StateDifference:
        """What changed from `from_version` (0: before everything) to `to_version`, which may be the earlier one.

        Raises as `state` does.
        """
        fold = fold_of(stream)
        low, high = sorted((from_version, to_version))
        state, version = fold.initial(key_of(stream)), 0
        documents = {0: _builtins(state)}
        for recorded in self._recorded(stream, -1, high):
            state, version = fold.evolve(state, recorded), recorded.version
            if version in (low, high):
                documents[version] = _builtins(state)
        if high not in documents:
            raise StreamNotFoundError(
                f"the stream ends at version {version}", at=stream[:200], expected=f"version {high}"
            )
        arguments = {"stream": stream, "beyond": low, "limit": min(PAGE_MAX, high - low)}
        return StateDifference(
            stream=stream,
            from_version=from_version,
            to_version=to_version,
            differences=tuple(differences(documents[from_version], documents[to_version])),
            events=tuple(inspected(row) for row in self._query.rows(_SQL["read_forward"], arguments)),
        )

    def _recorded(self, stream: str, after: int, up_to: int) -> Iterator[Recorded]:
        while True:
            arguments = {"stream": stream, "beyond": after, "limit": FOLD_PAGE_EVENTS}
            rows = self._query.rows(_SQL["read_forward"], arguments)
            for row in rows:
                if row[2] > up_to:
                    return
                yield _recorded(row)
            if len(rows) < FOLD_PAGE_EVENTS:
                return
            after = rows[-1][2]

    # ---------------------------------------------------------------- causes and effects

    def event(self, event_id: UUID) -> InspectedEvent:
        """One event by its id. Raises `EventNotFoundError`."""
        rows = self._query.rows(_SQL["event"], {"event_id": event_id})
        if not rows:
            raise EventNotFoundError("no event has this id", at=str(event_id), expected="the id of an event of the log")
        return inspected(rows[0])

    def causes(self, event_id: UUID) -> EventChain:
        """The event, what caused it, what caused that, and so on: the earliest first. Raises `EventNotFoundError`."""
        chain = [self.event(event_id)]
        seen = {event_id}
        while (cause := chain[-1].causation_id) is not None and cause not in seen:
            if len(chain) == CHAIN_EVENTS_MAX:
                return EventChain(event_id=event_id, items=tuple(reversed(chain)), cut=True)
            rows = self._query.rows(_SQL["event"], {"event_id": cause})
            if not rows:
                break  # it was caused from outside this log
            chain.append(inspected(rows[0]))
            seen.add(cause)
        return EventChain(event_id=event_id, items=tuple(reversed(chain)))

    def effects(self, event_id: UUID) -> EventChain:
        """The event, what it caused, what that caused, and so on, by position. Raises `EventNotFoundError`."""
        found = {event_id: self.event(event_id)}
        wave: Sequence[UUID] = (event_id,)
        while wave:
            left = CHAIN_EVENTS_MAX - len(found)
            rows = self._query.rows(_SQL["effects"], {"event_ids": list(wave), "limit": left + 1})
            fresh = [effect for effect in map(inspected, rows) if effect.event_id not in found]
            found.update((effect.event_id, effect) for effect in fresh[:left])
            if len(rows) > left:
                return EventChain(event_id=event_id, items=_by_position(found), cut=True)
            wave = [effect.event_id for effect in fresh]
        return EventChain(event_id=event_id, items=_by_position(found))

    # ---------------------------------------------------------------- search

    def search(self, wanted: Search, limit: int = 100, beyond: int | None = None) -> InspectedPage:
        """Events for which all of `wanted` holds, by position, behind `beyond`, bounded as `LogSearch` says.

        Times become positions first: where the database's clock was once set back, events around that moment may be left out.
        """
        size = _checked(limit)
        rows, more = LogSearch(self._query, wanted, *self._bounds(wanted, beyond)).page(size)
        return InspectedPage(
            items=tuple(inspected(row) for row in rows), next_cursor=None if more is None else str(more)
        )

    def _bounds(self, wanted: Search, beyond: int | None) -> tuple[int, int]:
        first = 1 if wanted.since is None else self._position_at(wanted.since)
        last = VERSION_MAX if wanted.until is None else self._position_at(wanted.until) - 1
        if beyond is not None:
            beyond = min(beyond, VERSION_MAX)  # one more must be a position, too
            first, last = (first, min(last, beyond - 1)) if wanted.backward else (max(first, beyond + 1), last)
        return first, last

    def _position_at(self, instant: datetime) -> int:
        return int(self._query.rows(_SQL["position_at"], {"instant": instant})[0][0])


def _builtins(state: Any) -> Any:
    """A state as a JSON value; sets in one order, so that equal states are equal documents."""
    return msgspec.to_builtins(state, order="deterministic")


def _recorded(row: Sequence[Any]) -> Recorded:
    position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal, _ = row
    return StoredEvent(
        position, stream, version, event_id, recorded_at, topic, state, causation_id, correlation_id, principal
    ).recorded()


def _summary(row: Sequence[Any]) -> StreamSummary:
    stream, version, first_position, first_at, last_position, last_at, topic = row
    return StreamSummary(
        stream=stream,
        version=version,
        first_position=first_position,
        first_recorded_at=first_at.astimezone(UTC),
        last_position=last_position,
        last_recorded_at=last_at.astimezone(UTC),
        last_topic=topic,
    )


def _by_position(found: dict[UUID, InspectedEvent]) -> tuple[InspectedEvent, ...]:
    return tuple(sorted(found.values(), key=lambda event: event.position))


def _checked(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise InputError(f"a page of {limit}", at="limit", expected=f"1 to {PAGE_MAX}")
    return limit


def _cursor_of(stream: str) -> str:
    return urlsafe_b64encode(stream.encode("utf-8")).decode("ascii").rstrip("=")


def _name_of(cursor: str | None) -> str:
    if cursor is None:
        return ""
    try:
        name = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode("utf-8")
    except ValueError:
        name = ""
    if not name or _cursor_of(name) != cursor or "\x00" in name:
        raise CursorInvalidError("the cursor is damaged", at="cursor", expected="a next_cursor of the same query")
    return name
