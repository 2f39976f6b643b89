"""What the services ask of the outside: the event log and the blob store, as Protocols and values.

`Append` is a value that says what should become true; the log's one append function decides, under its lock and by the
database's clock, whether it does. What must stay true: an append is all or nothing over all its streams; it is idempotent by
event id, so the same append made twice (a connection lost after COMMIT) is one; a refusal reaches only its caller.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec

from domain.events import Event, Metadata, Recorded


class NewEvent(msgspec.Struct, frozen=True):
    """An event to be stored as version `version` (1 is the first) of `stream`; `event_id` makes storing it idempotent."""

    stream: str
    version: int
    event: Event
    event_id: UUID

    @property
    def originator_id(self) -> str:
        """The stream, by the library's name."""
        return self.stream

    @property
    def originator_version(self) -> int:
        """The version, by the library's name."""
        return self.version


class Fence(msgspec.Struct, frozen=True):
    """Guard: I am the owner of `resource`, `token` is current, the lease is live (by the database's clock).

    Refused with `StaleFenceError`.
    """

    resource: str
    owner: str
    token: int


class Vacant(msgspec.Struct, frozen=True):
    """Guard: nobody holds a live lease on `resource` and the last token given is `token` (0: never leased).

    Refused with `LeaseHeldError` where a live lease exists, with `StaleFenceError` where the token has moved on.
    """

    resource: str
    token: int


Guard: TypeAlias = Fence | Vacant


class Tracking(msgspec.Struct, frozen=True):
    """Move the tracking position of `name` from below `position` to `position`, in the append's own transaction.

    Refused with `PositionConflictError` if it is there or beyond already.
    """

    name: str
    position: int


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One all-or-nothing append: events over any streams, under at most one guard."""

    events: tuple[NewEvent, ...]
    guard: Guard | None = None
    tracking: Tracking | None = None
    metadata: Metadata = Metadata()


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What an accepted append became. `position` is its last event's; `repeated` tells that it had been stored before."""

    position: int
    recorded_at: datetime
    repeated: bool = False


class StreamsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Streams as one snapshot of the database saw them, and the database's clock then."""

    streams: Mapping[str, Sequence[Recorded]]
    now: datetime


class EventLog(Protocol):
    """The log of all events. Implemented by `services.store.application.Log`.

    Everything raises `StoreUnavailableError` when the database cannot be reached. `append` further raises
    `VersionConflictError` (a stream is not at the version expected), `StaleFenceError`, `LeaseHeldError`,
    `PositionConflictError`; `OverloadedError` when its bounded queue is full. Refused means: nothing of it was written.
    """

    async def append(self, append: Append) -> Appended: ...

    def append_blocking(self, append: Append) -> Appended: ...

    async def read_streams(self, streams: Sequence[str]) -> StreamsRead:
        """All events of each stream, in order (an unknown stream: empty), and the database's clock, in one round trip."""
        ...

    def read_streams_blocking(self, streams: Sequence[str]) -> StreamsRead: ...

    def read_log(self, after: int, limit: int, topics: Sequence[str] = ()) -> Sequence[Recorded]:
        """Up to `limit` events with position > `after`, in order, of the given topics (none: all)."""
        ...

    def high_water_mark(self) -> int:
        """The highest position safe to read: everything at or below it is visible for ever (0: an empty log)."""
        ...

    def now(self) -> datetime:
        """The database's clock."""
        ...


class BlobStore(Protocol):
    """Content-addressed storage. One conformance suite (`tests/conformance`) runs against every implementation."""

    def put(self, data: bytes) -> str:
        """Store the bytes durably and return their address; storing them again changes nothing, and heals a corrupt copy."""
        ...

    def get(self, address: str) -> bytes:
        """The bytes, verified. Raises `BlobMissingError` or `BlobCorruptError`, never anything else for a bad blob."""
        ...

    def has(self, address: str) -> bool:
        """Whether something is stored under the address (not verified)."""
        ...


class WorkQueue(Protocol):
    """What workers take candidates from. A reservation is a hint with a short life: never truth, and no claim."""

    async def reserve(self, kind: str, lanes: Sequence[str], limit: int, owner: str, seconds: float) -> Sequence[str]:
        """Keys of up to `limit` items that are due and that nobody reserved, in queue order; nobody gets them for `seconds`.

        An item that changes while it is reserved (it was requeued, say) is free again. Raises `StoreUnavailableError`.
        """
        ...

    async def release(self, kind: str, keys: Sequence[str], owner: str) -> None:
        """Give reservations back before they end. Raises `StoreUnavailableError`."""
        ...


class Wakeups(Protocol):
    """Tells a loop to look again. A wake-up can be lost, so waiting always ends by itself."""

    async def wait_async(self, timeout_seconds: float | None = None) -> bool:
        """Return at the next wake-up, or when it is time to look anyway."""
        ...
