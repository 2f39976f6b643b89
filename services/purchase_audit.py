"""The audit of purchases: folds every stream of the context from nothing and compares ledger, reservations and the gateway.

What must stay true: it believes no read model; against a sound system it finds nothing; it changes nothing. What the gateway alone
knows (a charge that it never told of) is found here too, since it is asked about every intent.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from domain.errors import FinazError
from domain.events import Event
from domain.purchases.deal import PAYMENT_SUCCEEDED, RESERVATION_CANCELLED
from domain.purchases.identity import intent_id_of, refund_key_of
from domain.purchases.ledger import Account, fold_account
from domain.purchases.messages import GatewayAnswer, NoticePosted, Operation, Outcome
from domain.purchases.saga import Saga, SagaState, fold_saga
from domain.purchases.seats import Reservation, ReservationState, Seat, SeatState, fold_reservation, fold_seat
from services.gateway import Gateway
from services.ports import EventLog

PAGE_EVENTS_MAX: Final = 5000
"""Events read at once."""

DIFFERENCES_MAX: Final = 1000
"""Differences that one report holds."""

SILENCES_MAX: Final = 10
"""Questions in a row that a gateway leaves unanswered before it is asked nothing more: each takes its time."""

_CATEGORIES: Final = frozenset({"purchase", "reservation", "ledger", "seat", "notice"})
_ENDS: Final = (SagaState.CONFIRMED, SagaState.COMPENSATED)


S = TypeVar("S")


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
    """Look at everything up to the log's present end; a stream that cannot be folded is a finding, and the others are looked at."""
    mark = log.high_water_mark()
    asked = None if gateway is None else _Asked(gateway)
    books = _Books(_streams(log, mark))
    purchases = [key for category, key in map(_parted, books.streams) if category == "purchase"]
    found = [
        Difference(purchase_id=purchase_id, what=what)
        for purchase_id in purchases
        for what in _of_purchase(purchase_id, books, asked)
    ]
    found += books.orphans(frozenset(purchases))
    return PurchaseAudit(
        purchases=len(purchases),
        position=mark,
        gateway_asked=gateway is not None,
        differences=tuple((found + books.unfolded)[:DIFFERENCES_MAX]),
    )


class _Books:
    """Every stream of the context, folded when it is asked for; what cannot be folded is `unfolded`, as if nothing were there."""

    def __init__(self, streams: dict[str, list[Event]]) -> None:
        self.streams = streams
        self.unfolded: list[Difference] = []
        self.seats = {
            _parted(name)[1]: self.folded(name, fold_seat, Seat()) for name in streams if _parted(name)[0] == "seat"
        }

    def folded(self, stream: str, fold: Callable[[Sequence[Event]], S], nothing: S) -> S:
        """What the stream's events make."""
        try:
            return fold(self.streams.get(stream, ()))
        except FinazError as error:
            self.unfolded.append(
                Difference(purchase_id=_purchase_of(stream), what=f"{stream} cannot be folded: {error}")
            )
            return nothing

    def orphans(self, known: frozenset[str]) -> list[Difference]:
        """What stands there for purchases that are not known."""
        found = [
            Difference(purchase_id=seat.purchase_id, what=f"seat {name} is {seat.state.value} for nobody known")
            for name, seat in self.seats.items()
            if seat.purchase_id and seat.purchase_id not in known
        ]
        others = ("reservation", "ledger", "notice")
        return found + [
            Difference(purchase_id=_purchase_of(stream), what=f"{stream} stands there for nobody known")
            for stream in self.streams
            if _parted(stream)[0] in others and _purchase_of(stream) not in known
        ]


class _Asked:
    """The gateway's two questions, until it has been silent too often in a row."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._silences = 0

    def find_charge(self, intent_id: str) -> GatewayAnswer:
        return self._ask(Operation.CHARGE, self._gateway.find_charge, intent_id)

    def find_refund(self, refund_key: str) -> GatewayAnswer:
        return self._ask(Operation.REFUND, self._gateway.find_refund, refund_key)

    def _ask(self, operation: Operation, question: Callable[[str], GatewayAnswer], about: str) -> GatewayAnswer:
        if self._silences >= SILENCES_MAX:
            detail = f"not asked, since it was silent {SILENCES_MAX} times in a row"
            return GatewayAnswer(operation=operation, outcome=Outcome.UNKNOWN, detail=detail)
        answer = question(about)
        self._silences = self._silences + 1 if answer.outcome is Outcome.UNKNOWN else 0
        return answer


def _parted(stream: str) -> tuple[str, str]:
    category, _, key = stream.partition("/")
    return category, key


def _purchase_of(stream: str) -> str:
    """The purchase that a stream is about, by its name; of a seat, the seat itself."""
    return _parted(stream)[1].removeprefix("int_").partition(".")[0]


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


def _of_purchase(purchase_id: str, books: _Books, gateway: _Asked | None) -> Iterator[str]:
    saga = books.folded(f"purchase/{purchase_id}", fold_saga, Saga())
    if saga.state is SagaState.ABSENT:
        return
    reservation = books.folded(f"reservation/{purchase_id}", fold_reservation, Reservation())
    account = books.folded(f"ledger/{intent_id_of(purchase_id)}", fold_account, Account())
    yield from _of_books(saga, reservation, account)
    yield from _of_seats(saga, reservation, books.seats)
    yield from _of_notices(saga, books.streams)
    if gateway is not None and saga.state in _ENDS:
        yield from _of_gateway(saga, account, gateway)


def _of_books(saga: Saga, reservation: Reservation, account: Account) -> Iterator[str]:
    if account.charged != saga.charged:
        yield f"charged: the saga says {saga.charged}, the ledger {account.charged}"
    elif account.charged and account.amount_minor != saga.amount_minor:
        yield f"the seats cost {saga.amount_minor}, the ledger has {account.amount_minor}"
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


def _of_gateway(saga: Saga, account: Account, gateway: _Asked) -> Iterator[str]:
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
