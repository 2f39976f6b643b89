"""What is asked of a payment gateway, as a Protocol and values.

What must stay true: a call never raises for what the outside does: a timeout, a refused connection, an answer that cannot be read
are `UNKNOWN`, since the gateway may have done what it was asked. Every call goes under a key (the intent, or the refund's own), so
a gateway that keeps its promise does it once however often it is asked. One conformance suite
(`tests/conformance/test_gateway.py`) runs against the sandbox in memory and over HTTP.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from domain.purchases.messages import GatewayAnswer, Source


class ChargeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Charge this much, once per intent. `payment_method` is the gateway's own token for how the buyer pays."""

    intent_id: str
    amount_minor: int
    currency: str
    payment_method: str


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Give back what was charged under the intent, once per `refund_key`. `charge_id` is the gateway's own, "" if not known."""

    intent_id: str
    refund_key: str
    amount_minor: int
    currency: str
    charge_id: str = ""


class Gateway(Protocol):
    """A payment gateway. Calls block for a bounded time; any thread may make them."""

    def charge(self, request: ChargeRequest) -> GatewayAnswer:
        """Charge, or be told what became of the charge of this intent."""
        ...

    def find_charge(self, intent_id: str) -> GatewayAnswer:
        """What became of the intent's charge. `NOT_FOUND` may come too early: the gateway may not have seen it yet."""
        ...

    def refund(self, request: RefundRequest) -> GatewayAnswer:
        """Refund, or be told what became of the refund of this key."""
        ...

    def find_refund(self, refund_key: str) -> GatewayAnswer:
        """What became of the refund of this key; `NOT_FOUND` as for a charge. Asking refunds nothing."""
        ...


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway told by itself, its signature verified."""

    intent_id: str
    answer: GatewayAnswer
    source: Source = Source.WEBHOOK


class WebhookReader(Protocol):
    """Reads what claims to come from the gateway."""

    def read(self, body: bytes, signature: str | None, now_seconds: Callable[[], float]) -> WebhookEvent:
        """The event; the time is asked for a signature that is right, so that a stranger costs nobody a look. Blocks.

        Raises `WebhookSignatureError` (missing, wrong, too old or too new) and `BodyInvalidError`.
        """
        ...
