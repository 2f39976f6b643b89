"""Inline projections: the two that are written inside the append itself, as pure functions from an event to a row's change.

What must stay true: the event store is given them (`Inline`) and knows no topic; each change is a function of the event alone.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from domain.events import Event
from projections.leases.guard import GuardChange, guard_change
from projections.outbox.projection import OutboxChange, outbox_change


class Inline(msgspec.Struct, frozen=True):
    """What the log writes beside the events: the lease guard's row and the outbox's row."""

    guard: Callable[[Event], GuardChange | None]
    outbox: Callable[[Event], OutboxChange | None]


INLINE: Final = Inline(guard_change, outbox_change)
"""The inline projections of this system."""
