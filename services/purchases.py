"""Purchases, the use cases: put a show on sale, buy, look, settle, take in what the gateway tells by itself.

What must stay true: the claim of the idempotency key, the seats, the reservation and the saga are one append, so a refused
reservation leaves nothing (no saga, no charge, no message) and burns no key; nothing remote is called inside a request; whether a
seat is free is read from its own stream, never from a read model. A crash leaves the append whole or not at all.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from domain.admission.aggregate import Admission
from domain.admission.aggregate import decide as decide_admission
from domain.admission.aggregate import evolve as evolve_admission
from domain.admission.messages import ClaimKey
from domain.errors import IdempotencyKeyReusedError, VersionConflictError
from domain.events import Metadata, Recorded
from domain.identity import admission_stream, checked_key, checked_principal
from domain.purchases.deal import Placed, start
from domain.purchases.errors import PurchaseNotFoundError, ShowNotFoundError, WebhookSignatureError
from domain.purchases.identity import (
    PURCHASE_ID,
    purchase_id_of,
    purchase_stream,
    seat_stream,
    show_id_of,
    show_stream,
)
from domain.purchases.messages import (
    EvidenceRecorded,
    PurchaseAlertRaised,
    PurchaseSettled,
    PurchaseStarted,
    RecordEvidence,
    SagaTransition,
    Settlement,
    SettlePurchase,
    StartPurchase,
)
from domain.purchases.messages_seats import ShowCreated
from domain.purchases.next_action import next_action
from domain.purchases.saga import Saga, fold_saga
from domain.purchases.seats import fold_seat, offers, total_of
from services import effects
from services.business_clock import BusinessClock
from services.contacts import Contacts
from services.deals import Deals, numbered
from services.gateway import WebhookReader
from services.ports import Append, EventLog
from services.purchase_requests import PurchaseBody, ShowBody, purchase_hash, show_hash

SHOWS_CREATE: Final = "shows.create"
PURCHASES_CREATE: Final = "purchases.create"
"""Operations, which scope idempotency keys."""

TRIES_MAX: Final = 8
"""How often seats are looked at anew because somebody was faster, before a buyer is told."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a key stands for; `replayed` tells that it had been used before, for this body."""

    subject_id: str
    position: int
    replayed: bool


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a purchase: `at` by the business clock where it was decided by it, else by the database's."""

    at: datetime
    what: str
    detail: str
    position: int


class NextAction(msgspec.Struct, frozen=True, kw_only=True):
    """What happens next by itself, and not before when."""

    action: str
    due_at: datetime


class PurchaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase as its own events have it. `next_action` is null at an end, and while only an operator can go on."""

    purchase_id: str
    state: str
    show_id: str
    seats: tuple[str, ...]
    amount_minor: int
    currency: str
    principal: str
    intent_id: str
    alerts: tuple[str, ...]
    charged: bool
    refunded: bool
    next_action: NextAction | None
    timeline: tuple[TimelineEntry, ...]
    position: int


class Purchases:
    """The use cases. Those of buyers are for one event loop; the rest runs in threads."""

    def __init__(
        self, log: EventLog, clock: BusinessClock, contacts: Contacts, webhooks: WebhookReader | None = None
    ) -> None:
        self._log = log
        self._clock = clock
        self._contacts = contacts
        self._webhooks = webhooks
        self._deals = Deals(log, clock)

    # ---------------------------------------------------------------- shows

    async def create_show(self, principal: str, key: str | None, body: ShowBody) -> Submitted:
        """Put a show on sale, or give the answer that its key was given before. Raises as `start` does for the key."""
        principal, key = checked_principal(principal), checked_key(key)
        body_hash = show_hash(body)
        show_id = show_id_of(principal, SHOWS_CREATE, key, body_hash)
        show = ShowCreated(
            show_id=show_id,
            title=body.title,
            starts_at=body.starts_at,
            currency=body.currency,
            seat_count=len(body.seats),
            hold_seconds=body.hold_seconds,
            principal=principal,
        )
        seats = offers(show, {seat.seat: seat.price_minor for seat in body.seats})
        placed = [Placed(show_stream(show_id), show)]
        placed += (Placed(seat_stream(show_id, offer.seat), offer) for offer in seats)
        claim = _claim(principal, SHOWS_CREATE, key, body_hash, show_id)
        try:
            return Submitted(subject_id=show_id, position=await self._append(claim, placed, {}), replayed=False)
        except VersionConflictError:
            stream, last = admission_stream(principal, SHOWS_CREATE, key), placed[-1].stream
            read = await self._log.read_streams([stream, last])
            decide_admission(_admission(read.streams[stream]), claim)
            position = read.streams[last][0].position  # the append's last, as it was answered then
            return Submitted(subject_id=show_id, position=position, replayed=True)

    # ---------------------------------------------------------------- buying

    async def start(self, principal: str, key: str | None, body: PurchaseBody) -> Submitted:
        """Reserve the seats and begin the saga in one append, or give the answer that the key was given before.

        Raises `ShowNotFoundError`, `SeatUnknownError`, `SeatsTakenError`, `IdempotencyKeyInvalidError`,
        `IdempotencyKeyReusedError`; then nothing was written.
        """
        principal, key = checked_principal(principal), checked_key(key)
        body_hash = purchase_hash(body)
        purchase_id = purchase_id_of(principal, PURCHASES_CREATE, key, body_hash)
        claim = _claim(principal, PURCHASES_CREATE, key, body_hash, purchase_id)
        contact_id: str | None = None
        try:
            for attempt in range(1, TRIES_MAX + 1):
                admission, show, histories = await self._read(claim, body)
                if not decide_admission(_admission(admission), claim):
                    return await asyncio.to_thread(self._replayed, purchase_id, body)
                created = _created(show, body)
                seats = {seat: fold_seat(item.event for item in events) for seat, events in histories.items()}
                total_of(seats, body.show_id)  # before anything is written anywhere
                contact, now = await asyncio.to_thread(self._prepared, contact_id, purchase_id, body)
                contact_id = contact
                until = now + timedelta(seconds=created.hold_seconds)
                placed = start(_start(purchase_id, principal, contact, body), seats, until, now)
                versions = {seat_stream(body.show_id, seat): len(events) for seat, events in histories.items()}
                try:
                    position = await self._append(claim, placed, versions)
                except VersionConflictError:
                    if attempt == TRIES_MAX:
                        raise
                    continue
                contact_id = None  # it is referred to now
                return Submitted(subject_id=purchase_id, position=position, replayed=False)
        finally:
            if contact_id is not None:
                await asyncio.to_thread(self._contacts.remove, contact_id)
        raise AssertionError("unreachable")

    async def _read(
        self, claim: ClaimKey, body: PurchaseBody
    ) -> tuple[Sequence[Recorded], Sequence[Recorded], Mapping[str, Sequence[Recorded]]]:
        """The key's stream, the show's, and the seats' by name, in one look."""
        key = admission_stream(claim.principal, claim.operation, claim.key)
        show = show_stream(body.show_id)
        seats = {seat: seat_stream(body.show_id, seat) for seat in body.seats}
        streams = (await self._log.read_streams([key, show, *seats.values()])).streams
        return streams[key], streams[show], {seat: streams[stream] for seat, stream in seats.items()}

    def _prepared(self, contact_id: str | None, purchase_id: str, body: PurchaseBody) -> tuple[str, datetime]:
        """The reference of the address, written once, and the business clock's instant."""
        return contact_id or self._contacts.put(purchase_id, body.email), self._clock.now()

    def _replayed(self, purchase_id: str, body: PurchaseBody) -> Submitted:
        """The answer of a key that was used before. Another address than then makes it another body."""
        first = self._deals.history(purchase_id)[0]
        assert isinstance(first.event, PurchaseStarted)
        known = self._contacts.address(first.event.contact_id)
        if known is not None and known != body.email:
            raise IdempotencyKeyReusedError(
                "the idempotency key was used with another address",
                at="Idempotency-Key",
                expected="a new key, or the same body",
            )
        return Submitted(subject_id=purchase_id, position=first.position, replayed=True)

    async def _append(self, claim: ClaimKey, placed: Sequence[Placed], versions: Mapping[str, int]) -> int:
        (claimed,) = decide_admission(Admission(), claim)
        key = Placed(admission_stream(claim.principal, claim.operation, claim.key), claimed)
        metadata = Metadata(correlation_id=claim.subject_ids[0], principal=claim.principal)
        append = Append(events=numbered([key, *placed], versions), metadata=metadata)
        return (await effects.append(self._log, append)).position

    # ---------------------------------------------------------------- looking

    async def view(self, purchase_id: str, principal: str | None) -> PurchaseView:
        """A purchase; `principal` None, an operator, sees everybody's and operators' notes. Raises `PurchaseNotFoundError`."""
        stream = purchase_stream(purchase_id)
        history = (await self._log.read_streams([stream])).streams[stream]
        saga = fold_saga(recorded.event for recorded in history)
        if not history or principal not in (None, saga.principal):
            raise PurchaseNotFoundError("there is no such purchase", at=purchase_id[:80], expected="one of your own")
        return view_of(saga, history, notes=principal is None)

    # ---------------------------------------------------------------- operators, and the gateway by itself

    async def settle(self, purchase_id: str, settlement: Settlement, principal: str, note: str) -> PurchaseView:
        """An operator's word. Raises `PurchaseNotFoundError`, `RefusedError` (not in this state), `BodyInvalidError` (the note)."""
        command = SettlePurchase(settlement=settlement, principal=principal, note=note)
        await asyncio.to_thread(self._deals.carry, purchase_id, command, principal)
        return await self.view(purchase_id, None)

    async def hear(self, body: bytes, signature: str | None) -> str:
        """Record what the gateway tells by itself; the purchase's state afterwards.

        Raises `WebhookSignatureError`, `BodyInvalidError`, `PurchaseNotFoundError`.
        """
        if self._webhooks is None:
            raise WebhookSignatureError("no secret is set, so nothing is believed", at="Gateway-Signature")
        event = await asyncio.to_thread(self._webhooks.read, body, signature, lambda: self._log.now().timestamp())
        purchase_id = event.intent_id.removeprefix("int_")
        if PURCHASE_ID.match(purchase_id) is None:
            raise PurchaseNotFoundError(
                "no intent of ours", at=event.intent_id[:80], expected="an intent of a purchase"
            )
        carried = await asyncio.to_thread(self._deals.carry, purchase_id, RecordEvidence(event.answer, event.source))
        return carried.saga.state.value

    async def erase_person(self, address: str) -> tuple[str, ...]:
        """Erase a mail address wherever it stands; the purchases that referred to it."""
        return await asyncio.to_thread(self._contacts.erase, address)


def view_of(saga: Saga, history: Sequence[Recorded], *, notes: bool) -> PurchaseView:
    """The view that a saga's history makes; with `notes`, what is not for buyers: who settled it, what they noted, and why
    the gateway did not answer."""
    due = next_action(recorded.event for recorded in history)
    return PurchaseView(
        purchase_id=saga.purchase_id,
        state=saga.state.value,
        show_id=saga.show_id,
        seats=saga.seats,
        amount_minor=saga.amount_minor,
        currency=saga.currency,
        principal=saga.principal,
        intent_id=saga.intent_id,
        alerts=tuple(sorted(saga.alerts)),
        charged=saga.charged,
        refunded=saga.refunded,
        next_action=None if due is None else NextAction(action=due.action.value, due_at=due.due_at),
        timeline=tuple(_entry(recorded, notes=notes) for recorded in history),
        position=history[-1].position,
    )


def _entry(recorded: Recorded, *, notes: bool) -> TimelineEntry:
    event = recorded.event
    match event:
        case EvidenceRecorded():
            why = f": {event.detail}" if event.detail and notes else ""
            detail = f"{event.operation.value} {event.outcome.value} ({event.source.value}){why}"
        case PurchaseAlertRaised():
            detail = event.alert.value
        case PurchaseSettled():
            detail = event.settlement.value + (f" by {event.principal}: {event.note}" if notes else "")
        case SagaTransition():
            detail = event.reason
        case _:
            detail = getattr(event, "mail", "") or str(getattr(event, "attempt", ""))
    what = event.topic.split(".")[1]
    at: datetime = getattr(event, "decided_at", recorded.recorded_at)
    return TimelineEntry(at=at, what=what, detail=detail, position=recorded.position)


def _start(purchase_id: str, principal: str, contact_id: str, body: PurchaseBody) -> StartPurchase:
    return StartPurchase(
        purchase_id=purchase_id,
        show_id=body.show_id,
        seats=body.seats,
        principal=principal,
        payment_method=body.payment_method,
        contact_id=contact_id,
    )


def _claim(principal: str, operation: str, key: str, body_hash: str, subject_id: str) -> ClaimKey:
    return ClaimKey(principal=principal, operation=operation, key=key, body_hash=body_hash, subject_ids=(subject_id,))


def _admission(history: Sequence[Recorded]) -> Admission:
    admission = Admission()
    for recorded in history:
        admission = evolve_admission(admission, recorded.event)
    return admission


def _created(show: Sequence[Recorded], body: PurchaseBody) -> ShowCreated:
    if not show:
        raise ShowNotFoundError("there is no such show", at="$.show_id", expected="one that is on sale")
    created = show[0].event
    assert isinstance(created, ShowCreated)
    return created
