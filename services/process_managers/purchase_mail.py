"""Mails of purchases: one when a purchase is confirmed, one when it came to nothing, a correction if that changed later.

What must stay true: a mail is sent only while the state that calls for it holds, at least once, and once unless a crash falls
between the server's acceptance and our record; it has the same Message-ID each time. A mail server that is away delays mails and
nothing else. Whoever is erased gets no mail, and that is recorded too.
"""

from typing import Final
from uuid import UUID

from domain.errors import Fault, FinazError, UndecodableEventError, UnknownTopicError, VersionConflictError
from domain.events import Event, Recorded
from domain.purchases.errors import MailUnavailableError
from domain.purchases.identity import message_id_of
from domain.purchases.messages import PurchaseCompensated, PurchaseConfirmed, RecordMail
from domain.purchases.saga import fold_saga
from services import purchase_effects
from services.contacts import Contacts
from services.deals import Deals
from services.mailer import Mailer, mail_of
from services.process_managers.contract import Command, Document, Retry, SetAside, Stop, Verdict, Want

NAME: Final = "purchase_mail"
MAIL: Final = "mail"

THREADS: Final = 4
"""Mails handed over at once."""

RETRY_SECONDS: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds after the first, second, … failure of a mail; the last one from then on."""

ATTEMPTS_MAX: Final = 1000
"""Failures of one mail (about a week) before it becomes a dead letter."""

REFUSALS_MAX: Final = 20
"""Failures (about three hours) after which a mail that the server refused for good becomes one."""


class PurchaseMail:
    """The process manager (`services.process_managers.contract.ProcessManager`)."""

    name = NAME
    categories: tuple[str, ...] = ("purchase",)
    threads = THREADS

    def __init__(self, deals: Deals, contacts: Contacts, mailer: Mailer | None, domain: str) -> None:
        self._deals = deals
        self._contacts = contacts
        self._mailer = mailer
        self._domain = domain

    def interested(self, event: Event) -> str | None:
        """A purchase that has come to an end."""
        return event.purchase_id if isinstance(event, PurchaseConfirmed | PurchaseCompensated) else None

    def react(self, state: Document, recorded: Recorded) -> tuple[Want, ...]:
        """A mail."""
        return (Command(MAIL, {"purchase_id": self.interested(recorded.event)}),)

    def apply(self, state: Document, recorded: Recorded) -> Document:
        """Nothing: which mail is due is read then."""
        return {}

    def execute(self, command: Command, command_id: UUID) -> None:
        """Send the mail that the purchase's state calls for, if one is still due."""
        purchase_id: str = command.document["purchase_id"]
        saga = fold_saga(recorded.event for recorded in self._deals.history(purchase_id))
        mail = saga.mail_due
        if mail is None:
            return
        address = self._contacts.address(saga.contact_id)
        message_id = message_id_of(purchase_id, mail, self._domain)
        if address is not None and self._mailer is None:
            raise MailUnavailableError("no mail server is set", at=purchase_id, expected="FINAZ_SMTP_HOST")
        if address is not None and self._mailer is not None:
            purchase_effects.send(self._mailer, mail_of(saga, mail, address, message_id))
        self._deals.carry(purchase_id, RecordMail(mail=mail, message_id=message_id, sent=address is not None))

    def on_error(self, error: Exception, attempts: int) -> Verdict:
        """A mail server that is away is waited for; what nobody can send becomes a dead letter in the end."""
        if isinstance(error, UnknownTopicError | UndecodableEventError):
            return Stop()
        if isinstance(error, VersionConflictError):
            return Retry(RETRY_SECONDS[0])
        away = isinstance(error, FinazError) and error.fault is Fault.INFRASTRUCTURE
        if attempts >= (ATTEMPTS_MAX if away else REFUSALS_MAX):
            return SetAside()
        return Retry(RETRY_SECONDS[min(attempts - 1, len(RETRY_SECONDS) - 1)])
