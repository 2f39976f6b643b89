"""The documents of shows and purchases, and the JSON schemas of their bodies.

What must stay true: a schema stands beside the type that reads the body and is held to it by the schemathesis test.
"""

from typing import Any, Final

import msgspec

from domain.purchases.identity import SHOW_ID_PATTERN
from services.contacts import ADDRESS_CHARACTERS_MAX
from services.purchase_requests import (
    HOLD_SECONDS_DEFAULT,
    HOLD_SECONDS_MAX,
    HOLD_SECONDS_MIN,
    PAYMENT_METHOD_CHARACTERS_MAX,
    PRICE_MINOR_MAX,
    SEAT_NAME_PATTERN,
    SEATS_PER_PURCHASE_MAX,
    SEATS_PER_SHOW_MAX,
)
from services.purchases import PurchaseView
from services.shop import BalanceView, PurchaseSummary, SalesView, SeatView, ShowView

_ATOM: Final = "[A-Za-z0-9!#$%&'*+/^_`{|}~-]+"
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
ADDRESS_PATTERN: Final = rf"^(?=[^@]{{1,64}}@){_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*$"


class ShowAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """A show is on sale: its id, and the position in the log."""

    show_id: str
    position: int


class ShowList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of shows, newest first."""

    items: tuple[ShowView, ...]
    next_cursor: str | None
    position: int


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """The seats of a show, as far as is known."""

    show_id: str
    seats: tuple[SeatView, ...]


class PurchaseAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """Seats are reserved and the payment is begun: the purchase's id, and the position in the log."""

    purchase_id: str
    position: int


class PurchaseList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of purchases, newest first."""

    items: tuple[PurchaseSummary, ...]
    next_cursor: str | None
    position: int


class StuckList(msgspec.Struct, frozen=True, kw_only=True):
    """Purchases that do not end, the longest first."""

    items: tuple[PurchaseSummary, ...]


class Balances(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's balances, by currency."""

    items: tuple[BalanceView, ...]


class Sales(msgspec.Struct, frozen=True, kw_only=True):
    """Sales per day, newest first."""

    items: tuple[SalesView, ...]


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """The purchases that referred to the address."""

    purchase_ids: tuple[str, ...]


class WebhookHeard(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway told is recorded; the purchase's state afterwards."""

    state: str


PURCHASE_ANSWERS: Final = (
    Availability,
    Balances,
    Erased,
    PurchaseAdmitted,
    PurchaseList,
    PurchaseView,
    Sales,
    ShowAdmitted,
    ShowList,
    StuckList,
    WebhookHeard,
)

_SEAT: Final[dict[str, Any]] = {"type": "string", "pattern": SEAT_NAME_PATTERN}
_EMAIL: Final[dict[str, Any]] = {"type": "string", "maxLength": ADDRESS_CHARACTERS_MAX, "pattern": ADDRESS_PATTERN}

SHOW_BODY_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["title", "starts_at", "currency", "seats"],
    "additionalProperties": False,
    "properties": {
        "title": {"$ref": "#/components/schemas/Name"},
        "starts_at": {"type": "string", "format": "date-time"},
        "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "hold_seconds": {
            "type": "integer",
            "minimum": HOLD_SECONDS_MIN,
            "maximum": HOLD_SECONDS_MAX,
            "default": HOLD_SECONDS_DEFAULT,
        },
        "seats": {
            "type": "array",
            "minItems": 1,
            "maxItems": SEATS_PER_SHOW_MAX,
            "description": "Each seat once.",
            "items": {
                "type": "object",
                "required": ["seat", "price_minor"],
                "additionalProperties": False,
                "properties": {
                    "seat": _SEAT,
                    "price_minor": {"type": "integer", "minimum": 0, "maximum": PRICE_MINOR_MAX},
                },
            },
        },
    },
}

SHOW_BODY_EXAMPLE: Final = {
    "title": "Lohengrin",
    "starts_at": "2026-06-05T19:00:00Z",
    "currency": "EUR",
    "seats": [{"seat": "A1", "price_minor": 4500}, {"seat": "A2", "price_minor": 4500}],
}

PURCHASE_BODY_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["show_id", "seats", "payment_method", "email"],
    "additionalProperties": False,
    "properties": {
        "show_id": {"type": "string", "pattern": SHOW_ID_PATTERN},
        "seats": {
            "type": "array",
            "minItems": 1,
            "maxItems": SEATS_PER_PURCHASE_MAX,
            "uniqueItems": True,
            "items": _SEAT,
        },
        "payment_method": {"type": "string", "pattern": f"^[!-~]{{1,{PAYMENT_METHOD_CHARACTERS_MAX}}}$"},
        "email": _EMAIL,
    },
}

PURCHASE_BODY_EXAMPLE: Final = {
    "show_id": "show_" + "0" * 40,
    "seats": ["A1"],
    "payment_method": "pm_card_visa",
    "email": "ana@example.org",
}

NOTE_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["note"],
    "additionalProperties": False,
    "properties": {
        "note": {
            "type": "string",
            "minLength": 1,
            "maxLength": 2000,
            "pattern": "^[^\\u0000]*[^\\s\\u0000][^\\u0000]*$",
        }
    },
}

ERASE_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["email"],
    "additionalProperties": False,
    "properties": {"email": _EMAIL},
}

WEBHOOK_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["intent_id", "operation", "object"],
    "properties": {
        "intent_id": {"type": "string"},
        "operation": {"type": "string", "enum": ["CHARGE", "REFUND"]},
        "object": {
            "type": "object",
            "required": ["id", "status", "amount_minor", "currency"],
            "properties": {
                "id": {"type": "string"},
                "status": {"type": "string", "enum": ["succeeded", "declined"]},
                "amount_minor": {"type": "integer"},
                "currency": {"type": "string"},
            },
        },
    },
}
