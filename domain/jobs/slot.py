"""The slot of a kind and target: at most one job lives in it.

What must stay true: it is taken in the append that requests a job and freed in the append that ends it, so that a second one is
refused by the log itself and no crash leaves a slot taken by a job that has ended.
"""

from typing import Final

import msgspec

from domain.events import Event
from domain.jobs.errors import JobRunningError
from domain.jobs.messages import JobSlotFreed, JobSlotTaken
from domain.transitions import AggregateState, TransitionTable


class SlotState(AggregateState):
    """Whether a job lives in it."""

    ABSENT = "ABSENT"
    TAKEN = "TAKEN"
    FREE = "FREE"


SLOT_TRANSITIONS: Final = TransitionTable[SlotState](
    "job_slot",
    {
        (SlotState.ABSENT, JobSlotTaken): SlotState.TAKEN,
        (SlotState.TAKEN, JobSlotFreed): SlotState.FREE,
        (SlotState.FREE, JobSlotTaken): SlotState.TAKEN,
    },
)


class Slot(msgspec.Struct, frozen=True):
    """State of a slot; `job_id` is of the last job in it."""

    kind: str
    target: str
    state: SlotState = SlotState.ABSENT
    job_id: str = ""


def take(slot: Slot, job_id: str) -> JobSlotTaken:
    """The event by which the job takes the slot. Raises `JobRunningError` while another lives in it."""
    if slot.state is SlotState.TAKEN:
        raise JobRunningError(
            f"{slot.job_id} ({slot.kind} of {slot.target}) has not ended yet",
            at=f"{slot.kind}/{slot.target}",
            expected="its end, or its cancellation",
            job_id=slot.job_id,
        )
    return JobSlotTaken(kind=slot.kind, target=slot.target, job_id=job_id)


def evolve(slot: Slot, event: Event) -> Slot:
    """The slot after an event."""
    state = SLOT_TRANSITIONS.next_state(slot.state, type(event))
    assert isinstance(event, JobSlotTaken | JobSlotFreed)
    return Slot(slot.kind, slot.target, state, event.job_id)
