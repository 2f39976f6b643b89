"""Command and event of a run's checkpoints: the consistent cut of an epoch.

The event points at the manifest in CAS; the state itself is never in the log, so a checkpoint's stream stays short.
"""

from typing import ClassVar

import msgspec

from domain.events import Event, registered


class CommitCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Make the cut of `epoch` the one to restore; `epoch` is one more than the last committed one."""

    epoch: int
    token: int
    manifest: str
    manifest_hash: str
    next_offsets: dict[str, int]


@registered
class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """The cut of `epoch` is complete: everything it names is in CAS.

    `manifest` is the address of the stored manifest; `manifest_hash` the hash that the manifest carries of its own body;
    `next_offsets` maps a partition's number, as text, to the first offset that the cut does not include.
    """

    topic: ClassVar[str] = "checkpoint.committed.v1"
    run_id: str
    epoch: int
    token: int
    manifest: str
    manifest_hash: str
    next_offsets: dict[str, int]
