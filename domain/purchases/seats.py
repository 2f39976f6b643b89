"""Shows, seats and reservations: three small aggregates whose streams are written together in one append.

Each seat is a stream of its own. Reserving several is one append that writes the next version of each: of two buyers of one seat
the log takes the one and refuses the other, whatever the interleaving, and buyers of different seats never meet. (One stream per
show would make every two buyers of a show collide, and retry; `docs/purchases.md` has both measured.)

What must stay true: a seat is kept for one reservation at a time and sold once; a reservation expires only if no charge was ever
attempted; its stream is what an attempt and an expiry race for. Pure.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event
from domain.purchases.errors import SeatsTakenError, SeatUnknownError
from domain.purchases.messages_seats import (
    ReservationCancelled,
    ReservationExpired,
    ReservationMade,
    ReservationPinned,
    ReservationSold,
    SeatOffered,
    SeatReleased,
    SeatReserved,
    SeatSold,
    ShowCreated,
)
from domain.transitions import AggregateState, TransitionTable

SEATS_PER_SHOW_MAX: Final = 2000
"""Seats of one show: they are one append."""

SEATS_PER_PURCHASE_MAX: Final = 10
"""Seats of one purchase."""

HOLD_SECONDS_MIN: Final = 1
HOLD_SECONDS_MAX: Final = 86_400
"""How long a show may keep a reservation that nobody tries to pay."""

HOLD_SECONDS_DEFAULT: Final = 900

PRICE_MINOR_MAX: Final = 10**9
"""The highest price of a seat, in minor units."""

SAGA_COMPENSATED: Final = "saga_compensated"
EXPIRED: Final = "expired"
"""Why a seat was released."""


class SeatState(AggregateState):
    """Where a seat stands."""

    ABSENT = "ABSENT"
    FREE = "FREE"
    RESERVED = "RESERVED"
    SOLD = "SOLD"


SEAT_TRANSITIONS: Final = TransitionTable[SeatState](
    "seat",
    {
        (SeatState.ABSENT, SeatOffered): SeatState.FREE,
        (SeatState.FREE, SeatReserved): SeatState.RESERVED,
        (SeatState.RESERVED, SeatReleased): SeatState.FREE,
        (SeatState.RESERVED, SeatSold): SeatState.SOLD,
    },
)


class ReservationState(AggregateState):
    """Where a reservation stands. PINNED: a charge was attempted, so time alone does not end it."""

    ABSENT = "ABSENT"
    HELD = "HELD"
    PINNED = "PINNED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    SOLD = "SOLD"


RESERVATION_TRANSITIONS: Final = TransitionTable[ReservationState](
    "reservation",
    {
        (ReservationState.ABSENT, ReservationMade): ReservationState.HELD,
        (ReservationState.HELD, ReservationPinned): ReservationState.PINNED,
        (ReservationState.HELD, ReservationExpired): ReservationState.EXPIRED,
        (ReservationState.HELD, ReservationCancelled): ReservationState.CANCELLED,
        (ReservationState.HELD, ReservationSold): ReservationState.SOLD,
        (ReservationState.PINNED, ReservationCancelled): ReservationState.CANCELLED,
        (ReservationState.PINNED, ReservationSold): ReservationState.SOLD,
        (ReservationState.EXPIRED, ReservationCancelled): ReservationState.CANCELLED,
    },
)


class Seat(msgspec.Struct, frozen=True):
    """State of one seat; `purchase_id` is whom it is kept for or sold to."""

    state: SeatState = SeatState.ABSENT
    price_minor: int = 0
    currency: str = ""
    purchase_id: str = ""


class Reservation(msgspec.Struct, frozen=True):
    """State of one reservation."""

    state: ReservationState = ReservationState.ABSENT
    show_id: str = ""
    seats: tuple[str, ...] = ()
    expires_at: datetime | None = None

    @property
    def holds(self) -> bool:
        """Whether its seats are kept for it."""
        return self.state in (ReservationState.HELD, ReservationState.PINNED)


def evolve_seat(seat: Seat, event: Event) -> Seat:
    """The seat after an event."""
    state = SEAT_TRANSITIONS.next_state(seat.state, type(event))
    match event:
        case SeatOffered():
            return Seat(state, event.price_minor, event.currency)
        case SeatReserved():
            return msgspec.structs.replace(seat, state=state, purchase_id=event.purchase_id)
        case SeatReleased() | SeatSold() if event.purchase_id != seat.purchase_id:
            raise IllegalTransitionError(
                "the seat is not kept for this reservation",
                at=f"{event.show_id}/{event.seat}",
                expected=seat.purchase_id,
            )
        case SeatReleased():
            return msgspec.structs.replace(seat, state=state, purchase_id="")
    return msgspec.structs.replace(seat, state=state)


def evolve_reservation(reservation: Reservation, event: Event) -> Reservation:
    """The reservation after an event."""
    state = RESERVATION_TRANSITIONS.next_state(reservation.state, type(event))
    if isinstance(event, ReservationMade):
        return Reservation(state, event.show_id, event.seats, event.expires_at)
    return msgspec.structs.replace(reservation, state=state)


def fold_seat(events: Iterable[Event]) -> Seat:
    """The seat that a stream's events make."""
    seat = Seat()
    for event in events:
        seat = evolve_seat(seat, event)
    return seat


def fold_reservation(events: Iterable[Event]) -> Reservation:
    """The reservation that a stream's events make."""
    reservation = Reservation()
    for event in events:
        reservation = evolve_reservation(reservation, event)
    return reservation


def offers(show: ShowCreated, prices: Mapping[str, int]) -> tuple[SeatOffered, ...]:
    """The seats of a new show."""
    return tuple(
        SeatOffered(show_id=show.show_id, seat=seat, price_minor=price, currency=show.currency)
        for seat, price in prices.items()
    )


def total_of(seats: Mapping[str, Seat], show_id: str) -> int:
    """What the seats cost together, in minor units, if all are free. Raises `SeatUnknownError`, `SeatsTakenError`."""
    for name, seat in seats.items():
        if seat.state is SeatState.ABSENT:
            raise SeatUnknownError(f"there is no seat {name!r}", at="$.seats", expected=f"seats of {show_id}")
    taken = sorted(name for name, seat in seats.items() if seat.state is not SeatState.FREE)
    if taken:
        raise SeatsTakenError(f"not free: {', '.join(taken)}", at="$.seats", expected="free seats", seats=taken)
    return sum(seat.price_minor for seat in seats.values())
