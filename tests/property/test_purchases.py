"""Whatever the gateway does, whenever the process dies, however the clock jumps: money and seats agree when all has settled."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.gateway_books import BEHAVIOURS
from domain.errors import RefusedError
from domain.events import Recorded
from domain.purchases.errors import SeatsTakenError
from domain.purchases.identity import intent_id_of, purchase_stream, refund_key_of
from domain.purchases.messages import (
    Alert,
    AttemptCharge,
    GatewayAnswer,
    LedgerEntryPosted,
    NoticePosted,
    Operation,
    Outcome,
    RecordEvidence,
    Settlement,
    SettlePurchase,
    Source,
)
from domain.purchases.next_action import Action, next_action
from domain.purchases.saga import SagaState
from domain.purchases.seats import SeatState
from projections.purchases.projection import MODEL, PurchaseRow
from services.purchase_audit import audit
from tests.support.purchase_rig import Rig, crash_at

SEATS = 4

behaviours = st.lists(st.sampled_from(BEHAVIOURS), max_size=4).map(",".join)
refund_names = [name for name in BEHAVIOURS if name != "other_amount"]  # asked again for ever, until an operator's word
refunds = st.lists(st.sampled_from(refund_names), max_size=4).map(",".join)
buys = st.tuples(
    st.just("buy"), st.sets(st.integers(0, SEATS - 1), min_size=1, max_size=2), st.tuples(behaviours, refunds)
)
steps = st.one_of(
    buys,
    st.tuples(st.just("turn")),
    st.tuples(st.just("crash"), st.integers(1, 12)),
    st.tuples(st.just("jump"), st.sampled_from((1, 59, 61, 121, 301, 1000, 4000, 90_000))),
    st.tuples(st.just("tell"), st.integers(0, 5)),
    st.tuples(st.just("late")),
    st.tuples(st.just("again"), st.integers(0, 5)),
)


@settings(max_examples=120)
@given(story=st.lists(steps, min_size=3, max_size=25))
def test_money_and_seats_agree_in_the_end(story: list[tuple]) -> None:  # type: ignore[type-arg]
    """Never a charge without seat or refund, never a refund without a charge, never a seat sold twice, one end for everybody."""
    rig = Rig()
    show = rig.create_show(SEATS)
    for step in story:
        match step:
            case ("buy", seats, (charge, refund)):
                method = f"charge:{charge};refund:{refund}"
                with suppress(SeatsTakenError):
                    rig.buy(show, tuple(f"A{n}" for n in sorted(seats)), method)
            case ("turn",):
                rig.turn()
            case ("crash", number):
                rig.turn(crash_at(number))
            case ("jump", seconds):
                rig.clock.advance(seconds)
            case ("tell", place) if place < len(rig.bought):
                rig.books.tell(intent_id_of(rig.bought[place]))
            case ("late",):
                rig.books.settle_late()
            case ("again", place) if place < len(rig.bought):
                charge_again(rig, rig.bought[place])
        for purchase_id in rig.bought:
            saga = rig.saga(purchase_id)
            assert saga.state is not SagaState.COMPENSATED or len(saga.refunds) >= len(saga.charges)
    let_all_end(rig)
    check(rig, show)


answers = st.builds(
    lambda operation, outcome, gateway_id, other, source, attempt: RecordEvidence(
        GatewayAnswer(
            operation=operation,
            outcome=outcome,
            amount_minor=1001 + other,
            currency="EUR",
            gateway_id=gateway_id,
        ),
        source,
        attempt,
    ),
    st.sampled_from(Operation),
    st.sampled_from((*[Outcome.SUCCEEDED] * 4, *Outcome)),
    st.sampled_from(("", "a", "b", "c")),
    st.sampled_from((0, 0, 0, 1)),
    st.sampled_from((Source.REPLY, Source.RECONCILIATION, Source.WEBHOOK)),
    st.integers(0, 6),
)
told = st.tuples(answers, st.sampled_from((0, 1, 121, 4000)))
words = st.tuples(st.sampled_from(Settlement), st.just(0))


@settings(max_examples=150)
@given(story=st.lists(st.one_of(told, told, words), max_size=14))
def test_repeated_evidence_changes_nothing_and_no_charge_is_forgotten(story: list[tuple]) -> None:  # type: ignore[type-arg]
    """Whatever a gateway says in whatever order and state, true to its promises or not: a repetition appends nothing, however late;
    every charge is recorded; COMPENSATED stands beside no charge that is owed; the ledger follows the saga."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), ("A1",))
    rig.deals.carry(purchase, AttemptCharge())
    named: set[str] = set()
    for said, seconds in story:
        rig.clock.advance(seconds)
        if isinstance(said, Settlement):
            with suppress(RefusedError):
                rig.deals.carry(purchase, SettlePurchase(settlement=said, principal="operator", note="asked by hand"))
        else:
            rig.deals.carry(purchase, said)
            assert rig.deals.carry(purchase, said).events == ()
            rig.clock.advance(200)
            assert rig.deals.carry(purchase, said).events == ()
            answer = said.answer
            if (answer.operation, answer.outcome, answer.amount_minor) == (Operation.CHARGE, Outcome.SUCCEEDED, 1001):
                named |= {answer.gateway_id} - {""}
        saga, account = rig.saga(purchase), rig.account(purchase)
        assert named <= set(saga.charges)
        assert saga.state is not SagaState.COMPENSATED or not saga.owed
        assert account.charged == saga.charged
        due = next_action(recorded.event for recorded in rig.deals.history(purchase))
        asking = {SagaState.UNKNOWN: Action.RECONCILE, SagaState.COMPENSATION_PENDING: Action.REFUND}.get(saga.state)
        assert due is None or due.action in (asking, Action.RESUME, Action.OVERDUE)
        assert due is None or due.action is not Action.RESUME or saga.state is SagaState.PENDING
        assert (due is None) == (saga.state in (SagaState.CONFIRMED, SagaState.COMPENSATED, SagaState.UNKNOWN_EXPIRED))
        assert account.refunded >= (
            saga.charged and saga.refunded
        )  # a further charge may be owed after the first one's refund
        assert saga.state is not SagaState.COMPENSATED or account.charged == account.refunded
        assert saga.state is not SagaState.CONFIRMED or rig.seat(saga.show_id, "A1").state is SeatState.SOLD


def charge_again(rig: Rig, purchase_id: str) -> None:
    """The gateway breaks its promise, over our amount."""
    saga = rig.saga(purchase_id)
    charge = rig.books.charges.get(saga.intent_id)
    if charge is not None and (charge.outcome, charge.amount_minor) == (Outcome.SUCCEEDED.value, saga.amount_minor):
        rig.books.charge_again(saga.intent_id)


def let_all_end(rig: Rig) -> None:
    """The gateway tells all that it did, operators look after what is left to them, and time passes."""
    rig.settle_down()
    rig.books.settle_late()
    for intent_id in list(rig.books.charges):
        rig.books.find_charge(
            intent_id
        )  # whoever is asked first after a charge may find nothing: let it not be the audit
        rig.books.tell(intent_id)
    rig.settle_down()
    for purchase_id in rig.bought:
        if rig.saga(purchase_id).state is SagaState.UNKNOWN_EXPIRED:
            charge = rig.books.charges.get(intent_id_of(purchase_id))
            charged = charge is not None and charge.outcome == Outcome.SUCCEEDED.value
            word = Settlement.CHARGED if charged else Settlement.NOT_CHARGED
            asyncio.run(rig.purchases.settle(purchase_id, word, "operator", "asked by hand"))
    rig.settle_down()
    for purchase_id in rig.bought:
        saga = rig.saga(purchase_id)
        if saga.state is SagaState.CONFIRMED and saga.owed:
            assert Alert.SECOND_CHARGE.value in saga.alerts
            asyncio.run(rig.purchases.settle(purchase_id, Settlement.REFUNDED, "operator", "refunded by hand"))
    rig.settle_down()


def check(rig: Rig, show: str) -> None:
    """The books of the gateway, our ledger, the seats and the sagas tell one story."""
    sold: dict[str, str] = {}
    for purchase_id in rig.bought:
        saga, account = rig.saga(purchase_id), rig.account(purchase_id)
        row = row_of(rig, purchase_id)
        assert (row.state, tuple(sorted(row.alerts))) == (saga.state.value, saga.alerts)
        charge = rig.books.charges.get(saga.intent_id)
        charged = charge is not None and charge.outcome == Outcome.SUCCEEDED.value
        refunded = saga.intent_id in rig.books.refunds
        assert saga.state in (SagaState.CONFIRMED, SagaState.COMPENSATED)
        assert (account.charged, account.refunded) == (charged, refunded)
        assert refunded <= charged
        assert saga.mail_due is None
        twice = saga.intent_id in rig.books.second_charges
        assert (len(saga.charges), saga.owed) == (charged + twice, 0)
        if saga.state is SagaState.COMPENSATED:
            assert twice == (refund_key_of(saga.intent_id, 2) in rig.books.refunds)
        if saga.state is SagaState.CONFIRMED:
            assert charged
            assert not refunded
            for seat in saga.seats:
                assert sold.setdefault(seat, purchase_id) == purchase_id
        else:
            assert charged == refunded
    for name in (f"A{number}" for number in range(SEATS)):
        found = rig.seat(show, name)
        expected = (SeatState.SOLD, sold[name]) if name in sold else (SeatState.FREE, "")
        assert (found.state, found.purchase_id) == expected
    events = rig.log.read_log(0, 1_000_000)
    assert sum(line.amount_minor for entry in entries(events) for line in entry.lines) == 0
    told = [n.purchase_id for n in notices(events) if n.name == "PaymentSucceeded"]
    assert sorted(told) == sorted(p for p in rig.bought if rig.saga(p).state is SagaState.CONFIRMED)
    ids = [mail.message_id for mail in rig.mailer.mails]
    assert len(set(ids)) >= len(rig.bought)
    differences = audit(rig.log, rig.books).differences
    assert [
        d for d in differences if "the gateway charged" not in d.what
    ] == []  # another amount is an operator's affair


def row_of(rig: Rig, purchase_id: str) -> PurchaseRow:
    """The read model's row, folded from nothing."""
    row: PurchaseRow | None = None
    for recorded in rig.log.read_log(0, 1_000_000):
        if recorded.stream == purchase_stream(purchase_id) and MODEL.key_of(recorded.event) is not None:
            row = MODEL.apply(row, recorded)
    assert row is not None
    return row


def entries(events: Sequence[Recorded]) -> list[LedgerEntryPosted]:
    return [r.event for r in events if isinstance(r.event, LedgerEntryPosted)]


def notices(events: Sequence[Recorded]) -> list[NoticePosted]:
    return [r.event for r in events if isinstance(r.event, NoticePosted)]
