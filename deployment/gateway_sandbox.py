"""The sandbox gateway: a payment gateway of its own process, told per request how to behave.

It speaks what `services.adapters.gateway_http` speaks; what it is told to do stands in `deployment.gateway_books`. A call that gets
no answer hangs for `hang_seconds` and is then answered 504, so a client that waits longer still learns nothing. Webhooks are
signed and sent before the reply (`twice`), or by `POST /sandbox/tell/{intent}`.

What must stay true: what it did is in its file before it says so; after `kill -9` and a new start it remembers every charge.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import uvicorn
from litestar import Litestar, Response, get, post
from litestar.exceptions import HTTPException
from litestar.params import FromPath, JSONBody

from deployment.gateway_books import Books
from domain.purchases.messages import GatewayAnswer, Outcome
from services.adapters.gateway_http import signature_of
from services.gateway import ChargeRequest, RefundRequest

HANG_SECONDS: Final = 8.0
"""How long a call that gets no answer is left waiting, unless told otherwise."""

WEBHOOK_TRIES_MAX: Final = 3
WEBHOOK_SECONDS_MAX: Final = 5.0
"""How often, and for how long each time, a webhook is tried."""


class Webhooks:
    """Sends signed webhooks to one address."""

    def __init__(self, url: str, secret: str) -> None:
        self._url = url
        self._secret = secret
        self._client = httpx.Client(timeout=WEBHOOK_SECONDS_MAX, trust_env=False)

    def __call__(self, intent_id: str, answer: GatewayAnswer) -> None:
        """Tell what was done for an intent; what cannot be told is dropped, as real gateways do in the end."""
        document = {
            "intent_id": intent_id,
            "operation": answer.operation.value,
            "object": _object(answer),
        }
        body = msgspec.json.encode(document)
        for _ in range(WEBHOOK_TRIES_MAX):
            headers = {
                "content-type": "application/json",
                "gateway-signature": signature_of(self._secret, body, int(time.time())),
            }
            try:
                if self._client.post(self._url, content=body, headers=headers).status_code < 500:
                    return
            except httpx.HTTPError:
                continue


def make_sandbox(books: Books, api_key: str, hang_seconds: float = HANG_SECONDS) -> Litestar:
    """The application over these books."""

    async def answered(call: Callable[[], GatewayAnswer]) -> Response[Any]:
        answer = await asyncio.to_thread(call)
        if answer.outcome is Outcome.UNKNOWN:
            await asyncio.sleep(hang_seconds)
            return Response({"error": "timeout"}, status_code=504)
        if answer.outcome is Outcome.NOT_FOUND:
            return Response({"error": "not found"}, status_code=404)
        return Response(_object(answer), status_code=200)

    @post("/v1/charges")
    async def charge(data: JSONBody[dict[str, Any]]) -> Response[Any]:
        return await answered(lambda: books.charge(msgspec.convert(data, ChargeRequest)))

    @get("/v1/charges/{intent_id:str}")
    async def find_charge(intent_id: FromPath[str]) -> Response[Any]:
        return await answered(lambda: books.find_charge(intent_id))

    @post("/v1/refunds")
    async def refund(data: JSONBody[dict[str, Any]]) -> Response[Any]:
        return await answered(lambda: books.refund(msgspec.convert(data, RefundRequest)))

    @get("/v1/refunds/{refund_key:str}")
    async def find_refund(refund_key: FromPath[str]) -> Response[Any]:
        return await answered(lambda: books.find_refund(refund_key))

    def guard(connection: Any, _: Any) -> None:
        if connection.headers.get("authorization") != f"Bearer {api_key}":
            raise HTTPException(status_code=401)

    handlers = [charge, find_charge, refund, find_refund, *_controls(books)]
    return Litestar(route_handlers=handlers, guards=[guard], openapi_config=None, logging_config=None)


def _controls(books: Books) -> list[Any]:
    """How it is told what to do, and looked into."""

    @post("/sandbox/script/{intent_id:str}", status_code=200)
    async def script(intent_id: FromPath[str], data: JSONBody[dict[str, str]]) -> dict[str, str]:
        try:
            books.script(intent_id, data["script"])
        except (KeyError, ValueError) as error:
            raise HTTPException(status_code=400, detail=str(error)) from None
        return {"intent_id": intent_id}

    @post("/sandbox/tell/{intent_id:str}", status_code=200)
    async def tell(intent_id: FromPath[str]) -> dict[str, str]:
        await asyncio.to_thread(books.tell, intent_id)
        return {"intent_id": intent_id}

    @post("/sandbox/settle-late", status_code=200)
    async def settle_late() -> dict[str, list[str]]:
        return {"charged": await asyncio.to_thread(books.settle_late)}

    @get("/sandbox/books")
    async def everything() -> dict[str, Any]:
        return {
            "charges": msgspec.to_builtins(books.charges),
            "refunds": msgspec.to_builtins(books.refunds),
            "calls": [list(call) for call in books.calls],
        }

    return [script, tell, settle_late, everything]


def _object(answer: GatewayAnswer) -> dict[str, Any]:
    names = {Outcome.SUCCEEDED: "succeeded", Outcome.OTHER_AMOUNT: "succeeded"}
    return {
        "id": answer.gateway_id or f"{answer.operation.value.lower()}_refused",
        "status": names.get(answer.outcome, "declined"),
        "amount_minor": answer.amount_minor,
        "currency": answer.currency,
    }


def serve(
    host: str,
    port: int,
    api_key: str,
    *,
    file: Path | None,
    webhook_url: str | None,
    webhook_secret: str,
    hang_seconds: float,
    on_ready: Callable[[str], None],
    lifeline: int | None = None,
) -> None:
    """Serve until SIGTERM, or until the other end of the descriptor `lifeline` is closed. `on_ready` is told the address."""
    told = Webhooks(webhook_url, webhook_secret) if webhook_url else None
    books = Books(file, told)
    config = uvicorn.Config(
        make_sandbox(books, api_key, hang_seconds), host=host, port=port, log_level="warning", access_log=False
    )
    server = _Announcing(config, on_ready)
    if lifeline is not None:
        threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    server.run()


def _end_with(lifeline: int) -> None:
    """End this process when whoever started it has died; what it did is in its file."""
    while os.read(lifeline, 64):
        pass
    os._exit(1)


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            place = self.servers[0].sockets[0].getsockname()
            self._on_ready(f"http://{place[0]}:{place[1]}")
