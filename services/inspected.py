"""What looking at the log shows: streams, events, states, and where two states differ. Pure values."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

DIFFERENCES_MAX: Final = 1000
"""Fields named in one comparison."""


class InspectedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event with all that the log knows of it; `event` is the document as it is stored, `chain` its hash in hexadecimal."""

    position: int
    stream: str
    version: int
    topic: str
    event_id: UUID
    recorded_at: datetime
    causation_id: UUID | None
    correlation_id: str | None
    principal: str | None
    event: Any
    chain: str


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its last version, where and when its first and its last event stand, and the topic of the last."""

    stream: str
    version: int
    first_position: int
    first_recorded_at: datetime
    last_position: int
    last_recorded_at: datetime
    last_topic: str


class StreamPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of streams, by name; the last page's `next_cursor` is null."""

    items: tuple[StreamSummary, ...]
    next_cursor: str | None


class InspectedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events; the last page's `next_cursor` is null. A search may give pages that are short or empty and not the last."""

    items: tuple[InspectedEvent, ...]
    next_cursor: str | None


class AggregateState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream's aggregate after `version`, which stands at `position` and was recorded at `recorded_at`."""

    stream: str
    version: int
    position: int
    recorded_at: datetime
    state: Any


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that is not the same: its path (`$.results[0].rows`), before and after; `present` says on which sides it exists."""

    path: str
    before: Any
    after: Any
    present: str = "both"


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two versions of a stream, field by field, and the events that did it."""

    stream: str
    from_version: int
    to_version: int
    differences: tuple[FieldDifference, ...]
    events: tuple[InspectedEvent, ...]


class EventChain(msgspec.Struct, frozen=True, kw_only=True):
    """Events that caused one another, the earliest first; `cut` says that there are more than `CHAIN_EVENTS_MAX`."""

    event_id: UUID
    items: tuple[InspectedEvent, ...]
    cut: bool = False


def differences(before: Any, after: Any, path: str = "$") -> Iterator[FieldDifference]:
    """Every field in which two JSON values differ, at most `DIFFERENCES_MAX`, in the order of their paths."""
    for count, difference in enumerate(_differences(before, after, path), 1):
        yield difference
        if count == DIFFERENCES_MAX:
            return


def _differences(before: Any, after: Any, path: str) -> Iterator[FieldDifference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from _part(before, after, name, f"{path}.{name}", name in before, name in after)
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index in range(max(len(before), len(after))):
            yield from _part(before, after, index, f"{path}[{index}]", index < len(before), index < len(after))
    elif type(before) is not type(after) or before != after:
        yield FieldDifference(path=path, before=before, after=after)


def _part(before: Any, after: Any, key: Any, path: str, was: bool, is_now: bool) -> Iterator[FieldDifference]:
    if was and is_now:
        yield from _differences(before[key], after[key], path)
    elif was:
        yield FieldDifference(path=path, before=before[key], after=None, present="before")
    else:
        yield FieldDifference(path=path, before=None, after=after[key], present="after")


def inspected(row: Sequence[Any]) -> InspectedEvent:
    """An event of a row: position, stream, version, id, topic, document, time, causation, correlation, principal, chain."""
    position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal, chain = row
    return InspectedEvent(
        position=position,
        stream=stream,
        version=version,
        topic=topic,
        event_id=event_id,
        recorded_at=recorded_at.astimezone(UTC),
        causation_id=causation_id,
        correlation_id=correlation_id,
        principal=principal,
        event=_document(state),
        chain=bytes(chain).hex(),
    )


def _document(state: str) -> Any:
    try:
        return msgspec.json.decode(state)
    except msgspec.DecodeError:
        return {"unreadable": state}
