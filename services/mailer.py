"""What is asked of a mail server, and the mails that purchases send.

What must stay true: a mail about one state of one purchase has one Message-ID however often it is sent, so that a reader can drop
a repetition; the text says nothing that the log must not know.
"""

from typing import Final, Protocol

import msgspec

from domain.purchases.saga import Saga


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """A mail to one address."""

    to: str
    subject: str
    text: str
    message_id: str


class Mailer(Protocol):
    """Hands a mail to a server that accepts responsibility for it. Blocks for a bounded time.

    Raises `MailUnavailableError`, and `MailRefusedError` where it will be the same the next time.
    """

    def send(self, mail: Mail) -> None: ...


_CONFIRMED: Final = """Your purchase {purchase_id} is confirmed.

Seats: {seats}
Paid: {amount}
"""

_FAILED: Final = """Your purchase {purchase_id} could not be completed; seats {seats} were released.

Nothing remains charged to you.
"""

_CORRECTION: Final = """A correction about your purchase {purchase_id}.

A charge of {amount} turned up after we had written to you. It has been refunded in full. Nothing remains charged to you.
"""

_DECIMALS: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
"""Currencies whose minor unit has not two decimals, by ISO 4217."""

_SUBJECTS: Final = {"confirmed": "Your tickets", "failed": "Your purchase was not completed"}


def mail_of(saga: Saga, mail: str, to: str, message_id: str) -> Mail:
    """The mail of this name (`confirmed`, `failed`, `failed-N`, `correction-N`) about a purchase."""
    kind = mail.partition("-")[0]
    template = {"confirmed": _CONFIRMED, "failed": _FAILED}.get(kind, _CORRECTION)
    text = template.format(
        purchase_id=saga.purchase_id, seats=", ".join(saga.seats), amount=amount_text(saga.amount_minor, saga.currency)
    )
    return Mail(
        to=to, subject=_SUBJECTS.get(kind, "A correction about your purchase"), text=text, message_id=message_id
    )


def amount_text(amount_minor: int, currency: str) -> str:
    """An amount for people, with as many decimals as the currency has."""
    digits = next((digits for digits, names in _DECIMALS.items() if currency in names), 2)
    whole, rest = divmod(amount_minor, 10**digits)
    return f"{whole}.{rest:0{digits}d} {currency}" if digits else f"{whole} {currency}"
