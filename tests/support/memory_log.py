"""A log in memory with a clock that tests move: the rules of the append function in plain Python.

It passes the same conformance suite as the real one, so a unit test on it says something about both. One process, no durability.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from domain.canonical import canonical, parse
from domain.errors import LeaseHeldError, PositionConflictError, StaleFenceError, VersionConflictError
from domain.events import Recorded, decode, encode
from projections.leases.guard import guard_change
from services.ports import Append, Appended, Fence, Guard, StreamsRead, Tracking
from services.store.states import Fold, StateRead

S = TypeVar("S")

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class GuardRow(msgspec.Struct):
    """What the lease guard knows of one resource."""

    owner: str
    token: int
    expires_at: datetime
    released: bool

    def is_live(self, now: datetime) -> bool:
        return not self.released and now < self.expires_at


class MemoryLog:
    """An `EventLog` in memory. `advance(seconds)` moves its clock, which stands still otherwise."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now
        self._events: list[Recorded] = []
        self._streams: dict[str, list[Recorded]] = {}
        self._by_id: dict[UUID, Recorded] = {}
        self._guards: dict[str, GuardRow] = {}
        self._tracking: dict[str, int] = {}
        self._snapshots: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._lock = threading.RLock()

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += timedelta(seconds=seconds)

    async def append(self, append: Append) -> Appended:
        return self.append_blocking(append)

    def append_blocking(self, append: Append) -> Appended:
        with self._lock:
            repeated = self._repeated(append)
            if repeated is not None:
                return repeated
            self._check_guard(append.guard)
            self._check_versions(append)
            self._check_tracking(append.tracking)
            return self._store(append)

    async def read_streams(self, streams: Sequence[str]) -> StreamsRead:
        return self.read_streams_blocking(streams)

    def read_streams_blocking(self, streams: Sequence[str]) -> StreamsRead:
        with self._lock:
            found: Mapping[str, Sequence[Recorded]] = {name: tuple(self._streams.get(name, ())) for name in streams}
            return StreamsRead(streams=found, now=self._now)

    def read_state_blocking(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """As the real log reads it, with a snapshot that is taken each time and goes through its document."""
        with self._lock:
            events = self._streams.get(stream, ())
            version, document = self._snapshots.get((stream, fold.topic), (0, None))
            state = fold.initial(stream) if document is None else fold.from_document(parse(document))
            for recorded in events[version:]:
                state = fold.evolve(state, recorded)
            if len(events) > version:
                self._snapshots[stream, fold.topic] = (len(events), canonical(fold.to_document(state)))
            return StateRead(state=state, version=len(events), now=self._now, from_version=version)

    def read_log(self, after: int, limit: int, topics: Sequence[str] = ()) -> Sequence[Recorded]:
        with self._lock:
            wanted = [e for e in self._events[after:] if not topics or e.event.topic in topics]
            return wanted[:limit]

    def high_water_mark(self) -> int:
        return len(self._events)

    def now(self) -> datetime:
        return self._now

    # ---------------------------------------------------------------- the rules of the append function

    def _repeated(self, append: Append) -> Appended | None:
        stored = [self._by_id[new.event_id] for new in append.events if new.event_id in self._by_id]
        if not stored:
            return None
        if len(stored) < len(append.events):
            raise VersionConflictError("a part of the append is stored already", at=stored[0].stream)
        return Appended(position=stored[-1].position, recorded_at=stored[-1].recorded_at, repeated=True)

    def _check_guard(self, guard: Guard | None) -> None:
        if guard is None:
            return
        row = self._guards.get(guard.resource)
        live = row is not None and row.is_live(self._now)
        token = row.token if row else 0
        if isinstance(guard, Fence):
            if row is None or not live or row.owner != guard.owner or token != guard.token:
                raise StaleFenceError("the fence is stale", at=guard.resource, token=token)
        elif live:
            raise LeaseHeldError("the lease is live", at=guard.resource, token=token)
        elif token != guard.token:
            raise StaleFenceError("the token has moved on", at=guard.resource, token=token)

    def _check_versions(self, append: Append) -> None:
        versions: dict[str, int] = {}
        for new in append.events:
            current = versions.get(new.stream, len(self._streams.get(new.stream, ())))
            if new.version != current + 1:
                raise VersionConflictError("the stream has moved on", at=new.stream, expected=f"version {current + 1}")
            versions[new.stream] = new.version

    def _check_tracking(self, tracking: Tracking | None) -> None:
        if tracking is not None and self._tracking.get(tracking.name, 0) >= tracking.position:
            raise PositionConflictError("the position was reached before", at=tracking.name)

    def _store(self, append: Append) -> Appended:
        documents: list[tuple[Any, bytes]] = [(new, encode(new.event)) for new in append.events]
        for new, document in documents:
            recorded = Recorded(
                position=len(self._events) + 1,
                stream=new.stream,
                version=new.version,
                event_id=new.event_id,
                recorded_at=self._now,
                event=decode(new.event.topic, document),
                metadata=append.metadata,
            )
            self._events.append(recorded)
            self._streams.setdefault(new.stream, []).append(recorded)
            self._by_id[new.event_id] = recorded
            self._move_guard(recorded)
        if append.tracking is not None:
            self._tracking[append.tracking.name] = append.tracking.position
        return Appended(position=len(self._events), recorded_at=self._now)

    def _move_guard(self, recorded: Recorded) -> None:
        change = guard_change(recorded.event)
        if change is None:
            return
        row = self._guards.get(change.resource)
        if change.ttl_seconds is not None:
            expires_at = recorded.recorded_at + timedelta(seconds=change.ttl_seconds)
        else:
            expires_at = row.expires_at if row else recorded.recorded_at
        self._guards[change.resource] = GuardRow(change.owner, change.token, expires_at, change.released)
