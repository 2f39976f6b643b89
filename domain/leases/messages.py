"""Commands and events of a lease: "this resource is yours until that instant".

Events carry `ttl_seconds` and no instant: a lease expires `ttl_seconds` after the event was recorded, and recording is stamped
by the database's clock. So no worker's clock is in any lease, ever.
"""

from typing import ClassVar

import msgspec

from domain.events import Event, registered


class AcquireLease(msgspec.Struct, frozen=True):
    """Ask for the lease of the resource for `ttl_seconds` (> 0). `label` is a name for people and decides nothing."""

    resource: str
    owner: str
    ttl_seconds: float
    label: str = ""


class RenewLease(msgspec.Struct, frozen=True):
    """Prolong a lease that is live and mine: it then ends `ttl_seconds` after the renewal."""

    owner: str
    token: int
    ttl_seconds: float


class ReleaseLease(msgspec.Struct, frozen=True):
    """Give a lease back before it expires."""

    owner: str
    token: int


@registered
class LeaseGranted(Event, frozen=True, kw_only=True):
    """The lease was given to `owner` under fence token `token`, one higher than the last."""

    topic: ClassVar[str] = "lease.granted.v1"
    resource: str
    owner: str
    token: int
    ttl_seconds: float
    label: str = ""


@registered
class LeaseRenewed(Event, frozen=True, kw_only=True):
    """The live lease of `token` was prolonged by its owner; the token is unchanged."""

    topic: ClassVar[str] = "lease.renewed.v1"
    resource: str
    owner: str
    token: int
    ttl_seconds: float


@registered
class LeaseReleased(Event, frozen=True, kw_only=True):
    """The lease of `token` was given back."""

    topic: ClassVar[str] = "lease.released.v1"
    resource: str
    owner: str
    token: int
