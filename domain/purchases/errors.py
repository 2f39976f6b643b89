"""The errors of purchases, each with its code."""

from domain.errors import BodyInvalidError, InfrastructureError, InputError, NotFoundError, RefusedError


class ShowNotFoundError(NotFoundError):
    """There is no show of this id."""

    code = "SHOW_NOT_FOUND"


class SeatUnknownError(BodyInvalidError):
    """The show has no such seat."""

    code = "SEAT_UNKNOWN"


class SeatsTakenError(RefusedError):
    """At least one of the seats is not free; nothing was reserved."""

    code = "SEATS_TAKEN"


class PurchaseNotFoundError(NotFoundError):
    """There is no purchase of this id, or it belongs to another principal."""

    code = "PURCHASE_NOT_FOUND"


class LedgerUnbalancedError(InputError):
    """The lines of an entry do not sum to zero; a bug of whoever made it."""

    code = "LEDGER_UNBALANCED"


class WebhookSignatureError(InputError):
    """A webhook's signature is missing or wrong, or its timestamp is too far from now."""

    code = "WEBHOOK_SIGNATURE_INVALID"


class MailUnavailableError(InfrastructureError):
    """The mail server is away, or says that it cannot take the message now; it is tried again for about a week."""

    code = "MAIL_UNAVAILABLE"


class MailRefusedError(RefusedError):
    """The mail server will not take the message however often it is sent, or no mail can go to this address."""

    code = "MAIL_REFUSED"


class GatewayMissingError(InfrastructureError):
    """No payment gateway is set; what needs one waits."""

    code = "GATEWAY_MISSING"
