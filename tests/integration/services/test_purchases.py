"""Purchases on a real PostgreSQL: one winner per seat, deadlines by the business clock, and consumers that nobody waits for."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from deployment.gateway_books import Books, Entry
from domain.purchases.errors import SeatsTakenError
from domain.purchases.identity import intent_id_of
from domain.purchases.messages import GatewayAnswer, Operation, Outcome, RecordEvidence, Settlement, Source
from domain.purchases.saga import OVERDUE_SECONDS, SagaState, fold_saga
from projections.folding import fold_all
from projections.postgres import PostgresSession
from projections.purchases.postgres import open_purchases
from projections.rebuilding.opening import rebuild_blocking
from projections.registry import PROJECTIONS
from projections.runner import run_once
from projections.status import Projections
from services.adapters.manager_store import InstanceRows, PostgresCommandQueue
from services.business_clock import DatabaseBusinessClock
from services.contacts import SWEEP_AGE_SECONDS, SWEEP_ROWS_MAX, Contacts
from services.deals import Deals
from services.gateway import ChargeRequest
from services.notice_relay import BATCH_MAX, LogTeller, NoticeRelay
from services.process_managers.contract import Command, ProcessManager, clock_of
from services.process_managers.instances import instances_of
from services.process_managers.payment import Payment
from services.process_managers.purchase_mail import PurchaseMail
from services.process_managers.runtime import Dispatcher
from services.purchase_audit import audit
from services.purchase_requests import PurchaseBody, SeatBody, ShowBody
from services.purchases import Purchases
from services.shop import Shop
from services.store.application import Log
from services.store.work_queue import OutboxQueue
from tests.support.purchase_rig import MemoryMailer
from tests.support.read_models import execute
from tests.support.store import opened

STARTS = datetime(2026, 6, 5, 19, tzinfo=UTC)
READ_MODELS = ("shows", "availability", "purchases", "balances", "sales_per_day")


class House:
    """Purchases with everything real but the gateway and the mail server."""

    def __init__(self, dsn: str, log: Log) -> None:
        self.dsn = dsn
        self.log = log
        self.clock = DatabaseBusinessClock(log.pool)
        self.contacts = Contacts(log.pool)
        self.books = Books()
        self.mailer = MemoryMailer()
        self.deals = Deals(log, self.clock)
        self.purchases = Purchases(log, self.clock, self.contacts)
        self.shop = Shop(self.purchases, log.pool)
        self.managers: list[ProcessManager] = [
            Payment(self.deals, self.books),
            PurchaseMail(self.deals, self.contacts, self.mailer, "finaz.invalid"),
        ]

    async def show(self, seats: int, key: str = "show") -> str:
        body = ShowBody(
            title="Lohengrin",
            starts_at=STARTS,
            currency="EUR",
            seats=tuple(SeatBody(seat=f"A{n}", price_minor=1000) for n in range(seats)),
        )
        return (await self.purchases.create_show("house", key, body)).subject_id

    async def buy(self, show_id: str, seat: str, who: str, key: str = "k", method: str = "pm") -> str:
        body = PurchaseBody(show_id=show_id, seats=(seat,), payment_method=method, email=f"{who}@example.org")
        return (await self.purchases.start(who, key, body)).subject_id

    def work(self) -> None:
        """Both managers fold and issue until nothing is due and nothing new is in the log."""
        while True:
            mark = self.log.high_water_mark()
            for manager in self.managers:
                model = instances_of(manager)
                session = PostgresSession(self.dsn, model, InstanceRows(manager.name), "owner")
                try:
                    assert session.claim()
                    while not run_once(session, model).caught_up:
                        pass
                    queue = PostgresCommandQueue(self.log.pool, manager.name, clock_of(manager))
                    while Dispatcher(manager, queue, lambda *_: None).run_once() == 0.0:
                        pass
                finally:
                    session.close()
            if self.log.high_water_mark() == mark:
                return

    def project(self, *names: str) -> None:
        for name in names or READ_MODELS:
            projection = PROJECTIONS[name]
            session = PostgresSession(self.dsn, projection.model, projection.rows, "owner")  # type: ignore[arg-type]
            try:
                assert session.claim()
                while not run_once(session, projection.model).caught_up:
                    pass
            finally:
                session.close()

    def state(self, purchase_id: str) -> SagaState:
        return fold_saga(recorded.event for recorded in self.deals.history(purchase_id)).state


@pytest.fixture
def house(database: str) -> Iterator[House]:
    with opened(database) as log:
        yield House(database, log)


def test_two_thousand_buyers_for_fifty_seats_sell_exactly_fifty(house: House) -> None:
    """Each tries seats in an order of their own until one is theirs or all are gone; every seat goes once, and is paid once."""
    seats, buyers = 50, 2000

    async def sell() -> tuple[str, list[str]]:
        show = await house.show(seats)
        left = set(range(seats))

        async def one(number: int) -> str | None:
            draw = random.Random(number)
            while left:
                seat = draw.choice(sorted(left))
                try:
                    return await house.buy(show, f"A{seat}", f"buyer{number}")
                except SeatsTakenError:
                    left.discard(seat)
            return None

        found = await asyncio.gather(*map(one, range(buyers)))
        return show, [purchase for purchase in found if purchase is not None]

    show, bought = asyncio.run(sell())
    assert len(bought) == len(set(bought)) == seats
    house.work()
    assert {house.state(purchase) for purchase in bought} == {SagaState.CONFIRMED}
    assert len(house.books.charges) == seats
    house.project()
    found = asyncio.run(house.shop.availability(show))
    assert [seat.state for seat in found] == ["SOLD"] * seats
    assert audit(house.log, house.books).differences == ()
    kept = execute(house.dsn, "SELECT count(*) FROM finaz.contacts")
    assert kept == [(seats,)]  # of who got nothing, nothing is kept


def test_many_buyers_of_overlapping_seats_leave_no_seat_twice(house: House) -> None:
    """Several seats in one append: all or nothing, whoever else wants some of them."""

    async def sell() -> list[str]:
        show = await house.show(6)
        draws = [random.Random(n).sample(range(6), 3) for n in range(40)]

        async def one(number: int, wanted: list[int]) -> str | None:
            body = PurchaseBody(
                show_id=show,
                seats=tuple(sorted(f"A{n}" for n in wanted)),
                payment_method="pm",
                email="a@example.org",
            )
            with suppress(SeatsTakenError):
                return (await house.purchases.start(f"buyer{number}", "k", body)).subject_id
            return None

        return [p for p in await asyncio.gather(*(one(n, d) for n, d in enumerate(draws))) if p]

    bought = asyncio.run(sell())
    assert 1 <= len(bought) <= 2
    assert audit(house.log, None).differences == ()


def test_twenty_five_hours_pass_without_sleeping(house: House) -> None:
    """A refund that the gateway refuses for a day: an alert and a metric by the business clock, while leases keep the real one."""
    show = asyncio.run(house.show(2))
    purchase = asyncio.run(house.buy(show, "A0", "ana", method="charge:timeout_before"))
    house.work()
    for _ in range(2):
        house.clock.advance(200)
        house.work()
    assert house.state(purchase) is SagaState.COMPENSATED
    house.books.script(intent_id_of(purchase), "refund:" + ",".join(["decline"] * 500))
    house.books.charges[intent_id_of(purchase)] = Entry(
        gateway_id="ch", outcome="SUCCEEDED", amount_minor=1000, currency="EUR"
    )
    answer = GatewayAnswer(
        operation=Operation.CHARGE, outcome=Outcome.SUCCEEDED, amount_minor=1000, currency="EUR", gateway_id="ch"
    )
    house.deals.carry(purchase, RecordEvidence(answer, Source.WEBHOOK))
    real = house.log.now()
    house.work()
    house.clock.advance(25 * 3600)
    house.work()
    saga = fold_saga(recorded.event for recorded in house.deals.history(purchase))
    assert saga.state is SagaState.COMPENSATION_PENDING
    assert "COMPENSATION_OVERDUE" in saga.alerts
    assert (house.log.now() - real).total_seconds() < 600  # the database's own clock went on as ever
    house.project()
    (count,) = open_purchases(house.log.pool)
    assert (count.state, count.count, count.overdue) == ("COMPENSATION_PENDING", 1, 1)
    assert count.oldest_seconds >= OVERDUE_SECONDS
    (stuck,) = asyncio.run(house.shop.stuck(OVERDUE_SECONDS, 10))
    assert stuck.purchase_id == purchase


def test_sales_per_day_converge_after_two_hours_of_absence(house: House) -> None:
    """Paused, sold, resumed: the purchases did not notice, and the numbers are those of one that was never away."""
    projections = Projections(house.log.pool)
    projections.pause("sales_per_day", "being moved", "operator")
    show = asyncio.run(house.show(10))
    bought = [
        asyncio.run(house.buy(show, f"A{n}", f"b{n}", method="pm" if n < 7 else "charge:decline")) for n in range(9)
    ]
    house.work()
    assert [house.state(p) for p in bought].count(SagaState.CONFIRMED) == 7
    house.project("shows", "availability", "purchases", "balances")
    assert asyncio.run(house.shop.sales(None, 10)) == ()
    projections.resume("sales_per_day")
    house.project("sales_per_day")
    (day,) = asyncio.run(house.shop.sales(show, 10))
    assert (day.purchases, day.seats, day.revenue_minor, day.cancelled) == (7, 7, 7000, 2)
    (balance,) = asyncio.run(house.shop.balances())
    assert balance.accounts == {"gateway_receivable": 7000, "ticket_sales": -7000}


def test_notices_go_through_the_outbox_and_are_told_at_least_once(house: House) -> None:
    """Pending until told; a relay that dies after telling tells again; two relays record one delivery; batches are bounded."""
    show = asyncio.run(house.show(BATCH_MAX + 3))
    for number in range(BATCH_MAX + 3):
        asyncio.run(house.buy(show, f"A{number}", f"b{number}"))
    house.work()
    rows = "SELECT state, count(*) FROM finaz.outbox WHERE kind = 'notice' GROUP BY state"
    assert execute(house.dsn, rows) == [("pending", BATCH_MAX + 3)]

    class Dying(LogTeller):
        told = 0

        def tell(self, notices: object) -> None:
            Dying.told += 1
            if Dying.told == 1:
                raise RuntimeError("dies here")

    queue = OutboxQueue(house.log.hot_pool)
    relay = NoticeRelay(house.log, queue, Dying(), "relay-1")
    with pytest.raises(RuntimeError):
        relay.run_once()
    assert relay.run_once() == BATCH_MAX
    assert NoticeRelay(house.log, queue, LogTeller(), "relay-2").run_once() == 3
    assert relay.run_once() == 0
    assert execute(house.dsn, rows) == [("delivered", BATCH_MAX + 3)]


def test_personal_data_is_erased_and_what_a_crash_left_is_swept(house: House) -> None:
    """No event ever holds an address; erasing finds it whatever its case; an orphan goes after a day, others stay."""
    show = asyncio.run(house.show(2))
    asyncio.run(house.buy(show, "A0", "ana"))
    house.contacts.put("res_" + "0" * 40, "orphan@example.org")
    (purchase,) = execute(house.dsn, "SELECT purchase_id FROM finaz.contacts WHERE address = 'ana@example.org'")[0]
    house.contacts.put(purchase, "left-by-a-crash@example.org")  # and the buyer tried again
    states = "SELECT count(*) FROM finaz.events WHERE state LIKE '%%example.org%%'"
    assert execute(house.dsn, states) == [(0,)]
    house.contacts.sweep()
    assert execute(house.dsn, "SELECT count(*) FROM finaz.contacts") == [(3,)]
    older = f"UPDATE finaz.contacts SET made_at = made_at - make_interval(secs => {SWEEP_AGE_SECONDS + 1})"
    execute(house.dsn, older)
    house.contacts.sweep()
    assert execute(house.dsn, "SELECT address FROM finaz.contacts") == [("ana@example.org",)]
    assert len(house.contacts.erase("ANA@example.org")) == 1
    assert execute(house.dsn, "SELECT address FROM finaz.contacts") == [(None,)]
    house.work()
    assert house.mailer.mails == []


def test_a_sweep_looks_at_a_bounded_number_of_addresses_and_at_none_twice(house: House) -> None:
    """However many purchases there were: it is part of a buyer's request. What it has looked at it passes over."""
    show = asyncio.run(house.show(2))
    asyncio.run(house.buy(show, "A0", "ana"))
    many = f"""INSERT INTO finaz.contacts (contact_id, purchase_id, address, made_at)
        SELECT 'con_' || n, 'res_' || n, 'x@example.org', clock_timestamp() - interval '2 days'
        FROM generate_series(1, {SWEEP_ROWS_MAX + 7}) AS n"""
    execute(house.dsn, many)
    execute(
        house.dsn, "UPDATE finaz.contacts SET made_at = made_at - interval '3 days' WHERE address = 'ana@example.org'"
    )
    counts = "SELECT count(*), count(*) FILTER (WHERE kept) FROM finaz.contacts"
    house.contacts.sweep()
    assert execute(house.dsn, counts) == [(1 + 8, 1)]
    house.contacts.sweep()
    assert execute(house.dsn, counts) == [(1, 1)]


def test_a_sale_that_was_charged_twice_is_listed_until_somebody_settles_it(house: House) -> None:
    """At an end, and stuck all the same: the money of the second charge is nobody's yet."""
    show = asyncio.run(house.show(2))
    purchase = asyncio.run(house.buy(show, "A0", "ana"))
    asyncio.run(house.buy(show, "A1", "bob"))
    house.work()
    house.books.charge_again(intent_id_of(purchase))
    answer = GatewayAnswer(
        operation=Operation.CHARGE, outcome=Outcome.SUCCEEDED, amount_minor=1000, currency="EUR", gateway_id="ch_2"
    )
    house.deals.carry(purchase, RecordEvidence(answer, Source.WEBHOOK))
    house.work()
    house.project("purchases")
    (stuck,) = asyncio.run(house.shop.stuck(0, 10))
    assert (stuck.purchase_id, stuck.state, stuck.alerts) == (purchase, "CONFIRMED", ("SECOND_CHARGE",))
    asyncio.run(house.purchases.settle(purchase, Settlement.REFUNDED, "operator", "refunded by hand"))
    house.work()
    house.project("purchases")
    assert asyncio.run(house.shop.stuck(0, 10)) == ()
    assert house.state(purchase) is SagaState.CONFIRMED
    assert audit(house.log, house.books).differences == ()


def test_what_is_served_is_the_fold_of_the_log_and_can_be_made_again(house: House) -> None:
    """Every read model of purchases, and the outbox with its notices, also after a rebuild from nothing."""
    show = asyncio.run(house.show(4))
    for number, method in enumerate(("pm", "charge:decline", "charge:timeout_after")):
        asyncio.run(house.buy(show, f"A{number}", f"b{number}", method=method))
    house.work()
    NoticeRelay(house.log, OutboxQueue(house.log.hot_pool), LogTeller(), "relay").run_once()
    house.project()
    events = list(house.log.read_log(0, 10_000))
    for name in (*READ_MODELS, "outbox"):
        projection = PROJECTIONS[name]
        folded = fold_all(
            projection.model, [e for e in events if e.stream.split("/")[0] in projection.model.categories]
        )
        assert folded
        assert projection.rows.all_rows(house.log.pool) == folded
        rebuild_blocking(house.dsn, projection, "rebuilder")
        assert projection.rows.all_rows(house.log.pool) == folded


@pytest.mark.parametrize(("method", "action"), [("pm", "charge"), ("charge:timeout_after", "reconcile")])
def test_four_managers_at_once_come_to_one_end(house: House, method: str, action: str) -> None:
    """All ask the gateway at the same moment and record what it said: one charge, one entry, one sale, told once."""
    show = asyncio.run(house.show(1))
    purchase = asyncio.run(house.buy(show, "A0", "ana", method=method))
    document = {"purchase_id": purchase, "attempt": 1}
    if action == "reconcile":
        Payment(house.deals, house.books).execute(Command("charge", document), uuid4())
        assert house.state(purchase) is SagaState.UNKNOWN
    together = threading.Barrier(4)

    class Meeting(Books):
        """All arrive before any is answered."""

        def charge(self, request: ChargeRequest) -> GatewayAnswer:
            together.wait(60)
            return house.books.charge(request)

        def find_charge(self, intent_id: str) -> GatewayAnswer:
            together.wait(60)
            return house.books.find_charge(intent_id)

    def work() -> None:
        Payment(house.deals, Meeting()).execute(Command(action, document), uuid4())

    with ThreadPoolExecutor(4) as threads:
        for turn in [threads.submit(work) for _ in range(4)]:
            turn.result()
    assert house.state(purchase) is SagaState.CONFIRMED
    assert len(house.books.charges) == 1
    assert audit(house.log, house.books).differences == ()
    topics = [recorded.event.topic for recorded in house.log.read_log(0, 1000)]
    assert [topics.count(t) for t in ("ledger.entry_posted.v1", "seat.sold.v1", "notice.posted.v1")] == [1, 1, 1]
