"""The library's recorders over our tables: its repository, notification log, subscriptions and snapshot store work on them.

What must stay true: there is one write path; `insert_events` goes through the committer like every append. Refusals for versions
and tracking positions are the library's `IntegrityError`, as its own recorders raise; ours otherwise. `None` means "no bound".
"""

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    ListenNotifySubscription,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
)

from domain.errors import PositionConflictError, VersionConflictError
from domain.events import Metadata
from projections.inline import Inline
from projections.statements import statements
from services.ports import Appended, Guard
from services.ports import Tracking as OurTracking
from services.store.committer import Committer
from services.store.connections import Pool
from services.store.mapper import NO_METADATA, StoredRecord, stored_record
from services.store.notifications import EVENTS, Listener, Waker
from services.store.prepared import Prepared

_SQL: Final = statements("services.store", "statements.sql")
_LAST: Final = 2**63 - 1


class LogRecorder(ProcessRecorder):
    """Application, process and tracking recorder of the library over the log."""

    def __init__(self, committer: Committer, pool: Pool, listener: Listener, inline: Inline) -> None:
        self._committer = committer
        self._pool = pool
        self._listener = listener
        self._inline = inline

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        tracking: Tracking | None = None,
        guard: Guard | None = None,
        metadata: Metadata = NO_METADATA,
        **_: Any,
    ) -> Sequence[int] | None:
        """Append the events as one, and return their positions. Raises `IntegrityError` or what `EventLog.append` raises."""
        if not stored_events and tracking is None:
            return []
        ours = None if tracking is None else OurTracking(tracking.application_name, tracking.notification_id)
        appended = _integrity(lambda: self._committer.append(self._prepare(stored_events, ours, guard, metadata)))
        return list(range(appended.position - len(stored_events) + 1, appended.position + 1))

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Events of one stream, by version."""
        statement = _SQL["select_events_desc" if desc else "select_events"]
        rows = self._pool.rows(statement, _bounds(originator_id, gt, lte, limit))
        return [stored_record(row) for row in rows]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events of the whole log, by position."""
        first = 0 if start is None else start if inclusive_of_start else start + 1
        arguments = {"start": first, "stop": _LAST if stop is None else stop, "limit": limit, "topics": list(topics)}
        statement = _SQL["select_notifications_topics" if topics else "select_notifications"]
        return [stored_record(row) for row in self._pool.rows(statement, arguments)]

    def max_notification_id(self) -> int | None:
        """The last position, None while the log is empty."""
        position: int = self._pool.rows(_SQL["high_water_mark"])[0][0]
        return position or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Events as they come, those after position `gt` first."""
        return LogSubscription(self, gt, topics, self._listener)

    def insert_tracking(self, tracking: Tracking) -> None:
        """Move a tracking position forward. Raises `IntegrityError` where it is there already."""
        self.insert_events([], tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        """The tracking position of that name."""
        rows = self._pool.rows(_SQL["tracking_position"], {"name": application_name})
        return rows[0][0] if rows else None

    def _prepare(
        self, stored: Sequence[StoredEvent], tracking: OurTracking | None, guard: Guard | None, metadata: Metadata
    ) -> Prepared:
        rows = [
            (
                str(event.originator_id),
                event.originator_version,
                (event.event_id if isinstance(event, StoredRecord) else uuid4()).hex,
                event.topic,
                event.state.decode("utf-8"),
            )
            for event in stored
        ]
        prepared = Prepared(rows, guard, tracking, metadata, None if stored else uuid4().hex)
        known = [event.event for event in stored if isinstance(event, StoredRecord) and event.event is not None]
        if known:
            assert len(known) == len(stored), "events of ours and plain stored events in one append"
            prepared.add_inline(known, self._inline)
        return prepared


class SnapshotRecorder(AggregateRecorder):
    """The library's recorder for snapshots: a cache of states, apart from the log."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        """Store snapshots. Raises `IntegrityError` for one that is there."""
        arguments = {
            "streams": [str(event.originator_id) for event in stored_events],
            "versions": [event.originator_version for event in stored_events],
            "topics": [event.topic for event in stored_events],
            "states": [event.state.decode("utf-8") for event in stored_events],
        }
        try:
            self._pool.rows(_SQL["insert_snapshots"], arguments)
        except psycopg.IntegrityError as error:
            raise IntegrityError(str(error)) from error
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Snapshots of one stream, by version."""
        statement = _SQL["select_snapshots_desc" if desc else "select_snapshots"]
        rows = self._pool.rows(statement, _bounds(originator_id, gt, lte, limit))
        return [StoredEvent(stream, version, topic, state.encode("utf-8")) for stream, version, topic, state in rows]


class LogSubscription(ListenNotifySubscription[LogRecorder]):
    """The library's subscription, woken by our listener, which also wakes it when no NOTIFY came."""

    def __init__(self, recorder: LogRecorder, gt: int | None, topics: Sequence[str], listener: Listener) -> None:
        self._waker: Waker = listener.waker(EVENTS)
        super().__init__(recorder, gt, topics)
        self._wake_thread = Thread(target=self._pass_on, name="finaz-subscription", daemon=True)
        self._wake_thread.start()

    def stop(self) -> None:
        """Stop the subscription."""
        self._waker.close()
        super().stop()

    def _pass_on(self) -> None:
        for _ in self._waker.wakes():
            self._has_been_notified.set()


def _bounds(originator_id: UUID | str, gt: int | None, lte: int | None, limit: int | None) -> dict[str, Any]:
    return {
        "stream": str(originator_id),
        "gt": -1 if gt is None else gt,
        "lte": _LAST if lte is None else lte,
        "limit": limit,
    }


def _integrity(append: Callable[[], Appended]) -> Appended:
    try:
        return append()
    except (VersionConflictError, PositionConflictError) as error:
        raise IntegrityError(str(error)) from error
