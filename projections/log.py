"""The log as projections read it: stored events, decoded one by one and only where somebody is interested.

What must stay true: an event that cannot be decoded is named (position, stream, topic, reason) and stops only those who depend
on its stream's category; nothing is ever skipped because its topic is unknown: interest is a matter of the category, which a
newer version of the code cannot change, and not of a list of topics.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

import domain.vocabulary  # noqa: F401 - whatever this process imports, what is read may be any event
from domain.errors import FinazError
from domain.events import Metadata, Recorded, decode

REASON_CHARACTERS_MAX: Final = 2000
"""Characters of a failure's reason that are kept."""

NO_METADATA: Final = Metadata()


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """One row of the log, its document not yet decoded."""

    position: int
    stream: str
    version: int
    event_id: UUID
    recorded_at: datetime
    topic: str
    document: str
    causation_id: UUID | None = None
    correlation_id: str | None = None
    principal: str | None = None

    def recorded(self) -> Recorded:
        """The event with its place. Raises `UnknownTopicError` or `UndecodableEventError`."""
        return Recorded(
            position=self.position,
            stream=self.stream,
            version=self.version,
            event_id=self.event_id,
            recorded_at=self.recorded_at,
            event=decode(self.topic, self.document),
            metadata=_metadata(self),
        )


class Failure(msgspec.Struct, frozen=True):
    """Why a projection stopped: the event it could not take, and what was wrong. `code` is an error code."""

    position: int
    stream: str
    topic: str
    code: str
    reason: str


Decoded: TypeAlias = tuple[list[Recorded], Failure | None]
ReadLog: TypeAlias = Callable[[int, int, int], Sequence[StoredEvent]]
"""`(after, up_to, limit)`: at most `limit` events with after < position <= up_to, in order."""


class DecodedEvents(list[StoredEvent]):
    """Stored events with what decoding them comes to, done beforehand."""

    def __init__(self, stored: Sequence[StoredEvent]) -> None:
        super().__init__(stored)
        self.outcome: Final = _decoded(stored)


def decoded(stored: Iterable[StoredEvent]) -> Decoded:
    """The events up to the first one that cannot be decoded, and what was wrong with that one."""
    return stored.outcome if isinstance(stored, DecodedEvents) else _decoded(stored)


def _decoded(stored: Iterable[StoredEvent]) -> Decoded:
    events: list[Recorded] = []
    for row in stored:
        try:
            events.append(row.recorded())
        except Exception as error:  # whatever an upcaster raises is about this event, and must name it
            return events, failure_of(row.position, row.stream, row.topic, error)
    return events, None


def failure_of(position: int, stream: str, topic: str, error: Exception) -> Failure:
    """The failure at one event. Any exception will do: a bug in a fold stops its projection as a bad event does."""
    code = error.code if isinstance(error, FinazError) else FinazError.code
    reason = str(error) if isinstance(error, FinazError) else f"{type(error).__name__}: {error}"
    return Failure(position, stream, topic, code, reason.replace("\x00", "\ufffd")[:REASON_CHARACTERS_MAX])


def _metadata(row: StoredEvent) -> Metadata:
    if row.causation_id is None and row.correlation_id is None and row.principal is None:
        return NO_METADATA
    return Metadata(causation_id=row.causation_id, correlation_id=row.correlation_id, principal=row.principal)
