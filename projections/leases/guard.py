"""The lease guard: one row per resource, written inside the append that changes the lease, checked inside every fenced append.

What must stay true: the row is a function of the lease's last event alone; `expires_at` is the instant of recording plus
`ttl_seconds`, both by the database's clock. Being inline, it can never lag: a crash leaves the row and the event, or neither.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.events import Event, Recorded
from domain.instants import seconds_long
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from projections.folding import ReadModel

NAME: Final = "lease_guard"

LEASE_EVENTS: Final = frozenset({LeaseGranted, LeaseRenewed, LeaseReleased})


class GuardChange(msgspec.Struct, frozen=True):
    """The guard row after an event. `ttl_seconds` None keeps the row's expiry (a release changes only `released`)."""

    resource: str
    owner: str
    token: int
    ttl_seconds: float | None
    released: bool


def guard_change(event: Event) -> GuardChange | None:
    """The change that the event makes to its guard row, or None for events that are not about leases."""
    if isinstance(event, (LeaseGranted, LeaseRenewed)):
        return GuardChange(event.resource, event.owner, event.token, event.ttl_seconds, False)
    if isinstance(event, LeaseReleased):
        return GuardChange(event.resource, event.owner, event.token, None, True)
    return None


class GuardRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row as its table has it: what the append function makes of a lease's changes, said once more as a fold."""

    resource: str
    owner: str
    token: int
    expires_at: datetime
    released: bool
    position: int


def key_of(event: Event) -> str | None:
    """The resource whose lease the event changes, or None."""
    return event.resource if type(event) in LEASE_EVENTS else None  # type: ignore[attr-defined]


def apply(row: GuardRow | None, recorded: Recorded) -> GuardRow:
    """The row after the event."""
    change = guard_change(recorded.event)
    assert change is not None
    expires_at = recorded.recorded_at if row is None else row.expires_at
    if change.ttl_seconds is not None:
        expires_at = recorded.recorded_at + seconds_long(change.ttl_seconds)
    return GuardRow(
        resource=change.resource,
        owner=change.owner,
        token=change.token,
        expires_at=expires_at,
        released=change.released,
        position=recorded.position,
    )


MODEL: Final = ReadModel[str, GuardRow](NAME, ("lease",), key_of, apply)
