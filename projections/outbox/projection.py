"""The outbox as a function of events: an ordered queue of (kind, key), each pending, claimed or delivered.

What must stay true: the content is a pure function of the events, so a rebuild from nothing gives the same rows; whether a row
is due is judged when it is read (`due_at` against the database's clock), never stored; rows are written inside the append, so a
run that was requested is in the queue, whatever crashes.

Each event changes a row by its own data alone (`OutboxChange`), which lets the append function apply the last change per key of
a whole batch in one statement. `lane` and `priority` stand only in the change that creates the row.
"""

from enum import Enum
from typing import Final

import msgspec

from domain.events import Event
from domain.runs.messages import (
    RunCancelled,
    RunFailed,
    RunRequested,
    RunRequeued,
    RunStarted,
    RunSucceeded,
)

NAME: Final = "outbox"

KIND_RUN: Final = "run"
"""Rows that ask for a run to be executed; the key is the run_id, the lane its mode."""


class OutboxState(Enum):
    """Where an item stands: waiting, being worked on under a live lease (or orphaned), or done with."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"


class OutboxChange(msgspec.Struct, frozen=True):
    """The row after an event: created where `lane` is given, else changed. Due `delay_seconds` after the recording."""

    kind: str
    key: str
    state: OutboxState
    delay_seconds: float = 0.0
    lane: str | None = None
    priority: int | None = None


def outbox_change(event: Event) -> OutboxChange | None:
    """The change that the event makes to the outbox, or None."""
    match event:
        case RunRequested():
            spec = event.spec
            return OutboxChange(KIND_RUN, event.run_id, OutboxState.PENDING, 0.0, spec.mode.value, spec.priority)
        case RunStarted():
            return OutboxChange(KIND_RUN, event.run_id, OutboxState.CLAIMED)
        case RunRequeued():
            return OutboxChange(KIND_RUN, event.run_id, OutboxState.PENDING, event.delay_seconds)
        case RunSucceeded() | RunFailed() | RunCancelled():
            return OutboxChange(KIND_RUN, event.run_id, OutboxState.DELIVERED)
    return None
