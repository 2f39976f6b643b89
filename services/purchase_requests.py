"""Bodies of shows and purchases, typed and checked; and what their idempotency keys stand for.

What must stay true: a body's hash covers everything but the mail address, which must not even be in the log as a hash; unknown
fields, wrong types, prices that are no whole minor units and names that are not NFC are refused with their place.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from domain.canonical import address_of
from domain.errors import BodyInvalidError
from domain.identity import checked_name
from domain.instants import format_instant
from domain.purchases.identity import SHOW_ID
from domain.purchases.seats import (
    HOLD_SECONDS_DEFAULT,
    HOLD_SECONDS_MAX,
    HOLD_SECONDS_MIN,
    PRICE_MINOR_MAX,
    SEATS_PER_PURCHASE_MAX,
    SEATS_PER_SHOW_MAX,
)
from services.contacts import checked_address

__all__ = [
    "HOLD_SECONDS_DEFAULT",
    "HOLD_SECONDS_MAX",
    "HOLD_SECONDS_MIN",
    "PAYMENT_METHOD_CHARACTERS_MAX",
    "PRICE_MINOR_MAX",
    "SEATS_PER_PURCHASE_MAX",
    "SEATS_PER_SHOW_MAX",
    "SEAT_NAME_PATTERN",
    "PurchaseBody",
    "SeatBody",
    "ShowBody",
    "parse_purchase_body",
    "parse_show_body",
]

PAYMENT_METHOD_CHARACTERS_MAX: Final = 200
"""Characters of a gateway's token for how the buyer pays."""

SEAT_NAME_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"
B = TypeVar("B", bound=msgspec.Struct)
_SEAT: Final = re.compile(SEAT_NAME_PATTERN[1:-1] + r"\Z")
_CURRENCY: Final = re.compile(r"[A-Z]{3}\Z")
_PAYMENT_METHOD: Final = re.compile(rf"[!-~]{{1,{PAYMENT_METHOD_CHARACTERS_MAX}}}\Z")


class SeatBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seat and its price in minor units."""

    seat: str
    price_minor: Annotated[int, msgspec.Meta(ge=0, le=PRICE_MINOR_MAX)]


class ShowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A show to be put on sale. `hold_seconds` is how long a reservation that nobody tries to pay is kept."""

    title: str
    starts_at: Annotated[datetime, msgspec.Meta(tz=True)]
    currency: str
    seats: Annotated[tuple[SeatBody, ...], msgspec.Meta(min_length=1, max_length=SEATS_PER_SHOW_MAX)]
    hold_seconds: Annotated[int, msgspec.Meta(ge=HOLD_SECONDS_MIN, le=HOLD_SECONDS_MAX)] = HOLD_SECONDS_DEFAULT


class PurchaseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seats to be bought. `email` is kept outside the log and can be erased."""

    show_id: str
    seats: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=SEATS_PER_PURCHASE_MAX)]
    payment_method: str
    email: str


def parse_show_body(value: Any) -> ShowBody:
    """The body of a show. Raises `BodyInvalidError`, `NameInvalidError`."""
    body = _converted(value, ShowBody)
    checked_name(body.title, at="$.title")
    if _CURRENCY.match(body.currency) is None:
        raise BodyInvalidError(f"{body.currency[:16]!r} is no currency", at="$.currency", expected="three capitals")
    for index, seat in enumerate(body.seats):
        _checked_seat(seat.seat, f"$.seats[{index}].seat")
    _check_distinct([seat.seat for seat in body.seats])
    return body


def parse_purchase_body(value: Any) -> PurchaseBody:
    """The body of a purchase; its seats in the order of their names. Raises `BodyInvalidError`."""
    body = _converted(value, PurchaseBody)
    if SHOW_ID.match(body.show_id) is None:
        raise BodyInvalidError(
            f"{body.show_id[:80]!r} is no show's id", at="$.show_id", expected="an id that was given"
        )
    for index, seat in enumerate(body.seats):
        _checked_seat(seat, f"$.seats[{index}]")
    _check_distinct(body.seats)
    if _PAYMENT_METHOD.match(body.payment_method) is None:
        expected = f"1 to {PAYMENT_METHOD_CHARACTERS_MAX} printable ASCII characters"
        raise BodyInvalidError("this is no payment method", at="$.payment_method", expected=expected)
    checked_address(body.email)
    return msgspec.structs.replace(body, seats=tuple(sorted(body.seats)))


def show_hash(body: ShowBody) -> str:
    """The address of the typed body of a show."""
    value = msgspec.to_builtins(body)
    return address_of({**value, "starts_at": format_instant(body.starts_at)})


def purchase_hash(body: PurchaseBody) -> str:
    """The address of the typed body of a purchase, the mail address left out."""
    value = msgspec.to_builtins(body)
    del value["email"]
    return address_of(value)


def _converted(value: Any, kind: type[B]) -> B:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        detail, _, place = str(error).partition(" - at `")
        raise BodyInvalidError(detail, at=place.rstrip("`") or "$", expected="a body as documented") from None


def _checked_seat(seat: str, at: str) -> None:
    if _SEAT.match(seat) is None:
        raise BodyInvalidError(f"{seat[:40]!r} is no seat's name", at=at, expected="1 to 32 letters, digits, . _ -")


def _check_distinct(seats: Any) -> None:
    if len(set(seats)) < len(seats):
        raise BodyInvalidError("a seat stands twice", at="$.seats", expected="each once")
