"""Checkpoints over every event log: one append under the fence; the right one is restored, all else is refused by name."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from domain.canonical import canonical, parse
from domain.checkpoints.manifest import SinkRef, build_manifest, encode_checkpoint, parse_checkpoint
from domain.checkpoints.messages import CheckpointCommitted
from domain.checkpoints.segments import encode_segment, segments_of
from domain.errors import (
    BlobCorruptError,
    BlobMissingError,
    InfrastructureError,
    RefusedError,
    StaleFenceError,
    StoreUnavailableError,
    VersionConflictError,
)
from domain.identity import checkpoint_stream, journal_stream, lease_stream, run_stream
from domain.leases.messages import LeaseReleased
from domain.runs.messages import RunCancellationRequested
from domain.stream.errors import CheckpointInvalidError, PartitionsChangedError
from domain.stream.journal import PendingRetry, omitted_now, pending_retries
from domain.stream.messages import ITEMS_MAX, Place, RetryRequested
from domain.stream.progress import Cut
from domain.stream.records import StreamRecord
from services import effects, faultpoints
from services.cas import DirectoryBlobStore
from services.checkpoint_appends import CHECKPOINT_FOLD, journal_news, with_journal
from services.checkpoints import STORE_AT_ONCE_MIN, CheckpointLog, Checkpoints
from services.ports import Append, Fence, NewEvent
from services.store.application import Log
from services.store.states import SNAPSHOT_EVENTS
from tests.support.logs import opened
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_log import MemoryLog
from tests.support.stream_runs import RUN, Owner, lease, plan_of, records_of
from tests.support.stream_runs import opened as opened_by
from tests.unit.domain.market.test_arrivals import fixture_log
from tests.unit.domain.stream.test_worker_core import INSTRUMENT, fixture_flow

RECORDS = records_of(fixture_log().arrivals, "a", Counter())
FLOW = fixture_flow()
PLAN = plan_of(FLOW)


@pytest.fixture(params=["memory", "postgres"])
def log(request: pytest.FixtureRequest) -> Iterator[CheckpointLog]:
    """A fresh, empty log."""
    if request.param == "memory":
        yield MemoryLog()
        return
    with opened(request.getfixturevalue("database")) as real:
        yield real


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    """A store in a folder."""
    return DirectoryBlobStore(tmp_path)


def release(log: CheckpointLog, fence: Fence) -> None:
    """Give the lease back, so that the next owner need not wait."""
    stream = lease_stream(RUN)
    version = len(log.read_streams_blocking([stream]).streams[stream]) + 1
    released = LeaseReleased(resource=RUN, owner=fence.owner, token=fence.token)
    log.append_blocking(Append(events=(NewEvent(stream, version, released, uuid4()),), guard=fence))


def owner(log: CheckpointLog, blobs: Any, token: int = 1) -> Owner:
    """The owner of that token, with nothing taken yet."""
    return Owner(log, blobs, lease(log, f"owner-{token}", token, ttl_seconds=600.0), FLOW)


def took(who: Owner, start: int, end: int) -> Owner:
    """The same, having taken some of the fixture's records."""
    for record in RECORDS[start:end]:
        who.progress.take(record)
    return who


def fact(number: int) -> NewEvent:
    """Something of the caller's own, on the run's stream."""
    return NewEvent(run_stream(RUN), number, RunCancellationRequested(run_id=RUN, principal=f"ana-{number}"), uuid4())


def test_a_commit_is_one_append_and_is_what_is_restored(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """Journal, checkpoint and the caller's events stand together; state, offsets and sink come back."""
    first = took(owner(log, blobs), 0, 20)
    before = log.high_water_mark()
    committed = first.commit(extra=(fact(1),))
    assert committed.position == log.high_water_mark()
    topics = [recorded.event.topic for recorded in log.read_log(before, 100)]
    assert topics == [
        "journal.source_opened.v1",
        "journal.records_omitted.v1",
        "checkpoint.committed.v1",
        "run.cancellation_requested.v1",
    ]
    restored = Checkpoints(log, blobs).restore(RUN, PLAN)
    assert restored.standing == committed.standing
    assert canonical(restored.state) == canonical(first.progress.core.state_document())
    assert restored.next_offsets == first.progress.next_offsets
    assert restored.manifest is not None
    ticks = Checkpoints(log, blobs).ticks(restored.manifest)[INSTRUMENT]
    assert len(ticks) == restored.manifest.sink.ticks > 0


def test_nothing_committed_is_nothing_restored(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """Neither state nor offsets, whatever lies in CAS."""
    blobs.put(b"{}")
    restored = Checkpoints(log, blobs).restore(RUN, PLAN)
    assert (restored.state, restored.next_offsets, restored.manifest) == (None, {}, None)


def test_an_overtaken_owner_commits_nothing_and_leaves_nothing_to_restore(
    log: CheckpointLog, blobs: DirectoryBlobStore
) -> None:
    """Its blobs are the newest files there are, and nobody takes them for the checkpoint."""
    first = took(owner(log, blobs), 0, 5)
    last = first.commit()
    took(first, 5, 12)
    release(log, first.fence)
    second = owner(log, blobs, 2)
    before = log.high_water_mark()
    with pytest.raises(StaleFenceError):
        first.commit(extra=(fact(1),))
    assert log.high_water_mark() == before
    assert Checkpoints(log, blobs).restore(RUN, PLAN).standing.checkpoint == last.standing.checkpoint
    took(second, 5, 9)
    assert second.commit().manifest.epoch == 2
    with pytest.raises(StaleFenceError):
        first.commit()


def test_a_commit_whose_answer_was_lost_is_made_again_and_is_one(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """The same cut: the same checkpoint, told as repeated; another cut under the same epoch is refused."""
    who = took(owner(log, blobs), 0, 8)
    cut, standing = who.progress.cut(), who.standing

    def lost(name: str) -> None:
        if name == faultpoints.APPEND_AFTER:
            raise StoreUnavailableError("the connection was lost")

    with faultpoints.armed(lost), pytest.raises(StoreUnavailableError):
        who.commit(cut=cut, extra=(fact(1),))
    before = log.high_water_mark()
    again = who.commit(cut=cut, extra=(fact(1),))  # what the caller adds has new ids now
    assert (again.repeated, again.manifest.epoch, log.high_water_mark()) == (True, 1, before)
    assert again.standing == msgspec.structs.replace(
        Checkpoints(log, blobs).restore(RUN, PLAN).standing, manifest=again.manifest
    )
    took(who, 8, 12)
    who.standing = standing
    with pytest.raises(VersionConflictError):
        who.commit()
    assert log.high_water_mark() == before


def test_an_operators_request_in_between_does_not_disturb_a_commit(
    log: CheckpointLog, blobs: DirectoryBlobStore
) -> None:
    """It goes on top of the request, which is pending afterwards."""
    who = owner(log, blobs)
    bad = StreamRecord(partition=3, offset=0, key=INSTRUMENT.encode(), value=b"{")
    who.progress.take(bad)
    who.commit()
    who.progress.take(msgspec.structs.replace(bad, offset=1))
    asked = RetryRequested(run_id=RUN, principal="ana", items=(Place(partition=3, offset=0),))
    log.append_blocking(Append(events=journal_news(who.standing, [asked], uuid4)))
    committed = who.commit()
    assert [retry.offset for retry in pending_retries(committed.standing.journal)] == [0]
    assert who.checkpoints.quarantined(pending_retries(committed.standing.journal)[0]) == bad
    assert committed.standing == Checkpoints(log, blobs).restore(RUN, PLAN).standing


def test_a_conflict_of_the_callers_own_events_is_the_callers(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """Nothing is written; with events that fit the same cut goes through."""
    who = took(owner(log, blobs), 0, 4)
    cut, before = who.progress.cut(), log.high_water_mark()
    with pytest.raises(VersionConflictError):
        who.commit(cut=cut, extra=(fact(7),))
    assert log.high_water_mark() == before
    assert who.commit(cut=cut, extra=(fact(1),)).manifest.epoch == 1


def test_counts_that_do_not_add_up_are_refused(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """A cut that lost a record, or counted one twice, is never committed."""
    who = took(owner(log, blobs), 0, 4)
    cut: Cut = who.progress.cut()
    wrong = msgspec.structs.replace(cut, counts=cut.counts | {"consumed": cut.counts["consumed"] + 1})
    with pytest.raises(RefusedError, match="add up"):
        who.commit(cut=wrong)
    back = msgspec.structs.replace(cut, next_offsets=cut.next_offsets | {0: cut.next_offsets[0] + 1})
    with pytest.raises(RefusedError, match="add up"):
        who.commit(cut=back)
    assert who.commit(cut=cut).manifest.epoch == 1


def test_what_the_caller_appended_itself_is_built_upon(log: CheckpointLog, blobs: DirectoryBlobStore) -> None:
    """A claim may open the source in an append of its own; the first commit follows it."""
    who = took(owner(log, blobs), 0, 4)
    event = opened_by(who.fence)
    log.append_blocking(Append(events=journal_news(who.standing, [event], uuid4), guard=who.fence))
    who.standing = with_journal(who.standing, [event])
    committed = who.commit()
    assert committed.standing == Checkpoints(log, blobs).restore(RUN, PLAN).standing


def test_many_records_are_set_aside_in_one_commit(tmp_path: Path) -> None:
    """Several items and events, stored side by side, each under its own address; one that cannot be stored fails the commit."""
    log, blobs = MemoryLog(), DirectoryBlobStore(tmp_path)
    who = owner(log, blobs)
    who.checkpoints = Checkpoints(log, blobs)
    count = ITEMS_MAX + STORE_AT_ONCE_MIN
    for offset in range(count):
        who.progress.take(StreamRecord(partition=3, offset=offset, key=INSTRUMENT.encode(), value=b"%d" % offset))
    cut, left = who.progress.cut(), 5

    def full(name: str) -> None:
        nonlocal left
        if name == faultpoints.CAS_WRITE_BEFORE:
            left -= 1
            if left < 0:
                raise InfrastructureError("the disk is full")

    with faultpoints.armed(full), pytest.raises(InfrastructureError):
        who.commit(cut=cut)
    assert log.read_streams_blocking([journal_stream(RUN)]).streams[journal_stream(RUN)] == ()
    journal = who.commit(cut=cut).standing.journal
    assert [who.checkpoints.quarantined(one).value for one in omitted_now(journal)] == [b"%d" % n for n in range(count)]
    events = log.read_streams_blocking([journal_stream(RUN)]).streams[journal_stream(RUN)]
    assert [len(r.event.items) for r in events[1:]] == [ITEMS_MAX, STORE_AT_ONCE_MIN]  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ what does not fit


@pytest.fixture
def run() -> Owner:
    """A run with a checkpoint, in memory."""
    who = took(owner(MemoryLog(), MemoryBlobs()), 0, 20)
    who.commit()
    return who


def store_of(who: Owner) -> tuple[Any, Any]:
    """Its log and blobs."""
    return who.checkpoints._log, who.checkpoints._blobs


@pytest.mark.parametrize("part", ["manifest", "state"])
@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_a_blob_that_is_missing_or_corrupt_is_named(tmp_path: Path, part: str, damage: str) -> None:
    """Never a silent start from an older checkpoint or from nothing."""
    log, blobs = MemoryLog(), DirectoryBlobStore(tmp_path)
    committed = took(owner(log, blobs), 0, 20).commit()
    address = committed.address if part == "manifest" else committed.manifest.state
    digest = address.removeprefix("sha256:")
    file = tmp_path / digest[:2] / digest[2:4] / digest
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(BlobMissingError if damage == "missing" else BlobCorruptError) as refused:
        Checkpoints(log, blobs).restore(RUN, PLAN)
    assert refused.value.at == address


@pytest.mark.parametrize(
    ("change", "error", "at"),
    [
        ({"partitions": 5}, PartitionsChangedError, "market"),
        ({"flow": "sha256:" + "0" * 64}, CheckpointInvalidError, "flow"),
        ({"source": "other"}, CheckpointInvalidError, "source"),
    ],
)
def test_another_plan_is_refused(run: Owner, change: dict[str, Any], error: type[Exception], at: str) -> None:
    """By the member that differs; nothing is taken over."""
    with pytest.raises(error) as refused:
        run.checkpoints.restore(RUN, msgspec.structs.replace(PLAN, **change))
    assert str(refused.value.at).endswith(at)  # type: ignore[attr-defined]


def recommitted(who: Owner, **changes: Any) -> None:
    """The next epoch points at a manifest with these changes, as somebody who bypasses the service might have it."""
    log, blobs = store_of(who)
    assert who.standing.manifest is not None
    body = {
        name: getattr(who.standing.manifest, name)
        for name in who.standing.manifest.__struct_fields__
        if name not in ("format", "rng", "manifest_hash")
    }
    manifest = build_manifest(**body | {"epoch": 2} | changes)
    event = CheckpointCommitted(
        run_id=RUN,
        epoch=2,
        token=1,
        manifest=effects.store_blob(blobs, encode_checkpoint(manifest)),
        manifest_hash=manifest.manifest_hash,
        next_offsets=manifest.next_offsets,
    )
    log.append_blocking(Append(events=(NewEvent(checkpoint_stream(RUN), 2, event, uuid4()),)))


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"run_id": "run_" + "f" * 64}, "run_id"),
        ({"epoch": 3}, "epoch"),
        ({"token": 2}, "token"),
        ({"state_schema": "FINAZ_STREAM_STATE_V1"}, "state_schema"),
        ({"counts": {"consumed": 1}}, "state of epoch 2"),
    ],
)
def test_a_manifest_that_is_not_the_runs_own_is_refused(run: Owner, changes: dict[str, Any], at: str) -> None:
    """Another run's, epoch's or owner's, another schema, counts that are not the state's."""
    recommitted(run, **changes)
    with pytest.raises(CheckpointInvalidError) as refused:
        run.checkpoints.restore(RUN, PLAN)
    assert str(refused.value.at).endswith(at)


def test_a_state_of_something_else_is_refused(run: Owner) -> None:
    """The manifest names it, so its address fits; what is in it does not."""
    _, blobs = store_of(run)
    recommitted(run, state=blobs.put(b"[1,2"))
    with pytest.raises(CheckpointInvalidError):
        run.checkpoints.restore(RUN, PLAN)


@pytest.mark.parametrize("changes", [{"segments": 9}, {"segments": 0}, {"ticks": 1}, {"accepted": 0}, {"head": None}])
def test_a_sink_that_is_not_what_the_manifest_says_is_refused(run: Owner, changes: dict[str, Any]) -> None:
    """Too short, too long, other numbers of rows."""
    assert run.standing.manifest is not None
    sink = msgspec.structs.replace(run.standing.manifest.sink, **changes)
    recommitted(run, sink=sink)
    restored = run.checkpoints.restore(RUN, PLAN)
    assert restored.manifest is not None
    with pytest.raises(CheckpointInvalidError) as refused:
        run.checkpoints.ticks(restored.manifest)
    assert refused.value.at == "sink of epoch 2"


def test_a_quarantined_record_of_another_place_is_refused(run: Owner) -> None:
    """The address fits its bytes, but they are another record's."""
    run.progress.take(StreamRecord(partition=3, offset=17, key=INSTRUMENT.encode(), value=b"{"))
    journal = run.commit().standing.journal
    (kept,) = journal.omitted.values()
    with pytest.raises(CheckpointInvalidError):
        run.checkpoints.quarantined(PendingRetry(3, 18, kept.quarantine))


# ------------------------------------------------------------------------------------------------ long runs


def test_the_last_checkpoint_is_read_without_folding_all_of_them(database: str) -> None:
    """After many epochs a restore reads no more events than a snapshot lets grow behind it."""
    with opened(database) as log:
        blobs = MemoryBlobs()
        who = owner(log, blobs)
        for record in RECORDS:
            who.progress.take(record)
        first = who.commit()
        epochs = SNAPSHOT_EVENTS + 50
        fill(log, first.standing.checkpoint, epochs)
        read = log.read_state_blocking(checkpoint_stream(RUN), CHECKPOINT_FOLD)
        assert (read.version, read.from_version, read.state.epoch) == (epochs, 0, epochs)
        again = log.read_state_blocking(checkpoint_stream(RUN), CHECKPOINT_FOLD)
        assert (again.from_version, again.state) == (epochs, read.state)


def fill(log: Log, last: Any, epochs: int) -> None:
    """Commit the same manifest again and again, to make the stream long."""
    news = [
        NewEvent(
            checkpoint_stream(RUN),
            epoch,
            CheckpointCommitted(
                run_id=RUN,
                epoch=epoch,
                token=1,
                manifest=last.manifest,
                manifest_hash=last.manifest_hash,
                next_offsets=last.next_offsets,
            ),
            uuid4(),
        )
        for epoch in range(2, epochs + 1)
    ]
    log.append_blocking(Append(events=tuple(news)))


def test_ten_thousand_segments_are_walked(run: Owner) -> None:
    """A run that commits for hours has a long list; its head is all that the manifest holds."""
    _, blobs = store_of(run)
    who = run.standing
    assert who.manifest is not None
    lane = run.checkpoints.ticks(who.manifest)[INSTRUMENT]
    (segment,) = segments_of({INSTRUMENT: (lane,)}, ())
    head = None
    for _ in range(10_000):
        head = blobs.put(encode_segment(segment, head))
    sink = SinkRef(head=head, segments=10_000, ticks=10_000 * len(lane))
    long = msgspec.structs.replace(who.manifest, sink=sink)
    assert len(run.checkpoints.ticks(long)[INSTRUMENT]) == 10_000 * len(lane)
    assert len(encode_checkpoint(long)) < 2 * len(encode_checkpoint(who.manifest))


def test_a_manifest_in_cas_is_canonical_and_carries_its_hash(run: Owner) -> None:
    """What is stored under the committed address is what was told."""
    _, blobs = store_of(run)
    data = blobs.get(run.standing.checkpoint.manifest)
    assert canonical(parse(data)) == data
    assert parse_checkpoint(data, "here") == run.standing.manifest
    assert journal_stream(RUN) == "journal/" + RUN
