"""The limits of purchases, and what process managers were given for them: a clock of their own, and several commands at once."""

import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from domain.errors import StoreUnavailableError, UnknownTopicError, VersionConflictError
from domain.events import decode, encode
from domain.purchases.errors import GatewayMissingError, LedgerUnbalancedError, MailRefusedError, MailUnavailableError
from domain.purchases.identity import refund_key_of
from domain.purchases.ledger import Account, entry, evolve
from domain.purchases.messages import (
    Alert,
    AttemptCharge,
    EntryKind,
    GatewayAnswer,
    LedgerEntryPosted,
    LedgerLine,
    Operation,
    Outcome,
    RecordEvidence,
    Source,
)
from domain.purchases.saga import DETAIL_CHARACTERS_MAX, REFUND_DELAYS_SECONDS, SagaState
from services import deals, purchases
from services.mailer import amount_text
from services.process_managers import purchase_mail
from services.process_managers.contract import Clock, Command, Retry, SetAside, Stop, clock_of, threads_of
from services.process_managers.payment import RETRY_SECONDS, Payment
from services.process_managers.runtime import TURN_SECONDS_MAX, Dispatcher, DueCommand
from services.purchase_effects import PURCHASE_POINTS
from tests.support.purchase_rig import Rig


def test_a_decision_is_made_anew_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its caller is told; nothing was written."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), ("A1",))
    tries: list[int] = []

    def faster(append: Any) -> Any:
        tries.append(1)
        raise VersionConflictError("somebody was faster", at="purchase/x")

    monkeypatch.setattr(rig.log, "append_blocking", faster)
    with pytest.raises(VersionConflictError):
        rig.deals.carry(purchase, AttemptCharge())
    assert len(tries) == deals.TRIES_MAX
    tries.clear()
    with pytest.raises(VersionConflictError):
        rig.buy(rig.saga(purchase).show_id, ("A0",), key="other")
    assert len(tries) == purchases.TRIES_MAX


def test_what_a_gateway_says_is_kept_in_bounds() -> None:
    """A detail, an id or a currency of any length is cut."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), ("A1",))
    long = "x" * (DETAIL_CHARACTERS_MAX + 1)
    answer = GatewayAnswer(
        operation=Operation.CHARGE,
        outcome=Outcome.SUCCEEDED,
        amount_minor=7,
        currency=long,
        gateway_id=long,
        detail=long,
    )
    carried = rig.deals.carry(purchase, RecordEvidence(answer, Source.WEBHOOK))
    evidence: Any = carried.events[0]
    assert {len(text) for text in (evidence.currency, evidence.gateway_id, evidence.detail)} == {DETAIL_CHARACTERS_MAX}
    assert carried.saga.state is SagaState.UNKNOWN
    assert Alert.OTHER_AMOUNT.value in carried.saga.alerts


@pytest.mark.parametrize("odd", ["ch_\0", "\0" * 400, "ch_\ud800", "\udcff", "\U0001f3ab" * 301, ""])
@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("operation", list(Operation))
def test_whatever_a_gateway_says_can_be_recorded(odd: str, outcome: Outcome, operation: Operation) -> None:
    """Text that the log cannot hold is replaced: else the answer would be asked for again for ever, and the money stay unknown."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(2), ("A1",))
    saga = rig.saga(purchase)
    for amount, currency in ((saga.amount_minor, saga.currency), (7, odd)):
        answer = GatewayAnswer(
            operation=operation, outcome=outcome, amount_minor=amount, currency=currency, gateway_id=odd, detail=odd
        )
        carried = rig.deals.carry(purchase, RecordEvidence(answer, Source.WEBHOOK))
        for event in carried.events:
            assert decode(event.topic, encode(event)) == event


def test_a_refund_is_asked_for_ever_with_bounded_delays() -> None:
    """The delays grow to an hour and stay there."""
    assert list(REFUND_DELAYS_SECONDS) == sorted(REFUND_DELAYS_SECONDS)
    assert REFUND_DELAYS_SECONDS[-1] == 3600
    assert refund_key_of("int_1") == "refund_int_1"


def test_money_is_never_set_aside_and_mail_is_in_the_end() -> None:
    """The payment manager retries whatever fails, the mail manager gives a mail up after about a week,
    one that the server refused for good after some hours, since somebody has to look at the address."""
    payment: Any = Payment(None, None)  # type: ignore[arg-type]
    assert payment.on_error(RuntimeError("bug"), 10**6) == Retry(RETRY_SECONDS[-1])
    assert payment.on_error(UnknownTopicError("newer"), 1) == Stop()
    mail: Any = purchase_mail.PurchaseMail(None, None, None, "x")  # type: ignore[arg-type]
    assert isinstance(mail.on_error(StoreUnavailableError("away"), purchase_mail.ATTEMPTS_MAX - 1), Retry)
    assert mail.on_error(StoreUnavailableError("away"), purchase_mail.ATTEMPTS_MAX) == SetAside()
    refused = MailRefusedError("the mail server answered 550", at="mail:25")
    assert isinstance(mail.on_error(refused, purchase_mail.REFUSALS_MAX - 1), Retry)
    assert mail.on_error(refused, purchase_mail.REFUSALS_MAX) == SetAside()


def test_without_a_gateway_nothing_is_attempted_and_reservations_expire() -> None:
    """The charge waits, the seat is not pinned, and time frees it; then there is nothing left to ask."""
    rig = Rig()
    show = rig.create_show(2, hold_seconds=100)
    purchase = rig.buy(show, ("A1",))
    manager = Payment(rig.deals, None)
    document = {"purchase_id": purchase, "attempt": 1}
    with pytest.raises(GatewayMissingError):
        manager.execute(Command("charge", document), uuid4())
    assert rig.saga(purchase).charge_attempts == 0
    rig.clock.advance(100)
    manager.execute(Command("expire", document), uuid4())
    assert rig.saga(purchase).state is SagaState.COMPENSATED
    manager.execute(Command("charge", document), uuid4())
    mail = purchase_mail.PurchaseMail(rig.deals, rig.contacts, None, "x")  # type: ignore[arg-type]
    with pytest.raises(MailUnavailableError):
        mail.execute(Command("mail", document), uuid4())


def test_an_entry_sums_to_zero_and_stands_in_its_turn() -> None:
    """One charge, then its inverse; nothing else."""
    charge = entry(EntryKind.CHARGE, "int_1", "res_1", 4500, "EUR")
    refund = entry(EntryKind.REFUND, "int_1", "res_1", 4500, "EUR")
    account = evolve(Account(), charge)
    assert evolve(account, refund).refunded
    for before, wrong in (
        (Account(), refund),
        (account, charge),
        (account, entry(EntryKind.REFUND, "int_1", "res_1", 4499, "EUR")),
        (
            Account(),
            LedgerEntryPosted(
                intent_id="int_1",
                purchase_id="res_1",
                kind=EntryKind.CHARGE,
                currency="EUR",
                lines=(LedgerLine(account="a", amount_minor=1),),
            ),
        ),
    ):
        with pytest.raises(LedgerUnbalancedError):
            evolve(before, wrong)


def test_amounts_for_people() -> None:
    """As many decimals as the currency has: two, none, three, four."""
    assert [amount_text(n, "EUR") for n in (0, 5, 4500, 123456)] == ["0.00 EUR", "0.05 EUR", "45.00 EUR", "1234.56 EUR"]
    assert [amount_text(4507, name) for name in ("JPY", "KWD", "CLF", "XAF")] == [
        "4507 JPY",
        "4.507 KWD",
        "0.4507 CLF",
        "4507 XAF",
    ]


def test_points_come_in_pairs() -> None:
    """Before and after each effect."""
    effects = {name.rsplit(".", 1)[0] for name in PURCHASE_POINTS}
    assert set(PURCHASE_POINTS) == {f"{effect}.{side}" for effect in effects for side in ("before", "after")}


# ------------------------------------------------------------------------------------------------ the runtime, widened


class Many:
    """A manager that takes several commands at once."""

    name = "many"
    categories = ("purchase",)
    threads = 4

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together)
        self.order: list[tuple[str, int]] = []

    def execute(self, command: Command, command_id: UUID) -> None:
        self.order.append((command.document["key"], command.document["n"]))
        if command.name == "meet":
            self.barrier.wait(5)

    def on_error(self, error: Exception, attempts: int) -> Any:
        return Stop() if "stop" in str(error) else Retry(1.0)


class Queue:
    """Gives the commands it was made with."""

    def __init__(self, due: list[DueCommand]) -> None:
        self._due = due
        self.done: list[UUID] = []

    def due(self, limit: int) -> list[DueCommand]:
        return self._due[:limit]

    def next_due_seconds(self) -> float | None:
        return None

    def issued(self, command_ids: Any) -> None:
        self.done += command_ids

    def again(self, *_: Any) -> None: ...

    def retry(self, *_: Any) -> None: ...

    def set_aside(self, *_: Any) -> None: ...


def due(key: str, n: int, name: str = "do") -> DueCommand:
    return DueCommand(command_id=uuid4(), key=key, command=Command(name, {"key": key, "n": n}), attempts=0)


def test_commands_of_several_instances_are_issued_at_once() -> None:
    """They meet, which one after another never could; those of one instance keep their order."""
    items = [due(key, n, "meet" if n == 0 else "do") for n in range(3) for key in ("a", "b", "c", "d")]
    manager, queue = Many(4), Queue(items)
    assert Dispatcher(manager, queue, lambda *_: None).run_once() is None  # type: ignore[arg-type]
    assert sorted(queue.done) == sorted(item.command_id for item in items)
    for key in "abcd":
        assert [n for k, n in manager.order if k == key] == [0, 1, 2]


@pytest.mark.parametrize("commands", [1, 3])
def test_a_manager_gives_signs_of_life_while_its_commands_wait(monkeypatch: pytest.MonkeyPatch, commands: int) -> None:
    """However long a gateway or a mail server takes: else a stand-by would take over and issue the same at the same time."""
    monkeypatch.setattr("services.process_managers.runtime.HEARTBEAT_SECONDS", 0.01)
    manager, answered, signs = Many(1), threading.Event(), []
    manager.execute = lambda command, command_id: None if answered.wait(30) else pytest.fail("no sign of life")  # type: ignore[method-assign]

    def alive() -> None:
        signs.append(threading.current_thread())
        if len(signs) == 5:
            answered.set()

    queue = Queue([due(str(n), 0) for n in range(commands)])
    Dispatcher(manager, queue, lambda *_: None).run_once(alive)  # type: ignore[arg-type]
    assert len(queue.done) == commands
    assert set(signs) == {threading.current_thread()}  # the session is the runner's


def test_a_turn_begins_nothing_once_it_has_lasted_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is due at the next turn."""
    clock = [0.0]
    monkeypatch.setattr("services.process_managers.runtime.time.monotonic", lambda: clock[0])
    manager = Many(1)
    original = manager.execute

    def slow(command: Command, command_id: UUID) -> None:
        original(command, command_id)
        clock[0] += TURN_SECONDS_MAX

    manager.execute = slow  # type: ignore[method-assign]
    items = [due("a", n) for n in range(3)]
    queue = Queue(items)
    Dispatcher(manager, queue, lambda *_: None).run_once()  # type: ignore[arg-type]
    assert manager.order == [("a", 0)]
    assert queue.done == [items[0].command_id]


def test_a_manager_names_its_clock_and_its_threads() -> None:
    """Without a word, the database's clock, and one."""
    payment: Any = Payment(None, None)  # type: ignore[arg-type]
    assert (clock_of(payment), threads_of(payment)) == (Clock.BUSINESS, payment.threads)
    plain: Any = object()
    assert (clock_of(plain), threads_of(plain)) == (Clock.DATABASE, 1)
