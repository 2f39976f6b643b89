"""Shows: one row each, as it was put on sale.

What must stay true: nobody decides by it; reserving reads the show's own stream.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.events import Event, Recorded
from domain.purchases.messages_seats import ShowCreated
from projections.folding import ReadModel

NAME: Final = "shows"


class ShowRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A show on sale."""

    show_id: str
    title: str
    starts_at: datetime
    currency: str
    seat_count: int
    hold_seconds: int
    first_position: int
    position: int


def key_of(event: Event) -> str | None:
    """The show that the event is about, or None."""
    return event.show_id if isinstance(event, ShowCreated) else None


def apply(row: ShowRow | None, recorded: Recorded) -> ShowRow:
    """The row of a show."""
    event = recorded.event
    assert isinstance(event, ShowCreated)
    return ShowRow(
        show_id=event.show_id,
        title=event.title,
        starts_at=event.starts_at,
        currency=event.currency,
        seat_count=event.seat_count,
        hold_seconds=event.hold_seconds,
        first_position=recorded.position,
        position=recorded.position,
    )


MODEL: Final = ReadModel[str, ShowRow](NAME, ("show",), key_of, apply)
