"""What stands around every operation: who asks, what is read of a request, how errors and streams leave."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import operations
from api.answers import Answer, Stream, json_answer
from api.auth import Scope, Tokens, mint_token
from api.metrics import METRIC_NAMES, Metrics
from api.operations import AnswerSpec, Call, Edge, Handler, Operation, respond

TOKEN, ENTRY = mint_token("ana", [Scope.RUNS_READ])
BYTES_MAX = 100


class Exchange:
    """One request to an operation, message by message, and what came back."""

    def __init__(self, handler: Handler, *, scope: Scope | None = None) -> None:
        self.operation = Operation(
            name="test",
            method="POST",
            path="/test",
            summary="",
            handler=handler,
            answers=(AnswerSpec(status=200, description=""),),
            scope=scope,
        )
        self.metrics = Metrics()
        self.sent: list[dict[str, Any]] = []
        self.asked = 0

    async def run(self, headers: Iterable[tuple[str, str]] = (), messages: Iterable[dict[str, Any]] = ()) -> None:
        left = list(messages)

        async def receive() -> Any:
            self.asked += 1
            if not left:
                await asyncio.Event().wait()  # a client that says no more
            return left.pop(0)

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope: Any = {
            "type": "http",
            "method": "POST",
            "path": "/test",
            "query_string": b"",
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        }
        await respond(self.operation, Edge(Tokens([ENTRY]), self.metrics), {}, scope, receive, send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def document(self) -> Any:
        return json.loads(b"".join(message["body"] for message in self.sent[1:]))


async def echo(call: Call) -> Answer:
    return json_answer({"value": await call.json(BYTES_MAX)})


JSON = ("Content-Type", "application/json")


def parts(*chunks: bytes) -> list[dict[str, Any]]:
    return [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]


@given(st.lists(st.integers(1, 40), max_size=6))
async def test_a_body_in_pieces_is_the_body(cuts: list[int]) -> None:
    """However the body is cut on its way, the same value is read."""
    text = json.dumps({"key": "x" * 50}).encode()
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    exchange = Exchange(echo)
    await exchange.run([JSON], parts(*pieces, text[at:]))
    assert (exchange.status, exchange.document["value"]) == (200, {"key": "x" * 50})


async def test_an_announced_body_over_the_limit_is_refused_before_it_is_read() -> None:
    """Content-Length alone decides; not a byte is asked for, and the connection is given up."""
    exchange = Exchange(echo)
    await exchange.run([JSON, ("Content-Length", str(BYTES_MAX + 1))])
    assert (exchange.status, exchange.document["code"], exchange.asked) == (413, "BODY_TOO_LARGE", 0)
    assert exchange.headers[b"connection"] == b"close"


async def test_an_unannounced_body_over_the_limit_is_read_no_further() -> None:
    """A chunked body ends at the piece that exceeds the limit, however long it would go on."""
    exchange = Exchange(echo)
    await exchange.run([JSON], parts(*[b"1" * 40] * 1000))
    assert (exchange.status, exchange.asked) == (413, 3)


@pytest.mark.parametrize("size", [BYTES_MAX, BYTES_MAX + 1])
async def test_the_limit_itself_is_allowed(size: int) -> None:
    exchange = Exchange(echo)
    await exchange.run([JSON], parts(b'"' + b"x" * (size - 2) + b'"'))
    assert exchange.status == (200 if size == BYTES_MAX else 413)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Content-Type", "text/plain")],
        [("Content-Type", "application/json5")],
        [JSON, ("Content-Encoding", "gzip")],
    ],
)
async def test_another_media_type_or_coding_is_refused(headers: list[tuple[str, str]]) -> None:
    exchange = Exchange(echo)
    await exchange.run(headers, parts(b"1"))
    assert (exchange.status, exchange.document["code"]) == (415, "MEDIA_TYPE_UNSUPPORTED")


@pytest.mark.parametrize("value", ["application/json", "Application/JSON; charset=utf-8"])
async def test_a_media_type_is_read_as_http_says(value: str) -> None:
    exchange = Exchange(echo)
    await exchange.run([("Content-Type", value)], parts(b"1"))
    assert exchange.status == 200


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops in the middle of its body is answered 408 in the end."""
    monkeypatch.setattr(operations, "BODY_READ_SECONDS_MAX", 0.01)
    exchange = Exchange(echo)
    await exchange.run([JSON], [{"type": "http.request", "body": b"1", "more_body": True}])
    assert (exchange.status, exchange.document["code"]) == (408, "BODY_TIMEOUT")


async def test_a_client_that_leaves_in_its_body_is_answered_nothing_and_counted() -> None:
    exchange = Exchange(echo)
    await exchange.run([JSON], [{"type": "http.request", "body": b"1", "more_body": True}, {"type": "http.disconnect"}])
    assert exchange.sent == []
    assert b'status="499"' in exchange.metrics.page(None)


# ------------------------------------------------------------------------------------------------ who asks


@pytest.mark.parametrize(
    ("headers", "needed", "status"),
    [
        ([], Scope.RUNS_READ, 401),
        ([("Authorization", "Bearer finaz_wrong")], Scope.RUNS_READ, 401),
        ([("Authorization", f"Bearer {TOKEN}")], Scope.RUNS_WRITE, 403),
        ([("Authorization", f"Bearer {TOKEN}")], Scope.RUNS_READ, 200),
        ([("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")], Scope.RUNS_READ, 400),
        ([], None, 200),
    ],
)
async def test_who_asks_is_settled_before_anything_is_read(
    headers: list[tuple[str, str]], needed: Scope | None, status: int
) -> None:
    """Nothing of the body is touched for somebody who may not ask."""
    exchange = Exchange(echo, scope=needed)
    await exchange.run([JSON, *headers], parts(b"1"))
    assert exchange.status == status
    assert exchange.asked == (1 if status == 200 else 0)
    assert (b"www-authenticate" in exchange.headers) == (status == 401)


# ------------------------------------------------------------------------------------------------ what leaves


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [("a.B-1:2_3", True), ("", False), ("x" * 129, False), ("a b", False), ("a\u00e9", False)],
)
async def test_a_request_id_is_returned_if_it_is_fit_for_a_log(given_id: str, kept: bool) -> None:
    exchange = Exchange(echo)
    await exchange.run([JSON, ("X-Request-Id", given_id)], parts(b"1"))
    found = exchange.headers[b"x-request-id"].decode()
    assert (found == given_id) == kept
    assert found


async def test_integers_of_any_size_come_back_exactly() -> None:
    """No answer rounds: 2**53 + 1, a nanosecond epoch, 2**64 and far beyond."""
    values = [2**53 + 1, 1767603600000000001, 2**64, -(2**200)]
    exchange = Exchange(echo)
    operations_limit = json.dumps(values).encode()
    assert len(operations_limit) > BYTES_MAX

    async def handler(call: Call) -> Answer:
        return json_answer({"value": await call.json(10_000)})

    exchange = Exchange(handler)
    await exchange.run([JSON], parts(operations_limit))
    assert exchange.document["value"] == values


async def test_a_defect_is_a_problem_without_its_inside() -> None:
    async def broken(call: Call) -> Answer:
        raise ValueError("the password is hunter2")

    exchange = Exchange(broken)
    await exchange.run()
    assert (exchange.status, exchange.document["code"]) == (500, "DEFECT")
    assert "hunter2" not in json.dumps(exchange.document)


class Chunks:
    """A stream of as many chunks as wanted, that knows whether it was ended."""

    def __init__(self, count: int | None, fails: bool = False) -> None:
        self._count = count
        self._fails = fails
        self.closed = 0

    async def handler(self, call: Call) -> Stream:
        return Stream(self._chunks(), self._close, "text/plain")

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        sent = 0
        while self._count is None or sent < self._count:
            yield b"x"
            sent += 1
            await asyncio.sleep(0)
        if self._fails:
            raise ValueError("in the middle")

    def _close(self) -> None:
        self.closed += 1


async def test_a_stream_ends_whole() -> None:
    chunks = Chunks(3)
    exchange = Exchange(chunks.handler)
    await exchange.run()
    assert [message.get("body") for message in exchange.sent[1:]] == [b"x", b"x", b"x", b""]
    assert (exchange.sent[-1]["more_body"], chunks.closed) == (False, 1)


async def test_a_stream_ends_when_its_client_leaves() -> None:
    """An endless stream is closed as soon as the client is gone, and what it held is given back once."""
    chunks = Chunks(None)
    exchange = Exchange(chunks.handler)
    await exchange.run(messages=[{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])
    assert chunks.closed == 1


async def test_a_stream_that_breaks_is_cut_and_never_ended_as_if_whole() -> None:
    """After the head there is no problem document: the missing last message tells the client that something is missing."""
    chunks = Chunks(1, fails=True)
    exchange = Exchange(chunks.handler)
    await exchange.run()
    assert all(message.get("more_body", True) for message in exchange.sent)
    assert chunks.closed == 1


async def test_every_request_is_counted_under_a_frozen_name() -> None:
    """The page holds the frozen names only."""
    exchange = Exchange(echo)
    await exchange.run([JSON], parts(b"1"))
    page = exchange.metrics.page(None).decode()
    assert 'finaz_http_requests_total{method="POST",operation="test",status="200"} 1.0' in page
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert {name for name in names if not name.endswith("_created")} <= {*METRIC_NAMES}
