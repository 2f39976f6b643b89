"""One attempt at one run: from its start to its end, or to where somebody else has to go on.

What must stay true: nothing of an attempt is visible before its last append, which is refused unless the lease is live, the
token current and the run's stream where it was when that append was decided. So an attempt may be interrupted anywhere; it
looks around at the borders between stages, and the append that publishes is the last border. A crash leaves a RUNNING run
whose lease expires, and perhaps blobs that nothing refers to.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import msgspec

from domain.errors import (
    Fault,
    FinazError,
    InfrastructureError,
    RunFinishedError,
    StaleFenceError,
    VersionConflictError,
)
from domain.identity import run_stream
from domain.instants import to_micros
from domain.runs.aggregate import RunCommand, RunState
from domain.runs.messages import (
    EndIfDue,
    FailRun,
    PublishResults,
    RequeueReason,
    RequeueRun,
    ResultRef,
    RunError,
    RunRequeued,
    RunSpec,
)
from services import effects
from services.batch_parts import (
    Computation,
    Computed,
    InterruptedAtBorderError,
    Interruption,
    OnEvent,
    Outcome,
    Output,
    WorkerEvent,
    WorkerSettings,
)
from services.blob_writer import BlobWriter
from services.code_version import code_version
from services.database_clock import DatabaseClock
from services.ports import Append, Appended, EventLog, StreamsRead
from services.run_appends import (
    Claimant,
    Head,
    NewId,
    advanced,
    check_mine,
    conclude,
    head_of,
    published_by,
    renew,
    streams_of,
)
from services.runs import fold_run, published
from services.threads import Slot

CONFLICT_RETRIES_MAX: Final = 8
"""Times that an end is decided again because a cancellation came in between."""

RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between two tries of an append whose answer was lost; the last one repeats, for as long as the lease may live."""

ERROR_TEXT_MAX: Final = 2000
"""Characters of an error's message that are kept in the run's events."""

_NO_DEADLINE: Final = datetime.max.replace(tzinfo=UTC)

_log: Final = logging.getLogger("finaz.batch_worker")

T = TypeVar("T")


class Tools(msgspec.Struct, frozen=True):
    """What every attempt of a worker works with."""

    log: EventLog
    blobs: BlobWriter
    clock: DatabaseClock
    computation: Computation
    claimant: Claimant
    settings: WorkerSettings
    emit: OnEvent
    new_id: NewId
    monotonic: Callable[[], float] = time.monotonic


class Attempt:
    """A run that was started under our token. `execute` works on it; the others may be called meanwhile.

    `sent_at` is the monotonic instant before its lease was asked for: the lease lives at least until a TTL after it.
    """

    def __init__(self, tools: Tools, head: Head, sent_at: float) -> None:
        self.run_id = head.run_id
        self.token = head.lease.token
        self.head = head
        self._tools = tools
        self._deadline_micros = to_micros(head.run.deadline_at or _NO_DEADLINE)
        self._lock = asyncio.Lock()  # held while an append of ours is under way, so that versions cannot cross
        self._interruption: Interruption | None = None
        self._progress = 0
        self._progress_told = -1
        self._stalled = False
        self._renewed_at = sent_at
        self._known_at = sent_at
        self._computing: asyncio.Future[Computed] | None = None

    # ---------------------------------------------------------------- from start to end

    async def execute(self, slot: Slot | None = None) -> Outcome:
        """Work on the run and write how it ended. Computes in the slot's thread if there is one, else right here.

        Never raises: what cannot be written is left to the lease, which expires.
        """
        try:
            return await self._end(await self._work(slot))
        except (StaleFenceError, RunFinishedError) as error:
            self._emit("run.lease_lost", error=error)
        except (InfrastructureError, VersionConflictError) as error:
            self._emit("run.abandoned", error=error)
        except Exception as error:
            _log.exception("the end of %s could not be written", self.run_id)
            self._emit("run.defect", error=error)
        return Outcome(run_id=self.run_id)

    async def _work(self, slot: Slot | None) -> RunCommand:
        """Execute the stages; whatever happens becomes the command that says how the run goes on."""
        try:
            await self.border("snapshot")
            spec = self.head.run.spec
            assert spec is not None
            prepared = await self._tools.computation.prepare(spec, self.tick)
            await self.border("clock")
            if slot is None:
                computed = prepared.compute(self.look, self.tick)
            else:
                self._computing = slot.run(lambda: prepared.compute(self.border_blocking, self.tick))
                computed = await self._computing
            await self.border("persist")
            stored = [await self._tools.blobs.put(data) for data in (*computed.inputs, computed.artifact)]
            self.look("publish")  # the append asks whether anything has changed
            return PublishResults(self.token, tuple(_reference(output, stored, spec) for output in computed.outputs))
        except InterruptedAtBorderError as interrupted:
            return self._command_after(interrupted.reason)
        except Exception as error:
            return self._command_for(error)

    def _command_after(self, reason: Interruption) -> RunCommand:
        if reason is Interruption.LEASE_LOST:
            raise StaleFenceError(f"token {self.token} was overtaken or has run out", at=self.run_id)
        if reason is Interruption.DUE:
            return EndIfDue(self.token)
        return RequeueRun(token=self.token, reason=RequeueReason.HANDED_BACK)

    def _command_for(self, error: Exception) -> RunCommand:
        """What an exception means for the run: the input's fault ends it, the infrastructure's puts it back, a bug ends it too.

        A bug would most likely strike again, and somebody should see it: so FAILED with its code, or `DEFECT`.
        """
        fault = error.fault if isinstance(error, FinazError) else Fault.DEFECT
        described = described_error(error, self.head.run.attempts)
        if fault is Fault.INFRASTRUCTURE:
            return RequeueRun(token=self.token, reason=RequeueReason.INFRASTRUCTURE, error=described)
        if fault is not Fault.INPUT:
            _log.error("unexpected %s in %s", type(error).__name__, self.run_id, exc_info=error)
            self._emit("run.defect", error=error)
        return FailRun(token=self.token, error=described)

    async def _end(self, command: RunCommand) -> Outcome:
        """Append what the command decides, on the newest state; a cancellation that comes in between is decided upon again."""
        effect = effects.publish if isinstance(command, PublishResults) else effects.append
        tools = self._tools
        async with self._lock:
            if isinstance(command, EndIfDue):
                self.head = await self._read()
            for _ in range(CONFLICT_RETRIES_MAX):
                now = tools.clock.now()
                wanted = conclude(self.head, command, tools.claimant, self.token, now, tools.new_id)
                if wanted is None:  # the database's clock was set back: not due after all
                    command = RequeueRun(token=self.token, reason=RequeueReason.HANDED_BACK)
                    continue
                try:
                    appended = await self._patiently(partial(effect, tools.log, wanted))
                except VersionConflictError:
                    self.head = await self._read()
                    continue
                self.head = advanced(self.head, wanted, appended)
                return self._outcome(command, wanted, appended)
        raise VersionConflictError("the run kept moving on while its end was being written", at=self.run_id)

    def _outcome(self, command: RunCommand, wanted: Append, appended: Appended) -> Outcome:
        run = self.head.run
        name = f"run.{run.state.value.lower()}"
        if run.state is RunState.QUEUED and isinstance(command, RequeueRun):
            name = "run.requeued" if command.reason.counts else "run.handed_back"
        error = run.errors[-1] if run.errors and run.state is not RunState.SUCCEEDED else None
        self._emit(name, position=appended.position, detail=f"{error.code}: {error.message}" if error else "")
        results = tuple(published(self.run_id, r, self.token, appended.recorded_at) for r in published_by(wanted))
        due = next((n.event.delay_seconds for n in wanted.events if isinstance(n.event, RunRequeued)), None)
        return Outcome(run_id=self.run_id, state=run.state, results=results, error=error, due_in_seconds=due)

    # ---------------------------------------------------------------- borders

    def tick(self) -> None:
        """Progress was made. Raises if the attempt must not go on; safe anywhere, because a computation has no effects."""
        self._progress += 1
        if self._interruption is not None:
            raise InterruptedAtBorderError(self._interruption)

    def look(self, stage: str) -> None:
        """A border where nothing can be read: interruptions and the deadline."""
        self._emit("run.stage", stage=stage)
        self.tick()
        if self._tools.clock.micros() >= self._deadline_micros:
            raise InterruptedAtBorderError(Interruption.DUE)

    async def border(self, stage: str) -> None:
        """A border between stages: as `look`, and has a cancellation been asked for?"""
        self.look(stage)
        if self._may_have_changed():
            with suppress(InfrastructureError):  # the append at the end asks again
                self._learn(await self._tools.log.read_streams([run_stream(self.run_id)]))

    def border_blocking(self, stage: str) -> None:
        """The same, from a thread."""
        self.look(stage)
        if self._may_have_changed():
            with suppress(InfrastructureError):
                self._learn(self._tools.log.read_streams_blocking([run_stream(self.run_id)]))

    def _may_have_changed(self) -> bool:
        return self._tools.monotonic() - self._known_at >= self._tools.settings.border_read_seconds

    def _learn(self, read: StreamsRead) -> None:
        self._tools.clock.observe(read.now)
        self._known_at = self._tools.monotonic()
        run = fold_run(self.run_id, read.streams[run_stream(self.run_id)])
        if run.state is not RunState.RUNNING or run.token != self.token:
            raise InterruptedAtBorderError(Interruption.LEASE_LOST)
        if run.cancellation_requested:
            raise InterruptedAtBorderError(Interruption.DUE)

    # ---------------------------------------------------------------- lease

    def interrupt(self, reason: Interruption) -> None:
        """Have the attempt stop at its next border."""
        if self._interruption is None:
            self._interruption = reason

    def abandon(self, reason: Interruption) -> None:
        """Have the attempt stop now, without waiting for a thread of its own to reach a border."""
        self.interrupt(reason)
        if self._computing is not None and not self._computing.done():
            self._computing.set_exception(InterruptedAtBorderError(reason))

    def wants_renewal(self, every_seconds: float) -> bool:
        """Whether a heartbeat is due: it is left out while the run makes no progress, so a hung run loses its lease."""
        if self._lock.locked() or self._tools.monotonic() - self._renewed_at < every_seconds:
            return False
        stalled = self._progress == self._progress_told
        if stalled and not self._stalled:
            self._emit("run.stalled")
        self._stalled = stalled
        return not stalled

    async def renew(self) -> None:
        """Prolong the lease. Losing it ends the attempt; a store that is away is tried again at the next beat."""
        tools = self._tools
        async with self._lock:
            sent_at, progress = tools.monotonic(), self._progress
            try:
                wanted = renew(self.head, tools.claimant, self.token, tools.new_id)
                appended = await effects.append(tools.log, wanted)
            except VersionConflictError:
                self.head = await self._read()
                check_mine(self.head, tools.claimant, self.token)
                return
            self.head = advanced(self.head, wanted, appended)
            self._renewed_at, self._progress_told = sent_at, progress
        self._emit("lease.renewed", position=appended.position)

    async def _read(self) -> Head:
        read = await self._patiently(lambda: self._tools.log.read_streams(streams_of([self.run_id])))
        self._tools.clock.observe(read.now)
        return head_of(self.run_id, read)

    async def _patiently(self, effect: Callable[[], Awaitable[T]]) -> T:
        """Try for as long as the lease may live: the same append again is the same append, even if its answer was lost."""
        tries = 0
        while True:
            try:
                return await effect()
            except InfrastructureError:
                lived = self._tools.monotonic() - self._renewed_at
                if lived >= self._tools.claimant.ttl_seconds:
                    raise
            await asyncio.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1

    def _emit(
        self, name: str, stage: str = "", position: int = 0, detail: str = "", error: BaseException | None = None
    ) -> None:
        event = WorkerEvent(
            name=name,
            run_id=self.run_id,
            token=self.token,
            position=position,
            stage=stage,
            detail=detail or (str(error) if error else ""),
            error=error,
        )
        self._tools.emit(event)


def _reference(output: Output, stored: list[str], spec: RunSpec) -> ResultRef:
    """`stored` are the addresses of what the run was computed from, behind its snapshot, and of its artifact."""
    return ResultRef(
        output=output.name,
        artifact=stored[-1],
        values_hash=output.values_hash,
        rows=output.rows,
        schema=output.schema,
        flow=spec.flow,
        inputs=(spec.snapshot, *stored[:-1]),
        code=code_version(),
    )


def described_error(error: Exception, attempt: int) -> RunError:
    """An exception as a run remembers it: text that has a canonical form, whatever the exception says."""
    if isinstance(error, FinazError):
        wanted = f" (expected {error.expected})" if error.expected else ""
        at = None if error.at is None else _printable(error.at)
        return RunError(code=error.code, message=_printable(error.detail + wanted), at=at, attempt=attempt)
    return RunError(code=FinazError.code, message=_printable(f"{type(error).__name__}: {error}"), attempt=attempt)


def _printable(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return clean[:ERROR_TEXT_MAX]
