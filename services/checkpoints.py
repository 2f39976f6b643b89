"""Checkpoints of STREAM runs: commit a cut under the fence, restore the right one, read the sink.

What must stay true: blobs are stored before the one append that names them; that append carries the checkpoint, the journal's
events of the cut and whatever the caller adds, under the fence, or none of it; the checkpoint to restore is the last one that the
log says was committed for the run, never the newest file; what does not fit (hash, run, plan, schema) is refused by name; after
a lost answer the same commit can be made again and is one. A crash before the append leaves blobs that nothing names and the
previous checkpoint in force.

Everything blocks: the stream worker calls it from its own thread.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from domain.canonical import address, canonical, parse
from domain.checkpoints.aggregate import Checkpoint
from domain.checkpoints.aggregate import decide as decide_checkpoint
from domain.checkpoints.aggregate import evolve as evolve_checkpoint
from domain.checkpoints.manifest import (
    Manifest,
    Plan,
    SinkRef,
    check_manifest,
    check_plan,
    encode_checkpoint,
    parse_checkpoint,
)
from domain.checkpoints.messages import CheckpointCommitted, CommitCheckpoint
from domain.checkpoints.segments import (
    Segment,
    accepted_of_segments,
    encode_segment,
    lanes_of_segments,
    parse_segment,
    segments_of,
)
from domain.errors import CanonicalError, VersionConflictError
from domain.events import Event, Metadata
from domain.identity import checkpoint_stream, journal_stream
from domain.market.lanes import LaneValues
from domain.market.records import MarketEvent
from domain.stream.errors import CheckpointInvalidError
from domain.stream.journal import PendingRetry
from domain.stream.progress import Cut, quarantined
from domain.stream.quarantine import encode_quarantined, parse_quarantined
from domain.stream.records import StreamRecord
from services import effects
from services.checkpoint_appends import (
    CHECKPOINT_FOLD,
    JOURNAL_FOLD,
    Committed,
    Standing,
    commit_news,
    journal_events,
    manifest_of,
    plan_of,
    with_journal,
)
from services.checkpoint_appends import journal_news as journal_news
from services.ports import Append, Appended, BlobStore, EventLog, Fence, NewEvent
from services.store.states import Fold, StateRead

CONFLICT_RETRIES_MAX: Final = 8
"""Times that a commit is made again because an operator's request came into the journal in between."""

STORE_AT_ONCE_MIN: Final = 8
"""Blobs of a commit from which on several are stored at once: each waits for the disk, and they can wait together."""

STORE_THREADS_MAX: Final = 8
"""Threads that store them."""

S = TypeVar("S")

Send = Callable[[EventLog, Append], Appended]


class CheckpointLog(EventLog, Protocol):
    """A log that also reads states from their snapshots; `services.store.application.Log` is one."""

    def read_state_blocking(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """The state of a stream, in one round trip."""
        ...


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a run goes on from. `state` is for `StreamCore.restore`; None where nothing was committed yet."""

    standing: Standing
    state: dict[str, Any] | None = None

    @property
    def manifest(self) -> Manifest | None:
        return self.standing.manifest

    @property
    def next_offsets(self) -> dict[int, int]:
        """Where the cut ends, by partition; the journal's start before the first one; empty if the source was never opened."""
        standing = self.standing
        offsets = standing.checkpoint.next_offsets if standing.committed else standing.journal.start_offsets
        return {int(partition): offset for partition, offset in offsets.items()}


class Checkpoints:
    """The use cases of a run's checkpoints, for the owner of its lease."""

    def __init__(self, log: CheckpointLog, blobs: BlobStore, store_threads: int = STORE_THREADS_MAX) -> None:
        self._log = log
        self._blobs = blobs
        self._store_threads = store_threads

    # ---------------------------------------------------------------- restore

    def restore(self, run_id: str, plan: Plan) -> Restored:
        """The last committed cut of the run, verified.

        Raises `CheckpointInvalidError` or `PartitionsChangedError` naming what does not fit, `BlobMissingError` or
        `BlobCorruptError` for what CAS lost.
        """
        standing = msgspec.structs.replace(self.standing(run_id), plan=plan)
        if not standing.committed:
            return Restored(standing=standing)
        manifest = self._manifest(standing.checkpoint)
        check_plan(manifest, plan)
        standing = msgspec.structs.replace(standing, manifest=manifest)
        return Restored(standing=standing, state=self._state(manifest))

    def standing(self, run_id: str) -> Standing:
        """Where the run's checkpoints and journal stand, from the log alone: enough for a claim, not for a commit."""
        checkpoint = self._log.read_state_blocking(checkpoint_stream(run_id), CHECKPOINT_FOLD)
        journal = self._log.read_state_blocking(journal_stream(run_id), JOURNAL_FOLD)
        return Standing(
            checkpoint=checkpoint.state,
            checkpoint_version=checkpoint.version,
            journal=journal.state,
            journal_version=journal.version,
        )

    def refresh(self, standing: Standing) -> Standing:
        """The standing with what operators have asked for since."""
        read = self._log.read_state_blocking(journal_stream(standing.run_id), JOURNAL_FOLD)
        return msgspec.structs.replace(standing, journal=read.state, journal_version=read.version)

    def quarantined(self, retry: PendingRetry) -> StreamRecord:
        """The record of a pending retry. Raises `BlobMissingError`, `BlobCorruptError`, `CheckpointInvalidError`."""
        _, record = parse_quarantined(self._blobs.get(retry.quarantine), retry.quarantine)
        if (record.partition, record.offset) != (retry.partition, retry.offset):
            raise CheckpointInvalidError(
                f"the record of offset {record.offset} of partition {record.partition}",
                at=retry.quarantine,
                expected=f"offset {retry.offset} of partition {retry.partition}",
            )
        return record

    # ---------------------------------------------------------------- commit

    def commit(
        self,
        cut: Cut,
        fence: Fence,
        standing: Standing,
        *,
        journal: Sequence[Event] = (),
        extra: Sequence[NewEvent] = (),
        side_inputs: Sequence[str] = (),
        send: Send = effects.append_blocking,
    ) -> Committed:
        """Make the cut the one to restore, with the journal's events and the caller's `extra`, in one append under the fence.

        `send` is the effect by which it is sent: appending, or publishing where `extra` makes results visible.

        Raises `StaleFenceError` when overtaken (nothing was written but blobs), `VersionConflictError` at a stream of the caller's
        `extra`, `StoreUnavailableError` with the outcome unknown: then make the very same commit again, or restore.
        """
        stored = self._store(cut, standing)
        for _ in range(CONFLICT_RETRIES_MAX):
            wanted = self._wanted(cut, stored, fence, standing, journal, side_inputs)
            append = Append(
                events=(*wanted.news, *extra), guard=fence, metadata=Metadata(correlation_id=standing.run_id)
            )
            try:
                appended = send(self._log, append)
            except VersionConflictError as conflict:
                again = self.standing(standing.run_id)
                again = msgspec.structs.replace(again, plan=standing.plan, manifest=standing.manifest)
                if again.checkpoint == wanted.after.checkpoint:
                    cut.blocks.clear()
                    after = msgspec.structs.replace(again, manifest=wanted.manifest)
                    return wanted.committed(after, self._log.now(), repeated=True)
                if again.checkpoint != standing.checkpoint or again.journal_version == standing.journal_version:
                    raise conflict
                standing = again
                continue
            if appended.repeated:
                self._check_stored(wanted)
            cut.blocks.clear()
            return wanted.committed(wanted.after, appended.recorded_at, appended.position, appended.repeated)
        raise VersionConflictError("the journal kept moving on", at=journal_stream(standing.run_id))

    # ---------------------------------------------------------------- sink

    def ticks(self, manifest: Manifest) -> dict[str, LaneValues]:
        """All ticks that were committed up to the cut, by instrument; instruments without any are not there."""
        return lanes_of_segments(self.segments(manifest))

    def accepted(self, manifest: Manifest) -> Iterator[MarketEvent]:
        """All events that were accepted up to the cut, later revisions after earlier ones."""
        return accepted_of_segments(self.segments(manifest))

    def segments(self, manifest: Manifest) -> list[Segment]:
        """The segments of the sink, in order. `CheckpointInvalidError` where they are not what the manifest says."""
        segments: list[Segment] = []
        address = manifest.sink.head
        while address is not None and len(segments) < manifest.sink.segments:
            segments.append(parse_segment(self._blobs.get(address), address))
            address = segments[-1].previous
        rows = [sum(counts) for counts in zip(*(segment.rows for segment in segments), strict=True)] or [0, 0]
        found = (len(segments), *rows)
        wanted = (manifest.sink.segments, manifest.sink.ticks, manifest.sink.accepted)
        if found != wanted or address is not None:
            raise CheckpointInvalidError(
                f"segments, ticks, accepted events: {found}", at=f"sink of epoch {manifest.epoch}", expected=str(wanted)
            )
        return segments[::-1]

    # ---------------------------------------------------------------- parts

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        manifest = parse_checkpoint(self._blobs.get(checkpoint.manifest), checkpoint.manifest)
        check_manifest(manifest, _committed(checkpoint))
        return manifest

    def _state(self, manifest: Manifest) -> dict[str, Any]:
        """The state with its blocks of identities in their places."""
        at = f"{manifest.state}, state of epoch {manifest.epoch}"
        state = _parsed(self._blobs.get(manifest.state), at, manifest.state_schema)
        if not isinstance(state, dict) or state.get("schema") != manifest.state_schema:
            raise CheckpointInvalidError("a state of another schema", at=at, expected=manifest.state_schema)
        if state.get("counts") != manifest.counts:
            raise CheckpointInvalidError("its counts are not the manifest's", at=at, expected=repr(manifest.counts))
        try:
            for identities in state["identities"]:
                addresses: list[str] = identities["blocks"]
                identities["blocks"] = [_parsed(self._blobs.get(name), name, "a block") for name in addresses]
        except (KeyError, TypeError, AttributeError):
            raise CheckpointInvalidError("no identities", at=at, expected="blocks by address") from None
        return state

    def _store(self, cut: Cut, standing: Standing) -> "_Stored":
        """Store all of a cut but its manifest. Addresses follow from bytes, so no blob need wait for another one."""
        sink, segments = standing.manifest.sink if standing.manifest else SinkRef(), list[bytes]()
        for segment in segments_of(cut.ticks, cut.accepted):
            ticks, accepted = segment.rows
            segments.append(encode_segment(segment, sink.head))
            sink = SinkRef(
                head=address(segments[-1]),
                segments=sink.segments + 1,
                ticks=sink.ticks + ticks,
                accepted=sink.accepted + accepted,
            )
        kept = [encode_quarantined(plan_of(standing).source, one.record) for one in quarantined(cut)]
        state, *stored = self._store_all([canonical(cut.state), *kept, *cut.blocks.values(), *segments])
        return _Stored(state, tuple(stored[: len(kept)]), sink)

    def _store_all(self, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Store them; many at once, since a topic may be full of what cannot be read. Their addresses in order."""
        store = partial(effects.store_blob, self._blobs)
        if len(blobs) < STORE_AT_ONCE_MIN or self._store_threads == 1:
            return tuple(map(store, blobs))
        with ThreadPoolExecutor(self._store_threads, thread_name_prefix="finaz-checkpoint") as threads:
            return tuple(threads.map(store, blobs))

    def _wanted(
        self,
        cut: Cut,
        stored: "_Stored",
        fence: Fence,
        standing: Standing,
        journal: Sequence[Event],
        side_inputs: Sequence[str],
    ) -> "_Wanted":
        epoch = standing.checkpoint.epoch + 1
        events = journal_events(standing, cut, stored.quarantine, epoch, journal)
        after = with_journal(standing, events)
        manifest = manifest_of(after, after.journal, cut, fence.token, stored.state, stored.sink, side_inputs)
        address = effects.store_blob(self._blobs, encode_checkpoint(manifest))
        command = CommitCheckpoint(
            epoch=epoch,
            token=fence.token,
            manifest=address,
            manifest_hash=manifest.manifest_hash,
            next_offsets=manifest.next_offsets,
        )
        (committed,) = decide_checkpoint(standing.checkpoint, command)
        after = msgspec.structs.replace(
            after,
            checkpoint=evolve_checkpoint(standing.checkpoint, committed),
            checkpoint_version=standing.checkpoint_version + 1,
            manifest=manifest,
        )
        return _Wanted(commit_news(standing, committed, events, fence.token), after, manifest, address)

    def _check_stored(self, wanted: "_Wanted") -> None:
        """That what is stored under this epoch's ids is this cut, and not another one of the same owner and epoch."""
        found = self._log.read_state_blocking(checkpoint_stream(wanted.after.run_id), CHECKPOINT_FOLD).state
        if found != wanted.after.checkpoint:
            raise VersionConflictError(
                f"epoch {found.epoch} was committed with another cut",
                at=checkpoint_stream(wanted.after.run_id),
                expected=f"the manifest {wanted.address}",
            )


class _Stored(msgspec.Struct, frozen=True):
    """Addresses of a cut's blobs."""

    state: str
    quarantine: tuple[str, ...]
    sink: SinkRef


class _Wanted(msgspec.Struct, frozen=True):
    """A commit on top of a standing, and the standing after it."""

    news: tuple[NewEvent, ...]
    after: Standing
    manifest: Manifest
    address: str

    def committed(self, after: Standing, recorded_at: datetime, position: int = 0, repeated: bool = False) -> Committed:
        """What the caller is told."""
        return Committed(
            standing=after,
            manifest=self.manifest,
            address=self.address,
            recorded_at=recorded_at,
            position=position,
            repeated=repeated,
        )


def _parsed(data: bytes, at: str, expected: str) -> Any:
    try:
        return parse(data)
    except CanonicalError as error:
        raise CheckpointInvalidError(f"no state: {error}", at=at, expected=expected) from None


def _committed(checkpoint: Checkpoint) -> CheckpointCommitted:
    return CheckpointCommitted(
        run_id=checkpoint.run_id,
        epoch=checkpoint.epoch,
        token=checkpoint.token,
        manifest=checkpoint.manifest,
        manifest_hash=checkpoint.manifest_hash,
        next_offsets=checkpoint.next_offsets,
    )
