"""Between our events and the stored rows, for us and for the library.

What must stay true: what is stored is the canonical document of `domain.events.encode` and the event's permanent topic, never a
module path; what is read is strict (`decode`), upcast where old. Pure: a crash leaves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from eventsourcing.persistence import JSONTranscoder, Mapper, Notification, StoredEvent

import domain.vocabulary  # noqa: F401 - what is read may be any event, whatever else this process imports
from domain.canonical import canonical, parse
from domain.errors import UndecodableEventError, UnknownTopicError
from domain.events import Event, Metadata, Recorded, decode, encode
from services.ports import NewEvent
from services.store.connections import Row

NO_METADATA: Final = Metadata()
_NO_ID: Final = UUID(int=0)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class StoredRecord(Notification):
    """The library's stored event with the rest of our row; `id` is the position, 0 while it is not stored."""

    event_id: UUID = _NO_ID
    recorded_at: datetime = _NEVER
    metadata: Metadata = NO_METADATA
    event: Event | None = None
    """The event itself, on the way in only: the inline projections look at it."""


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream as of a version, as a document. `topic` names the state's form and its schema."""

    originator_id: str
    originator_version: int
    topic: str
    state: Any

    @classmethod
    def take(cls, aggregate: Any) -> "StateSnapshot":
        """The snapshot of what has `id`, `version`, `snapshot_topic` and `snapshot_state()`; the library calls this."""
        return cls(
            originator_id=aggregate.id,
            originator_version=aggregate.version,
            topic=aggregate.snapshot_topic,
            state=aggregate.snapshot_state(),
        )


SNAPSHOT_TOPIC_PREFIX: Final = "snapshot."
"""Topics of states begin so, and no event's does."""


class RecordMapper(Mapper[str]):
    """The library's mapper for our events: `NewEvent`, `Recorded` and `StateSnapshot` in, `Recorded` and `StateSnapshot` out."""

    def __init__(self) -> None:
        super().__init__(JSONTranscoder())  # the library wants one; our documents never pass it

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        """The row of an event to be stored. Raises `CanonicalError` for what has no canonical form."""
        match domain_event:
            case StateSnapshot():
                return StoredEvent(
                    originator_id=domain_event.originator_id,
                    originator_version=domain_event.originator_version,
                    topic=domain_event.topic,
                    state=canonical(domain_event.state),
                )
            case NewEvent():
                metadata, position, recorded_at = NO_METADATA, 0, _NEVER
            case Recorded():
                metadata, position, recorded_at = (
                    domain_event.metadata,
                    domain_event.position,
                    domain_event.recorded_at,
                )
            case _:
                raise TypeError(f"{type(domain_event).__name__} cannot be stored")
        return StoredRecord(
            originator_id=domain_event.stream,
            originator_version=domain_event.version,
            topic=domain_event.event.topic,
            state=encode(domain_event.event),
            id=position,
            event_id=domain_event.event_id,
            recorded_at=recorded_at,
            metadata=metadata,
            event=domain_event.event,
        )

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """What a row stands for. Raises `UnknownTopicError` and `UndecodableEventError`, naming stream, version and position."""
        if stored_event.topic.startswith(SNAPSHOT_TOPIC_PREFIX):
            return StateSnapshot(
                originator_id=str(stored_event.originator_id),
                originator_version=stored_event.originator_version,
                topic=stored_event.topic,
                state=parse(stored_event.state),
            )
        assert isinstance(stored_event, StoredRecord), stored_event
        return recorded(
            (
                stored_event.id,
                stored_event.originator_id,
                stored_event.originator_version,
                stored_event.event_id,
                stored_event.topic,
                stored_event.state,
                stored_event.recorded_at,
                stored_event.metadata.causation_id,
                stored_event.metadata.correlation_id,
                stored_event.metadata.principal,
            )
        )


def recorded(row: Row) -> Recorded:
    """The event of a row (position, stream, version, event_id, topic, state, recorded_at, causation, correlation, principal).

    Raises `UnknownTopicError` and `UndecodableEventError`, naming stream, version and position.
    """
    position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal = row
    try:
        event = decode(topic, state)
    except (UnknownTopicError, UndecodableEventError) as error:
        raise type(error)(
            error.detail,
            at=f"{stream} version {version} (position {position}), {error.at}",
            expected=error.expected,
            stream=stream,
            version=version,
            position=position,
            topic=topic,
        ) from error
    if causation_id is None and correlation_id is None and principal is None:
        metadata = NO_METADATA
    else:
        metadata = Metadata(causation_id=causation_id, correlation_id=correlation_id, principal=principal)
    return Recorded(
        position=position,
        stream=stream,
        version=version,
        event_id=event_id,
        recorded_at=recorded_at.astimezone(UTC),
        event=event,
        metadata=metadata,
    )


def recorded_until_bad(rows: Iterable[Row]) -> list[Recorded]:
    """The events of the rows up to the first that cannot be read; raises its error only where it is the very first.

    So a reader gets everything that stands before a bad event, then the error at each further try.
    """
    read: list[Recorded] = []
    for row in rows:
        try:
            read.append(recorded(row))
        except (UnknownTopicError, UndecodableEventError):
            if not read:
                raise
            break
    return read


def stored_record(row: Row) -> StoredRecord:
    """The library's view of a row (columns as for `recorded`)."""
    position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal = row
    return StoredRecord(
        originator_id=stream,
        originator_version=version,
        topic=topic,
        state=state.encode("utf-8"),
        id=position,
        event_id=event_id,
        recorded_at=recorded_at.astimezone(UTC),
        metadata=Metadata(causation_id=causation_id, correlation_id=correlation_id, principal=principal),
    )
