"""The committer: one thread, one connection, one call of the append function per group of appends.

What must stay true: an acknowledged append is committed; each append is all or nothing; a refusal reaches only its caller. No two
appends that depend on each other (one stream, one tracking name, a lease that one of them changes) share a call; such appends
keep the order in which they were asked for. A connection lost at any moment, also between COMMIT and the answer, is replaced and
the same call made again: the function recognises what is stored by its event ids. That goes on for a bounded time, then the callers
get `StoreUnavailableError`: the outcome is unknown, and making the same append again is safe.

A group that the database refuses as a whole (a bug, or text that it cannot take) is made again one append at a time, so that
only the culprit's caller hears of it. A crash leaves every append committed or not at all.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from domain.errors import (
    FinazError,
    LeaseHeldError,
    PositionConflictError,
    StaleFenceError,
    StoreUnavailableError,
    VersionConflictError,
)
from projections.statements import statements
from services.ports import Appended
from services.store.connections import AWAY, LACKING, Connection, Row, connect, lacking
from services.store.group import Group, Ticket
from services.store.prepared import ITEM_SEPARATOR, NO_ITEM, Prepared

QUEUE_APPENDS_MAX: Final = 10_000
"""Appends that may wait; one more is refused with `OverloadedError`."""

GROUP_APPENDS_MAX: Final = 128
"""Appends of one call. More would not be faster: while one group is in the database, callers prepare the next."""

GROUP_EVENTS_MAX: Final = 8192
"""Events of one call; a larger append goes alone."""

GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Characters of documents in one call; a larger append goes alone."""

DEFERRED_MAX: Final = 1000
"""Appends that one search for a group steps over because they depend on an earlier one."""

RETRY_SECONDS_MAX: Final = 20.0
"""Seconds for which a group is tried again while the database is away."""

BACKOFF_SECONDS: Final = 0.02
BACKOFF_SECONDS_MAX: Final = 1.0
"""Pauses between two tries: doubled from the first to the second."""

CALL_SECONDS_MAX: Final = 30
"""Seconds that one call may take in the database, the wait for the append lock included."""

AppendTicket: TypeAlias = Ticket[Prepared, Appended]
BeforeAnswer: TypeAlias = Callable[[], None]

_APPEND: Final = statements("services.store", "statements.sql")["append"]
_log: Final = logging.getLogger("finaz.store")

_AGAIN: Final = (*AWAY, errors.SerializationFailure, errors.DeadlockDetected)


class Committer:
    """Commits appends in groups. `append` blocks, `append_soon` gives a future of the running event loop.

    `after_call` is a test hook, called when the database has committed and before anybody is told; raising one of psycopg's
    errors there stands for an answer that was lost.
    """

    def __init__(
        self, dsn: str, *, retry_seconds_max: float = RETRY_SECONDS_MAX, queue_max: int = QUEUE_APPENDS_MAX
    ) -> None:
        self.after_call: BeforeAnswer | None = None
        self._dsn = dsn
        self._retry_seconds_max = retry_seconds_max
        self._connection: Connection | None = None
        self._closing = threading.Event()
        self._group: Group[Prepared, Appended] = Group("committer", take, self._commit, queue_max=queue_max)
        self.append = self._group.ask
        self.append_soon = self._group.ask_soon

    def __len__(self) -> int:
        """Appends that wait."""
        return len(self._group)

    @property
    def restarts(self) -> int:
        """How often the thread died and was replaced."""
        return self._group.restarts

    def close(self) -> None:
        """Commit what has queued, then end. A database that is away is not waited for any longer."""
        self._closing.set()
        self._group.close()
        self._disconnect()

    # ---------------------------------------------------------------- in the thread

    def _commit(self, tickets: list[AppendTicket]) -> None:
        try:
            row = self._call([ticket.request for ticket in tickets])
        except StoreUnavailableError as error:
            for ticket in tickets:
                ticket.error = error
        except psycopg.Error as error:
            if len(tickets) > 1:
                for ticket in tickets:
                    self._commit([ticket])
            else:
                tickets[0].error = _defect(error)
        else:
            _judge(tickets, row)

    def _call(self, appends: Sequence[Prepared]) -> Row:
        arguments = arrays(appends)
        started = time.monotonic()
        pause = BACKOFF_SECONDS
        while True:
            try:
                if self._connection is None:
                    self._connection = connect(self._dsn, CALL_SECONDS_MAX)
                row = self._connection.execute(_APPEND, arguments, prepare=True).fetchone()
                assert row is not None
                if self.after_call is not None:
                    self.after_call()
                return row
            except (
                errors.ProgramLimitExceeded
            ):  # an OperationalError, and yet the fault of what was sent, not of the server
                self._disconnect()
                raise
            except _AGAIN as error:
                self._disconnect()
                if self._closing.is_set() or time.monotonic() - started + pause > self._retry_seconds_max:
                    raise StoreUnavailableError(
                        f"the database cannot be reached, the outcome is unknown: {error}".strip()
                    ) from error
                _log.warning("appending again in %.2f s: %s", pause, error)
                self._closing.wait(pause)
                pause = min(pause * 2, BACKOFF_SECONDS_MAX)
            except BaseException:
                self._disconnect()  # whatever state it is in
                raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def take(queue: "deque[AppendTicket]") -> list[AppendTicket]:
    """Move the next group out of the queue: in order, stepping over what depends on an earlier one that waits or goes now."""
    group: list[AppendTicket] = []
    deferred: list[AppendTicket] = []
    written: set[str | tuple[str, str]] = set()
    read: set[str | tuple[str, str]] = set()
    events = size = 0
    while queue and len(group) < GROUP_APPENDS_MAX and len(deferred) < DEFERRED_MAX:
        ticket = queue.popleft()
        wanted = ticket.request
        depends = not written.isdisjoint(wanted.writes) or not read.isdisjoint(wanted.writes) or wanted.read in written
        written |= wanted.writes
        if wanted.read is not None:
            read.add(wanted.read)
        if depends:
            deferred.append(ticket)
            continue
        events += len(wanted.events)
        size += wanted.size
        if group and (events > GROUP_EVENTS_MAX or size > GROUP_BYTES_MAX):
            queue.appendleft(ticket)
            break
        group.append(ticket)
    queue.extendleft(reversed(deferred))
    return group


def arrays(appends: Sequence[Prepared]) -> list[str | None]:
    """The arguments of the `append` statement: each list as one text, as the statement takes it apart."""
    events = [event for append in appends for event in append.events]
    numbers: list[int] = []
    causations: list[str | None] = []
    correlations: list[str | None] = []
    principals: list[str | None] = []
    leases: list[tuple[Any, ...]] = []
    outbox: list[tuple[Any, ...]] = []
    for number, append in enumerate(appends, 1):
        first = len(numbers) + 1
        count = len(append.events)
        if count == 1:
            numbers.append(number)
            causations.append(append.causation)
            correlations.append(append.correlation)
            principals.append(append.principal)
        else:
            numbers += [number] * count
            causations += [append.causation] * count
            correlations += [append.correlation] * count
            principals += [append.principal] * count
        if append.leases:
            leases += [(number, first + lease[0], *lease[1:]) for lease in append.leases]
        if append.outbox:
            outbox += [(first + item[0], *item[1:]) for item in append.outbox]
    streams, versions, ids, topics, states = zip(*events, strict=True) if events else ((), (), (), (), ())
    lease_columns = list(zip(*leases, strict=True)) if leases else [()] * 7
    outbox_columns = list(zip(*outbox, strict=True)) if outbox else [()] * 7
    return [
        _plain([a.guard_kind for a in appends]),
        _texts_or_null([a.guard_resource for a in appends]),
        _texts_or_null([a.guard_owner for a in appends]),
        _plain_or_null([a.guard_token for a in appends]),
        _texts_or_null([a.tracking.name if a.tracking is not None else None for a in appends]),
        _plain_or_null([a.tracking.position if a.tracking is not None else None for a in appends]),
        _plain_or_null([a.append_id for a in appends]),
        _plain(numbers),
        ITEM_SEPARATOR.join(streams),
        _plain(versions),
        _plain(ids),
        ITEM_SEPARATOR.join(topics),
        ITEM_SEPARATOR.join(states),
        _plain_or_null(causations),
        _texts_or_null(correlations),
        _texts_or_null(principals),
        _plain(lease_columns[0]),
        _plain(lease_columns[1]),
        ITEM_SEPARATOR.join(lease_columns[2]),
        ITEM_SEPARATOR.join(lease_columns[3]),
        _plain(lease_columns[4]),
        _plain_or_null(lease_columns[5]),
        _plain(lease_columns[6]),
        _plain(outbox_columns[0]),
        ITEM_SEPARATOR.join(outbox_columns[1]),
        ITEM_SEPARATOR.join(outbox_columns[2]),
        ITEM_SEPARATOR.join(outbox_columns[3]),
        _plain(outbox_columns[4]),
        _texts_or_null(outbox_columns[5]),
        _plain_or_null(outbox_columns[6]),
    ]


def _plain(items: Sequence[Any]) -> str:
    return "{" + ",".join(map(str, items)) + "}"


def _plain_or_null(items: Sequence[Any]) -> str | None:
    if all(item is None for item in items):
        return None
    return "{" + ",".join(["NULL" if item is None else str(item) for item in items]) + "}"


def _texts_or_null(items: Sequence[str | None]) -> str | None:
    """None where all items are: the function then doesn't even look."""
    if all(item is None for item in items):
        return None
    return ITEM_SEPARATOR.join([NO_ITEM if item is None else item for item in items])


# -------------------------------------------------------------------- verdicts


def _judge(tickets: list[AppendTicket], row: Row) -> None:
    """Turn the function's verdicts into answers and errors."""
    position, recorded_at, verdicts, repeated_positions, repeated_at = row
    recorded_at = recorded_at.astimezone(UTC)
    for index, (ticket, verdict) in enumerate(zip(tickets, verdicts, strict=True)):
        if verdict == 0:
            position += len(ticket.request.events)
            ticket.answer = Appended(position=position, recorded_at=recorded_at)
        elif verdict == 1:
            known = repeated_positions[index] if repeated_positions is not None else None
            ticket.answer = Appended(
                position=row[0] if known is None else known,
                recorded_at=recorded_at if known is None else repeated_at[index].astimezone(UTC),
                repeated=True,
            )
        else:
            ticket.error = _refusal(verdict, ticket.request)


def _refusal(verdict: int, append: Prepared) -> FinazError:
    streams = ", ".join(dict.fromkeys(event[0] for event in append.events[:10]))
    match verdict:
        case 2:
            return VersionConflictError("the stream is not at the version expected: read it again", at=streams)
        case 3:
            return StaleFenceError(
                f"token {append.guard_token} no longer holds for {append.guard_resource}", at=append.guard_resource
            )
        case 4:
            return LeaseHeldError(
                f"the lease of {append.guard_resource} is held by another owner", at=append.guard_resource
            )
        case 5:
            assert append.tracking is not None
            return PositionConflictError(
                f"position {append.tracking.position} was processed already", at=append.tracking.name
            )
        case 6:
            return VersionConflictError("a part of the append is stored already", at=streams)
    return FinazError(f"unknown verdict {verdict}")


def _defect(error: psycopg.Error) -> FinazError:
    if isinstance(error, LACKING):
        return lacking(error)
    defect = FinazError(f"the database refused the append: {error}".strip())
    defect.__cause__ = error
    return defect
