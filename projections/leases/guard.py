"""The lease guard: one row per resource, written inside the append that changes the lease, checked inside every fenced append.

What must stay true: the row is a function of the lease's last event alone; `expires_at` is the instant of recording plus
`ttl_seconds`, both by the database's clock. Being inline, it can never lag: a crash leaves the row and the event, or neither.
"""

import msgspec

from domain.events import Event
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed

NAME = "lease_guard"


class GuardChange(msgspec.Struct, frozen=True):
    """The guard row after an event. `ttl_seconds` None keeps the row's expiry (a release changes only `released`)."""

    resource: str
    owner: str
    token: int
    ttl_seconds: float | None
    released: bool


def guard_change(event: Event) -> GuardChange | None:
    """The change that the event makes to its guard row, or None for events that are not about leases."""
    if isinstance(event, LeaseGranted | LeaseRenewed):
        return GuardChange(event.resource, event.owner, event.token, event.ttl_seconds, False)
    if isinstance(event, LeaseReleased):
        return GuardChange(event.resource, event.owner, event.token, None, True)
    return None
