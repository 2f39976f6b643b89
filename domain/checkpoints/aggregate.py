"""The checkpoints of one run: a row of epochs, each committed by the owner of the run's lease.

What must stay true: epochs count from 1 without gaps; tokens never go back; next offsets never go back in any partition. A
crash between storing the blobs and committing leaves unreferenced blobs and the previous checkpoint in force.
"""

from typing import Final

import msgspec

from domain.checkpoints.messages import CheckpointCommitted, CommitCheckpoint
from domain.errors import RefusedError, StaleFenceError
from domain.events import Event
from domain.transitions import AggregateState, TransitionTable


class CheckpointState(AggregateState):
    """Whether the run has a cut that can be restored."""

    ABSENT = "ABSENT"
    COMMITTED = "COMMITTED"


CHECKPOINT_TRANSITIONS: Final = TransitionTable[CheckpointState](
    "checkpoint",
    {
        (CheckpointState.ABSENT, CheckpointCommitted): CheckpointState.COMMITTED,
        (CheckpointState.COMMITTED, CheckpointCommitted): CheckpointState.COMMITTED,
    },
)


class Checkpoint(msgspec.Struct, frozen=True):
    """The last committed cut of a run."""

    run_id: str
    state: CheckpointState = CheckpointState.ABSENT
    epoch: int = 0
    token: int = 0
    manifest: str = ""
    manifest_hash: str = ""
    next_offsets: dict[str, int] = {}


def decide(checkpoint: Checkpoint, command: CommitCheckpoint) -> tuple[Event, ...]:
    """The commit, or `RefusedError` for an epoch or offset that goes back, `StaleFenceError` for a token that does."""
    if command.token < checkpoint.token:
        raise StaleFenceError("a later owner has committed", at=checkpoint.run_id, token=checkpoint.token)
    if command.epoch != checkpoint.epoch + 1:
        raise RefusedError("the epoch does not follow", at=checkpoint.run_id, expected=str(checkpoint.epoch + 1))
    for partition, offset in checkpoint.next_offsets.items():
        if command.next_offsets.get(partition, -1) < offset:
            raise RefusedError(
                f"partition {partition} would go back", at=checkpoint.run_id, expected=f"at least offset {offset}"
            )
    return (
        CheckpointCommitted(
            run_id=checkpoint.run_id,
            epoch=command.epoch,
            token=command.token,
            manifest=command.manifest,
            manifest_hash=command.manifest_hash,
            next_offsets=command.next_offsets,
        ),
    )


def evolve(checkpoint: Checkpoint, event: Event) -> Checkpoint:
    """The checkpoint after an event."""
    state = CHECKPOINT_TRANSITIONS.next_state(checkpoint.state, type(event))
    assert isinstance(event, CheckpointCommitted)
    return Checkpoint(
        checkpoint.run_id,
        state,
        event.epoch,
        event.token,
        event.manifest,
        event.manifest_hash,
        event.next_offsets,
    )
