"""Shows and purchases over HTTP: put on sale, see what can be had, buy, look, settle, hear the gateway.

What must stay true: a purchase is submitted under an idempotency key and answered the same way however often it is (202, the same
body); nothing remote is called inside a request; a buyer sees only their own; an operator's word carries name and note. A webhook
needs no token: its signature is checked before a byte of it is believed. Decode, call one service, encode.
"""

from collections.abc import Iterator
from typing import Any, Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import TEXT_BODY_BYTES_MAX, document_answer, read_text, tell
from api.operations import BodySpec, Call, Operation
from api.parameters import Parameter, Place, choice, cursor, integer, limit, pattern
from api.parts import ApiParts
from api.purchase_schemas import (
    ERASE_BODY,
    NOTE_BODY,
    PURCHASE_BODY_EXAMPLE,
    PURCHASE_BODY_SCHEMA,
    SHOW_BODY_EXAMPLE,
    SHOW_BODY_SCHEMA,
    WEBHOOK_SCHEMA,
    Availability,
    Balances,
    Erased,
    PurchaseAdmitted,
    PurchaseList,
    Sales,
    ShowAdmitted,
    ShowList,
    StuckList,
    WebhookHeard,
)
from api.submissions import SUBMITTED_HEADERS, idempotency_key, submission_key, submitted
from domain.errors import InputError
from domain.purchases.errors import PurchaseNotFoundError, ShowNotFoundError, WebhookSignatureError
from domain.purchases.identity import PURCHASE_ID_PATTERN, SHOW_ID_PATTERN
from domain.purchases.messages import Settlement
from services.contacts import erasable_address
from services.purchase_requests import parse_purchase_body, parse_show_body
from services.purchases import PurchaseView
from services.shop import PURCHASE_STATES

PAGE_MAX: Final = 200
PAGE_DEFAULT: Final = 50

STUCK_SECONDS_DEFAULT: Final = 900
STUCK_SECONDS_MAX: Final = 365 * 86_400

WEBHOOK_BYTES_MAX: Final = 64 * 1024
"""Bytes of one webhook."""

_KEY: Final = idempotency_key("two-seats-for-lohengrin")
_SIGNATURE: Final = Parameter(
    name="Gateway-Signature",
    place=Place.HEADER,
    description="`t=SECONDS,v1=HEX`: the HMAC-SHA256 of `SECONDS.BODY` under the secret shared with the gateway.",
    schema={"type": "string", "pattern": "^t=[0-9]{1,12},v1=[0-9a-f]{64}$"},
    read=lambda text, at: text,
    required=True,
)
_PURCHASE: Final = pattern("purchase_id", "The purchase.", PURCHASE_ID_PATTERN, PurchaseNotFoundError, place=Place.PATH)
_SHOW: Final = pattern("show_id", "The show.", SHOW_ID_PATTERN, ShowNotFoundError, place=Place.PATH)
_LIMIT: Final = limit("Items", maximum=PAGE_MAX, default=PAGE_DEFAULT)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of purchases."""
    handlers = _Handlers(parts)
    yield from _of_shows(handlers, parts.body_bytes_max)
    yield from _of_buyers(handlers, parts.body_bytes_max)
    yield from _of_operators(handlers)
    yield Operation(
        name="hearGateway",
        method="POST",
        path="/webhooks/gateway",
        summary="What the gateway tells by itself, signed",
        description="Needs no token: the signature is checked before a byte of the body is believed.",
        tag="purchases",
        parameters=(_SIGNATURE,),
        body=BodySpec(media_type="application/json", bytes_max=WEBHOOK_BYTES_MAX, schema=WEBHOOK_SCHEMA),
        answers=(document_answer("It is recorded.", WebhookHeard),),
        problems=(404, 413, 415, 422),
        handler=handlers.hear,
    )


def _of_shows(handlers: "_Handlers", bytes_max: int) -> Iterator[Operation]:
    yield Operation(
        name="createShow",
        method="POST",
        path="/v1/shows",
        summary="Put a show on sale",
        tag="purchases",
        scope=Scope.OPERATE,
        parameters=(_KEY,),
        body=BodySpec(
            media_type="application/json", bytes_max=bytes_max, schema=SHOW_BODY_SCHEMA, example=SHOW_BODY_EXAMPLE
        ),
        answers=(document_answer("It is on sale, now or before.", ShowAdmitted, 201, headers=SUBMITTED_HEADERS),),
        problems=(409, 422),
        handler=handlers.create_show,
    )
    yield Operation(
        name="listShows",
        method="GET",
        path="/v1/shows",
        summary="Shows, newest first",
        tag="purchases",
        scope=Scope.PURCHASES_READ,
        parameters=(cursor(), _LIMIT),
        answers=(document_answer("A page of shows.", ShowList),),
        problems=(409,),
        handler=handlers.list_shows,
    )
    yield Operation(
        name="getAvailability",
        method="GET",
        path="/v1/shows/{show_id}/availability",
        summary="What can be had of a show; it may be stale, a purchase never goes by it",
        tag="purchases",
        scope=Scope.PURCHASES_READ,
        parameters=(_SHOW,),
        answers=(document_answer("Every seat.", Availability),),
        problems=(404,),
        handler=handlers.availability,
    )


def _of_buyers(handlers: "_Handlers", bytes_max: int) -> Iterator[Operation]:
    yield Operation(
        name="submitPurchase",
        method="POST",
        path="/v1/purchases",
        summary="Reserve seats and begin to pay for them",
        description="409 `SEATS_TAKEN` reserves nothing and burns no key. Nothing is charged inside this request.",
        tag="purchases",
        scope=Scope.PURCHASES_WRITE,
        parameters=(_KEY,),
        body=BodySpec(
            media_type="application/json",
            bytes_max=bytes_max,
            schema=PURCHASE_BODY_SCHEMA,
            example=PURCHASE_BODY_EXAMPLE,
        ),
        answers=(
            document_answer("The seats are reserved, now or before.", PurchaseAdmitted, 202, headers=SUBMITTED_HEADERS),
        ),
        problems=(404, 409, 422),
        handler=handlers.submit,
    )
    yield Operation(
        name="listPurchases",
        method="GET",
        path="/v1/purchases",
        summary="Purchases, newest first: one's own, or with the scope operate everybody's",
        tag="purchases",
        scope=Scope.PURCHASES_READ,
        parameters=(choice("state", "In this state.", PURCHASE_STATES), cursor(), _LIMIT),
        answers=(document_answer("A page of purchases.", PurchaseList),),
        problems=(409,),
        handler=handlers.list_purchases,
    )
    yield Operation(
        name="getPurchase",
        method="GET",
        path="/v1/purchases/{purchase_id}",
        summary="A purchase: its state, its timeline, and what happens next",
        tag="purchases",
        scope=Scope.PURCHASES_READ,
        parameters=(_PURCHASE,),
        answers=(document_answer("The purchase as of now.", PurchaseView),),
        problems=(404,),
        handler=handlers.get,
    )


def _of_operators(handlers: "_Handlers") -> Iterator[Operation]:
    for settlement in Settlement:
        yield Operation(
            name=f"settleAs{settlement.value.title().replace('_', '')}",
            method="POST",
            path=f"/v1/purchases/{{purchase_id}}/settle-as-{settlement.word}",
            summary=f"Say, having asked the gateway by hand, that the purchase was {settlement.word.replace('-', ' ')}",
            tag="purchases",
            scope=Scope.OPERATE,
            parameters=(_PURCHASE,),
            body=BodySpec(media_type="application/json", bytes_max=TEXT_BODY_BYTES_MAX, schema=NOTE_BODY),
            answers=(document_answer("The purchase as of now.", PurchaseView),),
            problems=(404, 409, 422),
            handler=handlers.settling(settlement),
        )
    age = integer(
        "age_seconds",
        "In its state for at least so long, by the business clock.",
        minimum=0,
        maximum=STUCK_SECONDS_MAX,
        default=STUCK_SECONDS_DEFAULT,
    )
    yield _looking("listStuckPurchases", "/v1/stuck-purchases", "What does not end", handlers.stuck, StuckList, age)
    yield _looking("getBalances", "/v1/ledger/balances", "The ledger's balances", handlers.balances, Balances)
    show = pattern("show_id", "Of this show.", SHOW_ID_PATTERN, InputError, place=Place.QUERY)
    yield _looking("getSales", "/v1/sales", "Sales per day", handlers.sales, Sales, show)
    yield Operation(
        name="erasePerson",
        method="POST",
        path="/v1/contacts/erase",
        summary="Erase a mail address wherever it stands",
        tag="purchases",
        scope=Scope.OPERATE,
        body=BodySpec(media_type="application/json", bytes_max=TEXT_BODY_BYTES_MAX, schema=ERASE_BODY),
        answers=(document_answer("It stands nowhere any more.", Erased),),
        problems=(422,),
        handler=handlers.erase,
    )


def _looking(name: str, path: str, summary: str, handler: Any, document: type[Any], *more: Parameter) -> Operation:
    limited = name != "getBalances"
    return Operation(
        name=name,
        method="GET",
        path=path,
        summary=summary,
        tag="purchases",
        scope=Scope.OPERATE,
        parameters=(*more, _LIMIT) if limited else (),
        answers=(document_answer(f"{summary}.", document),),
        handler=handler,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._shop = parts.shop
        self._purchases = parts.shop.purchases
        self._metrics = parts.metrics
        self._body_bytes_max = parts.body_bytes_max

    async def create_show(self, call: Call) -> Answer:
        key = submission_key(call)
        body = parse_show_body(await call.json(self._body_bytes_max))
        done = await self._purchases.create_show(call.principal.name, key, body)
        self._metrics.admitted("shows.create", replayed=done.replayed)
        answer = ShowAdmitted(show_id=done.subject_id, position=done.position)
        where = f"/v1/shows/{done.subject_id}/availability"
        return json_answer(answer, 201, submitted(where, replayed=done.replayed))

    async def list_shows(self, call: Call) -> Answer:
        page = await self._shop.shows(call.arguments["cursor"], call.arguments["limit"])
        return json_answer(ShowList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def availability(self, call: Call) -> Answer:
        show_id = call.path_arguments["show_id"]
        return json_answer(Availability(show_id=show_id, seats=await self._shop.availability(show_id)))

    async def submit(self, call: Call) -> Answer:
        key = submission_key(call)
        body = parse_purchase_body(await call.json(self._body_bytes_max))
        done = await self._purchases.start(call.principal.name, key, body)
        self._metrics.admitted("purchases.create", replayed=done.replayed)
        answer = PurchaseAdmitted(purchase_id=done.subject_id, position=done.position)
        return json_answer(answer, 202, submitted(f"/v1/purchases/{done.subject_id}", replayed=done.replayed))

    async def list_purchases(self, call: Call) -> Answer:
        given = call.arguments
        page = await self._shop.list(_whose(call), given["state"], given["cursor"], given["limit"])
        return json_answer(PurchaseList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def get(self, call: Call) -> Answer:
        return json_answer(await self._purchases.view(call.path_arguments["purchase_id"], _whose(call)))

    def settling(self, settlement: Settlement) -> Any:
        """The handler of one outcome."""

        async def settle(call: Call) -> Answer:
            purchase_id, note = call.path_arguments["purchase_id"], await read_text(call, "note")
            view = await self._purchases.settle(purchase_id, settlement, call.principal.name, note)
            self._metrics.appended()
            tell("purchase settled", call, purchase_id=purchase_id, settlement=settlement.value, state=view.state)
            return json_answer(view)

        return settle

    async def stuck(self, call: Call) -> Answer:
        found = await self._shop.stuck(call.arguments["age_seconds"], call.arguments["limit"])
        return json_answer(StuckList(items=found))

    async def balances(self, call: Call) -> Answer:
        return json_answer(Balances(items=await self._shop.balances()))

    async def sales(self, call: Call) -> Answer:
        return json_answer(Sales(items=await self._shop.sales(call.arguments["show_id"], call.arguments["limit"])))

    async def erase(self, call: Call) -> Answer:
        purchases = await self._purchases.erase_person(erasable_address(await read_text(call, "email")))
        tell("person erased", call, purchases=len(purchases))
        return json_answer(Erased(purchase_ids=purchases))

    async def hear(self, call: Call) -> Answer:
        signature = call.text_header(b"gateway-signature", WebhookSignatureError)
        state = await self._purchases.hear(await call.body("application/json", WEBHOOK_BYTES_MAX), signature)
        self._metrics.appended()
        return json_answer(WebhookHeard(state=state))


def _whose(call: Call) -> str | None:
    """Whose purchases the caller may see: their own, an operator everybody's."""
    return None if call.principal.operates else call.principal.name
