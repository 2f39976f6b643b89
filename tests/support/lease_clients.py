"""A client of leases: reads, decides with the steps that workers append, lets the log judge, and begins again when it moved on."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

import msgspec

from domain.errors import LeaseHeldError, StaleFenceError, VersionConflictError
from domain.events import Metadata, Recorded
from domain.identity import lease_stream
from services.leases import LeaseStep, acquired, fold_lease, released, renewed
from services.ports import Append, Appended, EventLog, Fence, NewEvent

TRIES_MAX: Final = 8
"""Times that a step is decided again because somebody else changed the lease between reading and appending."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that was live when it was given: by the database's clock until `expires_at`."""

    fence: Fence
    ttl_seconds: float
    appended: Appended

    @property
    def owner(self) -> str:
        return self.fence.owner

    @property
    def token(self) -> int:
        return self.fence.token

    @property
    def expires_at(self) -> datetime:
        return self.appended.recorded_at + timedelta(seconds=self.ttl_seconds)


class LeaseClient:
    """The three uses of a lease, each a step of `services.leases` in an append by itself."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def acquire(self, resource: str, owner: str, ttl_seconds: float, label: str = "") -> Grant:
        """Take the lease, or prolong it if it is live and mine. Raises `LeaseHeldError` while another owner holds it."""
        for _ in range(TRIES_MAX):
            read = await self._log.read_streams([lease_stream(resource)])
            events = read.streams[lease_stream(resource)]
            step = acquired(fold_lease(resource, events), owner, ttl_seconds, read.now, label)
            try:
                appended = await self._append(resource, events, step)
            except (VersionConflictError, LeaseHeldError, StaleFenceError):
                continue
            return Grant(fence=Fence(resource, owner, step.event.token), ttl_seconds=ttl_seconds, appended=appended)
        raise LeaseHeldError("the lease kept changing hands", at=resource)

    async def renew(self, grant: Grant) -> Grant:
        """Prolong the lease by its TTL from now. Raises `StaleFenceError` once it is lost or has run out: the log says so."""
        appended = await self._under(renewed(grant.fence, grant.ttl_seconds), grant.fence.resource)
        return Grant(fence=grant.fence, ttl_seconds=grant.ttl_seconds, appended=appended)

    async def release(self, grant: Grant) -> None:
        """Give the lease back. Raises `StaleFenceError` once it is lost or has run out: the log says so."""
        await self._under(released(grant.fence), grant.fence.resource)

    async def _under(self, step: LeaseStep, resource: str) -> Appended:
        for _ in range(TRIES_MAX):
            read = await self._log.read_streams([lease_stream(resource)])
            try:
                return await self._append(resource, read.streams[lease_stream(resource)], step)
            except VersionConflictError:
                continue
        raise StaleFenceError("the lease kept changing", at=resource)

    async def _append(self, resource: str, events: Sequence[Recorded], step: LeaseStep) -> Appended:
        version = events[-1].version if events else 0
        new = NewEvent(lease_stream(resource), version + 1, step.event, uuid4())
        wanted = Append(events=(new,), guard=step.guard, metadata=Metadata(correlation_id=resource))
        return await self._log.append(wanted)
