"""The stories of purchases, told with the real decisions and managers over a log and a clock in memory."""

import asyncio

import pytest

from deployment.gateway_books import Entry
from domain.errors import BodyInvalidError, IdempotencyKeyReusedError, IllegalTransitionError, RefusedError
from domain.events import Event
from domain.purchases.errors import PurchaseNotFoundError, SeatsTakenError, SeatUnknownError, ShowNotFoundError
from domain.purchases.evidence import GRACE_SECONDS
from domain.purchases.identity import INTENT_CHARACTERS_MAX, intent_id_of
from domain.purchases.messages import (
    AttemptCharge,
    ChargeAttempted,
    CompensationBegun,
    EvidenceRecorded,
    GatewayAnswer,
    NoticePosted,
    Operation,
    Outcome,
    PaymentFailed,
    PurchaseCompensated,
    ReconciliationAttempted,
    RecordEvidence,
    Settlement,
    Source,
)
from domain.purchases.saga import (
    RECONCILE_DELAYS_SECONDS,
    RESUME_SECONDS,
    SAGA_TRANSITIONS,
    SagaState,
    evolve,
    move,
)
from domain.purchases.seats import SeatState
from services.gateway import ChargeRequest
from services.mailer import Mail
from services.purchase_audit import audit
from tests.support.purchase_rig import Rig

SEAT = ("A1",)


def topics(rig: Rig) -> list[type[Event]]:
    return [type(recorded.event) for recorded in rig.log.read_log(0, 10_000)]


def subjects(rig: Rig) -> list[str]:
    return [mail.message_id.split(".")[1].split("@")[0] for mail in rig.mailer.mails]


def settle(rig: Rig, purchase_id: str, word: Settlement, note: str = "asked by phone") -> None:
    asyncio.run(rig.purchases.settle(purchase_id, word, "operator", note))


def test_paid() -> None:
    """CONFIRMED, the seat sold, one charge, one mail, told once."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT)
    assert rig.books.calls == []  # nothing remote inside the request
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert (rig.seat(show, "A1").state, rig.seat(show, "A0").state) == (SeatState.SOLD, SeatState.FREE)
    assert rig.books.calls == [("charge", intent_id_of(purchase))]
    assert subjects(rig) == ["confirmed"]
    assert topics(rig).count(NoticePosted) == 1
    assert audit(rig.log, rig.books).differences == ()


def test_declined() -> None:
    """Compensated, failure mail, seat free, nothing in the ledger, and the seat can be bought again."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:decline")
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert rig.seat(show, "A1").state is SeatState.FREE
    assert not rig.account(purchase).charged
    assert subjects(rig) == ["failed"]
    other = rig.buy(show, SEAT, who="bob")
    rig.settle_down()
    assert rig.saga(other).state is SagaState.CONFIRMED


def test_timed_out_but_charged() -> None:
    """Reconciled after a minute, CONFIRMED, one charge, seat sold."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:timeout_after")
    rig.turn()
    assert rig.saga(purchase).state is SagaState.UNKNOWN
    rig.clock.advance(RECONCILE_DELAYS_SECONDS[0] - 1)
    rig.turn()
    assert rig.saga(purchase).state is SagaState.UNKNOWN  # not before its time
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert rig.books.calls == [("charge", intent_id_of(purchase)), ("find_charge", intent_id_of(purchase))]
    assert rig.seat(show, "A1").state is SeatState.SOLD
    assert subjects(rig) == ["confirmed"]


def test_compensating_blind_sells_the_seat_twice() -> None:
    """The counter-example: believe that a silent charge failed, free the seat, and two buyers have paid for it.

    The saga's own table does not allow it: UNKNOWN has no way to compensation but through an answer.
    """
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:timeout_after")
    rig.turn()
    saga = rig.saga(purchase)
    with pytest.raises(IllegalTransitionError):
        evolve(saga, move(CompensationBegun, saga, rig.clock.now()))
    # What a system would do that takes silence for a decline: this "answer" is one that nobody gave.
    made_up = GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.DECLINED)
    rig.deals.carry(purchase, RecordEvidence(made_up, Source.REPLY, 1))
    assert rig.seat(show, "A1").state is SeatState.FREE
    other = rig.buy(show, SEAT, who="bob")
    rig.turn()
    rig.turn()
    paid = [intent for intent, entry in rig.books.charges.items() if entry.outcome == "SUCCEEDED"]
    assert paid == [intent_id_of(purchase), intent_id_of(other)]  # one seat, two charges
    found = [(d.purchase_id, d.what) for d in audit(rig.log, rig.books).differences]
    assert found == [(purchase, "charged: the gateway says True, the ledger False")]
    rig.books.tell(intent_id_of(purchase))  # the truth comes out, and is not dropped
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert intent_id_of(purchase) in rig.books.refunds
    assert audit(rig.log, rig.books).differences == ()
    assert "correction-1" in subjects(rig)


def test_not_found_too_early_is_not_believed() -> None:
    """Within two minutes of the attempt it says nothing; the charge turns up and the seat is sold."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:not_found_early")
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert [name for name, _ in rig.books.calls] == ["charge", "find_charge", "find_charge"]


def test_not_found_after_the_grace_period_is_believed_and_a_late_charge_is_refunded() -> None:
    """Success after the seats were released: recorded, refunded, corrected by mail."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:timeout_before;refund:timeout_after")
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert [name for name, _ in rig.books.calls] == ["charge", "find_charge", "find_charge"]
    late(rig, purchase)
    assert rig.saga(purchase).state is SagaState.COMPENSATION_PENDING
    mark = rig.log.high_water_mark()
    late(rig, purchase)  # told twice: nothing changes
    assert rig.log.high_water_mark() == mark
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert (rig.account(purchase).charged, rig.account(purchase).refunded) == (True, True)
    assert subjects(rig) == ["failed", "correction-1"]
    assert audit(rig.log, rig.books).differences == ()


def test_six_questions_then_an_operator() -> None:
    """UNKNOWN_EXPIRED after 63 minutes, with an alert; each outcome has its command, with note and name."""
    for word, state in ((Settlement.CHARGED, SagaState.CONFIRMED), (Settlement.NOT_CHARGED, SagaState.COMPENSATED)):
        rig = Rig()
        purchase = rig.buy(rig.create_show(2), SEAT, "charge:other_amount")
        began = rig.clock.now()
        rig.settle_down()
        saga = rig.saga(purchase)
        assert saga.state is SagaState.UNKNOWN_EXPIRED
        assert topics(rig).count(ReconciliationAttempted) == len(RECONCILE_DELAYS_SECONDS)
        assert (rig.clock.now() - began).total_seconds() == sum(RECONCILE_DELAYS_SECONDS)
        assert set(saga.alerts) == {"UNKNOWN_EXPIRED", "OTHER_AMOUNT"}
        for bad in ("", "  ", "x" * 2001):
            with pytest.raises(BodyInvalidError):
                settle(rig, purchase, word, bad)
        settle(rig, purchase, word)
        rig.settle_down()
        assert rig.saga(purchase).state is state
        assert rig.account(purchase).charged is (word is Settlement.CHARGED)
        with pytest.raises(RefusedError):
            settle(rig, purchase, word)
        noted, shown = (asyncio.run(rig.purchases.view(purchase, who)).timeline for who in (None, "ana"))
        assert f"{word.value} by operator: asked by phone" in [entry.detail for entry in noted]
        assert [word.value] == [entry.detail for entry in shown if entry.what == "settled"]


def test_a_webhook_before_the_reply() -> None:
    """Told twice and then answered: one record, one entry, one sale."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:twice")
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert topics(rig).count(EvidenceRecorded) == 1


def test_a_reservation_nobody_tried_to_pay_expires() -> None:
    """Its seats are free again; the charge that comes too late asks the gateway nothing."""
    rig = Rig()
    show = rig.create_show(2, hold_seconds=100)
    purchase = rig.buy(show, SEAT)
    rig.clock.advance(100)
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert rig.books.calls == []
    assert rig.seat(show, "A1").state is SeatState.FREE
    assert ChargeAttempted not in topics(rig)


def test_a_reservation_that_somebody_tried_to_pay_never_expires_by_time() -> None:
    """Whatever the hour: the seat waits for the answer."""
    rig = Rig()
    show = rig.create_show(2, hold_seconds=60)
    purchase = rig.buy(show, SEAT)
    rig.deals.carry(purchase, AttemptCharge())  # and then the process dies
    rig.clock.advance(25 * 3600)
    assert rig.seat(show, "A1").state is SeatState.RESERVED
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED


def test_refunds_are_never_abandoned() -> None:
    """Refused, silent, lost: asked again for ever; after a day an alert, and an operator can say that it was done by hand."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:timeout_before")
    rig.settle_down()
    rig.books.script(intent_id_of(purchase), "refund:decline,timeout_before" + ",decline" * 40)
    late(rig, purchase)
    rig.turn()
    assert rig.saga(purchase).alerts == ("REFUND_REFUSED",)
    for _ in range(26):
        rig.clock.advance(3600)
        rig.turn()
        rig.turn()
    saga = rig.saga(purchase)
    assert saga.state is SagaState.COMPENSATION_PENDING
    assert set(saga.alerts) == {"REFUND_REFUSED", "COMPENSATION_OVERDUE"}
    assert saga.refund_attempts > 20
    settle(rig, purchase, Settlement.REFUNDED)
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert rig.account(purchase).refunded


def late(rig: Rig, purchase: str) -> None:
    """A charge turns up."""
    entry = Entry(gateway_id="ch_late", outcome="SUCCEEDED", amount_minor=1001, currency="EUR")
    rig.books.charges[intent_id_of(purchase)] = entry
    rig.books.tell(intent_id_of(purchase))


def test_two_reconcilers_at_once() -> None:
    """Both ask, both record: one outcome."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_after")
    rig.turn()
    rig.clock.advance(61)
    found = rig.books.find_charge(intent_id_of(purchase))
    for _ in range(2):
        rig.deals.carry(purchase, RecordEvidence(found, Source.RECONCILIATION, 1))
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert topics(rig).count(NoticePosted) == 1


def test_a_refused_reservation_leaves_nothing() -> None:
    """No saga, no charge, no message, no address, and the key is free for another try."""
    rig = Rig()
    show = rig.create_show(2)
    rig.buy(show, SEAT)
    mark, kept = rig.log.high_water_mark(), dict(rig.contacts.addresses)
    for seats, refusal in ((("A0", "A1"), SeatsTakenError), (("Z9",), SeatUnknownError)):
        with pytest.raises(refusal):
            rig.buy(show, seats, key="k", who="bob")
    with pytest.raises(ShowNotFoundError):
        rig.buy("show_" + "0" * 40, SEAT, key="k", who="bob")
    assert (rig.log.high_water_mark(), rig.contacts.addresses) == (mark, kept)
    rig.buy(show, ("A0",), key="k", who="bob")


def test_the_same_key_is_the_same_purchase() -> None:
    """Again with the same body: the same id, no second reservation; with another body or address: refused."""
    rig = Rig()
    show = rig.create_show(3)
    first = rig.buy(show, SEAT, key="k")
    mark = rig.log.high_water_mark()
    assert rig.buy(show, SEAT, key="k") == first
    assert rig.log.high_water_mark() == mark
    with pytest.raises(IdempotencyKeyReusedError):
        rig.buy(show, ("A2",), key="k")
    rig.contacts.addresses = dict.fromkeys(rig.contacts.addresses, "else@example.org")
    with pytest.raises(IdempotencyKeyReusedError):
        rig.buy(show, SEAT, key="k")
    rig.contacts.addresses = {}  # erased: nothing left to compare with
    assert rig.buy(show, SEAT, key="k") == first


def test_a_buyer_sees_only_their_own() -> None:
    """To another it is not there."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT)
    assert asyncio.run(rig.purchases.view(purchase, "ana")).state == "PENDING"
    assert asyncio.run(rig.purchases.view(purchase, None)).next_action is not None
    with pytest.raises(PurchaseNotFoundError):
        asyncio.run(rig.purchases.view(purchase, "bob"))


def test_an_erased_buyer_gets_no_mail() -> None:
    """The purchase goes on; that nobody was written to is recorded."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT)
    rig.contacts.erase("ana@example.org")
    rig.settle_down()
    assert rig.mailer.mails == []
    assert rig.saga(purchase).mail_due is None


def test_the_intent_fits_the_gateway() -> None:
    """`int_` and the public reference, at most 64 characters."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT)
    intent = rig.saga(purchase).intent_id
    assert intent == f"int_{purchase}"
    assert len(intent) <= INTENT_CHARACTERS_MAX == 64


def test_the_table_is_the_published_one() -> None:
    """Every transition of the specification, and no other."""
    rows = {(state.value, after.value) for (state, _), after in SAGA_TRANSITIONS.rows.items()}
    assert rows == {
        ("ABSENT", "PENDING"),
        *(("PENDING", after) for after in ("PAID", "PAYMENT_FAILED", "UNKNOWN")),
        *(("UNKNOWN", after) for after in ("PAID", "PAYMENT_FAILED", "UNKNOWN_EXPIRED")),
        *(("UNKNOWN_EXPIRED", after) for after in ("PAID", "PAYMENT_FAILED")),
        *(("PAID", after) for after in ("CONFIRMED", "COMPENSATION_PENDING")),
        ("PAYMENT_FAILED", "COMPENSATION_PENDING"),
        ("COMPENSATION_PENDING", "COMPENSATED"),
        ("COMPENSATED", "COMPENSATION_PENDING"),
    }
    for state in SagaState:
        for kind in (PaymentFailed, PurchaseCompensated, CompensationBegun):
            assert SAGA_TRANSITIONS.allows(state, kind) == ((state, kind) in SAGA_TRANSITIONS.rows)


@pytest.mark.parametrize("called", [False, True])
def test_a_purchase_without_an_answer_is_resumed_with_its_intent(called: bool) -> None:
    """After five minutes, whether the gateway was called or not: it tells the first charge, there is never a second."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT)
    if called:
        rig.deals.carry(purchase, AttemptCharge())
        rig.books.charge(
            ChargeRequest(intent_id=intent_id_of(purchase), amount_minor=1001, currency="EUR", payment_method="pm")
        )
    for commands in rig.commands:  # the answer is lost, and so is the command
        commands.ignored.add("charge")
    rig.turn()
    rig.clock.advance(RESUME_SECONDS - 1)
    rig.turn()
    assert rig.saga(purchase).state is SagaState.PENDING
    rig.clock.advance(1)
    rig.turn()
    assert rig.saga(purchase).state is SagaState.CONFIRMED
    assert len(rig.books.charges) == 1
    assert {intent for _, intent in rig.books.calls} == {intent_id_of(purchase)}


def told(rig: Rig, purchase: str, operation: Operation, gateway_id: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """The gateway tells by itself, of our amount."""
    answer = GatewayAnswer(
        operation=operation, outcome=outcome, amount_minor=1001, currency="EUR", gateway_id=gateway_id
    )
    rig.hear(intent_id_of(purchase), answer)


def test_a_second_charge_of_a_sale_is_an_operators_and_the_sale_stands() -> None:
    """Recorded and alerted once, until an operator's word or a refund; a refund beyond it is alerted."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT)
    rig.settle_down()
    with pytest.raises(RefusedError):
        settle(rig, purchase, Settlement.REFUNDED)  # nothing is owed
    for _ in range(2):
        rig.books.charge_again(intent_id_of(purchase))
    saga = rig.saga(purchase)
    assert (saga.state, saga.owed, saga.alerts) == (SagaState.CONFIRMED, 1, ("SECOND_CHARGE",))
    assert [d.what for d in audit(rig.log, rig.books).differences] == [
        "confirmed with a second charge that was not refunded"
    ]
    settle(rig, purchase, Settlement.REFUNDED)
    told(rig, purchase, Operation.REFUND, "re_by_hand")  # the same refund, told late
    saga = rig.saga(purchase)
    assert (saga.state, saga.owed, saga.alerts) == (SagaState.CONFIRMED, 0, ())
    assert not rig.account(purchase).refunded
    assert audit(rig.log, rig.books).differences == ()
    for _ in range(2):
        told(rig, purchase, Operation.REFUND, "re_nobody_asked_for")
    assert rig.saga(purchase).alerts == ("UNEXPECTED_REFUND",)
    assert rig.account(purchase).refunded
    settle(rig, purchase, Settlement.REFUNDED)
    assert rig.saga(purchase).alerts == ()
    assert [kind.__name__ for kind in topics(rig)].count("PurchaseAlertRaised") == 2


@pytest.mark.parametrize("when", ["before the refund", "between attempts", "when all is over"])
@pytest.mark.parametrize("refund", ["succeed", "timeout_after", "twice", "decline", "late"])
def test_compensated_needs_a_refund_of_every_recorded_charge(when: str, refund: str) -> None:
    """Whenever a second charge turns up: COMPENSATED never stands beside a charge that is owed, and the refunds come in the end."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_before")
    rig.settle_down()
    first = "decline" if when == "between attempts" else refund
    rig.books.script(intent_id_of(purchase), f"refund:{first},{refund},{refund}")
    late(rig, purchase)
    if when == "between attempts":
        rig.turn()
    elif when == "when all is over":
        rig.settle_down()
        assert rig.saga(purchase).state is SagaState.COMPENSATED
    rig.books.charge_again(intent_id_of(purchase))
    assert rig.saga(purchase).state is SagaState.COMPENSATION_PENDING
    rig.settle_down()
    saga = rig.saga(purchase)
    assert (saga.state, len(saga.charges), len(saga.refunds)) == (SagaState.COMPENSATED, 2, 2)
    assert len(rig.books.refunds) == 2
    assert audit(rig.log, rig.books).differences == ()


def test_an_operators_word_and_the_gateways_are_one_charge_and_one_refund() -> None:
    """What was told without an id and turns up with one is counted once; its evidence is recorded all the same."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:other_amount")
    rig.settle_down()
    settle(rig, purchase, Settlement.CHARGED)
    told(rig, purchase, Operation.CHARGE, "ch_1")
    saga = rig.saga(purchase)
    assert (saga.state, saga.charges, saga.alerts) == (SagaState.CONFIRMED, ("ch_1",), ())
    told(rig, purchase, Operation.CHARGE, "ch_2")
    assert rig.saga(purchase).owed == 1


@pytest.mark.parametrize("outcome", [Outcome.DECLINED, Outcome.NOT_FOUND])
@pytest.mark.parametrize("asked", [1, 3, 6])
def test_a_charge_over_another_amount_beats_declined_and_not_found(outcome: Outcome, asked: int) -> None:
    """It is evidence of a charge: only our amount or an operator leads on, and the seats are kept until then."""
    rig = Rig()
    show = rig.create_show(2)
    purchase = rig.buy(show, SEAT, "charge:timeout_before")
    rig.turn()
    other = GatewayAnswer(
        operation=Operation.CHARGE, outcome=Outcome.SUCCEEDED, amount_minor=999, currency="EUR", gateway_id="ch_other"
    )
    rig.hear(intent_id_of(purchase), other)
    rig.clock.advance(GRACE_SECONDS)
    nothing = GatewayAnswer(operation=Operation.CHARGE, outcome=outcome, gateway_id="ch_x")
    rig.deals.carry(purchase, RecordEvidence(nothing, Source.RECONCILIATION, asked))
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.UNKNOWN_EXPIRED
    assert rig.seat(show, "A1").state is SeatState.RESERVED
    told(rig, purchase, Operation.CHARGE, "ch_ours")
    assert rig.saga(purchase).state is SagaState.CONFIRMED


@pytest.mark.parametrize("slept", [0, 59, 61, 10_000])
def test_not_found_is_judged_by_when_it_was_asked(slept: int) -> None:
    """A process that slept between question and record believes no more than it did when it asked."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_before")
    rig.turn()
    rig.clock.advance(61)
    asked = rig.books.find_charge

    def slow(intent_id: str) -> GatewayAnswer:
        answer = asked(intent_id)
        rig.clock.advance(slept)
        return answer

    rig.books.find_charge = slow  # type: ignore[method-assign]
    rig.turn()
    assert rig.saga(purchase).state is SagaState.UNKNOWN
    assert rig.saga(purchase).reconcile_attempts == 1
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED


def test_a_mail_that_was_sent_is_recorded_whatever_became_of_the_purchase_meanwhile() -> None:
    """A charge turns up while the failure mail is being handed over: it is corrected, for it was sent."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_before")
    send = rig.mailer.send

    def meanwhile(mail: Mail) -> None:
        send(mail)
        if len(rig.mailer.mails) == 1:
            late(rig, purchase)

    rig.mailer.send = meanwhile  # type: ignore[method-assign]
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert subjects(rig) == ["failed", "correction-1"]
    assert rig.saga(purchase).mails == ("correction-1", "failed")


@pytest.mark.parametrize("rounds", [1, 2])
def test_only_what_was_written_is_corrected(rounds: int) -> None:
    """While the mail server was away a purchase failed once or twice: one failure mail; what turns up after it is corrected."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_before")
    charges = [lambda: late(rig, purchase), lambda: rig.books.charge_again(intent_id_of(purchase))]
    rig.commands[1].ignored.add("mail")
    for turn in range(20 * rounds):
        rig.clock.advance(60)
        rig.turn()
        if turn == 20:
            charges.pop(0)()
    assert (rig.saga(purchase).state, rig.saga(purchase).round) == (SagaState.COMPENSATED, rounds)
    rig.commands[1].ignored.clear()
    rig.settle_down()
    assert [(mail.subject, "correction" in mail.text) for mail in rig.mailer.mails] == [
        ("Your purchase was not completed", False)
    ]
    charges.pop(0)()
    rig.settle_down()
    assert subjects(rig)[1:] == [f"correction-{rounds}"]
    assert rig.saga(purchase).mail_due is None


def test_a_refund_over_another_amount_is_no_refund_of_ours() -> None:
    """It alerts and is asked for again; only an operator's word ends it."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), SEAT, "charge:timeout_before;refund:other_amount")
    rig.settle_down()
    late(rig, purchase)
    for _ in range(4):
        rig.turn()
        rig.clock.advance(3600)
    saga = rig.saga(purchase)
    assert (saga.state, saga.owed) == (SagaState.COMPENSATION_PENDING, 1)
    assert "REFUND_REFUSED" in saga.alerts
    settle(rig, purchase, Settlement.REFUNDED)
    rig.settle_down()
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    assert audit(rig.log, rig.books).differences == ()
