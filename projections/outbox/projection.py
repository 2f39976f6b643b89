"""The outbox as a function of events: an ordered queue of (kind, key), each pending, claimed or delivered.

What must stay true: the content is a pure function of the events, so a rebuild from nothing gives the same rows; whether a row
is due is judged when it is read (`due_at` against the database's clock), never stored; rows are written inside the append, so a
run that was requested is in the queue, whatever crashes.

Each event changes a row by its own data alone (`OutboxChange`), which lets the append function apply the last change per key of
a whole batch in one statement. `lane` and `priority` stand only in the change that creates the row.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.instants import seconds_long
from domain.purchases.messages import NoticeDelivered, NoticePosted
from domain.runs.messages import (
    RunCancelled,
    RunFailed,
    RunRequested,
    RunRequeued,
    RunStarted,
    RunSucceeded,
)
from projections.folding import ReadModel

NAME: Final = "outbox"

KIND_RUN: Final = "run"
"""Rows that ask for a run to be executed; the key is the run_id, the lane its mode."""

KIND_NOTICE: Final = "notice"
"""Rows that ask for something to be told to others; the key is the notice's id, the lane its name."""


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
    change = _CHANGES.get(type(event))
    return None if change is None else change(event)


_CHANGES: Final[Mapping[type[Event], Callable[[Any], OutboxChange]]] = {
    RunRequested: lambda event: OutboxChange(
        KIND_RUN, event.run_id, OutboxState.PENDING, 0.0, event.spec.mode.value, event.spec.priority
    ),
    RunStarted: lambda event: OutboxChange(KIND_RUN, event.run_id, OutboxState.CLAIMED),
    RunRequeued: lambda event: OutboxChange(KIND_RUN, event.run_id, OutboxState.PENDING, event.delay_seconds),
    **dict.fromkeys(
        (RunSucceeded, RunFailed, RunCancelled),
        lambda event: OutboxChange(KIND_RUN, event.run_id, OutboxState.DELIVERED),
    ),
    NoticePosted: lambda event: OutboxChange(KIND_NOTICE, event.notice_id, OutboxState.PENDING, 0.0, event.name, 0),
    NoticeDelivered: lambda event: OutboxChange(KIND_NOTICE, event.notice_id, OutboxState.DELIVERED),
}

OutboxKey: TypeAlias = tuple[str, str]
"""kind and key"""


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row as its table has it: what the append function makes of an item's changes, said once more as a fold."""

    kind: str
    key: str
    lane: str
    priority: int
    state: str
    enqueued_position: int
    enqueued_at: datetime
    due_at: datetime
    position: int
    changed_at: datetime


_RUN_EVENTS: Final = frozenset(kind for kind in _CHANGES if "run_id" in kind.__struct_fields__)
_NOTICE_EVENTS: Final = frozenset(_CHANGES) - _RUN_EVENTS


def key_of(event: Event) -> OutboxKey | None:
    """The item that the event is about, or None: that of `outbox_change`."""
    kind = type(event)
    if kind in _RUN_EVENTS:
        return KIND_RUN, event.run_id  # type: ignore[attr-defined]
    return (KIND_NOTICE, event.notice_id) if kind in _NOTICE_EVENTS else None  # type: ignore[attr-defined]


def apply(row: OutboxRow | None, recorded: Recorded) -> OutboxRow:
    """The row after the event. Raises `IllegalTransitionError` for a change to an item that was never queued."""
    change = outbox_change(recorded.event)
    assert change is not None
    position, at = recorded.position, recorded.recorded_at
    due_at = at + seconds_long(change.delay_seconds) if change.delay_seconds else at
    if change.lane is not None:
        return OutboxRow(
            kind=change.kind,
            key=change.key,
            lane=change.lane,
            priority=change.priority or 0,
            state=change.state.value,
            enqueued_position=position,
            enqueued_at=at,
            due_at=due_at,
            position=position,
            changed_at=at,
        )
    if row is None:
        raise IllegalTransitionError("the item was never queued", at=f"{change.kind}/{change.key}")
    return msgspec.structs.replace(row, state=change.state.value, due_at=due_at, position=position, changed_at=at)


MODEL: Final = ReadModel[OutboxKey, OutboxRow](NAME, ("notice", "run"), key_of, apply)
