"""How the ids of purchases are derived, and the streams that they name.

What must stay true: one purchase has one public reference, and everything that is asked of the outside for it (the charge, its
refund, its mails) goes under keys that are functions of that reference, so asking twice is asking once.
"""

import hashlib
import re
from typing import Final

INTENT_CHARACTERS_MAX: Final = 64
"""Characters that a gateway takes of an intent."""

_REFERENCE_DIGITS: Final = 40

PURCHASE_ID_PATTERN: Final = f"^res_[0-9a-f]{{{_REFERENCE_DIGITS}}}$"
SHOW_ID_PATTERN: Final = f"^show_[0-9a-f]{{{_REFERENCE_DIGITS}}}$"
PURCHASE_ID: Final = re.compile(PURCHASE_ID_PATTERN[:-1] + r"\Z")
SHOW_ID: Final = re.compile(SHOW_ID_PATTERN[:-1] + r"\Z")


def purchase_id_of(principal: str, operation: str, key: str, body_hash: str) -> str:
    """The reservation's public reference, which is also the purchase's id: a function of the request, as a run's id is."""
    return "res_" + _digest(principal, operation, key, body_hash)


def show_id_of(principal: str, operation: str, key: str, body_hash: str) -> str:
    """A show's id, derived the same way."""
    return "show_" + _digest(principal, operation, key, body_hash)


def intent_id_of(purchase_id: str) -> str:
    """What the gateway knows the charge by: `int_` and the public reference, at most `INTENT_CHARACTERS_MAX` characters."""
    return ("int_" + purchase_id)[:INTENT_CHARACTERS_MAX]


def refund_key_of(intent_id: str, number: int = 1) -> str:
    """The refund's own key, derived from the intent; a further charge under one intent is refunded under a further number."""
    return f"refund_{intent_id}" if number == 1 else f"refund_{intent_id}_{number}"


def notice_id_of(purchase_id: str, name: str) -> str:
    """The id of what is told about a purchase, once per name."""
    return f"{purchase_id}.{name}"


def message_id_of(purchase_id: str, mail: str, domain: str) -> str:
    """The Message-ID of a mail about a purchase: the same however often it is sent."""
    return f"<{purchase_id}.{mail}@{domain}>"


def show_stream(show_id: str) -> str:
    """The stream of a show's own events."""
    return "show/" + show_id


def seat_stream(show_id: str, seat: str) -> str:
    """The stream of one seat of a show: whoever writes its next version has the seat."""
    return f"seat/{show_id}/{seat}"


def reservation_stream(purchase_id: str) -> str:
    """The stream of a reservation."""
    return "reservation/" + purchase_id


def purchase_stream(purchase_id: str) -> str:
    """The stream of the saga."""
    return "purchase/" + purchase_id


def ledger_stream(intent_id: str) -> str:
    """The stream of an intent's entries in the ledger."""
    return "ledger/" + intent_id


def notice_stream(notice_id: str) -> str:
    """The stream of one notice; its outbox item has the kind `notice` and the notice's id as its key."""
    return "notice/" + notice_id


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:_REFERENCE_DIGITS]
