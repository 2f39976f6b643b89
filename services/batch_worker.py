"""The batch worker: takes queued runs and executes each to its end, many at once, in one asyncio process.

A round reserves candidates (a hint only), reads their streams at once, and starts an attempt for each; the claim is one append
under the versions read and the guard that nobody holds a live lease, so of two workers one gets nothing and lets go. Small runs
are computed on the event loop; big ones in threads, and they are claimed only when a thread is free for them.

What must stay true: a run is started just before it is executed; the loop never dies of what a run or the database does; rounds
stop when `stop` is set, running attempts get the grace period, then hand back at their next border, all in bounded time. A
crash leaves RUNNING runs whose leases expire.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from domain.errors import FinazError, InfrastructureError, LeaseHeldError, StaleFenceError, VersionConflictError
from domain.runs.aggregate import RunState
from projections.outbox.projection import KIND_RUN
from services import effects
from services.batch_execution import FlowComputation
from services.batch_parts import Computation, Interruption, OnEvent, Outcome, WorkerEvent, WorkerSettings
from services.batch_run import Attempt, Tools
from services.blob_writer import BlobWriter
from services.database_clock import DatabaseClock
from services.event_ids import new_event_id
from services.heartbeats import Heartbeats
from services.ports import BlobStore, EventLog, Wakeups, WorkQueue
from services.run_appends import Claimant, Head, advanced, claim, head_of, streams_of
from services.runs import PublishedResult
from services.threads import Slot, ThreadSlots

BACKOFF_SECONDS_MAX: Final = 5.0
"""Longest wait of the loop while the database is away; it starts at the first retry and doubles."""

BACKOFF_SECONDS: Final = 0.1

CANCEL_SECONDS_MAX: Final = 1.0
"""Seconds that cancelled tasks have to end."""

CLAIM_TRIES_MAX: Final = 3
"""Times that a claim is sent again when its answer was lost; it is the same append, so it is one claim."""

_log: Final = logging.getLogger("finaz.batch_worker")

_LOST_RACE = (VersionConflictError, LeaseHeldError, StaleFenceError)


class BatchWorker:
    """One worker. `owner` must be new at every process start. `on_event` may be called from any thread and must not block.

    `wakeups` tells that something may be due; without it the poll finds it.
    """

    def __init__(
        self,
        log: EventLog,
        blobs: BlobStore,
        queue: WorkQueue,
        settings: WorkerSettings,
        owner: str,
        on_event: OnEvent | None = None,
        *,
        wakeups: Wakeups | None = None,
        computation: Computation | None = None,
        new_id: Callable[[], UUID] = new_event_id,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._wakeups = wakeups
        self._settings = settings
        self._computation = computation or FlowComputation(blobs, settings.cache_bytes_max, settings.inline_rows_max)
        self._tools = Tools(
            log=log,
            blobs=BlobWriter(blobs),
            clock=DatabaseClock(monotonic),
            computation=self._computation,
            claimant=Claimant(owner, settings.lease_ttl_seconds, settings.label),
            settings=settings,
            emit=_guarded(on_event) if on_event else _ignore,
            new_id=new_id,
            monotonic=monotonic,
        )
        self._slots = ThreadSlots(settings.thread_slots, self.wake)
        self._tasks: dict[str, asyncio.Task[Outcome | None]] = {}
        self._attempts: dict[str, Attempt] = {}
        self._heartbeats = Heartbeats(self._attempts, settings.lease_ttl_seconds, self._tools.emit)
        self._waiting: dict[str, float] = {}  # big runs that we have reserved, and until when, but have no thread for
        self._wake = asyncio.Event()
        self._more = False  # whether the last reservation was a full one
        self._claiming = 0
        self._claimed_all = asyncio.Event()
        self._stopping = False

    # ---------------------------------------------------------------- what callers use

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish or hand back what is running; returns in bounded time."""
        watches = [asyncio.create_task(watch) for watch in (self._when_stopped(stop), self._when_woken())]
        try:
            async with self._heartbeats.beating():
                await self._computation.warm_up()
                try:
                    await self._loop(stop)
                finally:  # also when we are cancelled: attempts are tasks of their own and end in order
                    await self._drain()
        finally:
            for watch in watches:
                watch.cancel()
            self._emit("worker.stopped")

    async def run_once(self) -> int:
        """One round: take what can be taken, execute it to its end. Returns how many runs it started or ended."""
        async with self._heartbeats.beating():
            outcomes = await self._outcomes(await self._round(self._settings.reserve_max))
        return sum(outcome is not None for outcome in outcomes)

    async def run_one(self) -> PublishedResult | None:
        """Execute one run and return its (first) result; None if the queue is empty.

        Raises `RunFailedError` or `RunCancelledError` if the run ended otherwise, `InfrastructureError` if it did not end.
        """
        async with self._heartbeats.beating():
            while True:
                started = await self._round(1)
                if not started and (not self._more or self._waiting):
                    return None
                for outcome in await self._outcomes(started):
                    if outcome is not None:
                        return outcome.first_result()

    def wake(self) -> None:
        """Something may be due: look at the queue now. To be called in the worker's event loop."""
        self._wake.set()

    @property
    def in_flight(self) -> int:
        """Runs that are being executed."""
        return len(self._tasks)

    # ---------------------------------------------------------------- the loop

    async def _loop(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            self._wake.clear()
            limit = min(self._settings.reserve_max, self._settings.in_flight_max - len(self._tasks))
            busy = []
            try:
                busy = await self._round(limit) if limit > 0 else []
                failures = 0
            except InfrastructureError as error:
                failures += 1
                self._emit("worker.unavailable", error)
            except Exception as error:
                failures += 1
                _log.exception("a round failed")
                self._emit("worker.defect", error)
            if failures:
                await self._rest(min(BACKOFF_SECONDS * 2.0 ** (failures - 1), BACKOFF_SECONDS_MAX), stop)
            elif (
                not busy or not self._more
            ):  # else there is a backlog: read the next ones while these are being claimed
                began = self._tools.monotonic()
                await self._claims()
                if not self._tasks:
                    self._emit("worker.idle")
                await self._rest(self._settings.poll_seconds)
                if self._tasks:
                    await self._rest(began + self._settings.gather_seconds - self._tools.monotonic(), stop)

    async def _claims(self) -> None:
        """Wait until what was taken is claimed: whatever comes due meanwhile is one round, and its claims one group."""
        if not self._claiming:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.poll_seconds):
                await self._claimed_all.wait()

    async def _rest(self, seconds: float, only: asyncio.Event | None = None) -> None:
        """Wait for a wake-up (or for `only`), at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (only or self._wake).wait()

    async def _when_stopped(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._emit("worker.stopping")
        self.wake()

    async def _when_woken(self) -> None:
        while self._wakeups is not None:
            if await self._wakeups.wait_async(self._settings.poll_seconds):
                self.wake()

    async def _round(self, limit: int) -> list[asyncio.Task[Outcome | None]]:
        """Reserve up to `limit` candidates and start an attempt at each that there is room for."""
        settings = self._settings
        reserved_until = self._tools.monotonic() + settings.reserve_seconds
        reserved = await self._queue.reserve(
            KIND_RUN, settings.lanes, limit, self._tools.claimant.owner, settings.reserve_seconds
        )
        self._more = len(reserved) >= limit
        candidates = [*self._take_waiting(), *reserved]
        run_ids = [run_id for run_id in dict.fromkeys(candidates) if run_id not in self._tasks]
        tasks: list[asyncio.Task[Outcome | None]] = []
        for head in await self._heads(run_ids):
            slot = None
            if await self._is_big(head):
                slot = self._slots.take()
                if slot is None:
                    self._waiting[head.run_id] = reserved_until
                    continue
            tasks.append(self._start(head, slot))
        return tasks

    def _take_waiting(self) -> list[str]:
        """Big runs that were reserved before, as far as there are threads for them and the reservation holds."""
        now = self._tools.monotonic()
        self._waiting = {run_id: until for run_id, until in self._waiting.items() if until > now}
        taken = list(self._waiting)[: self._slots.free]
        for run_id in taken:
            del self._waiting[run_id]
        return taken

    async def _heads(self, run_ids: Sequence[str]) -> list[Head]:
        """The heads of the candidates, in one read; if one of them cannot be read, each by itself, without that one."""
        if not run_ids:
            return []
        try:
            return await self._read_heads(run_ids)
        except InfrastructureError:
            raise
        except FinazError as error:
            if len(run_ids) > 1:
                return [head for run_id in run_ids for head in await self._heads([run_id])]
            _log.error("the stream of %s cannot be read: %s", run_ids[0], error)
            self._emit("run.unreadable", error, run_ids[0])
            return []

    async def _read_heads(self, run_ids: Sequence[str]) -> list[Head]:
        read = await self._tools.log.read_streams(streams_of(run_ids))
        self._tools.clock.observe(read.now)
        return [head_of(run_id, read) for run_id in run_ids]

    async def _is_big(self, head: Head) -> bool:
        """Whether the run wants a thread. What cannot be told is small: executing it will say what is wrong."""
        if head.run.spec is None or head.run.state is not RunState.QUEUED:
            return False
        try:
            rows = await self._computation.rows(head.run.spec)
        except FinazError:
            return False
        return rows > self._settings.inline_rows_max

    # ---------------------------------------------------------------- one run

    def _start(self, head: Head, slot: Slot | None) -> asyncio.Task[Outcome | None]:
        task = asyncio.create_task(self._attempt(head, slot))
        self._tasks[head.run_id] = task
        self._claiming += 1
        self._claimed_all.clear()
        return task

    async def _attempt(self, head: Head, slot: Slot | None) -> Outcome | None:
        """Claim the run and execute it; None if somebody else has it. Never raises."""
        try:
            sent_at = self._tools.monotonic()
            claimed = await self._claimed(head)
            if claimed is None or claimed.run.finished:
                return None if claimed is None else self._ended(claimed)
            attempt = self._attempts[head.run_id] = Attempt(self._tools, claimed, sent_at)
            if self._stopping:
                attempt.interrupt(Interruption.HANDING_BACK)
            outcome = await attempt.execute(slot)
            await self._requeued(outcome)
            return outcome
        except InfrastructureError as error:
            self._emit("run.abandoned", error, head.run_id)
        except Exception as error:
            _log.exception("the claim of %s failed", head.run_id)
            self._emit("run.defect", error, head.run_id)
        finally:
            if slot is not None:
                slot.close()
            self._attempts.pop(head.run_id, None)
            del self._tasks[head.run_id]
            if len(self._tasks) == max(0, self._settings.in_flight_max - self._settings.reserve_max):
                self.wake()
        return None

    async def _claimed(self, head: Head) -> Head | None:
        """The head after our claim, or None if the run is not to be had."""
        try:
            return await self._claim(head)
        finally:
            self._claiming -= 1
            if not self._claiming:
                self._claimed_all.set()

    async def _claim(self, head: Head) -> Head | None:
        tools = self._tools
        wanted = claim(head, tools.claimant, tools.clock.now(), tools.new_id)
        for left in reversed(range(CLAIM_TRIES_MAX)):
            if wanted is None:
                break
            try:
                appended = await effects.append(tools.log, wanted)
            except _LOST_RACE:
                break
            except InfrastructureError:
                if not left:
                    raise
                await asyncio.sleep(BACKOFF_SECONDS)
                continue
            claimed = advanced(head, wanted, appended)
            if claimed.running:
                self._emit_for("run.claimed", claimed, appended.position)
            return claimed
        self._emit_for("run.lost_race", head)
        return None

    def _ended(self, head: Head) -> Outcome:
        """A run that was to end instead of being started."""
        self._emit_for(f"run.{head.run.state.value.lower()}", head)
        error = head.run.errors[-1] if head.run.errors else None
        return Outcome(run_id=head.run_id, state=head.run.state, error=error)

    async def _requeued(self, outcome: Outcome) -> None:
        """A run that went back to the queue is free for all, and we look again when it is due."""
        if outcome.due_in_seconds is not None:
            asyncio.get_running_loop().call_later(outcome.due_in_seconds, self.wake)
            await self._release([outcome.run_id])

    async def _release(self, run_ids: Sequence[str]) -> None:
        with suppress(InfrastructureError):  # the reservation ends by itself
            await self._queue.release(KIND_RUN, run_ids, self._tools.claimant.owner)

    # ---------------------------------------------------------------- the end

    async def _drain(self) -> None:
        """Let what runs finish; then have it handed back at a border; then wherever it is; then leave it to its lease."""
        await self._release(list(self._waiting))
        await self._finished_within(self._settings.grace_seconds)
        self._stopping = True
        for attempt in self._attempts.values():
            attempt.interrupt(Interruption.HANDING_BACK)
        await self._finished_within(self._settings.hand_back_seconds)
        for attempt in self._attempts.values():
            attempt.abandon(Interruption.HANDING_BACK)
        await self._finished_within(self._settings.hand_back_seconds)
        for task in self._tasks.values():
            task.cancel()
        await self._finished_within(CANCEL_SECONDS_MAX)

    async def _outcomes(self, started: Sequence[asyncio.Task[Outcome | None]]) -> list[Outcome | None]:
        """What became of these; if we are cancelled meanwhile, they are handed back first."""
        try:
            if started:
                await asyncio.wait(started)
        except asyncio.CancelledError:
            await self._drain()
            raise
        return [task.result() for task in started]

    async def _finished_within(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=seconds)

    def _emit(self, name: str, error: BaseException | None = None, run_id: str = "") -> None:
        self._tools.emit(WorkerEvent(name=name, run_id=run_id, detail=str(error) if error else "", error=error))

    def _emit_for(self, name: str, head: Head, position: int = 0) -> None:
        self._tools.emit(WorkerEvent(name=name, run_id=head.run_id, token=head.lease.token, position=position))


def _ignore(event: WorkerEvent) -> None:
    """Nobody listens."""


def _guarded(on_event: OnEvent) -> OnEvent:
    """The listener, kept from ending what it listens to."""

    def emit(event: WorkerEvent) -> None:
        try:
            on_event(event)
        except Exception:
            _log.exception("the listener failed at %s", event.name)

    return emit
