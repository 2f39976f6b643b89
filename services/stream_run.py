"""One ownership of a STREAM run: from its claim to where the run ends, is handed on, or is lost.

Restore, open, read, commit: the loop is thin, the mind is `domain.stream`. What must stay true: the lease came before the first
record; nothing is visible but by appends under its fence; a cut and all that belongs to it are one append, and so are the last
cut, the results and the end; whatever ends an ownership, what was not committed is read again by the next. A crash anywhere
leaves a RUNNING run at its last commit, and blobs that nothing names.
"""

import logging
import threading
from typing import Any, Final

from domain.canonical import address_of
from domain.errors import (
    BlobCorruptError,
    BlobMissingError,
    Fault,
    FinazError,
    InfrastructureError,
    RunFinishedError,
    StaleFenceError,
    VersionConflictError,
)
from domain.market.errors import StateInvalidError
from domain.market.flow import FlowSpec
from domain.runs.aggregate import RunState
from domain.runs.messages import EndIfDue, FailRun, PublishResults
from domain.stream.errors import (
    BrokerRefusedError,
    CheckpointInvalidError,
    PartitionsChangedError,
    QuarantineFullError,
    RecoveryBlockedError,
    TopicMissingError,
)
from domain.stream.journal import PendingRetry, omitted_now, pending_retries
from domain.stream.messages import BoundedSourceEnded, Pressure, PressureEntered, SourceOpened
from domain.stream.progress import Progress
from domain.stream.treatment import Treatment
from domain.stream.worker_core import STATE_SCHEMA, StreamCore
from services.batch_run import described_error
from services.checkpoints import Restored
from services.runs import PublishedResult, published
from services.stream_behind import begin_behind, check_continued
from services.stream_claim import Claimed, plan_of
from services.stream_lease import LeaseKeeper, obsolete
from services.stream_parts import StreamEnd, StreamOutcome
from services.stream_pressure import PressureGauge
from services.stream_results import final_batch, read_document, stored_flow, stored_results
from services.stream_session import Session, Tools
from services.stream_source import Reading

_log: Final = logging.getLogger("finaz.stream_worker")

BLOCKING: Final = (
    PartitionsChangedError,
    RecoveryBlockedError,
    TopicMissingError,
    BrokerRefusedError,
    CheckpointInvalidError,
    StateInvalidError,
    QuarantineFullError,
)
"""What stops a run without ending it: an operator may put right what is wrong, and the next owner goes on."""


class Ownership:
    """A run that was claimed. `execute` it once; `stop` may be set from any thread, and hands the run back in order."""

    def __init__(self, tools: Tools, claimed: Claimed, stop: threading.Event) -> None:
        keeper = LeaseKeeper(
            tools.log,
            tools.claimant,
            claimed.head,
            claimed.sent_at,
            tools.clock,
            tools.new_id,
            tools.tell,
            tools.monotonic,
        )
        self._tools = tools
        self._settings = tools.settings
        self._stop = stop
        self._keeper = keeper
        self._session = Session(tools, claimed.head, keeper, stop)
        self._reading: Reading | None = None
        self._restoring = False  # a blob that is missing from here on is a checkpoint's, not the flow's
        self._records_since = 0
        self._committed_at = tools.monotonic()
        self._looked_at = tools.monotonic()

    def execute(self) -> StreamOutcome:
        """Work on the run until it ends, is to be handed back, or is lost.

        Raises `StreamFenceStaleError` (overtaken), the errors of `BLOCKING` (recorded, the lease given back), and
        `InfrastructureError` when something stayed away (the lease is left to expire).
        """
        session = self._session
        self._keeper.start()
        try:
            session.standing = self._session.checkpoints.standing(session.run_id)
            return self._work()
        except (StaleFenceError, RunFinishedError) as error:
            raise self._lost(error) from error
        except FinazError as error:
            try:
                return self._ended_by(error)
            except StaleFenceError as stale:
                raise self._lost(stale) from error
        except Exception as error:
            _log.exception("unexpected %s in %s", type(error).__name__, session.run_id)
            session.say("stream.defect", error=error)
            return self._failed(error)
        finally:
            self._keeper.stop()
            if self._reading is not None:
                self._reading.close()

    # ---------------------------------------------------------------- opening

    def _work(self) -> StreamOutcome:
        session, tools = self._session, self._tools
        flow = stored_flow(session.blobs, session.spec.flow)
        self._restoring = True
        source = session.patiently(lambda: tools.broker.source(session.spec.topic))
        reading = self._reading = Reading(session, source, self._stop)
        plan = plan_of(session.spec, reading.partitions, self._settings.limits)
        restored = session.patiently(lambda: session.checkpoints.restore(session.run_id, plan))
        session.standing = restored.standing
        if not session.standing.journal.source:
            self._open(reading)
        reading.check_opened()
        journal = session.standing.journal
        core = StreamCore(flow, reading.partitions, self._settings.limits)
        facts = _restored(core, restored)
        start = {int(partition): offset for partition, offset in journal.start_offsets.items()}
        marks = None if journal.marks is None else {int(p): mark for p, mark in journal.marks.items()}
        progress = Progress(core, start, restored.next_offsets or start, marks)
        epoch = session.standing.checkpoint.epoch
        session.say("stream.restored", epoch=epoch, records=_records(progress), **facts, **_offsets(progress))
        if session.spec.continues and not session.standing.committed:
            self._continue(progress, flow)
        self._retry(progress, omitted_now(journal))
        reading.assign(progress.next_offsets)
        session.say("stream.reading", epoch=epoch)
        gauge = PressureGauge(session, reading, progress)
        gauge.measure(0, delivered=True)
        return self._loop(progress, reading, gauge)

    def _continue(self, progress: Progress, flow: FlowSpec) -> None:
        """Begin behind a batch, and commit that before the first record."""
        begin_behind(self._tools.log, self._session.blobs, self._session.spec.continues, flow, progress)
        cut = progress.cut()
        check_continued(self._tools.log, self._session.spec.continues, flow, cut)
        self._session.commit(cut)
        self._keeper.tick()

    def _open(self, reading: Reading) -> None:
        """The source is opened for the first time: capture where it begins, and where a bounded run ends, before any record.

        Behind a batch it begins at the high-water marks: what is there already was the batch's.
        """
        session = self._session
        identity = reading.identity()
        marks = reading.marks()
        behind = bool(session.spec.continues)
        opened = SourceOpened(
            run_id=session.run_id,
            source=session.spec.topic,
            partitions=reading.partitions,
            start_offsets={str(p): mark.high if behind else mark.low for p, mark in sorted(marks.items())},
            marks={str(p): mark.high for p, mark in sorted(marks.items())} if session.spec.bounded else None,
            owner=self._tools.claimant.owner,
            token=session.token,
            source_identity=identity,
        )
        session.record(opened)
        session.say("stream.opened", start_offsets=opened.start_offsets, marks=opened.marks)

    # ---------------------------------------------------------------- the loop

    def _loop(self, progress: Progress, reading: Reading, gauge: PressureGauge) -> StreamOutcome:
        while True:
            self._keeper.check()
            self._keeper.tick()
            if progress.at_marks or (progress.marks is None and progress.core.ended):
                reading.check_identity()
                return self._finish(progress)
            if self._stop.is_set():
                return self._hand_back(progress, StreamEnd.STOPPED)
            limit = self._limit(progress)
            if not limit:
                return self._hand_back(progress, StreamEnd.TOTAL_REACHED)
            reading.hold(gauge.held)
            polled = reading.poll(reading.slice_of(limit))
            for columns in polled.columns:
                progress.take_columns(columns)
            size = sum(columns.value_bytes for columns in polled.columns)
            for partition, next_offset in polled.next_offsets.items():
                progress.reach(partition, next_offset)
            self._records_since += len(polled)
            gauge.measure(size, delivered=bool(polled.next_offsets))
            reading.pace(len(polled))
            if self._look_due():
                if self._session.look() and self._session.conclude(EndIfDue(self._session.token)):
                    return self._finished()
                self._retry(progress, pending_retries(self._session.standing.journal))
            if self._commit_due(progress, gauge):
                self._commit(progress, gauge)

    def _limit(self, progress: Progress) -> int:
        """Records to ask for: checkpoints fall on exact numbers of records, and so does the total."""
        limit = min(self._settings.poll_records, max(1, self._settings.checkpoint_records - self._records_since))
        if self._settings.total_records is not None:
            limit = min(limit, max(0, self._settings.total_records - _records(progress)))
        return limit

    def _look_due(self) -> bool:
        now = self._tools.monotonic()
        if now - self._looked_at < self._settings.look_seconds:
            return False
        self._looked_at = now
        return True

    def _commit_due(self, progress: Progress, gauge: PressureGauge) -> bool:
        if not progress.uncommitted:
            return False
        if self._records_since >= self._settings.checkpoint_records or gauge.wants_commit:
            return True
        return self._tools.monotonic() - self._committed_at >= self._settings.checkpoint_seconds

    def _commit(self, progress: Progress, gauge: PressureGauge | None = None) -> None:
        assert self._reading is not None, "what is committed was read"
        self._reading.check_identity()
        self._session.commit(progress.cut())
        self._records_since = 0
        self._committed_at = self._tools.monotonic()
        if gauge is not None:
            gauge.committed()
        self._retry(progress, pending_retries(self._session.standing.journal))

    def _retry(self, progress: Progress, retries: tuple[PendingRetry, ...]) -> None:
        """Judge records of the quarantine again, as arriving now; what became of them stands in the next cut."""
        for retry in retries:
            progress.retry(self._session.checkpoints.quarantined(retry), retry.requested)
            self._keeper.tick()
        if retries:
            self._session.say("stream.retried", records=len(retries))

    # ---------------------------------------------------------------- ends

    def _finish(self, progress: Progress) -> StreamOutcome:
        """The source has ended everywhere: release the rest, commit, publish and end the run, in one append."""
        session = self._session
        progress.finish()
        cut = progress.cut()
        flow = stored_flow(session.blobs, session.spec.flow)
        batch = final_batch(flow, session.checkpoints, session.standing.manifest, cut)
        read = read_document(session.spec.topic, session.standing.journal.start_offsets, cut)
        results = session.patiently(lambda: stored_results(session.blobs, batch, session.spec, read, self._keeper.tick))
        marks = session.standing.journal.marks
        ended = BoundedSourceEnded(
            run_id=session.run_id,
            epoch=session.standing.checkpoint.epoch + 1,
            token=session.token,
            marks=dict(marks or {}),
        )
        command = PublishResults(session.token, results)
        committed = session.publish(cut, command, (ended,) if marks is not None else ())
        if committed is None:
            return self._finished()
        return self._finished(
            tuple(published(session.run_id, one, session.token, committed.recorded_at) for one in results)
        )

    def _hand_back(self, progress: Progress, end: StreamEnd) -> StreamOutcome:
        """Commit what was read and give the lease back; nothing more is released, nothing published."""
        if progress.uncommitted:
            self._commit(progress)
        position = self._session.release()
        self._session.say("stream.released", position=position, detail=end.value)
        return StreamOutcome(run_id=self._session.run_id, end=end, state=RunState.RUNNING, token=self._session.token)

    def _finished(self, results: tuple[PublishedResult, ...] = ()) -> StreamOutcome:
        run = self._session.run
        error = run.errors[-1] if run.errors and run.state is not RunState.SUCCEEDED else None
        name = f"stream.{run.state.value.lower()}"
        self._session.say(name, detail=f"{error.code}: {error.message}" if error else "")
        return StreamOutcome(
            run_id=run.run_id, end=StreamEnd.FINISHED, state=run.state, token=self._session.token, results=results
        )

    def _ended_by(self, error: FinazError) -> StreamOutcome:
        """What an error means for the run: an operator's to put right, the infrastructure's, or the input's."""
        session = self._session
        blob = isinstance(error, BlobMissingError | BlobCorruptError)
        if isinstance(error, BLOCKING) or (blob and self._restoring):
            session.say("stream.blocked", error=error)
            self._leave_word(Pressure.RECOVERY_BLOCKED, error)
            session.release()
            raise error
        if isinstance(error, InfrastructureError | VersionConflictError):
            session.say("stream.away", error=error)
            self._leave_word(Pressure.SOURCE_PAUSED, error)
            raise error
        if error.fault is not Fault.INPUT:
            _log.error("unexpected %s in %s", type(error).__name__, session.run_id, exc_info=error)
            session.say("stream.defect", error=error)
        return self._failed(error)

    def _lost(self, error: StaleFenceError | RunFinishedError) -> FinazError:
        self._session.say("stream.lease_lost", error=error)
        return obsolete(error) if isinstance(error, StaleFenceError) else error

    def _leave_word(self, state: Pressure, error: FinazError) -> None:
        """Say in the journal why this owner stops, unless the one before it said just the same."""
        session = self._session
        reason = described_error(error, session.attempt)
        entered = PressureEntered(
            run_id=session.run_id, token=session.token, state=state, reason=f"{reason.code}: {reason.message}"
        )
        try:
            session.record(entered)
        except FinazError as refused:  # what is to be said is in the exception that is raised
            _log.warning("the end of an ownership of %s was not recorded: %s", session.run_id, refused)
            if isinstance(refused, StaleFenceError):
                raise

    def _failed(self, error: Exception) -> StreamOutcome:
        failed = FailRun(token=self._session.token, error=described_error(error, self._session.attempt))
        self._session.conclude(failed)
        return self._finished()


def _records(progress: Progress) -> int:
    """Records that the run has journalled, resumes included."""
    return sum(progress.core.counts.values()) - progress.core.counts[Treatment.ABSENT]


def _offsets(progress: Progress) -> dict[str, Any]:
    return {"next_offsets": {str(partition): offset for partition, offset in sorted(progress.next_offsets.items())}}


def _restored(core: StreamCore, restored: Restored) -> dict[str, Any]:
    """Give the core the state that was committed, and see that it is that state, to the byte; one of an older schema is not."""
    manifest = restored.manifest
    if restored.state is None or manifest is None:
        return {}
    core.restore(restored.state)
    if manifest.state_schema != STATE_SCHEMA:
        return {"manifest": manifest.manifest_hash}
    state = address_of(core.packed_state({}))
    if state != manifest.state:
        raise CheckpointInvalidError(
            f"restored, the state is {state}", at=f"state of epoch {manifest.epoch}", expected=manifest.state
        )
    return {"manifest": manifest.manifest_hash, "restored_state": state}
