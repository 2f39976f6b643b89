"""The lease of one resource: who may act on it, under which fence token, until when.

What must stay true: the token only grows, by one, and only when a lease that is not live is granted; renewing never changes it;
an expired lease cannot be renewed, not even by its last owner. Decisions here are made on a state and an instant that were read
a moment ago, so they are advice: the append function checks the same rules again under its lock, by the database's clock.
A crash at any point leaves a lease that expires by itself.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.errors import BodyInvalidError, LeaseHeldError, StaleFenceError
from domain.events import Event
from domain.instants import seconds_long
from domain.leases.messages import AcquireLease, LeaseGranted, LeaseReleased, LeaseRenewed, ReleaseLease, RenewLease
from domain.transitions import AggregateState, TransitionTable

TTL_SECONDS_MAX: Final = 86_400.0
"""Seconds; a longer lease would keep a dead owner's work for more than a day."""


class LeaseState(AggregateState):
    """`GRANTED` says nothing of being live: that is a question of the clock (`Lease.is_live`)."""

    ABSENT = "ABSENT"
    GRANTED = "GRANTED"
    RELEASED = "RELEASED"


LEASE_TRANSITIONS: Final = TransitionTable[LeaseState](
    "lease",
    {
        (LeaseState.ABSENT, LeaseGranted): LeaseState.GRANTED,
        (LeaseState.GRANTED, LeaseRenewed): LeaseState.GRANTED,
        (LeaseState.GRANTED, LeaseGranted): LeaseState.GRANTED,
        (LeaseState.GRANTED, LeaseReleased): LeaseState.RELEASED,
        (LeaseState.RELEASED, LeaseGranted): LeaseState.GRANTED,
    },
)


class Lease(msgspec.Struct, frozen=True, gc=False):
    """State of a lease; `token` 0 means that it was never granted."""

    resource: str
    state: LeaseState = LeaseState.ABSENT
    owner: str = ""
    token: int = 0
    expires_at: datetime | None = None

    def is_live(self, now: datetime) -> bool:
        """Whether somebody holds it at `now` (the database's clock); it ends at `expires_at` exactly."""
        return self.state is LeaseState.GRANTED and self.expires_at is not None and now < self.expires_at


def decide(lease: Lease, command: AcquireLease | RenewLease | ReleaseLease, now: datetime) -> tuple[Event, ...]:
    """The events of the command at `now`, by the table of section 5.

    Raises `LeaseHeldError` (live, another owner) and `StaleFenceError` (not mine, another token, expired).
    """
    if isinstance(command, AcquireLease):
        return (_acquire(lease, command, now),)
    _check_fence(lease, command.owner, command.token, now)
    if isinstance(command, RenewLease):
        ttl = _checked_ttl(command.ttl_seconds)
        return (LeaseRenewed(resource=lease.resource, owner=command.owner, token=command.token, ttl_seconds=ttl),)
    return (LeaseReleased(resource=lease.resource, owner=command.owner, token=command.token),)


def evolve(lease: Lease, event: Event, recorded_at: datetime) -> Lease:
    """The lease after an event that was recorded at `recorded_at`."""
    state = LEASE_TRANSITIONS.next_state(lease.state, type(event))
    if isinstance(event, (LeaseGranted, LeaseRenewed)):
        expires_at = recorded_at + seconds_long(event.ttl_seconds)
        return Lease(lease.resource, state, event.owner, event.token, expires_at)
    return Lease(lease.resource, state, lease.owner, lease.token, lease.expires_at)


def _acquire(lease: Lease, command: AcquireLease, now: datetime) -> Event:
    ttl = _checked_ttl(command.ttl_seconds)
    if not lease.is_live(now):
        return LeaseGranted(
            resource=command.resource,
            owner=command.owner,
            token=lease.token + 1,
            ttl_seconds=ttl,
            label=command.label,
        )
    if lease.owner != command.owner:
        raise LeaseHeldError(
            f"the lease of {command.resource} is held by another owner", at=command.resource, token=lease.token
        )
    return LeaseRenewed(resource=command.resource, owner=command.owner, token=lease.token, ttl_seconds=ttl)


def _check_fence(lease: Lease, owner: str, token: int, now: datetime) -> None:
    if lease.owner != owner or lease.token != token or not lease.is_live(now):
        raise StaleFenceError(
            f"token {token} no longer holds the lease of {lease.resource}", at=lease.resource, token=lease.token
        )


def _checked_ttl(ttl_seconds: float) -> float:
    if not 0.0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise BodyInvalidError(
            f"a lease of {ttl_seconds} seconds", at="ttl_seconds", expected=f"more than 0, at most {TTL_SECONDS_MAX}"
        )
    return ttl_seconds
