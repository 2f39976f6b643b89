"""What a commit wants of the log, as values: where a run's checkpoints and journal stand, and the append on top.

Pure: a standing and a cut in, events out. What must stay true: a checkpoint and the journal's events of its cut are one append;
ids follow from run, token, epoch and place, so an append whose answer was lost can be made again and is one; an item list never
makes an event longer than its limit.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID, uuid5

import msgspec

from domain.checkpoints.aggregate import Checkpoint, CheckpointState
from domain.checkpoints.aggregate import evolve as evolve_checkpoint
from domain.checkpoints.manifest import Manifest, Plan, SinkRef, build_manifest
from domain.errors import RefusedError
from domain.events import Event, Recorded
from domain.identity import checkpoint_stream, journal_stream
from domain.stream.journal import Journal, journal_document, journal_of
from domain.stream.journal import evolve as evolve_journal
from domain.stream.messages import (
    ITEMS_MAX,
    CopiesDiffered,
    OmittedItem,
    RecordsLate,
    RecordsOmitted,
    RecordsRetried,
    SourceOpened,
)
from domain.stream.progress import Cut
from domain.stream.worker_core import STATE_SCHEMA
from services.ports import NewEvent
from services.store.states import Fold

NewId = Callable[[], UUID]
T = TypeVar("T")

_COMMITS: Final = UUID("0b2d6a3e-6f63-5a0b-9f0e-3a0c6d1f7b55")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's checkpoints and journal stand in the log.

    `plan` is that of the owner who restored; `manifest` the last committed one. A standing that was only read has neither.
    """

    plan: Plan | None = None
    checkpoint: Checkpoint
    checkpoint_version: int
    journal: Journal
    journal_version: int
    manifest: Manifest | None = None

    @property
    def run_id(self) -> str:
        return self.checkpoint.run_id

    @property
    def committed(self) -> bool:
        """Whether there is a cut to restore."""
        return self.checkpoint.state is CheckpointState.COMMITTED


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A cut that is in force, and where the run stands now. `repeated`: it was committed before, its answer had been lost."""

    standing: Standing
    manifest: Manifest
    address: str
    recorded_at: datetime
    position: int = 0
    repeated: bool = False


def plan_of(standing: Standing) -> Plan:
    """The plan under which the standing's owner works."""
    assert standing.plan is not None, "only a standing that was restored can be committed on"
    return standing.plan


def commit_id(run_id: str, token: int, epoch: int, place: str) -> UUID:
    """The id of the event at a place (`checkpoint`, or a number in the journal) of an epoch's commit."""
    return uuid5(_COMMITS, f"{run_id}\0{token}\0{epoch}\0{place}")


def journal_news(standing: Standing, events: Sequence[Event], new_id: NewId) -> tuple[NewEvent, ...]:
    """Journal events for an append of the caller's own (a claim, say). Raises what the journal refuses."""
    _ = _evolved(standing.journal, events)
    stream = journal_stream(standing.run_id)
    return tuple(
        NewEvent(stream, version, event, new_id()) for version, event in enumerate(events, standing.journal_version + 1)
    )


def with_journal(standing: Standing, events: Sequence[Event]) -> Standing:
    """The standing after journal events of the caller's own append were accepted."""
    return msgspec.structs.replace(
        standing,
        journal=_evolved(standing.journal, events),
        journal_version=standing.journal_version + len(events),
    )


def journal_events(
    standing: Standing, cut: Cut, addresses: Sequence[str], epoch: int, more: Iterable[Event]
) -> tuple[Event, ...]:
    """The journal's events of a cut: `addresses` are those of its quarantined records in order; `more` are the caller's."""
    run_id, kept = standing.run_id, iter(addresses)
    omitted = [
        OmittedItem(
            partition=one.record.partition,
            offset=one.record.offset,
            detail=one.detail,
            terminal=one.terminal,
            quarantine=None if one.terminal else next(kept),
        )
        for one in cut.omitted
    ]
    more = tuple(more)
    opened = [event for event in more if isinstance(event, SourceOpened)]
    rest = [event for event in more if not isinstance(event, SourceOpened)]
    return (
        *opened,
        *(RecordsRetried(run_id=run_id, epoch=epoch, items=items) for items in _parts(cut.retried)),
        *(RecordsOmitted(run_id=run_id, epoch=epoch, items=items) for items in _parts(omitted)),
        *(RecordsLate(run_id=run_id, epoch=epoch, items=items) for items in _parts(cut.late)),
        *(CopiesDiffered(run_id=run_id, epoch=epoch, items=items) for items in _parts(cut.differing)),
        *rest,
    )


def manifest_of(
    standing: Standing, journal: Journal, cut: Cut, token: int, state: str, sink: SinkRef, side_inputs: Sequence[str]
) -> Manifest:
    """The manifest of the next epoch. `RefusedError` where the counts do not add up to how far the partitions were read."""
    plan = plan_of(standing)
    partitions = [str(partition) for partition in range(plan.partitions)]
    next_offsets = {partition: cut.next_offsets[int(partition)] for partition in partitions}
    start_offsets = {partition: journal.start_offsets[partition] for partition in partitions}
    journalled = sum(next_offsets.values()) - sum(start_offsets.values())
    if sum(cut.counts.values()) != journalled:
        raise RefusedError(
            f"the counts add up to {sum(cut.counts.values())}", at=standing.run_id, expected=f"{journalled} offsets"
        )
    return build_manifest(
        run_id=standing.run_id,
        epoch=standing.checkpoint.epoch + 1,
        token=token,
        plan=plan,
        state=state,
        state_schema=STATE_SCHEMA,
        sink=sink,
        next_offsets=next_offsets,
        start_offsets=start_offsets,
        marks=None if journal.marks is None else dict(journal.marks),
        counts=dict(cut.counts),
        watermarks=cut.watermarks,
        side_inputs=tuple(side_inputs),
    )


def commit_news(standing: Standing, checkpointed: Event, journal: Sequence[Event], token: int) -> tuple[NewEvent, ...]:
    """The commit's own events: the journal's first, then the checkpoint, under ids that follow from the epoch."""
    run_id, epoch = standing.run_id, standing.checkpoint.epoch + 1
    stream = journal_stream(run_id)
    news = [
        NewEvent(stream, version, event, commit_id(run_id, token, epoch, str(place)))
        for place, (version, event) in enumerate(enumerate(journal, standing.journal_version + 1))
    ]
    news.append(
        NewEvent(
            checkpoint_stream(run_id),
            standing.checkpoint_version + 1,
            checkpointed,
            commit_id(run_id, token, epoch, "checkpoint"),
        )
    )
    return tuple(news)


def _evolved(journal: Journal, events: Iterable[Event]) -> Journal:
    for event in events:
        journal = evolve_journal(journal, event)
    return journal


def _parts(items: Sequence[T]) -> Iterable[tuple[T, ...]]:
    return (tuple(items[start : start + ITEMS_MAX]) for start in range(0, len(items), ITEMS_MAX))


# ------------------------------------------------------------------------------------------------ folds


def _checkpoint_document(checkpoint: Checkpoint) -> Any:
    return msgspec.to_builtins(checkpoint)


CHECKPOINT_FOLD: Final = Fold[Checkpoint](
    name="checkpoint",
    schema=1,
    initial=lambda stream: Checkpoint(stream.partition("/")[2]),
    evolve=lambda checkpoint, recorded: evolve_checkpoint(checkpoint, recorded.event),
    to_document=_checkpoint_document,
    from_document=lambda document: msgspec.convert(document, Checkpoint),
)
"""The last checkpoint, without reading those before it."""


def _after(journal: Journal, recorded: Recorded) -> Journal:
    return evolve_journal(journal, recorded.event)


JOURNAL_FOLD: Final = Fold[Journal](
    name="journal",
    schema=2,
    initial=lambda stream: Journal(stream.partition("/")[2]),
    evolve=_after,
    to_document=journal_document,
    from_document=journal_of,
)
"""What is omitted and asked for now, without reading all that ever was."""
