"""The relay: takes notices from the outbox, tells them to others, and records that it did.

`PaymentSucceeded` and `ReservationCancelled` are items of the outbox (kind `notice`), pending until `NoticeDelivered` is appended.
With a broker they are published to a topic; without one, the log itself is where consumers read them (sales per day does, by a
position of its own), and the relay only records it.

What must stay true: told at least once, in no particular order; a consumer knows a repetition by the notice's id. A crash between
telling and recording tells again. The relay never touches a purchase, and no purchase waits for it.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from domain.errors import VersionConflictError
from domain.events import Metadata
from domain.purchases.deal import PAYMENT_SUCCEEDED, RESERVATION_CANCELLED
from domain.purchases.identity import notice_stream
from domain.purchases.messages import NoticeDelivered, NoticePosted
from projections.outbox.projection import KIND_NOTICE
from projections.runner import POLL_SECONDS, RETRY_SECONDS, Report, unheard
from services import effects
from services.event_ids import new_event_id
from services.ports import Append, EventLog, NewEvent

NAME: Final = "notice_relay"
LANES: Final = (PAYMENT_SUCCEEDED, RESERVATION_CANCELLED)

BATCH_MAX: Final = 50
"""Notices taken at once."""

RESERVE_SECONDS: Final = 15.0
"""How long taken notices are kept from another relay."""


class Teller(Protocol):
    """Tells others. `via` names the way, for the record."""

    via: str

    def tell(self, notices: Sequence[NoticePosted]) -> None:
        """Return when all are where consumers find them. Raises what is infrastructure's; then some may be there."""
        ...


class LogTeller:
    """Consumers read the log: there is nothing to do."""

    via = "log"

    def tell(self, notices: Sequence[NoticePosted]) -> None:
        """Nothing: they stand in the log."""


class NoticeQueue(Protocol):
    """The outbox, as the relay sees it (`services.store.work_queue.OutboxQueue`)."""

    def reserve_blocking(
        self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float
    ) -> Sequence[str]: ...

    def release_blocking(self, kind: str, keys: Sequence[str], owner: str) -> None: ...


class NoticeRelay:
    """Runs like a projection's runner: `run` is the body of a thread, `wake` and `stop` may be called from any other."""

    name = NAME
    progress: Any = None

    def __init__(
        self,
        log: EventLog,
        queue: NoticeQueue,
        teller: Teller,
        owner: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        report: Report = unheard,
    ) -> None:
        self._log = log
        self._queue = queue
        self._teller = teller
        self._owner = owner
        self._poll_seconds = poll_seconds
        self._report = report
        self._wake = threading.Event()
        self._stopping = False

    def run_once(self) -> int:
        """Tell what is pending, at most `BATCH_MAX`; how many were taken."""
        keys = self._queue.reserve_blocking(KIND_NOTICE, LANES, BATCH_MAX, self._owner, RESERVE_SECONDS)
        if not keys:
            return 0
        try:
            streams = [notice_stream(key) for key in keys]
            read = self._log.read_streams_blocking(streams).streams
            pending = [read[stream][0] for stream in streams if len(read[stream]) == 1]
            notices = [recorded.event for recorded in pending if isinstance(recorded.event, NoticePosted)]
            self._teller.tell(notices)
            for recorded, notice in zip(pending, notices, strict=True):
                self._record(notice, recorded.event_id)
        finally:
            self._queue.release_blocking(KIND_NOTICE, keys, self._owner)
        return len(keys)

    def _record(self, notice: NoticePosted, cause: Any) -> None:
        event = NoticeDelivered(notice_id=notice.notice_id, via=self._teller.via)
        append = Append(
            events=(NewEvent(notice_stream(notice.notice_id), 2, event, new_event_id()),),
            metadata=Metadata(causation_id=cause, correlation_id=notice.purchase_id),
        )
        try:
            effects.append_blocking(self._log, append)
        except VersionConflictError:
            return  # another relay has recorded it

    # ---------------------------------------------------------------- the loop

    def run(self) -> None:
        """Tell until `stop`. Raises nothing: whatever goes wrong is reported and tried again."""
        failures = 0
        while not self._stopping:
            self._wake.clear()
            try:
                taken = self.run_once()
                failures = 0
                wait = 0.0 if taken == BATCH_MAX else self._poll_seconds
            except Exception as error:  # the last resort of a supervised loop: no error may end it
                wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                details: Mapping[str, Any] = {"projection": NAME, "error": str(error), "kind": type(error).__name__}
                self._report("relay_retrying", details)
            if wait and not self._stopping:
                self._wake.wait(wait)

    def wake(self) -> None:
        """Something was appended: look now."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the batch at hand."""
        self._stopping = True
        self._wake.set()

    def interrupt(self) -> None:
        """Nothing is cut off: what was told and not recorded is told again."""


def document_of(notice: NoticePosted) -> bytes:
    """What consumers of a topic read: the notice as JSON."""
    return msgspec.json.encode({"name": notice.name, **msgspec.to_builtins(notice)})
