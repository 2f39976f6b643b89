"""Events of shows, seats and reservations. Amounts are whole minor units (cents) of the currency beside them.

`decided_at` and `expires_at` are instants of the business clock; everything that is due because of them is computed from them.
"""

from datetime import datetime
from typing import ClassVar

from domain.events import Event, registered


@registered
class ShowCreated(Event, frozen=True, kw_only=True):
    """A show is on sale. Its seats stand in streams of their own, offered in the same append."""

    topic: ClassVar[str] = "show.created.v1"

    show_id: str
    title: str
    starts_at: datetime
    currency: str
    seat_count: int
    hold_seconds: int
    principal: str


@registered
class SeatOffered(Event, frozen=True, kw_only=True):
    """The seat can be had, at this price."""

    topic: ClassVar[str] = "seat.offered.v1"

    show_id: str
    seat: str
    price_minor: int
    currency: str


@registered
class SeatReserved(Event, frozen=True, kw_only=True):
    """The seat is kept for a reservation."""

    topic: ClassVar[str] = "seat.reserved.v1"

    show_id: str
    seat: str
    purchase_id: str


@registered
class SeatReleased(Event, frozen=True, kw_only=True):
    """The seat is free again."""

    topic: ClassVar[str] = "seat.released.v1"

    show_id: str
    seat: str
    purchase_id: str
    reason: str


@registered
class SeatSold(Event, frozen=True, kw_only=True):
    """The seat belongs to the reservation's buyer, for good."""

    topic: ClassVar[str] = "seat.sold.v1"

    show_id: str
    seat: str
    purchase_id: str


@registered
class ReservationMade(Event, frozen=True, kw_only=True):
    """Seats are kept until `expires_at`, unless a charge is attempted before: then it never expires by time."""

    topic: ClassVar[str] = "reservation.made.v1"

    purchase_id: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    expires_at: datetime
    decided_at: datetime


@registered
class ReservationPinned(Event, frozen=True, kw_only=True):
    """A charge is about to be attempted: from here on, time alone releases nothing."""

    topic: ClassVar[str] = "reservation.pinned.v1"

    purchase_id: str


@registered
class ReservationExpired(Event, frozen=True, kw_only=True):
    """Nobody tried to pay in time."""

    topic: ClassVar[str] = "reservation.expired.v1"

    purchase_id: str
    decided_at: datetime


@registered
class ReservationCancelled(Event, frozen=True, kw_only=True):
    """It is void, for this reason (`saga_compensated`)."""

    topic: ClassVar[str] = "reservation.cancelled.v1"

    purchase_id: str
    reason: str


@registered
class ReservationSold(Event, frozen=True, kw_only=True):
    """Its seats are sold to its buyer."""

    topic: ClassVar[str] = "reservation.sold.v1"

    purchase_id: str
