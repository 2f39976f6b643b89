"""Operations: one method on one path, with its scope, parameters, body, answers, and the function that serves it.

An operation is declared once; routing, checks and the OpenAPI document are all read off the declaration, so the document cannot
drift from the service. What must stay true: who asks is settled first, then parameters, then the body; every error leaves as a
problem document; whatever happens, the request is counted. A client that leaves half-way changes nothing that was appended.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
import structlog
from litestar.types import HTTPScope, Receive, Send
from litestar.types.asgi_types import HTTPResponseBodyEvent, HTTPResponseStartEvent

from api.answers import Answer, Stream
from api.auth import Principal, Scope, Tokens
from api.metrics import Metrics
from api.parameters import Parameter, Place, read_query
from api.problems import defect, problem_of, typed
from domain.canonical import parse
from domain.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    InputError,
    MediaTypeUnsupportedError,
    OverloadedError,
)
from services.event_ids import new_event_id

BODY_READ_SECONDS_MAX: Final = 60.0
"""How long a body may take to arrive whole."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.api")


class ClientGoneError(Exception):
    """The client left before its request was whole; there is nobody to answer."""


class Call:
    """One request, as a handler sees it."""

    __slots__ = ("_headers", "_repeats", "arguments", "path_arguments", "principal", "receive", "request_id", "scope")

    def __init__(self, scope: HTTPScope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        given = list(scope["headers"])
        self._headers = dict(given)
        self._repeats = len(given) != len(self._headers)
        self.request_id = _request_id(self._headers.get(b"x-request-id"))
        self.principal = _NOBODY
        self.arguments: Mapping[str, Any] = {}
        self.path_arguments: Mapping[str, Any] = {}

    def header(self, name: bytes) -> bytes | None:
        """The header's value (lower-case name); one that stands twice with different values is refused."""
        found = self._headers.get(name)
        if found is not None and self._repeats:
            for key, value in self.scope["headers"]:
                if key == name and value != found:
                    raise InputError("the header stands twice", at=name.decode(), expected="it once")
        return found

    def text_header(self, name: bytes, error: type[InputError]) -> str | None:
        """The header's value as UTF-8 text; else `error`."""
        value = self.header(name)
        try:
            return None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            raise error("the header is not UTF-8", at=name.decode(), expected="UTF-8 text") from None

    async def json(self, bytes_max: int) -> Any:
        """The body's value, read by our own parser. Raises what `body` raises, and `CanonicalError`."""
        return parse(await self.body("application/json", bytes_max))

    async def body(self, media_type: str, bytes_max: int) -> bytes:
        """The body, whole. Its type, coding and announced size are judged before a byte of it is read.

        Raises `MediaTypeUnsupportedError`, `BodyTooLargeError`, `BodyTimeoutError`.
        """
        self._check_media_type(media_type)
        announced = self.header(b"content-length")
        if announced is not None and int(announced) > bytes_max:  # the server has checked that it is a number
            _too_large(bytes_max)
        try:
            async with asyncio.timeout(BODY_READ_SECONDS_MAX):
                return await self._read_body(bytes_max)
        except TimeoutError:
            raise BodyTimeoutError(
                "the body did not arrive", at="body", expected=f"all of it within {BODY_READ_SECONDS_MAX:g} seconds"
            ) from None

    async def _read_body(self, bytes_max: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message: Any = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                _too_large(bytes_max)
            if not message.get("more_body"):
                return b"".join((*parts, part)) if parts else part
            parts.append(part)

    def _check_media_type(self, media_type: str) -> None:
        given = self.header(b"content-type")
        if given is None or given.partition(b";")[0].strip().lower() != media_type.encode():
            raise MediaTypeUnsupportedError("the body has another media type", at="Content-Type", expected=media_type)
        if self.header(b"content-encoding") not in (None, b"identity"):
            raise MediaTypeUnsupportedError("the body is compressed", at="Content-Encoding", expected="identity")


Handler: TypeAlias = Callable[[Call], Awaitable[Answer | Stream]]
_NOBODY: Final = Principal("", frozenset())


class BodySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation reads: media type, bytes at most, JSON schema for the document, and an example."""

    media_type: str
    bytes_max: int
    schema: dict[str, Any]
    example: Any = None


class AnswerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One answer for the document: status, sentence, JSON schema by media type, and headers with their schema."""

    status: int
    description: str
    content: dict[str, dict[str, Any]] = {}
    headers: dict[str, dict[str, Any]] = {}


class Operation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A method on a path. `problems` are the statuses of the problem documents that it can answer with."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    answers: tuple[AnswerSpec, ...]
    description: str = ""
    tag: str = "runs"
    scope: Scope | None = None
    parameters: tuple[Parameter, ...] = ()
    body: BodySpec | None = None
    problems: tuple[int, ...] = ()

    @cached_property
    def query_parameters(self) -> Mapping[str, Parameter]:
        """The declared query parameters by name."""
        return {p.name: p for p in self.parameters if p.place is Place.QUERY}

    @cached_property
    def path_parameters(self) -> tuple[Parameter, ...]:
        """The declared path parameters."""
        return tuple(p for p in self.parameters if p.place is Place.PATH)


class Edge(msgspec.Struct, frozen=True):
    """What every operation needs around it."""

    tokens: Tokens
    metrics: Metrics


async def respond(
    operation: Operation, edge: Edge, path_values: Mapping[str, str], scope: HTTPScope, receive: Receive, send: Send
) -> None:
    """Serve one request by the operation. Cancelled before its answer, it is answered 503."""
    started = time.perf_counter()
    call = Call(scope, receive)
    status = 499  # the client went away
    try:
        answer = await _answer(operation, edge, path_values, call)
        status = answer.status
        if isinstance(answer, Answer):
            await _send_answer(answer, call.request_id, send)
        else:
            await _send_stream(answer, call.request_id, receive, send)
    except ClientGoneError:
        _log.debug("client gone", request_id=call.request_id, operation=operation.name)
    finally:
        edge.metrics.request(operation.name, operation.method, status, time.perf_counter() - started)


async def _answer(operation: Operation, edge: Edge, path_values: Mapping[str, str], call: Call) -> Answer | Stream:
    try:
        if operation.scope is not None:
            call.principal = edge.tokens.authenticate(call.header(b"authorization"))
            call.principal.require(operation.scope)
        if operation.path_parameters:
            call.path_arguments = {
                p.name: p.read(path_values[p.name], f"path.{p.name}") for p in operation.path_parameters
            }
        call.arguments = read_query(operation.query_parameters, call.scope["query_string"])
        return await operation.handler(call)
    except ClientGoneError:
        raise
    except asyncio.CancelledError:
        # Only a server that has to stop now cancels; whether an append was made or not, the client may safely ask again.
        return problem_of(OverloadedError("the server is stopping", at="request"), call.request_id)
    except Exception as error:
        return problem_answer(error, call.request_id, operation=operation.name, principal=call.principal.name)


def problem_answer(error: Exception, request_id: str, **where: Any) -> Answer:
    """The problem document of any exception; a defect is logged with its traceback and told to nobody else."""
    known = typed(error)
    if known is None:
        _log.error("defect", request_id=request_id, **where, exc_info=error)
        return problem_of(defect(), request_id)
    if known.status >= 500:
        _log.warning("failed", request_id=request_id, code=known.code, detail=str(known), **where)
    return problem_of(known, request_id)


def request_id_of(scope: HTTPScope) -> str:
    """The caller's `X-Request-Id`, if it is fit to be logged and returned; else a new one."""
    return _request_id(dict(scope["headers"]).get(b"x-request-id"))


def _request_id(given: bytes | None) -> str:
    if given is not None and _REQUEST_ID.match(given):
        return given.decode("ascii")
    return new_event_id().hex  # random, and needs no system call


async def _send_answer(answer: Answer, request_id: str, send: Send) -> None:
    """Send a whole answer."""
    headers = answer_headers(answer, request_id)
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send(_start(answer.status, headers))
    await send(_chunk(answer.body, more=False))


async def _send_stream(stream: Stream, request_id: str, receive: Receive, send: Send) -> None:
    """Send chunks until they end or the client leaves, whichever comes first; the generator is closed either way."""
    tasks: list[asyncio.Future[None]] = []
    try:
        await send(_start(stream.status, answer_headers(stream, request_id)))
        pump = asyncio.ensure_future(_pump(stream, send))
        tasks = [pump, asyncio.ensure_future(_until_gone(receive))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await stream.chunks.aclose()
        stream.close()
    if isinstance(outcomes[0], Exception):  # the head is sent: all that's left is to say so and close
        _log.error("stream broke", request_id=request_id, exc_info=outcomes[0])


async def _pump(stream: Stream, send: Send) -> None:
    async for chunk in stream.chunks:
        await send(_chunk(chunk, more=True))
    await send(_chunk(b"", more=False))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> HTTPResponseStartEvent:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _chunk(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}


def answer_headers(answer: Answer | Stream, request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of an answer, but for its length."""
    return [
        (b"content-type", answer.media_type.encode()),
        (b"x-request-id", request_id.encode()),
        (b"cache-control", answer.cache),
        (b"x-content-type-options", b"nosniff"),
        *answer.headers,
    ]


def _too_large(bytes_max: int) -> NoReturn:
    raise BodyTooLargeError("the body is too large", at="body", expected=f"at most {bytes_max} bytes")
