"""Purchases in one process, without a database: the real decisions, managers and dispatcher over a log, clock and queue in memory.

A crash is an exception that nothing catches, at one of the fault points; what was not appended or recorded before is lost.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from deployment.gateway_books import Books
from domain.purchases.identity import intent_id_of, ledger_stream, purchase_stream, seat_stream
from domain.purchases.ledger import Account, fold_account
from domain.purchases.messages import GatewayAnswer, RecordEvidence, Source
from domain.purchases.saga import Saga, fold_saga
from domain.purchases.seats import Seat, fold_seat
from services import faultpoints
from services.deals import Deals
from services.mailer import Mail
from services.process_managers.contract import Command, Document, ProcessManager
from services.process_managers.instances import InstanceRow, instances_of
from services.process_managers.payment import Payment
from services.process_managers.purchase_mail import PurchaseMail
from services.process_managers.runtime import Dispatcher, DueCommand
from services.purchase_requests import PurchaseBody, SeatBody, ShowBody
from services.purchases import Purchases
from tests.support.memory_log import START, MemoryLog


class Crash(BaseException):
    """The process dies here."""


class MemoryClock:
    """A business clock that tests move."""

    def __init__(self) -> None:
        self.instant = START

    def now(self) -> datetime:
        return self.instant

    def advance(self, seconds: float) -> None:
        self.instant += timedelta(seconds=seconds)


class MemoryContacts:
    """Contacts in a dictionary."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}

    def put(self, purchase_id: str, address: str) -> str:
        contact_id = f"con_{len(self.addresses)}_{purchase_id[-6:]}"
        self.addresses[contact_id] = address
        return contact_id

    def address(self, contact_id: str) -> str | None:
        return self.addresses.get(contact_id)

    def remove(self, contact_id: str) -> None:
        self.addresses.pop(contact_id, None)

    def erase(self, address: str) -> tuple[str, ...]:
        for contact_id in [known for known, kept in self.addresses.items() if kept == address]:
            del self.addresses[contact_id]
        return ()


class MemoryMailer:
    """Accepts every mail."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []

    def send(self, mail: Mail) -> None:
        self.mails.append(mail)


class _Row(msgspec.Struct):
    key: str
    command: Command
    due_at: datetime
    deadline: bool
    state: str = "pending"
    attempts: int = 0


class MemoryCommands:
    """The table of commands of one manager, by the rules of its SQL."""

    def __init__(self, clock: MemoryClock) -> None:
        self._clock = clock
        self.rows: dict[UUID, _Row] = {}
        self.dead = False
        self.ignored: set[str] = set()
        """Names of commands that get lost."""

    def save(self, row: InstanceRow) -> None:
        kept = {wanted.command_id for wanted in row.deadlines}
        for command_id, known in list(self.rows.items()):
            if known.key == row.key and known.state == "pending" and known.deadline and command_id not in kept:
                del self.rows[command_id]
        for wanted, deadline in [(w, True) for w in row.deadlines] + [(w, False) for w in row.commands]:
            command = Command(wanted.name, wanted.document)
            self.rows.setdefault(wanted.command_id, _Row(row.key, command, wanted.due_at, deadline))

    def due(self, limit: int) -> list[DueCommand]:
        now = self._clock.now()
        due = sorted((r.due_at, str(i), i, r) for i, r in self.rows.items() if r.state == "pending" and r.due_at <= now)
        due = [row for row in due if row[3].command.name not in self.ignored]
        return [
            DueCommand(command_id=i, key=r.key, command=r.command, attempts=r.attempts) for _, _, i, r in due[:limit]
        ]

    def next_due_seconds(self) -> float | None:
        pending = [row.due_at for row in self.rows.values() if row.state == "pending"]
        return max(0.0, (min(pending) - self._clock.now()).total_seconds()) if pending else None

    def issued(self, command_ids: Any) -> None:
        for command_id in () if self.dead else command_ids:
            self.rows[command_id].state = "issued"

    def again(self, command_id: UUID, delay_seconds: float, document: Document) -> None:
        raise AssertionError("no manager of purchases asks for this")

    def retry(self, command_id: UUID, delay_seconds: float, reason: str) -> None:
        row = self.rows[command_id]
        row.attempts += 1
        row.due_at = self._clock.now() + timedelta(seconds=delay_seconds)

    def set_aside(self, command_id: UUID, reason: str) -> None:
        raise AssertionError(reason)


class Follower:
    """One manager's runner: folds what is new, then issues what is due."""

    def __init__(self, log: MemoryLog, manager: ProcessManager, commands: MemoryCommands) -> None:
        self._log = log
        self._model = instances_of(manager)
        self.commands = commands
        self._dispatcher = Dispatcher(manager, commands, lambda *_: None)
        self._rows: dict[str, InstanceRow] = {}
        self._position = 0

    def turn(self) -> float | None:
        for recorded in self._log.read_log(self._position, 1_000_000):
            self._position = recorded.position
            if recorded.stream.partition("/")[0] not in self._model.categories:
                continue
            key = self._model.key_of(recorded.event)
            if key is not None:
                row = self._model.apply(self._rows.get(key), recorded)
                self.commands.save(row)
                self._rows[key] = msgspec.structs.replace(row, commands=())
        return self._dispatcher.run_once()


class Rig:
    """Everything; `buy`, `turn`, `settle_down`, and look at what became of it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.clock = MemoryClock()
        self.books = Books(told=self.hear)
        self.contacts = MemoryContacts()
        self.mailer = MemoryMailer()
        self.deals = Deals(self.log, self.clock)
        self.purchases = Purchases(self.log, self.clock, self.contacts)  # type: ignore[arg-type]
        self.bought: list[str] = []
        self.commands = [MemoryCommands(self.clock), MemoryCommands(self.clock)]
        self._followers: list[Follower] = []
        self.start()

    def start(self) -> None:
        """A new process: what was stored is there, the rest is made again from the log."""
        managers: list[Any] = [
            Payment(self.deals, self.books),
            PurchaseMail(self.deals, self.contacts, self.mailer, "finaz.invalid"),  # type: ignore[arg-type]
        ]
        for manager in managers:
            manager.threads = 1
        for commands in self.commands:
            commands.dead = False
        self._followers = [Follower(self.log, m, c) for m, c in zip(managers, self.commands, strict=True)]

    def create_show(self, seats: int, hold_seconds: int = 900, key: str = "show") -> str:
        body = ShowBody(
            title="Lohengrin",
            starts_at=START,
            currency="EUR",
            seats=tuple(SeatBody(seat=f"A{n}", price_minor=1000 + n) for n in range(seats)),
            hold_seconds=hold_seconds,
        )
        return asyncio.run(self.purchases.create_show("house", key, body)).subject_id

    def buy(self, show_id: str, seats: tuple[str, ...], method: str = "pm", key: str = "", who: str = "ana") -> str:
        body = PurchaseBody(show_id=show_id, seats=seats, payment_method=method, email=f"{who}@example.org")
        key = key or f"key-{len(self.bought)}-{self.log.high_water_mark()}"
        purchase_id = asyncio.run(self.purchases.start(who, key, body)).subject_id
        self.bought.append(purchase_id)
        return purchase_id

    def hear(self, intent_id: str, answer: GatewayAnswer) -> None:
        self.deals.carry(intent_id.removeprefix("int_"), RecordEvidence(answer, Source.WEBHOOK))

    def turn(self, crash: Callable[[str], None] | None = None) -> None:
        """Fold and issue what is due; with `crash`, die where it says so, and start again."""
        try:
            with faultpoints.armed(crash or (lambda _: None)):
                for follower in self._followers:
                    follower.turn()
        except Crash:
            for commands in self.commands:
                commands.dead = True
            self.start()

    def settle_down(self, seconds_max: float = 40 * 86_400, rounds_max: int = 5000) -> None:
        """Let time pass until nothing is due any more."""
        until = self.clock.now() + timedelta(seconds=seconds_max)
        for _ in range(rounds_max):
            mark = self.log.high_water_mark()
            self.turn()
            if self.log.high_water_mark() > mark:
                continue  # what was appended may be due already
            dues = [s for f in self._followers if (s := f.commands.next_due_seconds()) is not None]
            if not dues or self.clock.now() > until:
                return
            self.clock.advance(min(dues))
        raise AssertionError("it does not settle down")

    def saga(self, purchase_id: str) -> Saga:
        stream = purchase_stream(purchase_id)
        return fold_saga(r.event for r in self.log.read_streams_blocking([stream]).streams[stream])

    def account(self, purchase_id: str) -> Account:
        stream = ledger_stream(intent_id_of(purchase_id))
        return fold_account(r.event for r in self.log.read_streams_blocking([stream]).streams[stream])

    def seat(self, show_id: str, seat: str) -> Seat:
        stream = seat_stream(show_id, seat)
        return fold_seat(r.event for r in self.log.read_streams_blocking([stream]).streams[stream])


def crash_at(number: int) -> Callable[[str], None]:
    """Dies at the `number`-th point that is passed."""
    left = [number]

    def handler(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    return handler
