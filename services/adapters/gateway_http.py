"""A payment gateway over HTTP, and its webhooks.

What must stay true: every call carries an idempotency key; what is not known to have failed is `UNKNOWN`, never "declined". A call
is tried again here only where that is safe: a question, or a connection that was never made; a charge or refund that was sent and
not answered is the saga's to reconcile. A try ends in bounded time whatever drips in, head or body: it runs on an event loop of
the adapter's own, where it can be cut off. "Not found" is believed of the gateway alone, in its own words: a 404 of whoever stands
between (a proxy without a backend, a wrong address) would have a charge taken for none. A webhook counts only with a right HMAC
over its timestamp and body, and a timestamp near now, so that neither a stranger nor a recording of an old one is heard.

`POST /v1/charges` and `/v1/refunds` answer 200 with `{"id", "status", "amount_minor", "currency"}`, `status` being `succeeded`
or `declined`; `GET /v1/charges/{intent}` and `/v1/refunds/{key}` the same, or 404 with `{"error": "not found"}`. The header
`Gateway-Signature` is `t=SECONDS,v1=HEX`.
"""

import asyncio
import hashlib
import hmac
import re
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import httpx
import msgspec

from domain.canonical import parse
from domain.errors import BodyInvalidError, FinazError
from domain.purchases.errors import WebhookSignatureError
from domain.purchases.messages import GatewayAnswer, Operation, Outcome
from services.gateway import ChargeRequest, RefundRequest, WebhookEvent

CONNECT_SECONDS_MAX: Final = 2.0
"""Seconds to wait for a connection."""

ANSWER_SECONDS_MAX: Final = 5.0
"""Seconds that one try may take from the connection to the answer's last byte; then it is unknown."""

TRIES_MAX: Final = 2
"""Tries of a call where trying again is safe."""

CUT_SECONDS_MAX: Final = 5.0
"""Seconds beyond a try's own in which it must have been cut off."""

CONNECTIONS_MAX: Final = 16
"""Connections kept to the gateway."""

SIGNATURE_AGE_SECONDS_MAX: Final = 300.0
"""How far a webhook's timestamp may be from now."""

WEBHOOK_BYTES_MAX: Final = 64 * 1024
"""Bytes of one webhook."""

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes of one answer; a longer one says nothing."""

AMOUNT_MINOR_MAX: Final = 2**53 - 1
"""The largest amount that is believed to be one."""

_STATUS: Final = {"succeeded": Outcome.SUCCEEDED, "declined": Outcome.DECLINED}
_SIGNATURE: Final = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})\Z")


class _Body(msgspec.Struct, frozen=True):
    """What the gateway says about one charge or refund; further fields are its own affair."""

    id: str
    status: str
    amount_minor: Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MINOR_MAX)]
    currency: str


class _NotFound(msgspec.Struct, frozen=True):
    """How the gateway says that it knows of no such charge or refund."""

    error: Literal["not found"]


class _Webhook(msgspec.Struct, frozen=True):
    intent_id: str
    operation: Operation
    object: _Body


class HttpGateway:
    """Implements `services.gateway.Gateway`. Close it."""

    def __init__(self, url: str, api_key: str, *, answer_seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self._answer_seconds_max = answer_seconds_max
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {api_key}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(answer_seconds_max, connect=min(CONNECT_SECONDS_MAX, answer_seconds_max)),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
            trust_env=False,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="finaz-gateway", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer learns that it is unknown."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._closed(), self._loop).result(CUT_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _closed(self) -> None:
        own = asyncio.current_task()
        calls = [task for task in asyncio.all_tasks() if task is not own]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._client.aclose()

    def charge(self, request: ChargeRequest) -> GatewayAnswer:
        """See `Gateway`."""
        return self._call(Operation.CHARGE, "POST", "/v1/charges", request.intent_id, msgspec.to_builtins(request))

    def find_charge(self, intent_id: str) -> GatewayAnswer:
        """See `Gateway`."""
        return self._call(Operation.CHARGE, "GET", f"/v1/charges/{quote(intent_id, safe='')}", "", None)

    def refund(self, request: RefundRequest) -> GatewayAnswer:
        """See `Gateway`."""
        return self._call(Operation.REFUND, "POST", "/v1/refunds", request.refund_key, msgspec.to_builtins(request))

    def find_refund(self, refund_key: str) -> GatewayAnswer:
        """See `Gateway`."""
        return self._call(Operation.REFUND, "GET", f"/v1/refunds/{quote(refund_key, safe='')}", "", None)

    def _call(self, operation: Operation, method: str, path: str, key: str, body: Any) -> GatewayAnswer:
        headers = {"idempotency-key": key} if key else {}
        for attempt in range(1, TRIES_MAX + 1):
            try:
                status, content = self._within_time(method, path, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                safe, failure = True, type(error).__name__  # it was never sent
            except (httpx.HTTPError, TimeoutError, CancelledError) as error:
                safe, failure = method == "GET", type(error).__name__
            else:
                if status < 500:
                    return _read(operation, method, status, content)
                safe, failure = method == "GET", f"status {status}"
            if not safe or attempt == TRIES_MAX:
                break
        return _unknown(operation, failure)

    def _within_time(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        """One try, cut off when its time is over: then `TimeoutError`."""

        async def bounded() -> tuple[int, bytes]:
            async with asyncio.timeout(self._answer_seconds_max):
                return await self._ask(method, path, body, headers)

        trying = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        return trying.result(self._answer_seconds_max + CUT_SECONDS_MAX)

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        """The status and the answer as it came, which is cut off once it is too long, and then cannot be read."""
        content = b""
        async with self._client.stream(method, path, json=body, headers=headers) as answer:
            async for part in answer.aiter_raw():
                content += part
                if len(content) > ANSWER_BYTES_MAX:
                    return answer.status_code, b""
        return answer.status_code, content


def _read(operation: Operation, method: str, status: int, content: bytes) -> GatewayAnswer:
    try:
        if status == 404 and method == "GET":
            msgspec.json.decode(content, type=_NotFound)
            return GatewayAnswer(operation=operation, outcome=Outcome.NOT_FOUND)
        if status == 200:
            return _answer_of(operation, msgspec.json.decode(content, type=_Body))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _unknown(operation, f"an answer that cannot be read, status {status}")
    return _unknown(operation, f"status {status}")


def _answer_of(operation: Operation, body: _Body) -> GatewayAnswer:
    return GatewayAnswer(
        operation=operation,
        outcome=_STATUS.get(body.status, Outcome.UNKNOWN),
        amount_minor=body.amount_minor,
        currency=body.currency,
        gateway_id=body.id,
        detail="" if body.status in _STATUS else f"status {body.status[:40]}",
    )


def _unknown(operation: Operation, detail: str) -> GatewayAnswer:
    return GatewayAnswer(operation=operation, outcome=Outcome.UNKNOWN, detail=detail)


# ------------------------------------------------------------------------------------------------ webhooks


def signature_of(secret: str, body: bytes, seconds: int) -> str:
    """The header that goes with a webhook."""
    digest = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


class HmacWebhookReader:
    """Implements `services.gateway.WebhookReader` with a secret shared with the gateway."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def read(self, body: bytes, signature: str | None, now_seconds: Callable[[], float]) -> WebhookEvent:
        """See `WebhookReader`. The signature is compared in constant time, before anything is read."""
        match = _SIGNATURE.match(signature or "")
        if match is None:
            raise _refused("the signature is missing or malformed")
        seconds = int(match[1])
        if not hmac.compare_digest(signature_of(self._secret, body, seconds).encode(), (signature or "").encode()):
            raise _refused("the signature is wrong")
        if abs(now_seconds() - seconds) > SIGNATURE_AGE_SECONDS_MAX:
            raise _refused("the timestamp is too far from now")
        try:
            told = msgspec.convert(parse(body), _Webhook)
        except (msgspec.ValidationError, FinazError) as error:
            raise BodyInvalidError(str(error)[:200], at="$", expected="an event of the gateway") from None
        answer = _answer_of(told.operation, told.object)
        if answer.outcome is Outcome.UNKNOWN:
            raise BodyInvalidError("a status that says nothing", at="$.object.status", expected="succeeded or declined")
        return WebhookEvent(intent_id=told.intent_id, answer=answer)


def _refused(detail: str) -> WebhookSignatureError:
    return WebhookSignatureError(detail, at="Gateway-Signature", expected="t=SECONDS,v1=HMAC-SHA256 of 't.body'")
