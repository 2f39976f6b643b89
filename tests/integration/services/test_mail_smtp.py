"""Mail against a real SMTP server on loopback."""

import email
import re
import socket
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from hypothesis import given
from hypothesis import strategies as st

from api.purchase_schemas import ADDRESS_PATTERN
from domain.errors import BodyInvalidError
from domain.purchases.errors import MailRefusedError, MailUnavailableError
from services.adapters.mail_smtp import SmtpMailer
from services.contacts import checked_address
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
        self.recipient_answer = "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if self.recipient_answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.recipient_answer

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


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("550 no such user {}", MailRefusedError),
        ("451 come back, {}", MailUnavailableError),
        ("421 {}", MailUnavailableError),
    ],
)
def test_what_is_not_accepted_raises_without_the_address(
    served: tuple[_Box, SmtpMailer], answer: str, kind: type[Exception]
) -> None:
    """Refused for good or for now: typed, and no log learns whom it was for."""
    box, mailer = served
    box.answer = answer.format(MAIL.to)
    with pytest.raises(kind) as refused:
        mailer.send(MAIL)
    assert MAIL.to not in str(refused.value)
    box.recipient_answer, box.answer = answer.format(MAIL.to), "250 OK"
    with pytest.raises(kind) as refused:
        mailer.send(MAIL)
    assert MAIL.to not in str(refused.value)


def test_a_server_that_is_away_is_tried_again() -> None:
    """Nobody listens: not the mail's fault."""
    with pytest.raises(MailUnavailableError):
        SmtpMailer("127.0.0.1", 1, "tickets@finaz.invalid", answer_seconds_max=1).send(MAIL)


@pytest.mark.parametrize("pieces", [[b"2"] * 500, [b"220 hello\r\n", *[b"250-x\r\n"] * 500]])
def test_a_server_that_drips_is_cut_off(request: pytest.FixtureRequest, pieces: list[bytes]) -> None:
    """Each piece comes in time and the whole does not: no mail occupies a thread for longer than a mail may take."""
    listener = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(listener.close)

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.02)

    threading.Thread(target=drip, daemon=True).start()
    mailer = SmtpMailer("127.0.0.1", listener.getsockname()[1], "tickets@finaz.invalid", mail_seconds_max=0.2)
    with pytest.raises(MailUnavailableError):
        mailer.send(MAIL)


ODD = (
    "=?utf-8?q?ana?=@example.org",
    "=?utf-8?q?eve=40evil.example=2C_a?=@example.org",
    "a.@example.org",
    "a@example..org",
    "a,b@example.org",
    "<a@example.org>",
    '"a b"@example.org',
    "a@example.org\r\nBcc: eve@evil.example",
    "ana(eve)@example.org",
)


@pytest.mark.parametrize("address", ODD)
def test_a_mail_goes_to_the_address_as_it_was_given_or_to_nobody(served: tuple[_Box, SmtpMailer], address: str) -> None:
    """What a header would decode, cut or split is no address, neither at the edge nor, recorded long ago, at the mail server."""
    with pytest.raises(BodyInvalidError):
        checked_address(address)
    with suppress(MailRefusedError, ValueError):
        served[1].send(msgspec.structs.replace(MAIL, to=address))
    assert all(envelope.rcpt_tos == [address] for envelope in served[0].envelopes)


atoms = st.text(st.sampled_from("aZ09!#$%&'*+/^_`{|}~-"), min_size=1, max_size=8)
labels = st.text(st.sampled_from("aZ09"), min_size=1, max_size=8)
addresses = st.tuples(st.lists(atoms, min_size=1, max_size=3), st.lists(labels, min_size=1, max_size=3)).map(
    lambda parts: f"{'.'.join(parts[0])}@{'.'.join(parts[1])}"
)
letters = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=20).map(
    lambda text: f"{unicodedata.normalize('NFC', text)}@example.org"
)


@given(address=st.one_of(addresses, letters))
def test_an_address_that_is_taken_stands_in_a_header_as_it_is(address: str) -> None:
    """Whatever the schema or another script gives: the header's own reading of it is the address, and nothing more."""
    assert not address.isascii() or re.match(ADDRESS_PATTERN, address)
    message = EmailMessage(policy=SMTP)
    message["To"] = checked_address(address)
    assert [found.addr_spec for found in message["To"].addresses] == [address]
