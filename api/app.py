"""The application: every operation, routed.

Litestar routes, runs the lifespan and answers what is no operation of ours. Operations on paths without parameters are found by one
look-up before its router: admission is the hot path, and generic routing costs more there than the work itself. What must stay
true: each operation is served by the same function whichever way it was found, and everything else is a problem document.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

from litestar import Litestar, Request, Response
from litestar.enums import ScopeType
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, LifeSpanReceive, LifeSpanScope, LifeSpanSend, Receive, Scope, Send

from api import (
    alerts,
    artifacts,
    health,
    inspection,
    jobs,
    operating,
    parity,
    projection_commands,
    provenance,
    purchases,
    results,
    runs,
    staging,
    stream_records,
    watch,
)
from api.answers import Answer, json_answer
from api.openapi import document
from api.operations import (
    AnswerSpec,
    Call,
    Edge,
    Operation,
    answer_headers,
    problem_answer,
    request_id_of,
    respond,
)
from api.parts import ApiParts
from domain.errors import OverloadedError

OPENAPI_PATH: Final = "/schema/openapi.json"

REQUESTS_MAX: Final = 2048
"""Requests being served at once, watches included; more are answered OVERLOADED."""

_MODULES: Final = (
    *(runs, watch, results, provenance, parity, artifacts, stream_records),
    *(operating, inspection, projection_commands, jobs, alerts, purchases, staging, health),
)


async def _refuse(call: Call) -> Answer:
    raise OverloadedError("too many requests are being served", at="request", expected=f"at most {REQUESTS_MAX}")


_QUOTED: Final = "finaz.path_quoted"
"""In the scope of a request whose path was not decoded."""

_REFUSAL: Final = Operation(name="overload", method="any", path="", summary="", answers=(), handler=_refuse)


class Api(Litestar):
    """Litestar with a short way to the operations on fixed paths."""

    def __init__(
        self, operations: Iterable[Operation], edge: Edge, stopping: Callable[[], None], **options: Any
    ) -> None:
        served = tuple(operations)
        self._edge = edge
        self.stopping = stopping
        """To be called as soon as the server is to stop: what would go on for ever ends."""
        self._open = 0
        self._fixed = {(op.method, op.path): op for op in served if "{" not in op.path}
        super().__init__(
            route_handlers=[_route(path, methods, edge) for path, methods in _by_path(served).items()],
            exception_handlers={Exception: self._framework_problem},
            openapi_config=None,
            logging_config=None,
            **options,
        )

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """The ASGI entry point."""
        if scope["type"] != ScopeType.HTTP:
            await super().__call__(scope, receive, send)
            return
        http: Any = scope
        _keep_slashes(http)
        self._open += 1
        try:
            operation = _REFUSAL if self._open > REQUESTS_MAX else self._fixed.get((http["method"], http["path"]))
            if operation is not None:
                await respond(operation, self._edge, {}, http, receive, send)  # type: ignore[arg-type]
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._open -= 1

    def _framework_problem(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """What Litestar refuses before any operation is found."""
        request_id = request_id_of(request.scope)
        answer = problem_answer(error, request_id)
        self._edge.metrics.request("none", "any", answer.status, 0.0)  # a path is the caller's: no label of ours
        headers = {name.decode(): value.decode() for name, value in answer_headers(answer, request_id)}
        media_type = headers.pop("content-type")
        return Response(answer.body, status_code=answer.status, headers=headers, media_type=media_type)


def create_app(parts: ApiParts, extra: Iterable[Operation] = ()) -> Api:
    """The application of these parts. `extra` operations are mounted beside ours and documented with them (benchmarks, tests)."""
    operations = [operation for module in _MODULES for operation in module.operations(parts)]
    operations += [*extra, _openapi(lambda: operations, parts.version)]

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        parts.tail.start()
        try:
            yield
        finally:
            await parts.tail.stop()

    def stopping() -> None:
        parts.tail.close()
        parts.followers.close()

    return Api(operations, Edge(parts.tokens, parts.metrics), stopping, lifespan=[lifespan])


def _keep_slashes(http: Any) -> None:
    """Have a slash that a client has encoded, as in an output's name, stay a part of its segment: routes see such a path quoted."""
    raw = http.get("raw_path") or b""
    if b"%2f" in raw.lower():
        segments = (quote(unquote_to_bytes(segment), safe="") for segment in raw.partition(b"?")[0].split(b"/"))
        http["path"], http[_QUOTED] = "/".join(segments), True


def _by_path(operations: Iterable[Operation]) -> dict[str, dict[str, Operation]]:
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return paths


def _route(path: str, operations: Mapping[str, Operation], edge: Edge) -> HTTPRouteHandler:
    """The operations of one path as a route of Litestar, which hands the exchange over without touching it."""

    async def exchange(scope: Scope, receive: Receive, send: Send) -> None:
        http: Any = scope
        values = http["path_params"]
        if _QUOTED in http:
            values = {name: unquote(value) for name, value in values.items()}
        await respond(operations[http["method"]], edge, values, http, receive, send)

    async def handle(request: Request[Any, Any, Any]) -> ASGIApp:
        return exchange

    methods: Any = list(operations)
    return HTTPRouteHandler(re.sub(r"{(\w+)}", r"{\1:str}", path), http_method=methods)(handle)


def _openapi(operations: Callable[[], Iterable[Operation]], version: str) -> Operation:
    made: list[Answer] = []

    async def serve(call: Call) -> Answer:
        if not made:
            made.append(await asyncio.to_thread(lambda: json_answer(document(operations(), version))))
        return made[0]

    return Operation(
        name="openapi",
        method="GET",
        path=OPENAPI_PATH,
        summary="This document",
        tag="health",
        answers=(AnswerSpec(status=200, description="OpenAPI 3.1.", content={"application/json": {"type": "object"}}),),
        handler=serve,
    )
