"""Leases, to look at: one row per resource, as the lease's stream has it.

What must stay true: this row informs and never decides; what decides is the guard row, written inline. Whether a lease is live
is judged when it is read, by the database's clock.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.events import Event, Recorded
from domain.leases.aggregate import Lease, LeaseState, evolve
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from projections.folding import ReadModel

NAME: Final = "leases"

LEASE_EVENTS: Final = frozenset({LeaseGranted, LeaseRenewed, LeaseReleased})


_STATES: Final = {state.value: state for state in LeaseState}


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A lease and its history in short. `granted_at` is of the present token, `changed_at` of the last event.

    `first_position` never changes, so that pages of leases are stable; `position` is the last event's.
    """

    resource: str
    state: str
    owner: str
    label: str
    token: int
    expires_at: datetime
    granted_at: datetime
    changed_at: datetime
    first_position: int
    position: int


def key_of(event: Event) -> str | None:
    """The resource whose lease the event is about, or None."""
    return event.resource if type(event) in LEASE_EVENTS else None  # type: ignore[attr-defined]


def apply(row: LeaseRow | None, recorded: Recorded) -> LeaseRow:
    """The row after the event. Raises `IllegalTransitionError` for one that cannot follow."""
    event, at = recorded.event, recorded.recorded_at
    assert isinstance(event, (LeaseGranted, LeaseRenewed, LeaseReleased))
    lease = evolve(_lease(event.resource, row), event, at)
    assert lease.expires_at is not None
    granted = isinstance(event, LeaseGranted)
    return LeaseRow(
        resource=lease.resource,
        state=lease.state.value,
        owner=lease.owner,
        label=event.label if isinstance(event, LeaseGranted) else row.label if row else "",
        token=lease.token,
        expires_at=lease.expires_at,
        granted_at=at if granted or row is None else row.granted_at,
        changed_at=at,
        first_position=recorded.position if row is None else row.first_position,
        position=recorded.position,
    )


def _lease(resource: str, row: LeaseRow | None) -> Lease:
    if row is None:
        return Lease(resource)
    return Lease(resource, _STATES[row.state], row.owner, row.token, row.expires_at)


MODEL: Final = ReadModel[str, LeaseRow](NAME, ("lease",), key_of, apply)
