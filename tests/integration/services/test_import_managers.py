"""After an import: process managers read the log from its beginning, without the commands that they issued in the old store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from domain.purchases.identity import intent_id_of
from domain.purchases.saga import SagaState
from domain.runs.messages import RunRequeued
from services.process_managers.orphan_recovery import OrphanRecovery
from services.process_managers.payment import Payment
from services.process_managers.purchase_mail import PurchaseMail
from services.process_managers.reconciler import Reconciler
from services.purchase_audit import audit
from services.store.application import Log
from services.store.log_import import import_log
from tests.integration.services.test_log_export import export
from tests.integration.services.test_process_managers import Desk, position, request, start, topics, until
from tests.integration.services.test_purchases import House
from tests.integration.services.test_reconciliation import System
from tests.support.read_models import execute
from tests.support.store import opened


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def empty(postgres: str, _template: str) -> Iterator[str]:
    """Another store, in which nothing has happened."""
    name = f"empty_{uuid4().hex[:12]}"
    execute(postgres, f"CREATE DATABASE {name} TEMPLATE {_template}")
    yield make_conninfo(postgres, dbname=name)
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def test_no_purchase_is_charged_or_told_of_twice(database: str, log: Log, empty: str) -> None:
    """What was finished stays as it is, without a call and without a mail; what was under way comes to its one end."""
    house = House(database, log)
    show = asyncio.run(house.show(6))
    sold = asyncio.run(house.buy(show, "A0", "ana"))
    declined = asyncio.run(house.buy(show, "A1", "bo", method="charge:decline"))
    house.work()
    asked = asyncio.run(house.buy(show, "A2", "čeněk", method="charge:timeout_after"))
    house.work()
    waiting = asyncio.run(house.buy(show, "A3", "dora"))
    states = {purchase: house.state(purchase) for purchase in (sold, declined, asked, waiting)}
    assert list(states.values()) == [
        SagaState.CONFIRMED,
        SagaState.COMPENSATED,
        SagaState.UNKNOWN,
        SagaState.PENDING,
    ]
    calls, mails, histories = len(house.books.calls), len(house.mailer.mails), {}
    for purchase in (sold, declined):
        histories[purchase] = house.deals.history(purchase)
    import_log(empty, export(database))
    with opened(empty) as other:
        moved = House(empty, other)
        moved.books, moved.mailer = house.books, house.mailer  # the gateway and the mail server are the same
        moved.managers = [
            Payment(moved.deals, moved.books),
            PurchaseMail(moved.deals, moved.contacts, moved.mailer, "finaz.invalid"),
        ]
        for row in execute(database, "SELECT contact_id, purchase_id, address FROM finaz.contacts"):
            execute(empty, "INSERT INTO finaz.contacts (contact_id, purchase_id, address) VALUES (%s, %s, %s)", *row)
        moved.work()
        moved.clock.advance(3600)
        moved.work()
        for purchase, history in histories.items():
            assert [e.event for e in moved.deals.history(purchase)] == [e.event for e in history]
        assert (moved.state(asked), moved.state(waiting)) == (SagaState.CONFIRMED, SagaState.CONFIRMED)
        done = {intent_id_of(purchase) for purchase in (sold, declined)}
        assert not [call for call in house.books.calls[calls:] if call[1] in done]
        assert house.books.second_charges == {}
        assert len(house.mailer.mails) == mails + 2
        assert audit(other, house.books).differences == ()
        mark = other.high_water_mark()
        moved.work()
        assert other.high_water_mark() == mark


def test_a_log_at_rest_stays_at_rest(database: str, log: Log, empty: str, tmp_path: Path) -> None:
    """Recovered runs are not recovered again, verified ones not complained of, though no read model has come anywhere yet."""
    system = System(database, log, tmp_path)
    for number in range(3):
        system.succeeded(number)
    orphan, _waiting = request(log, 11), request(log, 12)
    start(log, orphan, ttl_seconds=0.05)
    with Desk(database, log, OrphanRecovery(log)):
        until(lambda: RunRequeued.topic in topics(log, orphan))
    lines = export(database)
    import_log(empty, lines)
    with opened(empty) as other:
        moved = System(empty, other, tmp_path)
        with (
            Desk(empty, other, OrphanRecovery(other)) as recovery,
            Desk(empty, other, Reconciler(other, moved.reconciliation)) as reconciler,
        ):
            until(lambda: "command_issued" in reconciler.names())
            until(lambda: sum(r[1].get("command") == "verify" for r in reconciler.reports) == 3)
            until(lambda: position(other) == len(lines) - 1)
        assert other.high_water_mark() == len(lines) - 1
        assert "command_issued" not in recovery.names()
