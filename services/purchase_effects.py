"""The effects of purchases on the outside, each between two fault points.

They are apart from `services.effects` because other drills walk those points one by one with runs, which never come by here. What
must stay true: process managers ask the gateway, send mail and tell others through these functions only.
"""

from typing import Final

from domain.purchases.messages import GatewayAnswer
from services.faultpoints import point
from services.gateway import ChargeRequest, Gateway, RefundRequest
from services.mailer import Mail, Mailer

GATEWAY_BEFORE: Final = "gateway.before"
GATEWAY_AFTER: Final = "gateway.after"
MAIL_BEFORE: Final = "mail.before"
MAIL_AFTER: Final = "mail.after"

PURCHASE_POINTS: Final[dict[str, str]] = {
    GATEWAY_BEFORE: "an attempt is recorded and the gateway not yet asked",
    GATEWAY_AFTER: "the gateway has answered and nothing is recorded of it",
    MAIL_BEFORE: "a mail is due and not yet handed over",
    MAIL_AFTER: "the mail server has accepted a mail and nothing is recorded of it",
}
"""Every point by name, and what is true when it is passed."""


def charge(gateway: Gateway, request: ChargeRequest) -> GatewayAnswer:
    """Ask for a charge."""
    point(GATEWAY_BEFORE)
    answer = gateway.charge(request)
    point(GATEWAY_AFTER)
    return answer


def find_charge(gateway: Gateway, intent_id: str) -> GatewayAnswer:
    """Ask what became of a charge."""
    point(GATEWAY_BEFORE)
    answer = gateway.find_charge(intent_id)
    point(GATEWAY_AFTER)
    return answer


def refund(gateway: Gateway, request: RefundRequest) -> GatewayAnswer:
    """Ask for a refund."""
    point(GATEWAY_BEFORE)
    answer = gateway.refund(request)
    point(GATEWAY_AFTER)
    return answer


def send(mailer: Mailer, mail: Mail) -> None:
    """Hand a mail over. Raises `MailUnavailableError`, `MailRefusedError`."""
    point(MAIL_BEFORE)
    mailer.send(mail)
    point(MAIL_AFTER)
