"""The HTTP adapter's own promises: what is retried, what is unknown, and which webhooks are heard."""

import gzip
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deployment.gateway_books import Books
from domain.errors import BodyInvalidError
from domain.purchases.errors import WebhookSignatureError
from domain.purchases.messages import Outcome
from services.adapters.gateway_http import (
    AMOUNT_MINOR_MAX,
    ANSWER_BYTES_MAX,
    SIGNATURE_AGE_SECONDS_MAX,
    TRIES_MAX,
    HmacWebhookReader,
    HttpGateway,
    signature_of,
)
from services.gateway import ChargeRequest

CHARGE = ChargeRequest(intent_id="int_1", amount_minor=4500, currency="EUR", payment_method="pm")
BODY = (
    b'{"intent_id":"int_res_1","operation":"CHARGE","object":'
    b'{"id":"ch_1","status":"succeeded","amount_minor":4500,"currency":"EUR"}}'
)
GOOD = b'{"id":"ch_1","status":"succeeded","amount_minor":4500,"currency":"EUR"}'


class _Server:
    """Answers with what it is told, and counts."""

    def __init__(self, status: int, body: bytes) -> None:
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.keys.append(self.headers["Idempotency-Key"])
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                self._say()

            def do_GET(self) -> None:
                outer.keys.append(None)
                self._say()

            def _say(self) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # whoever asked may have gone
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Callable[[int, bytes], tuple[_Server, HttpGateway]]:
    def make(status: int, body: bytes) -> tuple[_Server, HttpGateway]:
        server = _Server(status, body)
        gateway = HttpGateway(server.url, "key")
        request.addfinalizer(server.server.server_close)
        request.addfinalizer(server.server.shutdown)
        request.addfinalizer(gateway.close)
        return server, gateway

    return make


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, GOOD + b" " * ANSWER_BYTES_MAX),
        (200, GOOD.replace(b"4500", b"-1")),
        (200, GOOD.replace(b"4500", str(AMOUNT_MINOR_MAX + 1).encode())),
        (200, GOOD.replace(b"4500", b"9" * 5000)),
        (200, GOOD.replace(b"4500", b"4500.0")),
        (200, GOOD.replace(b"ch_1", b"\\ud800")),
        (500, b"oops"),
        (401, b"{}"),
        (429, b"{}"),
        (200, b"not json"),
        (200, b'{"id":1}'),
        (404, b"{}"),
        (302, b""),
    ],
)
def test_an_answer_that_does_not_say_is_unknown(
    answering: Callable[[int, bytes], tuple[_Server, HttpGateway]], status: int, body: bytes
) -> None:
    """Never "declined"; and a charge that was sent is not sent again by the adapter."""
    server, gateway = answering(status, body)
    assert gateway.charge(CHARGE).outcome is Outcome.UNKNOWN
    assert server.keys == ["int_1"]


@pytest.fixture
def raw(request: pytest.FixtureRequest) -> Callable[[list[bytes]], HttpGateway]:
    """A gateway that sends these pieces as they are, 20 ms apart, whatever it is asked."""

    def make(pieces: list[bytes]) -> HttpGateway:
        listener = socket.create_server(("127.0.0.1", 0))
        request.addfinalizer(listener.close)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=drip, args=(connection,), daemon=True).start()

        def drip(connection: socket.socket) -> None:
            with connection, suppress(OSError):  # whoever asked may have gone
                connection.recv(65_536)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.02)

        threading.Thread(target=serve, daemon=True).start()
        gateway = HttpGateway(f"http://127.0.0.1:{listener.getsockname()[1]}", "key", answer_seconds_max=0.2)
        request.addfinalizer(gateway.close)
        return gateway

    return make


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % len(GOOD)
DRIPS = {
    "the body": [HEAD, b"\r\n", *(bytes([byte]) for byte in GOOD)],
    "the head": [HEAD, b"x: ", *[b"a"] * 500],
    "words that are no answer": [b"HTTP/1.1 100 Continue\r\n\r\n"] * 500,
}


@pytest.mark.parametrize("dripping", DRIPS)
def test_an_answer_that_drips_is_unknown_in_bounded_time(
    raw: Callable[[list[bytes]], HttpGateway], dripping: str
) -> None:
    """Each byte comes in time and the whole does not: the call ends all the same, long before the answer would."""
    assert raw(DRIPS[dripping]).charge(CHARGE).outcome is Outcome.UNKNOWN


def test_whoever_waits_when_it_is_closed_learns_that_it_is_unknown(raw: Callable[[list[bytes]], HttpGateway]) -> None:
    """A process that stops waits for no answer, and concludes nothing from that."""
    asked = threading.Event()
    gateway = raw(DRIPS["the head"])
    gateway._answer_seconds_max = 3600.0
    ask = gateway._ask

    async def told(*arguments: Any) -> Any:
        asked.set()
        return await ask(*arguments)

    gateway._ask = told  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(gateway.charge, CHARGE)
        assert asked.wait(60)
        gateway.close()
        assert answer.result(60).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "piece",
    [
        HEAD + b"\r\n" + GOOD[:-9],
        HEAD + b"content-length: 3\r\n\r\n" + GOOD,
        HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b" " * 50_000_000)[: len(GOOD)],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"",
    ],
)
def test_what_is_no_answer_is_unknown(raw: Callable[[list[bytes]], HttpGateway], piece: bytes) -> None:
    """Cut off, contradictory, packed as nobody asked for, another protocol, nothing."""
    gateway = raw([piece])
    assert gateway.charge(CHARGE).outcome is Outcome.UNKNOWN
    assert gateway.find_charge("int_1").outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "body", [b"<html>404 page not found</html>", b"", b"{}", b'{"detail":"Not Found"}', b'{"error":"no route"}', GOOD]
)
def test_a_404_of_somebody_else_is_unknown(
    answering: Callable[[int, bytes], tuple[_Server, HttpGateway]], body: bytes
) -> None:
    """Whoever believes a proxy's 404 releases the seats of somebody who was charged."""
    _, gateway = answering(404, body)
    assert gateway.find_charge("int_1").outcome is Outcome.UNKNOWN
    assert gateway.find_refund("refund_int_1").outcome is Outcome.UNKNOWN


def test_a_question_is_asked_again(answering: Callable[[int, bytes], tuple[_Server, HttpGateway]]) -> None:
    """Up to the limit, since asking changes nothing."""
    server, gateway = answering(503, b"")
    assert gateway.find_charge("int_1").outcome is Outcome.UNKNOWN
    assert len(server.keys) == TRIES_MAX


def test_a_gateway_that_is_away_is_unknown() -> None:
    """Nobody listens: it was never sent, and yet nothing is concluded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = HttpGateway(f"http://127.0.0.1:{port}", "key")
    assert gateway.charge(CHARGE).outcome is Outcome.UNKNOWN
    gateway.close()


def test_a_signed_webhook_is_read() -> None:
    """With the right secret and a timestamp near now."""
    event = HmacWebhookReader("s3cret").read(BODY, signature_of("s3cret", BODY, 1000), lambda: 1000 + 10)
    assert (event.intent_id, event.answer.outcome, event.answer.gateway_id) == (
        "int_res_1",
        Outcome.SUCCEEDED,
        "ch_1",
    )


@pytest.mark.parametrize(
    ("signature", "now"),
    [
        (None, 1000.0),
        ("", 1000.0),
        ("t=1000", 1000.0),
        (signature_of("other", BODY, 1000), 1000.0),
        (signature_of("s3cret", BODY + b" ", 1000), 1000.0),
        (signature_of("s3cret", BODY, 1000).replace("t=1000", "t=1001"), 1000.0),
        (signature_of("s3cret", BODY, 1000), 1000.0 + SIGNATURE_AGE_SECONDS_MAX + 1),
        (signature_of("s3cret", BODY, 1000), 1000.0 - SIGNATURE_AGE_SECONDS_MAX - 1),
    ],
)
def test_a_webhook_is_refused(signature: str | None, now: float) -> None:
    """Without a signature, with another secret's, over another body or timestamp, too old, too new."""
    with pytest.raises(WebhookSignatureError):
        HmacWebhookReader("s3cret").read(BODY, signature, lambda: now)


@pytest.mark.parametrize("signature", [None, "", "t=1000", signature_of("other", BODY, 1000), "t=1000,v1=" + "0" * 64])
def test_a_stranger_costs_no_look_at_the_clock(signature: str | None) -> None:
    """It is the database's: who cannot sign must not be able to keep it busy."""
    with pytest.raises(WebhookSignatureError):
        HmacWebhookReader("s3cret").read(BODY, signature, lambda: pytest.fail("the clock was asked"))


@pytest.mark.parametrize("body", [b"{}", b"[]", b"\xff", BODY.replace(b"succeeded", b"pending")])
def test_a_signed_webhook_that_says_nothing_is_refused(body: bytes) -> None:
    """What cannot be read is told to the gateway, which tries again or gives up."""
    with pytest.raises(BodyInvalidError):
        HmacWebhookReader("s3cret").read(body, signature_of("s3cret", body, 1000), lambda: 1000.0)


def test_the_books_survive_a_restart(tmp_path: Path) -> None:
    """A killed sandbox remembers what it did."""
    file = tmp_path / "books.jsonl"
    books = Books(file)
    books.charge(CHARGE)
    assert Books(file).charges == books.charges


@pytest.mark.parametrize("again", ["ask", "settle", "charge"])
def test_what_was_put_off_is_done_once(tmp_path: Path, again: str) -> None:
    """A late charge beside a later call under the same intent: one charge, in the books and in their file."""
    file = tmp_path / "books.jsonl"
    books = Books(file)
    books.script(CHARGE.intent_id, "charge:late,succeed,succeed")
    assert books.charge(CHARGE).outcome is Outcome.UNKNOWN
    assert books.charge(CHARGE).outcome is Outcome.SUCCEEDED
    calls: dict[str, Callable[[], Any]] = {
        "ask": lambda: books.find_charge(CHARGE.intent_id),
        "settle": books.settle_late,
        "charge": lambda: books.charge(CHARGE),
    }
    calls[again]()
    assert len(books.charges) == len(file.read_bytes().splitlines()) == 1
