"""Mail by SMTP.

What must stay true: `send` returns when the server has accepted the message, however the connection ends after that, so that it is
not sent twice; everything else raises, so that it is tried again under the same Message-ID, and raises in bounded time, however
slowly the server drips. A mail goes to the address as it was given or to nobody: what a header would make of it is compared, never
followed. Addresses appear in no error: a server's answer may quote them, so only its code is kept.
"""

import smtplib
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

from domain.errors import FinazError
from domain.purchases.errors import MailRefusedError, MailUnavailableError
from services.mailer import Mail

ANSWER_SECONDS_MAX: Final = 10.0
"""Seconds to wait for each piece of the server's answers."""

MAIL_SECONDS_MAX: Final = 20.0
"""Seconds that a mail may take until it is accepted; then the connection is cut. It is less than a process may take to stop."""

PERMANENT: Final = range(500, 600)
"""Answers that will be the same the next time, by RFC 5321."""

LINE_CHARACTERS_MAX: Final = 998
"""Characters of a header line, by RFC 5322: a Message-ID stands on one line."""

_POLICY: Final = SMTP.clone(max_line_length=LINE_CHARACTERS_MAX)


class SmtpMailer:
    """Implements `services.mailer.Mailer`: a connection per mail. Any thread may call it."""

    def __init__(
        self,
        host: str,
        port: int,
        sender: str,
        *,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
        mail_seconds_max: float = MAIL_SECONDS_MAX,
    ) -> None:
        self._host = host
        self._port = port
        self._sender = sender
        self._answer_seconds_max = answer_seconds_max
        self._mail_seconds_max = mail_seconds_max

    def send(self, mail: Mail) -> None:
        """Hand the mail to the server. Raises `MailUnavailableError`, `MailRefusedError` (for good)."""
        message = EmailMessage(policy=_POLICY)
        message["From"] = self._sender
        message["To"] = mail.to
        message["Subject"] = mail.subject
        message["Message-ID"] = mail.message_id
        message.set_content(mail.text)
        if [address.addr_spec for address in message["To"].addresses] != [mail.to]:
            raise self._refused("was not asked: the address cannot stand in a header")
        try:
            self._hand_over(message, mail.to)
        except smtplib.SMTPRecipientsRefused as error:
            raise self._answered([code for code, _ in error.recipients.values()]) from None
        except smtplib.SMTPNotSupportedError:
            raise self._refused("takes no address of this kind") from None
        except smtplib.SMTPResponseException as error:
            raise self._answered([error.smtp_code]) from None
        except (OSError, smtplib.SMTPException) as error:
            raise self._away(type(error).__name__) from None

    def _hand_over(self, message: EmailMessage, to: str) -> None:
        server = smtplib.SMTP(timeout=self._answer_seconds_max)
        cutting = threading.Timer(self._mail_seconds_max, _cut, (server,))
        cutting.daemon = True
        cutting.start()
        try:
            server.connect(self._host, self._port)
            server.send_message(message, self._sender, [to])
            with suppress(smtplib.SMTPException, OSError):  # what was accepted is accepted
                server.quit()
        finally:
            cutting.cancel()
            server.close()

    def _answered(self, codes: Sequence[int]) -> FinazError:
        what = f"answered {', '.join(map(str, codes))}"
        return self._refused(what) if all(code in PERMANENT for code in codes) else self._away(what)

    def _away(self, what: str) -> MailUnavailableError:
        return MailUnavailableError(f"the mail server: {what}", at=f"{self._host}:{self._port}", expected="acceptance")

    def _refused(self, what: str) -> MailRefusedError:
        return MailRefusedError(f"the mail server {what}", at=f"{self._host}:{self._port}", expected="acceptance")


def _cut(server: smtplib.SMTP) -> None:
    """Have whoever waits for the server wait no longer; from another thread."""
    connection = server.sock
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
