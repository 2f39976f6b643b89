"""Purchases: how many come to CONFIRMED in a second, and what contention for seats costs.

Real: the log, the use cases, the payment manager with its table of commands, on an embedded PostgreSQL. The gateway answers at
once from memory, so that what is measured is ours. Reservations are made by many buyers at once in three ways: each at a show of
their own, all at one show but each a seat of their own, and all at one show for ten seats. Beside them, the design that was not
taken: bare appends that reserve different seats of one show through one stream of the show, read again and retried on conflict,
against the same appends without that stream. What must stay true: nothing is left out; at the end the audit compares ledger,
reservations and gateway.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deployment.bench.figures import answer, figure, ratio
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from deployment.gateway_books import Books
from deployment.migrate import migrate
from domain.errors import InfrastructureError, VersionConflictError
from domain.purchases.errors import SeatsTakenError
from domain.purchases.messages_seats import SeatReserved
from projections.inline import INLINE
from projections.postgres import PostgresSession
from projections.runner import run_once
from services.adapters.manager_store import InstanceRows, PostgresCommandQueue
from services.business_clock import DatabaseBusinessClock
from services.contacts import Contacts
from services.deals import Deals
from services.event_ids import new_event_id
from services.ports import Append, NewEvent
from services.process_managers.contract import clock_of
from services.process_managers.instances import instances_of
from services.process_managers.payment import Payment
from services.process_managers.runtime import Dispatcher
from services.purchase_audit import audit
from services.purchase_requests import PurchaseBody, SeatBody, ShowBody
from services.purchases import Purchases
from services.store.application import Log

PURCHASES: Final = 1000
"""Purchases, and buyers, of one trial at scale 1."""

PURCHASES_MIN: Final = 20
BARE_MAX: Final = 64
"""Seats of the comparison of both designs: with one stream, each try reads what all before it wrote."""

BUYERS_AT_ONCE: Final = 64
WANTED_SEATS: Final = 10

_ALONE: Final = "reservations, a show for each buyer"
_SHARED: Final = "reservations, one show, a seat for each buyer"
_FOUGHT: Final = f"answers, one show, everybody wants one of {WANTED_SEATS} seats"
_GUARDED: Final = "bare appends, a stream for each seat"
_ONE_STREAM: Final = "bare appends, one stream for the show"
_NAMES: Final = ("purchases to CONFIRMED", _ALONE, _SHARED, _FOUGHT, _GUARDED, _ONE_STREAM)
_numbers = itertools.count(1)


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """See `registry.py`."""
    count = max(PURCHASES_MIN, round(PURCHASES * scale))
    rates: dict[str, list[float]] = {name: [] for name in _NAMES}
    with EmbeddedPostgres() as server:
        dsn = server.dsn()
        migrate(dsn)
        with Log(dsn, INLINE) as log:
            house = _House(dsn, log)
            for repeat in range(repeats):
                for name, trial in house.trials(count).items():
                    rates[name].append(trial())
                    report(f"purchases {repeat + 1}/{repeats}: {name} {rates[name][-1]:.0f}/s")
            differences = audit(log, house.books).differences
    if differences:
        raise InfrastructureError(f"{len(differences)} differences: {differences[0].what}", at="audit", expected="none")
    kept = ratio(rates[_SHARED], rates[_ALONE])
    return answer(
        f"{count} purchases by {BUYERS_AT_ONCE} buyers at once: how many a second, and what does sharing a show cost?",
        [
            figure("purchases to CONFIRMED", rates["purchases to CONFIRMED"], "1/s"),
            figure(_ALONE, rates[_ALONE], "1/s"),
            figure(_SHARED, rates[_SHARED], "1/s", ratio=kept, against=_ALONE),
            figure(_FOUGHT, rates[_FOUGHT], "1/s", ratio=ratio(rates[_FOUGHT], rates[_ALONE]), against=_ALONE),
            figure(_GUARDED, rates[_GUARDED], "1/s"),
            figure(
                _ONE_STREAM,
                rates[_ONE_STREAM],
                "1/s",
                ratio=ratio(rates[_ONE_STREAM], rates[_GUARDED]),
                against=_GUARDED,
            ),
        ],
        (),
        [
            "The gateway answers from memory; a real one's latency is shared by the manager's threads.",
            f"The two designs are compared over at most {BARE_MAX} seats, without snapshots of states and without backing off.",
            "Seats are streams of their own, so buyers of one show meet only where they want the same seat.",
        ],
        purchases=count,
        buyers_at_once=BUYERS_AT_ONCE,
    )


class _House:
    def __init__(self, dsn: str, log: Log) -> None:
        self._dsn = dsn
        self._log = log
        self._clock = DatabaseBusinessClock(log.pool)
        self._purchases = Purchases(log, self._clock, Contacts(log.pool))
        self.books = Books()

    def trials(self, count: int) -> dict[str, Callable[[], float]]:
        return {
            "purchases to CONFIRMED": lambda: self._confirmed(count),
            _ALONE: lambda: self._reserved(count, shows=count, wanted=lambda n: "A0"),
            _SHARED: lambda: self._reserved(count, shows=1, wanted=lambda n: f"A{n}"),
            _FOUGHT: lambda: self._reserved(count, shows=1, wanted=lambda n: f"A{n % WANTED_SEATS}"),
            _GUARDED: lambda: self._bare(min(count, BARE_MAX), shared=False),
            _ONE_STREAM: lambda: self._bare(min(count, BARE_MAX), shared=True),
        }

    def _confirmed(self, count: int) -> float:
        """Purchases a second from the first reservation to the last CONFIRMED; the manager runs behind the buyers."""
        self._work()
        (show,) = asyncio.run(self._put_on_sale(1, count))
        before = len(self.books.charges)
        began = time.perf_counter()
        asyncio.run(self._buy([show], count, lambda n: f"A{n}"))
        self._work()
        seconds = time.perf_counter() - began
        if len(self.books.charges) != before + count:
            raise InfrastructureError("not every purchase was charged", at="purchases", expected=str(count))
        return count / seconds

    def _reserved(self, count: int, shows: int, wanted: Callable[[int], str]) -> float:
        """Answers a second, reserved or taken."""
        found = asyncio.run(self._put_on_sale(shows, 1 if shows > 1 else count))
        began = time.perf_counter()
        asyncio.run(self._buy(found, count, wanted))
        return count / (time.perf_counter() - began)

    def _bare(self, count: int, *, shared: bool) -> float:
        """Appends a second that reserve different seats; `shared`: each also writes the next version of one stream."""
        show = f"bench-{next(_numbers)}"
        gate = asyncio.Semaphore(BUYERS_AT_ONCE)

        async def one(number: int) -> None:
            event = SeatReserved(show_id=show, seat=f"A{number}", purchase_id="bench")
            async with gate:
                while True:
                    version = len((await self._log.read_streams([f"bench/{show}"])).streams[f"bench/{show}"])
                    events = [NewEvent(f"bench/{show}/A{number}", 1, event, new_event_id())]
                    if shared:
                        events.append(NewEvent(f"bench/{show}", version + 1, event, new_event_id()))
                    try:
                        await self._log.append(Append(events=tuple(events)))
                        return
                    except VersionConflictError:
                        continue

        async def everybody() -> None:
            await asyncio.gather(*map(one, range(count)))

        began = time.perf_counter()
        asyncio.run(everybody())
        return count / (time.perf_counter() - began)

    async def _put_on_sale(self, shows: int, seats: int) -> list[str]:
        body = ShowBody(
            title="bench",
            starts_at=datetime(2026, 6, 5, tzinfo=UTC),
            currency="EUR",
            seats=tuple(SeatBody(seat=f"A{n}", price_minor=1000) for n in range(seats)),
        )
        keys = [f"show-{next(_numbers)}" for _ in range(shows)]
        made = await asyncio.gather(*(self._purchases.create_show("bench", key, body) for key in keys))
        return [show.subject_id for show in made]

    async def _buy(self, shows: Sequence[str], count: int, wanted: Callable[[int], str]) -> None:
        gate = asyncio.Semaphore(BUYERS_AT_ONCE)

        async def one(number: int) -> None:
            body = PurchaseBody(
                show_id=shows[number % len(shows)],
                seats=(wanted(number),),
                payment_method="pm",
                email="bench@example.org",
            )
            async with gate:
                try:
                    await self._purchases.start("bench", f"buy-{next(_numbers)}", body)
                except SeatsTakenError:
                    return

        await asyncio.gather(*map(one, range(count)))

    def _work(self) -> None:
        """Fold and issue until nothing is due."""
        manager = Payment(Deals(self._log, self._clock), self.books)
        model = instances_of(manager)
        queue = PostgresCommandQueue(self._log.pool, manager.name, clock_of(manager))
        session = PostgresSession(self._dsn, model, InstanceRows(manager.name), "bench")
        try:
            session.claim()
            while True:
                mark = self._log.high_water_mark()
                while not run_once(session, model).caught_up:
                    pass
                while Dispatcher(manager, queue, lambda *_: None).run_once() == 0.0:
                    pass
                if self._log.high_water_mark() == mark:
                    return
        finally:
            session.close()
