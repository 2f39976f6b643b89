"""Availability: one row per seat of each show.

What must stay true: it may be stale, and nothing decides by it; a reservation reads the seats' own streams.
"""

from typing import Final, TypeAlias

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.purchases.messages_seats import SeatOffered, SeatReleased, SeatReserved, SeatSold
from domain.purchases.seats import Seat, SeatState, evolve_seat
from projections.folding import ReadModel

NAME: Final = "availability"

SeatKey: TypeAlias = tuple[str, str]
"""show_id and seat"""

SeatEvent: TypeAlias = SeatOffered | SeatReserved | SeatReleased | SeatSold


class SeatRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A seat: `FREE`, `RESERVED` or `SOLD`, and for whom."""

    show_id: str
    seat: str
    state: str
    price_minor: int
    currency: str
    purchase_id: str
    first_position: int
    position: int


def key_of(event: Event) -> SeatKey | None:
    """The seat that the event is about, or None."""
    return (event.show_id, event.seat) if isinstance(event, SeatEvent) else None


def apply(row: SeatRow | None, recorded: Recorded) -> SeatRow:
    """The row after the event. Raises `IllegalTransitionError`."""
    event = recorded.event
    if not isinstance(event, SeatEvent):
        raise IllegalTransitionError("no event of a seat", at=recorded.stream)
    before = Seat() if row is None else Seat(SeatState(row.state), row.price_minor, row.currency, row.purchase_id)
    seat = evolve_seat(before, event)
    return SeatRow(
        show_id=event.show_id,
        seat=event.seat,
        state=seat.state.value,
        price_minor=seat.price_minor,
        currency=seat.currency,
        purchase_id=seat.purchase_id,
        first_position=recorded.position if row is None else row.first_position,
        position=recorded.position,
    )


MODEL: Final = ReadModel[SeatKey, SeatRow](NAME, ("seat",), key_of, apply)
