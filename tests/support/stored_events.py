"""Rows of the log as projections read them, made from events."""

from domain.events import Recorded, encode
from projections.log import StoredEvent


def stored_event(recorded: Recorded) -> StoredEvent:
    """The row that the log has for an event."""
    return StoredEvent(
        recorded.position,
        recorded.stream,
        recorded.version,
        recorded.event_id,
        recorded.recorded_at,
        recorded.event.topic,
        encode(recorded.event).decode(),
        recorded.metadata.causation_id,
        recorded.metadata.correlation_id,
        recorded.metadata.principal,
    )
