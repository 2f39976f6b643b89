"""Mail by SMTP.

What must stay true: `send` returns when the server has accepted the message, however the connection ends after that, so that it is
not sent twice; everything else raises, so that it is tried again under the same Message-ID. Addresses appear in no error: a
server's answer may quote them, so only its code is kept.
"""

import smtplib
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

from domain.purchases.errors import MailUnavailableError
from services.mailer import Mail

ANSWER_SECONDS_MAX: Final = 10.0
"""Seconds to wait for each of the server's answers."""


LINE_CHARACTERS_MAX: Final = 998
"""Characters of a header line, by RFC 5322: a Message-ID stands on one line."""

_POLICY: Final = SMTP.clone(max_line_length=LINE_CHARACTERS_MAX)


class SmtpMailer:
    """Implements `services.mailer.Mailer`: a connection per mail. Any thread may call it."""

    def __init__(self, host: str, port: int, sender: str, *, answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self._host = host
        self._port = port
        self._sender = sender
        self._answer_seconds_max = answer_seconds_max

    def send(self, mail: Mail) -> None:
        """Hand the mail to the server. Raises `MailUnavailableError`."""
        message = EmailMessage(policy=_POLICY)
        message["From"] = self._sender
        message["To"] = mail.to
        message["Subject"] = mail.subject
        message["Message-ID"] = mail.message_id
        message.set_content(mail.text)
        try:
            server = smtplib.SMTP(self._host, self._port, timeout=self._answer_seconds_max)
            try:
                refused = server.send_message(message)
            finally:
                with suppress(smtplib.SMTPException, OSError):  # what was accepted is accepted
                    server.quit()
                server.close()
        except smtplib.SMTPResponseException as error:
            raise self._away(f"answered {error.smtp_code}") from None
        except (OSError, smtplib.SMTPException) as error:
            raise self._away(type(error).__name__) from None
        if refused:
            raise self._away("refused the recipient")

    def _away(self, what: str) -> MailUnavailableError:
        return MailUnavailableError(f"the mail server: {what}", at=f"{self._host}:{self._port}", expected="acceptance")
