"""The audit of purchases: nothing is found in what is sound, and each kind of damage is named, whatever else is damaged."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deployment.gateway_books import Books
from domain.events import Recorded
from domain.purchases.identity import intent_id_of
from domain.purchases.ledger import entry
from domain.purchases.messages import (
    EntryKind,
    GatewayAnswer,
    LedgerEntryPosted,
    NoticePosted,
    Operation,
    Outcome,
    PurchaseCompensated,
    PurchaseConfirmed,
)
from domain.purchases.messages_seats import ReservationSold, SeatReleased, SeatSold
from services.purchase_audit import DIFFERENCES_MAX, audit
from tests.support.purchase_rig import Rig


class Sound:
    """Three purchases at their ends: sold, declined, and charged late and refunded; their events can be altered."""

    def __init__(self) -> None:
        rig = Rig()
        show = rig.create_show(4)
        self.sold = rig.buy(show, ("A0",))
        self.declined = rig.buy(show, ("A1",), "charge:decline")
        self.refunded = rig.buy(show, ("A2",), "charge:late")
        rig.turn()
        rig.clock.advance(200)
        rig.settle_down()
        rig.books.settle_late()
        rig.books.tell(intent_id_of(self.refunded))
        rig.settle_down()
        self.books: Books = rig.books
        self.events: list[Recorded] = list(rig.log.read_log(0, 10**6))

    def high_water_mark(self) -> int:
        return len(self.events)

    def read_log(self, after: int, limit: int) -> list[Recorded]:
        placed = [msgspec.structs.replace(one, position=n) for n, one in enumerate(self.events, 1)]
        return placed[after : after + limit]

    def found(self, books: Books | None) -> dict[str, list[str]]:
        """What the audit finds, by purchase."""
        differences: dict[str, list[str]] = {}
        for one in audit(self, books).differences:  # type: ignore[arg-type]
            differences.setdefault(one.purchase_id, []).append(one.what)
        return differences

    def without(self, kind: type[Any], purchase_id: str) -> None:
        """Lose the first event of a kind of a purchase."""
        lost = next(one for one in self.events if isinstance(one.event, kind) and one.event.purchase_id == purchase_id)
        self.events.remove(lost)

    def again(self, kind: type[Any], purchase_id: str) -> None:
        """Have an event twice."""
        self.events += [
            one for one in self.events if isinstance(one.event, kind) and one.event.purchase_id == purchase_id
        ][:1]

    def post(self, kind: EntryKind, purchase_id: str, amount: int) -> None:
        """An entry that nobody decided on."""
        intent = intent_id_of(purchase_id)
        last = self.events[-1]
        event = entry(kind, intent, purchase_id, amount, "EUR")
        self.events.append(msgspec.structs.replace(last, stream=f"ledger/{intent}", event=event))

    def charge_over(self, amount: int) -> None:
        """The sold one's entry is over another amount, balanced all the same."""
        self.without(LedgerEntryPosted, self.sold)
        self.post(EntryKind.CHARGE, self.sold, amount)


def test_a_sound_system_has_no_differences() -> None:
    """With the gateway's books and without."""
    sound = Sound()
    assert (sound.found(sound.books), sound.found(None)) == ({}, {})


DAMAGES: dict[str, tuple[Callable[[Sound], Any], Callable[[Sound], str], str]] = {
    "a sale without its entry": (lambda s: s.without(LedgerEntryPosted, s.sold), lambda s: s.sold, "the ledger False"),
    "an entry nobody charged": (
        lambda s: s.post(EntryKind.CHARGE, s.declined, 1001),
        lambda s: s.declined,
        "the ledger True",
    ),
    "an entry over another amount": (
        lambda s: s.charge_over(1),
        lambda s: s.sold,
        "the seats cost 1000, the ledger has 1",
    ),
    "a sale that was refunded": (
        lambda s: s.post(EntryKind.REFUND, s.sold, 1000),
        lambda s: s.sold,
        "without a charge that stands",
    ),
    "an entry twice": (lambda s: s.again(LedgerEntryPosted, s.sold), lambda s: s.sold, "cannot be folded"),
    "a sale without its seat": (lambda s: s.without(SeatSold, s.sold), lambda s: s.sold, "seat A0 is RESERVED"),
    "a seat kept for nobody": (
        lambda s: s.without(SeatReleased, s.declined),
        lambda s: s.declined,
        "seat A1 is RESERVED",
    ),
    "a seat sold twice": (lambda s: s.again(SeatSold, s.sold), lambda s: s.sold, "is ABSENT for nobody"),
    "a reservation not sold": (
        lambda s: s.without(ReservationSold, s.sold),
        lambda s: s.sold,
        "the reservation is PINNED",
    ),
    "a sale nobody was told of": (
        lambda s: s.without(NoticePosted, s.sold),
        lambda s: s.sold,
        "PaymentSucceeded was told 0 times",
    ),
    "a saga cut short": (lambda s: s.without(PurchaseConfirmed, s.sold), lambda s: s.sold, "the reservation is SOLD"),
    "a saga with a hole": (
        lambda s: s.again(PurchaseCompensated, s.declined),
        lambda s: s.declined,
        "cannot be folded",
    ),
    "a charge the gateway lost": (
        lambda s: s.books.charges.pop(intent_id_of(s.sold)),
        lambda s: s.sold,
        "the gateway says False",
    ),
    "a charge that nobody knows": (
        lambda s: s.books.charges.update({intent_id_of(s.declined): s.books.charges[intent_id_of(s.sold)]}),
        lambda s: s.declined,
        "charged: the gateway says True",
    ),
    "a refund that nobody knows": (
        lambda s: s.books.refunds.update({intent_id_of(s.sold): s.books.refunds[intent_id_of(s.refunded)]}),
        lambda s: s.sold,
        "refunded: the gateway says True",
    ),
    "a refund the gateway lost": (
        lambda s: s.books.refunds.pop(intent_id_of(s.refunded)),
        lambda s: s.refunded,
        "refunded: the gateway says False",
    ),
    "books of a purchase that is gone": (
        lambda s: s.events.__setitem__(slice(None), [one for one in s.events if one.stream != f"purchase/{s.sold}"]),
        lambda s: s.sold,
        "stands there for nobody known",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_kind_of_damage_is_named(damage: str) -> None:
    """With its purchase; and it hides nothing of another damage beside it."""
    plant, whose, what = DAMAGES[damage]
    sound = Sound()
    plant(sound)
    found = sound.found(sound.books)
    assert any(what in one for one in found[whose(sound)]), found
    if whose(sound) != sound.refunded:
        sound.books.refunds.pop(intent_id_of(sound.refunded))
        assert sound.refunded in sound.found(sound.books)


def test_a_silent_gateway_is_asked_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each purchase that it was not asked about is named all the same."""
    monkeypatch.setattr("services.purchase_audit.SILENCES_MAX", 2)
    sound = Sound()
    calls: list[str] = []

    def silent(intent_id: str) -> GatewayAnswer:
        calls.append(intent_id)
        return GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.UNKNOWN, detail="ReadTimeout")

    monkeypatch.setattr(sound.books, "find_charge", silent)
    found = sound.found(sound.books)
    assert len(calls) == 2
    assert {what for whats in found.values() for what in whats} == {
        "the gateway does not answer about it: ReadTimeout",
        "the gateway does not answer about it: not asked, since it was silent 2 times in a row",
    }
    assert len(found) == 3


def test_a_report_has_a_limit() -> None:
    """However much is damaged, a report holds so many differences."""
    sound = Sound()
    orphan = next(one for one in sound.events if isinstance(one.event, LedgerEntryPosted))
    sound.events += [
        msgspec.structs.replace(orphan, stream=f"ledger/int_res_{number:040x}") for number in range(DIFFERENCES_MAX + 5)
    ]
    assert len(audit(sound, None).differences) == DIFFERENCES_MAX  # type: ignore[arg-type]
