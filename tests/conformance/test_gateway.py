"""One suite for every gateway: the sandbox's books in memory, and the HTTP adapter on a sandbox server with books of its own."""

from collections.abc import Iterator

import pytest

from deployment.gateway_books import Books
from domain.purchases.messages import GatewayAnswer, Operation, Outcome
from services.gateway import ChargeRequest, Gateway, RefundRequest
from tests.support.sandbox_server import http_gateway

Pair = tuple[Gateway, Books]


@pytest.fixture(params=["memory", "http"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    books = Books()
    if request.param == "memory":
        yield books, books
    else:
        with http_gateway(books) as gateway:
            yield gateway, books


def charge(gateway: Gateway, script: str = "", intent: str = "int_1") -> GatewayAnswer:
    method = f"charge:{script}" if script else "pm_card"
    request = ChargeRequest(intent_id=intent, amount_minor=4500, currency="EUR", payment_method=method)
    return gateway.charge(request)


def refund(gateway: Gateway, intent: str = "int_1") -> GatewayAnswer:
    request = RefundRequest(intent_id=intent, refund_key=f"refund_{intent}", amount_minor=4500, currency="EUR")
    return gateway.refund(request)


def test_a_charge_is_made_once_per_intent(pair: Pair) -> None:
    """Asked again, the gateway tells the first charge again."""
    gateway, books = pair
    first = charge(gateway)
    assert (first.outcome, first.amount_minor, first.currency) == (Outcome.SUCCEEDED, 4500, "EUR")
    assert charge(gateway) == first == gateway.find_charge("int_1")
    assert len(books.charges) == 1


def test_a_decline_is_final(pair: Pair) -> None:
    """Asked again it is declined again, and found declined."""
    gateway, _ = pair
    assert charge(gateway, "decline").outcome is Outcome.DECLINED
    assert charge(gateway).outcome is Outcome.DECLINED
    assert gateway.find_charge("int_1").outcome is Outcome.DECLINED


@pytest.mark.parametrize(("script", "charged"), [("timeout_before", False), ("timeout_after", True)])
def test_no_answer_is_unknown_whatever_was_done(pair: Pair, script: str, charged: bool) -> None:
    """A timeout says nothing; asking tells."""
    gateway, books = pair
    assert charge(gateway, script).outcome is Outcome.UNKNOWN
    assert ("int_1" in books.charges) is charged
    assert gateway.find_charge("int_1").outcome is (Outcome.SUCCEEDED if charged else Outcome.NOT_FOUND)


@pytest.mark.parametrize("script", ["late", "not_found_early"])
def test_not_found_can_come_too_early(pair: Pair, script: str) -> None:
    """The first question finds nothing, the second the charge."""
    gateway, _ = pair
    assert charge(gateway, script).outcome is Outcome.UNKNOWN
    assert gateway.find_charge("int_1").outcome is Outcome.NOT_FOUND
    assert gateway.find_charge("int_1").outcome is Outcome.SUCCEEDED


def test_another_amount_is_told_as_it_is(pair: Pair) -> None:
    """The adapter hides nothing; judging it is the saga's."""
    gateway, _ = pair
    assert charge(gateway, "other_amount").amount_minor == 4501


def test_a_refund_is_made_once_and_only_of_a_charge(pair: Pair) -> None:
    """Without a charge it is refused."""
    gateway, books = pair
    assert refund(gateway).outcome is Outcome.DECLINED
    charge(gateway)
    books.script("int_1", "refund:timeout_after")
    assert refund(gateway).outcome is Outcome.UNKNOWN
    again = refund(gateway)
    assert (again.operation, again.outcome) == (Operation.REFUND, Outcome.SUCCEEDED)
    assert len(books.refunds) == 1


def test_what_became_of_a_refund_is_told_and_asking_refunds_nothing(pair: Pair) -> None:
    """Not there before it is done, whatever was answered then; the same refund afterwards, each under its own key."""
    gateway, books = pair
    charge(gateway)
    assert gateway.find_refund("refund_int_1").outcome is Outcome.NOT_FOUND
    books.script("int_1", "refund:timeout_before,timeout_after")
    for done in (False, True):
        assert refund(gateway).outcome is Outcome.UNKNOWN
        assert (gateway.find_refund("refund_int_1").outcome is Outcome.SUCCEEDED) is done
    found = gateway.find_refund("refund_int_1")
    assert (found.operation, found.amount_minor, found.gateway_id) == (
        Operation.REFUND,
        4500,
        refund(gateway).gateway_id,
    )
    assert gateway.find_refund("refund_int_1_2").outcome is Outcome.NOT_FOUND
    assert len(books.refunds) == 1


def test_a_second_charge_is_refunded_under_a_key_of_its_own(pair: Pair) -> None:
    """A gateway that charged an intent twice gives both back, each once, and no third."""
    gateway, books = pair
    charge(gateway)
    second = RefundRequest(
        intent_id="int_1", refund_key="refund_int_1_2", amount_minor=4500, currency="EUR", charge_id="ch2_int_1"
    )
    assert gateway.refund(second).outcome is Outcome.DECLINED  # there was but one charge
    books.charge_again("int_1")
    first, further = refund(gateway), gateway.refund(second)
    assert first.outcome is further.outcome is Outcome.SUCCEEDED
    assert first.gateway_id != further.gateway_id
    assert (refund(gateway), gateway.refund(second)) == (first, further)
    assert gateway.find_refund("refund_int_1_2") == further


def test_told_twice_before_the_reply(pair: Pair) -> None:
    """Two webhooks, then the reply."""
    gateway, books = pair
    told: list[str] = []
    books.told = lambda intent_id, _: told.append(intent_id)
    assert charge(gateway, "twice").outcome is Outcome.SUCCEEDED
    assert told == ["int_1", "int_1"]
