"""Leases: what is appended to acquire, renew and release the exclusive right to act on a resource.

Pure values, used by whoever works on runs and jobs within appends of their own. What must stay true: the append function decides
under its lock, by the database's clock; what is decided here on a state read a moment ago is advice, so every step carries the
guard that makes the log check it again, and a refusal by the log means "read again and decide again". Whether a lease that is
renewed or given back still lives is for the log alone to say: a head kept here may be older than its last renewal. A crash at
any point leaves a lease that expires by itself.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from domain.events import Recorded
from domain.leases.aggregate import Lease, decide, evolve
from domain.leases.messages import AcquireLease, LeaseGranted, LeaseReleased, LeaseRenewed
from services.ports import Fence, Guard, Vacant


class LeaseStep(msgspec.Struct, frozen=True):
    """One event on the lease's stream, whose token holds once it is accepted, and the guard that its append must carry."""

    event: LeaseGranted | LeaseRenewed | LeaseReleased
    guard: Guard


def fold_lease(resource: str, events: Sequence[Recorded]) -> Lease:
    """The state of the lease after its events (none: never granted)."""
    lease = Lease(resource)
    for recorded in events:
        lease = evolve(lease, recorded.event, recorded.recorded_at)
    return lease


def acquired(lease: Lease, owner: str, ttl_seconds: float, now: datetime, label: str = "") -> LeaseStep:
    """Take the lease, under the next token, or prolong it if it is live and the owner's.

    Raises `LeaseHeldError` while another owner holds it, `BodyInvalidError` for a TTL that none may have.
    """
    (event,) = decide(lease, AcquireLease(lease.resource, owner, ttl_seconds, label), now)
    if isinstance(event, LeaseGranted):
        return LeaseStep(event, Vacant(lease.resource, lease.token))
    assert isinstance(event, LeaseRenewed)
    return LeaseStep(event, Fence(lease.resource, owner, lease.token))


def renewed(fence: Fence, ttl_seconds: float) -> LeaseStep:
    """Prolong the lease by its TTL from the moment of recording. The log refuses it once the lease is lost or has run out."""
    event = LeaseRenewed(resource=fence.resource, owner=fence.owner, token=fence.token, ttl_seconds=ttl_seconds)
    return LeaseStep(event, fence)


def released(fence: Fence) -> LeaseStep:
    """Give the lease back. The log refuses it once the lease is lost or has run out."""
    event = LeaseReleased(resource=fence.resource, owner=fence.owner, token=fence.token)
    return LeaseStep(event, fence)
