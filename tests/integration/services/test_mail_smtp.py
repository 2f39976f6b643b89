"""Mail against a real SMTP server on loopback."""

import email
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from domain.purchases.errors import MailUnavailableError
from services.adapters.mail_smtp import SmtpMailer
from services.mailer import Mail

MAIL = Mail(
    to="ana@example.org",
    subject="Your tickets",
    text="Seats: A1\nÄ line.\n",
    message_id="<res_1.confirmed@finaz.invalid>",
)


class _Box:
    """Keeps what it accepts; answers `answer` if it is told to refuse."""

    def __init__(self) -> None:
        self.envelopes: list[Any] = []
        self.answer = "250 OK"
        self.farewell: str | None = "221 Bye"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:
        if self.farewell is None:
            server.transport.close()
            return "221 Bye"
        return self.farewell

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.answer.startswith("250"):
            self.envelopes.append(envelope)
        return self.answer


@pytest.fixture
def served() -> Iterator[tuple[_Box, SmtpMailer]]:
    box = _Box()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, SmtpMailer("127.0.0.1", port, "tickets@finaz.invalid", answer_seconds_max=5)
    controller.stop()


@pytest.mark.parametrize("farewell", ["221 Bye", "421 too busy", "500 what?", None])
def test_a_mail_that_was_accepted_is_sent_however_the_connection_ends(
    served: tuple[_Box, SmtpMailer], farewell: str | None
) -> None:
    """A server that is rude about the farewell, or gone, has the mail: nobody sends it again."""
    box, mailer = served
    box.farewell = farewell
    mailer.send(MAIL)
    assert len(box.envelopes) == 1


def test_a_mail_arrives_with_its_message_id(served: tuple[_Box, SmtpMailer]) -> None:
    """Sent twice, it carries the same Message-ID both times."""
    box, mailer = served
    mailer.send(MAIL)
    mailer.send(MAIL)
    messages = [email.message_from_bytes(envelope.content) for envelope in box.envelopes]
    assert [message["Message-ID"] for message in messages] == [MAIL.message_id] * 2
    assert box.envelopes[0].rcpt_tos == [MAIL.to]
    assert messages[0]["Subject"] == MAIL.subject
    payload = messages[0].get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode("utf-8").splitlines() == MAIL.text.splitlines()


def test_what_is_not_accepted_raises_without_the_address(served: tuple[_Box, SmtpMailer]) -> None:
    """Refused, or nobody there: typed, tried again, and no log learns whom it was for."""
    box, mailer = served
    box.answer = f"550 no such user {MAIL.to}"
    with pytest.raises(MailUnavailableError) as refused:
        mailer.send(MAIL)
    assert MAIL.to not in str(refused.value)
    with pytest.raises(MailUnavailableError):
        SmtpMailer("127.0.0.1", 1, "tickets@finaz.invalid", answer_seconds_max=1).send(MAIL)
