"""Leases: acquire, renew and release the exclusive right to act on a resource.

What must stay true: the append function decides under its lock, by the database's clock; what is decided here on a state read a
moment ago is advice, so a refusal by the log means "read again and decide again", and only a decision on what was read refuses
the caller. A crash at any point leaves a lease that expires by itself.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from domain.errors import LeaseHeldError, StaleFenceError, VersionConflictError
from domain.events import Event, Metadata, Recorded
from domain.identity import checked_name, lease_stream
from domain.leases.aggregate import Lease, decide, evolve
from domain.leases.messages import AcquireLease, LeaseGranted, ReleaseLease, RenewLease
from services import effects
from services.event_ids import new_event_id
from services.ports import Append, Appended, EventLog, Fence, Guard, NewEvent, Vacant

CONFLICT_RETRIES_MAX: Final = 8
"""Times that a decision is made again because somebody else changed the lease between reading and appending."""

_MOVED_ON = (VersionConflictError, LeaseHeldError, StaleFenceError)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that was live when it was given: by the database's clock until `expires_at`. `version` is its stream's."""

    resource: str
    owner: str
    token: int
    expires_at: datetime
    ttl_seconds: float
    version: int

    @property
    def fence(self) -> Fence:
        """The guard that effects under this lease carry."""
        return Fence(self.resource, self.owner, self.token)


def fold_lease(resource: str, events: Sequence[Recorded]) -> Lease:
    """The state of the lease after its events (none: never granted)."""
    lease = Lease(resource)
    for recorded in events:
        lease = evolve(lease, recorded.event, recorded.recorded_at)
    return lease


class Leases:
    """The three use cases of a lease, each decided by the table of `domain.leases.aggregate`."""

    def __init__(self, log: EventLog, new_id: Callable[[], UUID] = new_event_id) -> None:
        self._log = log
        self._new_id = new_id

    async def acquire(self, resource: str, owner: str, ttl_seconds: float, label: str = "") -> Grant:
        """Take the lease, or prolong it if it is live and mine. Raises `LeaseHeldError` while another owner holds it."""
        checked_name(resource, at="resource")
        checked_name(owner, at="owner")
        for _ in range(CONFLICT_RETRIES_MAX):
            lease, version, now = await self._read(resource)
            (event,) = decide(lease, AcquireLease(resource, owner, ttl_seconds, label), now)
            fresh = isinstance(event, LeaseGranted)
            token = lease.token + fresh
            guard: Guard = Vacant(resource, lease.token) if fresh else Fence(resource, owner, token)
            try:
                appended = await self._append(resource, version, event, guard)
            except _MOVED_ON:
                continue
            return _grant(resource, owner, token, ttl_seconds, version + 1, appended)
        raise LeaseHeldError("the lease kept changing hands", at=resource)

    async def renew(self, grant: Grant) -> Grant:
        """Prolong the lease by its TTL from now. Raises `StaleFenceError` once it is lost or has run out."""
        command = RenewLease(grant.owner, grant.token, grant.ttl_seconds)
        appended, version = await self._under(grant, command)
        return _grant(grant.resource, grant.owner, grant.token, grant.ttl_seconds, version, appended)

    async def release(self, grant: Grant) -> None:
        """Give the lease back. Raises `StaleFenceError` once it is lost or has run out."""
        await self._under(grant, ReleaseLease(grant.owner, grant.token))

    async def _under(self, grant: Grant, command: RenewLease | ReleaseLease) -> tuple[Appended, int]:
        """Append what the command decides, under the grant's fence; returns the lease stream's version after it."""
        for _ in range(CONFLICT_RETRIES_MAX):
            lease, version, now = await self._read(grant.resource)
            (event,) = decide(lease, command, now)
            try:
                return await self._append(grant.resource, version, event, grant.fence), version + 1
            except VersionConflictError:
                continue
        raise StaleFenceError("the lease kept changing", at=grant.resource)

    async def _read(self, resource: str) -> tuple[Lease, int, datetime]:
        stream = lease_stream(resource)
        read = await self._log.read_streams([stream])
        events = read.streams[stream]
        return fold_lease(resource, events), events[-1].version if events else 0, read.now

    async def _append(self, resource: str, version: int, event: Event, guard: Guard) -> Appended:
        new = NewEvent(lease_stream(resource), version + 1, event, self._new_id())
        append = Append(events=(new,), guard=guard, metadata=Metadata(correlation_id=resource))
        return await effects.append(self._log, append)


def _grant(resource: str, owner: str, token: int, ttl_seconds: float, version: int, appended: Appended) -> Grant:
    return Grant(
        resource=resource,
        owner=owner,
        token=token,
        expires_at=appended.recorded_at + timedelta(seconds=ttl_seconds),
        ttl_seconds=ttl_seconds,
        version=version,
    )
