"""Deals: reading everything that one purchase decides on, deciding, and appending it whole; again if somebody was faster.

What must stay true: what is appended was decided on exactly the versions that it follows (else the log refuses it and it is
decided anew), by one instant of the business clock. A crash leaves the append whole or not at all. Blocks.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from domain.errors import VersionConflictError
from domain.events import Event, Metadata, Recorded
from domain.purchases.deal import Deal, Placed, decide
from domain.purchases.errors import PurchaseNotFoundError
from domain.purchases.identity import intent_id_of, ledger_stream, purchase_stream, reservation_stream
from domain.purchases.ledger import fold_account
from domain.purchases.messages import PurchaseCommand
from domain.purchases.saga import Saga, fold_saga
from domain.purchases.seats import fold_reservation
from services import effects
from services.business_clock import BusinessClock
from services.event_ids import new_event_id
from services.ports import Append, EventLog, NewEvent

TRIES_MAX: Final = 8
"""How often a command is decided anew because somebody was faster, before its caller is told."""


R = TypeVar("R")


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command: the saga afterwards, the events that it appended, the last one's position (0: none), and when."""

    saga: Saga
    events: tuple[Event, ...]
    position: int
    decided_at: datetime


class Deals:
    """Reads, decides, appends."""

    def __init__(self, log: EventLog, clock: BusinessClock) -> None:
        self._log = log
        self._clock = clock

    def history(self, purchase_id: str) -> Sequence[Recorded]:
        """The events of the saga. Raises `PurchaseNotFoundError`."""
        stream = purchase_stream(purchase_id)
        return _found(purchase_id, self._log.read_streams_blocking([stream]).streams[stream])

    def carry(self, purchase_id: str, command: PurchaseCommand, principal: str | None = None) -> Carried:
        """Decide the command on the present state and append what follows; nothing is appended for what is no longer called for.

        Raises what `domain.purchases.deal.decide` raises, `PurchaseNotFoundError`, and `VersionConflictError` after `TRIES_MAX`.
        """
        for attempt in range(1, TRIES_MAX + 1):
            try:
                return self._carry_once(purchase_id, command, principal)
            except VersionConflictError:
                if attempt == TRIES_MAX:
                    raise
        raise AssertionError("unreachable")

    def _carry_once(self, purchase_id: str, command: PurchaseCommand, principal: str | None) -> Carried:
        streams = [
            purchase_stream(purchase_id),
            reservation_stream(purchase_id),
            ledger_stream(intent_id_of(purchase_id)),
        ]
        read = self._log.read_streams_blocking(streams).streams
        histories = {stream: read[stream] for stream in streams}
        saga, reservation, account = ([recorded.event for recorded in histories[stream]] for stream in streams)
        _found(purchase_id, saga)
        deal = Deal(fold_saga(saga), fold_reservation(reservation), fold_account(account))
        now = self._clock.now()
        placed = decide(deal, command, now)
        if not placed:
            return Carried(saga=deal.saga, events=(), position=0, decided_at=now)
        versions = {stream: len(events) for stream, events in histories.items()}
        append = Append(
            events=self._numbered(placed, versions),
            metadata=Metadata(
                causation_id=histories[streams[0]][-1].event_id, correlation_id=purchase_id, principal=principal
            ),
        )
        position = effects.append_blocking(self._log, append).position
        events = tuple(item.event for item in placed)
        own = [item.event for item in placed if item.stream == streams[0]]
        return Carried(saga=fold_saga([*saga, *own]), events=events, position=position, decided_at=now)

    def _numbered(self, placed: Sequence[Placed], versions: dict[str, int]) -> tuple[NewEvent, ...]:
        """The events under the next versions of their streams; those not read yet (the seats') are read now."""
        unread = sorted({item.stream for item in placed} - versions.keys())
        if unread:
            read = self._log.read_streams_blocking(unread).streams
            versions = {**versions, **{stream: len(read[stream]) for stream in unread}}
        return numbered(placed, versions)


def numbered(placed: Sequence[Placed], versions: Mapping[str, int]) -> tuple[NewEvent, ...]:
    """The events, in their order, each under the next version of its stream."""
    reached = dict(versions)
    news = []
    for item in placed:
        version = reached[item.stream] = reached.get(item.stream, 0) + 1
        news.append(NewEvent(item.stream, version, item.event, new_event_id()))
    return tuple(news)


def _found(purchase_id: str, history: Sequence[R]) -> Sequence[R]:
    if not history:
        raise PurchaseNotFoundError("there is no such purchase", at=purchase_id[:80], expected="one of your own")
    return history
