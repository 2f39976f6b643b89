"""What becomes of a STREAM run, for people: how it stands, its checkpoints, records omitted, late or retried, and asking to retry.

What must stay true: only who may see the run sees this; a request is decided on the journal itself, never on a read model, so
what is no longer omitted is not asked for; it is one append under the version that was read, with the operator's name, and its
worker takes it up at its next commit or resume. A crash leaves the append or nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from domain.errors import NotFoundError, RunFinishedError, VersionConflictError
from domain.events import Metadata
from domain.identity import checkpoint_stream, journal_stream
from domain.runs.aggregate import RunState
from domain.runs.messages import Mode
from domain.stream.journal import decide
from domain.stream.messages import Place, Pressure, RequestRetry, RetryRequested
from domain.stream.treatment import Treatment
from projections.checkpoints.postgres import CheckpointsReader
from projections.checkpoints.projection import CheckpointRow as CheckpointRow
from projections.quarantine.postgres import QuarantineReader
from projections.quarantine.projection import RecordRow as RecordRow
from projections.reading import PAGE_ROWS_MAX as PAGE_ROWS_MAX
from projections.reading import Page
from services import effects
from services.checkpoint_appends import CHECKPOINT_FOLD, JOURNAL_FOLD
from services.checkpoints import CheckpointLog
from services.event_ids import new_event_id
from services.ports import Append, NewEvent
from services.runs import Runs

CONFLICT_RETRIES_MAX: Final = 8
"""Times that a request is decided again because the worker committed in between."""

RETRY_ITEMS_MAX: Final = 1000
"""Records that one request may name; to ask for all that are omitted, name none."""

RECORD_STATES: Final = tuple(treatment.value for treatment in Treatment if treatment is not Treatment.ABSENT)
"""States that a record of a run may be in: its current treatment."""


class RetryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: those of the records named that are omitted and were not asked for before.

    `position` is that of the last event of the request; 0 where there was nothing to ask for.
    """

    run_id: str
    requested: tuple[Place, ...]
    position: int


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a STREAM run stands, by its own events; offsets by partition, as text.

    `committed_offsets` are the first that the last checkpoint (`epoch`) does not include, `marks` where a bounded run ends, `left`
    how many offsets are between them; both None where there are no marks, or none yet. `quarantined` records can be tried again;
    `retries_requested` of them were asked for. `pressure` is what holds the run up, if anything, and `reason` why, as its last
    owner put it; a checkpoint under a later token means that nothing does any more.
    """

    run_id: str
    state: RunState
    topic: str
    token: int
    epoch: int
    start_offsets: dict[str, int]
    committed_offsets: dict[str, int]
    marks: dict[str, int] | None
    left: int | None
    quarantined: int
    retries_requested: int
    pressure: Pressure
    reason: str


class StreamRecords:
    """The use cases. `principal` asks; `operates` lets it see everybody's runs."""

    def __init__(
        self,
        log: CheckpointLog,
        runs: Runs,
        checkpoints: CheckpointsReader,
        quarantine: QuarantineReader,
        new_id: Callable[[], UUID] = new_event_id,
    ) -> None:
        self._log = log
        self._runs = runs
        self._checkpoints = checkpoints
        self._quarantine = quarantine
        self._new_id = new_id

    async def status(self, run_id: str, principal: str, operates: bool) -> StreamStatus:
        """How the run stands. Raises `RunNotFoundError`, and `NotFoundError` for a run of another mode."""
        run = await self._runs.folded(run_id, principal, operates)
        if run.spec is None or run.spec.mode is not Mode.STREAM:
            raise NotFoundError("the run reads no stream", at=run_id, expected="a STREAM run")
        read = self._log.read_state_blocking
        journal = (await asyncio.to_thread(read, journal_stream(run_id), JOURNAL_FOLD)).state
        checkpoint = (await asyncio.to_thread(read, checkpoint_stream(run_id), CHECKPOINT_FOLD)).state
        reached = dict(checkpoint.next_offsets or journal.start_offsets)
        marks = None if journal.marks is None else dict(journal.marks)
        over = run.state in (RunState.SUCCEEDED, RunState.CANCELLED) or checkpoint.token > journal.pressure_token
        return StreamStatus(
            run_id=run_id,
            state=run.state,
            topic=run.spec.topic,
            token=run.token,
            epoch=checkpoint.epoch,
            start_offsets=dict(journal.start_offsets),
            committed_offsets=reached,
            marks=marks,
            left=None if marks is None else sum(max(0, mark - reached.get(p, 0)) for p, mark in marks.items()),
            quarantined=len(journal.omitted),
            retries_requested=sum(kept.requested for kept in journal.omitted.values()),
            pressure=Pressure.FLOWING if over else journal.pressure,
            reason="" if over else journal.pressure_reason,
        )

    async def checkpoints(
        self, run_id: str, principal: str, operates: bool, cursor: str | None, limit: int
    ) -> Page[CheckpointRow]:
        """The run's checkpoints, newest first. Raises `RunNotFoundError`, `CursorInvalidError`, `BodyInvalidError`."""
        await self._runs.get(run_id, principal, operates)
        return await asyncio.to_thread(self._checkpoints.list, run_id, cursor, limit)

    async def records(
        self, run_id: str, principal: str, operates: bool, state: str | None, cursor: str | None, limit: int
    ) -> Page[RecordRow]:
        """Records that were not simply taken, by partition and offset. Raises as `checkpoints`."""
        await self._runs.get(run_id, principal, operates)
        return await asyncio.to_thread(self._quarantine.list, run_id, state, cursor, limit)

    async def request_retry(self, run_id: str, principal: str, items: Sequence[Place]) -> RetryAnswer:
        """Ask that omitted records (none named: all) be judged again.

        Raises `RunNotFoundError`, and `RunFinishedError` for a run that nobody will work on any more.
        """
        run = await self._runs.folded(run_id, principal, operates=True)
        if run.finished:
            raise RunFinishedError(
                f"the run has ended: {run.state.name}", at=run_id, expected="a run that has not", state=run.state.name
            )
        command = RequestRetry(principal=principal, items=tuple(items))
        for _ in range(CONFLICT_RETRIES_MAX):
            read = await asyncio.to_thread(self._log.read_state_blocking, journal_stream(run_id), JOURNAL_FOLD)
            events = decide(read.state, command)
            if not events:
                return RetryAnswer(run_id=run_id, requested=(), position=0)
            news = tuple(
                NewEvent(journal_stream(run_id), version, event, self._new_id())
                for version, event in enumerate(events, read.version + 1)
            )
            metadata = Metadata(correlation_id=run_id, principal=principal)
            try:
                appended = await effects.append(self._log, Append(events=news, metadata=metadata))
            except VersionConflictError:
                continue
            asked = tuple(item for event in events if isinstance(event, RetryRequested) for item in event.items)
            return RetryAnswer(run_id=run_id, requested=asked, position=appended.position)
        raise VersionConflictError("the journal kept moving on", at=run_id)
