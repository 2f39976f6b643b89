"""The audit of purchases: folds every stream of the context from nothing and compares ledger, reservations and the gateway.

What must stay true: it believes no read model; against a sound system it finds nothing; it changes nothing. What the gateway alone
knows (a charge that it never told of) is found here too, since it is asked about every intent.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from domain.events import Event
from domain.purchases.deal import PAYMENT_SUCCEEDED, RESERVATION_CANCELLED
from domain.purchases.identity import intent_id_of, refund_key_of
from domain.purchases.ledger import Account, fold_account
from domain.purchases.messages import NoticePosted, Outcome
from domain.purchases.saga import Saga, SagaState, fold_saga
from domain.purchases.seats import Reservation, ReservationState, Seat, SeatState, fold_reservation, fold_seat
from services.gateway import Gateway
from services.ports import EventLog

PAGE_EVENTS_MAX: Final = 5000
"""Events read at once."""

DIFFERENCES_MAX: Final = 1000
"""Differences that one report holds."""

_CATEGORIES: Final = frozenset({"purchase", "reservation", "ledger", "seat", "notice"})
_ENDS: Final = (SagaState.CONFIRMED, SagaState.COMPENSATED)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two things about a purchase that do not agree."""

    purchase_id: str
    what: str


class PurchaseAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The report: how many purchases were looked at, up to which position, whether the gateway was asked, what does not agree."""

    purchases: int
    position: int
    gateway_asked: bool
    differences: tuple[Difference, ...]


def audit(log: EventLog, gateway: Gateway | None) -> PurchaseAudit:
    """Look at everything up to the log's present end. Raises what a stream that cannot be folded raises."""
    mark = log.high_water_mark()
    streams = _streams(log, mark)
    purchases = [name.partition("/")[2] for name in streams if name.startswith("purchase/")]
    seats = {name.partition("/")[2]: fold_seat(events) for name, events in streams.items() if name.startswith("seat/")}
    found = [
        Difference(purchase_id=purchase_id, what=what)
        for purchase_id in purchases
        for what in _of_purchase(purchase_id, streams, seats, gateway)
    ]
    known = set(purchases)
    found += [
        Difference(purchase_id=seat.purchase_id, what=f"seat {name} is {seat.state.value} for nobody known")
        for name, seat in seats.items()
        if seat.purchase_id and seat.purchase_id not in known
    ]
    return PurchaseAudit(
        purchases=len(purchases),
        position=mark,
        gateway_asked=gateway is not None,
        differences=tuple(found[:DIFFERENCES_MAX]),
    )


def _streams(log: EventLog, mark: int) -> dict[str, list[Event]]:
    streams: dict[str, list[Event]] = defaultdict(list)
    after = 0
    while after < mark:
        page = log.read_log(after, PAGE_EVENTS_MAX)
        if not page:
            break
        for recorded in page:
            if recorded.position <= mark and recorded.stream.partition("/")[0] in _CATEGORIES:
                streams[recorded.stream].append(recorded.event)
        after = page[-1].position
    return streams


def _of_purchase(
    purchase_id: str, streams: dict[str, list[Event]], seats: dict[str, Seat], gateway: Gateway | None
) -> Iterator[str]:
    saga = fold_saga(streams[f"purchase/{purchase_id}"])
    reservation = fold_reservation(streams.get(f"reservation/{purchase_id}", []))
    account = fold_account(streams.get(f"ledger/{intent_id_of(purchase_id)}", []))
    yield from _of_books(saga, reservation, account)
    yield from _of_seats(saga, reservation, seats)
    yield from _of_notices(saga, streams)
    if gateway is not None and saga.state in _ENDS:
        yield from _of_gateway(saga, account, gateway)


def _of_books(saga: Saga, reservation: Reservation, account: Account) -> Iterator[str]:
    if account.charged != saga.charged:
        yield f"charged: the saga says {saga.charged}, the ledger {account.charged}"
    if saga.state is SagaState.CONFIRMED and (not account.charged or account.refunded):
        yield "confirmed without a charge that stands"
    if saga.state is SagaState.COMPENSATED and (account.charged != account.refunded or saga.owed):
        yield "compensated with a charge that was not refunded"
    if saga.state is SagaState.CONFIRMED and saga.owed:
        yield "confirmed with a second charge that was not refunded"
    sold = reservation.state is ReservationState.SOLD
    if sold != (saga.state is SagaState.CONFIRMED):
        yield f"the reservation is {reservation.state.value}, the saga {saga.state.value}"


def _of_seats(saga: Saga, reservation: Reservation, seats: dict[str, Seat]) -> Iterator[str]:
    wanted = {ReservationState.SOLD: SeatState.SOLD}.get(reservation.state, SeatState.RESERVED)
    holds = reservation.holds or reservation.state is ReservationState.SOLD
    for name in saga.seats:
        seat = seats.get(f"{saga.show_id}/{name}", Seat())
        mine = seat.purchase_id == saga.purchase_id
        if holds != mine or (mine and seat.state is not wanted):
            yield f"seat {name} is {seat.state.value} for {seat.purchase_id or 'nobody'}"


def _of_notices(saga: Saga, streams: dict[str, list[Event]]) -> Iterator[str]:
    for name, state in ((PAYMENT_SUCCEEDED, SagaState.CONFIRMED), (RESERVATION_CANCELLED, SagaState.COMPENSATED)):
        events: Sequence[Event] = streams.get(f"notice/{saga.purchase_id}.{name}", ())
        posted = sum(isinstance(event, NoticePosted) for event in events)
        if saga.state in _ENDS and posted != (saga.state is state):
            yield f"{name} was told {posted} times of a purchase that is {saga.state.value}"


def _of_gateway(saga: Saga, account: Account, gateway: Gateway) -> Iterator[str]:
    answer = gateway.find_charge(saga.intent_id)
    refund = gateway.find_refund(refund_key_of(saga.intent_id)) if answer.outcome is not Outcome.UNKNOWN else answer
    if refund.outcome is Outcome.UNKNOWN:
        yield f"the gateway does not answer about it: {refund.detail or 'it gives no reason'}"
        return
    charged = answer.outcome in (Outcome.SUCCEEDED, Outcome.OTHER_AMOUNT)
    if charged != account.charged:
        yield f"charged: the gateway says {charged}, the ledger {account.charged}"
    elif charged and (answer.amount_minor, answer.currency) != (account.amount_minor, saga.currency):
        yield f"the gateway charged {answer.amount_minor} {answer.currency}, the ledger has {account.amount_minor}"
    refunded = refund.outcome in (Outcome.SUCCEEDED, Outcome.OTHER_AMOUNT)
    by_hand = account.refunded and "" in saga.refunds  # an operator's word: it went under no key of ours
    if refunded != account.refunded and not by_hand:
        yield f"refunded: the gateway says {refunded}, the ledger {account.refunded}"
