"""Shows and purchases over HTTP: who may do what, what is answered twice, what is refused, and what the gateway tells by itself."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from deployment.gateway_books import Books
from domain.purchases.identity import intent_id_of
from domain.purchases.messages import AttemptCharge, GatewayAnswer, Operation, Outcome, RecordEvidence, Source
from services.adapters.gateway_http import signature_of
from services.business_clock import DatabaseBusinessClock
from services.deals import Deals
from services.gateway import ChargeRequest
from services.store.connections import Pool
from tests.support.api_calls import problem
from tests.support.api_rig import WEBHOOK_SECRET, ApiRig

SHOW = {
    "title": "Lohengrin",
    "starts_at": "2026-06-05T19:00:00Z",
    "currency": "EUR",
    "seats": [{"seat": f"A{n}", "price_minor": 4500} for n in range(4)],
}
NO_PURCHASE = "res_" + "0" * 40


async def put_on_sale(api: ApiRig, key: str = "show", **changes: Any) -> str:
    answer = await api.as_("operator").post("/v1/shows", json=SHOW | changes, headers={"idempotency-key": key})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["show_id"])


async def buy(api: ApiRig, show: str, key: str | None = "k", who: str = "buyer", **changes: Any) -> httpx.Response:
    body = {"show_id": show, "seats": ["A1"], "payment_method": "pm", "email": f"{who}@example.org"} | changes
    return await api.as_(who).post("/v1/purchases", json=body, headers={"idempotency-key": key} if key else {})


async def test_a_purchase_from_the_show_to_the_status(api: ApiRig) -> None:
    """The list may be stale, the answer is the same however often it is asked, the address is nowhere in it."""
    show = await put_on_sale(api)
    first, again = [
        await api.as_("operator").post("/v1/shows", json=SHOW, headers={"idempotency-key": "show"}) for _ in range(2)
    ]
    assert (first.json()["show_id"], first.content) == (show, again.content)
    first, again = await buy(api, show), await buy(api, show)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.content == again.content
    assert again.headers["idempotency-replayed"] == "true"
    purchase = first.json()["purchase_id"]
    found = (await api.as_("buyer").get(f"/v1/purchases/{purchase}")).json()
    assert (found["state"], found["amount_minor"], found["seats"]) == ("PENDING", 4500, ["A1"])
    assert found["next_action"]["action"] == "charge"
    assert "example.org" not in str(found)
    seats = (await api.as_("buyer").get(f"/v1/shows/{show}/availability")).status_code
    assert seats == 404  # the list has not come so far; the purchase did not ask it
    await api.project("shows", "availability", "purchases")
    listed = (await api.as_("buyer").get(f"/v1/shows/{show}/availability")).json()["seats"]
    assert [seat["state"] for seat in listed] == ["FREE", "RESERVED", "FREE", "FREE"]
    assert [one["show_id"] for one in (await api.as_("buyer").get("/v1/shows")).json()["items"]] == [show]
    taken = problem(await buy(api, show, "k2", "other", seats=["A1", "A2"]))
    assert (taken["status"], taken["code"], taken["seats"]) == (409, "SEATS_TAKEN", ["A1"])
    assert (await buy(api, show, "k2", "other", seats=["A2"])).status_code == 202  # the key was not burnt


async def test_who_may_what(api: ApiRig) -> None:
    """Buyers see only their own; a scope of runs buys nothing; operators see everybody's."""
    show = await put_on_sale(api)
    purchase = (await buy(api, show)).json()["purchase_id"]
    await api.project("purchases")
    assert (await buy(api, show, who="ana")).status_code == 403
    assert (await api.as_("buyer").post("/v1/shows", json=SHOW, headers={"idempotency-key": "x"})).status_code == 403
    assert problem(await api.as_("other").get(f"/v1/purchases/{purchase}"))["code"] == "PURCHASE_NOT_FOUND"
    assert (await api.as_("other").get("/v1/purchases")).json()["items"] == []
    for who in ("buyer", "operator"):
        assert [p["purchase_id"] for p in (await api.as_(who).get("/v1/purchases")).json()["items"]] == [purchase]
    for path in ("/v1/stuck-purchases", "/v1/ledger/balances", "/v1/sales"):
        assert (await api.as_("buyer").get(path)).status_code == 403
        assert (await api.as_("operator").get(path)).status_code == 200
    for word in ("charged", "not-charged", "refunded"):
        path = f"/v1/purchases/{purchase}/settle-as-{word}"
        assert (await api.as_("buyer").post(path, json={"note": "n"})).status_code == 403
        refused = problem(await api.as_("operator").post(path, json={"note": "n"}))
        assert (refused["status"], refused["code"]) == (409, "REFUSED")
        missing = await api.as_("operator").post(f"/v1/purchases/{NO_PURCHASE}/settle-as-{word}", json={"note": "n"})
        assert problem(missing)["code"] == "PURCHASE_NOT_FOUND"


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"seats": []}, "$.seats"),
        ({"seats": ["A1", "A1"]}, "$.seats"),
        ({"seats": [f"A{n}" for n in range(11)]}, "$.seats"),
        ({"seats": ["a/b"]}, "$.seats[0]"),
        ({"seats": ["Z1"]}, "$.seats"),
        ({"email": "nobody"}, "$.email"),
        ({"email": "a@b\n"}, "$.email"),
        ({"email": "=?utf-8?q?a?=@b"}, "$.email"),
        ({"payment_method": ""}, "$.payment_method"),
        ({"payment_method": "two words"}, "$.payment_method"),
        ({"show_id": "show_1"}, "$.show_id"),
        ({"surprise": 1}, "$"),
    ],
)
async def test_a_bad_body_is_refused_with_its_place(api: ApiRig, changes: dict[str, Any], at: str) -> None:
    """Nothing is written, and the address is not repeated in what is refused."""
    show = await put_on_sale(api)
    mark = await api.events_in_log()
    refused = problem(await buy(api, show, **changes))
    assert (refused["status"], refused["at"]) == (422, at)
    assert str(changes.get("email", "?"))[:6] not in refused["detail"]
    assert await api.events_in_log() == mark


async def test_a_show_is_refused_with_its_place(api: ApiRig) -> None:
    """Prices are whole and not negative, seats distinct and at most 2000, a currency three capitals."""
    for changes, at in (
        ({"currency": "eur"}, "$.currency"),
        ({"seats": [{"seat": "A1", "price_minor": 1.5}]}, "$.seats[0].price_minor"),
        ({"seats": [{"seat": "A1", "price_minor": -1}]}, "$.seats[0].price_minor"),
        ({"seats": [{"seat": f"A{n}", "price_minor": 1} for n in range(2001)]}, "$.seats"),
        ({"seats": [{"seat": "A1", "price_minor": 1}] * 2}, "$.seats"),
        ({"starts_at": "2026-06-05T19:00:00"}, "$.starts_at"),
        ({"hold_seconds": 0}, "$.hold_seconds"),
    ):
        answer = await api.as_("operator").post("/v1/shows", json=SHOW | changes, headers={"idempotency-key": "x"})
        assert (answer.status_code, problem(answer)["at"]) == (422, at), changes
    assert problem(await api.as_("operator").post("/v1/shows", json=SHOW))["code"] == "IDEMPOTENCY_KEY_INVALID"


async def test_the_gateway_tells_before_it_answers(api: ApiRig) -> None:
    """A signed webhook is recorded in whatever state; an unsigned one is nobody's; the reply afterwards changes nothing."""
    show = await put_on_sale(api)
    purchase = (await buy(api, show)).json()["purchase_id"]
    intent = intent_id_of(purchase)
    body = msgspec.json.encode(
        {
            "intent_id": intent,
            "operation": "CHARGE",
            "object": {"id": "ch_1", "status": "succeeded", "amount_minor": 4500, "currency": "EUR"},
        }
    )
    seconds = int((await asyncio.to_thread(api.log.now)).timestamp())

    async def tell(signature: str | None) -> httpx.Response:
        headers = {"content-type": "application/json"} | ({"gateway-signature": signature} if signature else {})
        return await api.as_(None).post("/webhooks/gateway", content=body, headers=headers)

    for signature in (None, "t=1,v1=" + "0" * 64, signature_of("other", body, seconds)):
        assert problem(await tell(signature))["code"] == "WEBHOOK_SIGNATURE_INVALID"
    told = await tell(signature_of(WEBHOOK_SECRET, body, seconds))
    assert (told.status_code, told.json()) == (200, {"state": "CONFIRMED"})
    mark = await api.events_in_log()
    assert (await tell(signature_of(WEBHOOK_SECRET, body, seconds))).status_code == 200
    assert await api.events_in_log() == mark


async def test_an_operator_settles_what_expired_unknown(api: ApiRig) -> None:
    """It is in the lists of alerts and of what is stuck, and in the metrics; a note is needed; the word stands in the
    timeline, with name and note for operators, without them for the buyer."""
    show = await put_on_sale(api)
    purchase = (await buy(api, show)).json()["purchase_id"]
    await asyncio.to_thread(_expire_unknown, api, purchase)
    await api.project("purchases", "balances")
    (stuck,) = (await api.as_("operator").get("/v1/stuck-purchases?age_seconds=0")).json()["items"]
    assert (stuck["purchase_id"], stuck["state"], stuck["alerts"]) == (purchase, "UNKNOWN_EXPIRED", ["UNKNOWN_EXPIRED"])
    (alert,) = (await api.as_("operator").get("/v1/alerts")).json()["items"]
    assert [alert[name] for name in ("source", "kind", "subject")] == ["purchases", "UNKNOWN_EXPIRED", purchase]
    assert alert["settle_with"] == f"finaz purchase settle {purchase} charged|not-charged --note TEXT"
    assert (await api.as_("operator").get("/v1/alerts?state=SETTLED")).json()["items"] == []
    page = (await api.as_(None).get("/metrics")).text
    assert 'finaz_purchases_open{state="UNKNOWN_EXPIRED"} 1.0' in page
    path = f"/v1/purchases/{purchase}/settle-as-charged"
    assert (await api.as_("operator").post(path, json={"note": "  "})).status_code == 422
    settled = await api.as_("operator").post(path, json={"note": "charge ch_1, asked by phone"})
    assert (settled.status_code, settled.json()["state"]) == (200, "CONFIRMED")
    assert any("by operator: charge ch_1" in entry["detail"] for entry in settled.json()["timeline"])
    assert any("by operator: charge ch_1" in entry for entry in await told(api, "operator", purchase))
    shown = await told(api, "buyer", purchase)
    assert "CHARGE UNKNOWN (REPLY)" in shown
    assert "CHARGE UNKNOWN (REPLY): no answer" in await told(api, "operator", purchase)
    assert ("CHARGED" in shown, [entry for entry in shown if "ch_1" in entry or "operator" in entry]) == (True, [])
    await api.project("purchases")
    assert (await api.as_("operator").get("/v1/alerts")).json()["items"] == []
    assert (await api.as_("operator").post(path, json={"note": "again"})).status_code == 409
    await api.project("balances")
    (balance,) = (await api.as_("operator").get("/v1/ledger/balances")).json()["items"]
    assert sum(balance["accounts"].values()) == 0


async def test_of_two_operators_with_opposite_words_one_is_heard(api: ApiRig) -> None:
    """At once, several times each: one word is in the log, everybody else is told that it is settled, and that word holds."""
    show = await put_on_sale(api)
    purchase = (await buy(api, show)).json()["purchase_id"]
    await asyncio.to_thread(_expire_unknown, api, purchase)
    words = ["charged", "not-charged"] * 3
    paths = [f"/v1/purchases/{purchase}/settle-as-{word}" for word in words]
    answers = await asyncio.gather(*(api.as_("operator").post(path, json={"note": "asked"}) for path in paths))
    heard = [word for word, answer in zip(words, answers, strict=True) if answer.status_code == 200]
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409, 409]
    found = (await api.as_("operator").get(f"/v1/purchases/{purchase}")).json()
    assert [found["state"]] == [{"charged": "CONFIRMED", "not-charged": "COMPENSATED"}[word] for word in heard]
    assert [entry["what"] for entry in found["timeline"]].count("settled") == 1


async def told(api: ApiRig, who: str, purchase: str) -> list[str]:
    """The details of a purchase's timeline as somebody sees them."""
    found = (await api.as_(who).get(f"/v1/purchases/{purchase}")).json()
    return [entry["detail"] for entry in found["timeline"]]


def _expire_unknown(api: ApiRig, purchase: str) -> None:
    """As the manager would over an hour: a silent charge, and six silent answers."""
    pool = Pool(api.dsn, 1)
    deals = Deals(api.log, DatabaseBusinessClock(pool))
    books = Books()
    deals.carry(purchase, AttemptCharge())
    request = ChargeRequest(
        intent_id=intent_id_of(purchase), amount_minor=4500, currency="EUR", payment_method="charge:timeout_after"
    )
    deals.carry(purchase, RecordEvidence(books.charge(request), Source.REPLY, 1))
    silent = GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.UNKNOWN)
    for attempt in range(1, 7):
        deals.carry(purchase, RecordEvidence(silent, Source.RECONCILIATION, attempt))
    pool.close()


async def test_a_person_is_erased(api: ApiRig) -> None:
    """By address, by an operator; the purchase stays."""
    show = await put_on_sale(api)
    purchase = (await buy(api, show)).json()["purchase_id"]
    assert (await api.as_("buyer").post("/v1/contacts/erase", json={"email": "buyer@example.org"})).status_code == 403
    erased = await api.as_("operator").post("/v1/contacts/erase", json={"email": "buyer@example.org"})
    assert erased.json() == {"purchase_ids": [purchase]}
    assert (await api.as_("buyer").get(f"/v1/purchases/{purchase}")).status_code == 200
    assert (await api.as_("operator").post("/v1/contacts/erase", json={"email": "x"})).status_code == 422
    odd = await api.as_("operator").post("/v1/contacts/erase", json={"email": "once,taken@example..org"})
    assert odd.json() == {"purchase_ids": []}
