"""Checkpoints: one row per committed epoch of a STREAM run, as its event says.

What must stay true: a row never changes; the newest one of a run says how far the run has come, and lags as any read model does.
Who restores folds the stream instead.
"""

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from projections.folding import ReadModel

NAME: Final = "checkpoints"

CheckpointKey: TypeAlias = tuple[str, int]
"""run_id and epoch"""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A committed cut: which epoch, under whose token, up to which offsets, and where its manifest is."""

    run_id: str
    epoch: int
    token: int
    manifest: str
    manifest_hash: str
    next_offsets: dict[str, int]
    committed_at: datetime
    position: int


def key_of(event: Event) -> CheckpointKey | None:
    """The epoch that the event is about, or None."""
    return (event.run_id, event.epoch) if isinstance(event, CheckpointCommitted) else None


def apply(row: CheckpointRow | None, recorded: Recorded) -> CheckpointRow:
    """The row of the epoch. Raises `IllegalTransitionError` for an epoch committed twice."""
    event = recorded.event
    assert isinstance(event, CheckpointCommitted)
    if row is not None:
        raise IllegalTransitionError(f"epoch {event.epoch} was committed before", at=recorded.stream)
    return CheckpointRow(
        run_id=event.run_id,
        epoch=event.epoch,
        token=event.token,
        manifest=event.manifest,
        manifest_hash=event.manifest_hash,
        next_offsets=event.next_offsets,
        committed_at=recorded.recorded_at,
        position=recorded.position,
    )


MODEL: Final = ReadModel[CheckpointKey, CheckpointRow](NAME, ("checkpoint",), key_of, apply)
