"""What one ownership of a STREAM run does to the log, and what it knows of it: commits, journal, looks, the end.

What must stay true: everything here is appended under the fence of the ownership; an append whose answer was lost is made again
as it was; a store that is away is waited for, for a bounded time; a refusal by the fence ends the ownership. A crash leaves
each append whole or not at all.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from domain.errors import InfrastructureError, VersionConflictError
from domain.events import Event, Metadata
from domain.identity import lease_stream, run_stream
from domain.runs.aggregate import Run, RunCommand, RunState
from domain.runs.messages import EndIfDue, PublishResults, RunSpec
from domain.stream.progress import Cut
from services import effects
from services.broker import Broker
from services.checkpoint_appends import Committed, Standing, journal_news, with_journal
from services.checkpoints import CheckpointLog, Checkpoints
from services.database_clock import DatabaseClock
from services.leases import released
from services.ports import Append, Appended, BlobStore, NewEvent
from services.run_appends import Claimant, Head, NewId, advanced, check_mine, conclude, published_by
from services.runs import fold_run
from services.stream_lease import LeaseKeeper, TickingBlobs
from services.stream_parts import AWAY_DELAY_SECONDS, OnStreamEvent, StreamEvent, StreamSettings

CONFLICT_RETRIES_MAX: Final = 8
"""Times that an end is decided again because a cancellation came in between."""

STOPPING_SECONDS_MAX: Final = 5.0
"""How long a worker that was told to stop goes on waiting for a store that is away."""

_NO_DEADLINE: Final = datetime.max.replace(tzinfo=UTC)

T = TypeVar("T")


class Tools(msgspec.Struct, frozen=True):
    """What every ownership of a worker works with. `disk_free` is the bytes that are free where blobs are stored."""

    log: CheckpointLog
    blobs: BlobStore
    broker: Broker
    clock: DatabaseClock
    claimant: Claimant
    settings: StreamSettings
    tell: OnStreamEvent
    new_id: NewId
    disk_free: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic


class Session:
    """One ownership's side of the log. Blocking; used by the loop's thread, but for the keeper's renewals."""

    def __init__(self, tools: Tools, head: Head, keeper: LeaseKeeper, stop: threading.Event) -> None:
        assert head.run.spec is not None
        self.run_id = head.run_id
        self.token = keeper.token
        self.spec: RunSpec = head.run.spec
        self.keeper = keeper
        self.tools = tools
        self.blobs = TickingBlobs(tools.blobs, keeper.tick)
        self.checkpoints = Checkpoints(tools.log, self.blobs)
        self._deadline_at = head.run.deadline_at or _NO_DEADLINE
        self._attempt = head.run.attempts
        self._stop = stop
        self._standing: Standing | None = None

    @property
    def standing(self) -> Standing:
        """Where checkpoints and journal stand."""
        assert self._standing is not None, "the journal was read first"
        return self._standing

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self._standing = standing

    @property
    def run(self) -> Run:
        """The run as our last append on it left it."""
        with self.keeper.holding() as head:
            return head.run

    @property
    def attempt(self) -> int:
        """Which attempt at the run this is, as its errors say."""
        return self._attempt

    # ---------------------------------------------------------------- appends

    def record(self, *events: Event) -> None:
        """Append to the journal what no cut carries. Raises `StaleFenceError`."""
        for _ in range(CONFLICT_RETRIES_MAX):
            news = journal_news(self.standing, events, self.tools.new_id)
            try:
                self._append(news)
            except VersionConflictError:  # an operator asked for something meanwhile
                self.standing = self.checkpoints.refresh(self.standing)
                continue
            self.standing = with_journal(self.standing, events)
            return
        raise VersionConflictError("the journal kept moving on", at=self.run_id)

    def commit(self, cut: Cut, journal: Sequence[Event] = ()) -> Committed:
        """Commit the cut. Raises `StaleFenceError`; what the store raises when it stays away."""
        standing = self.standing
        committed = self.patiently(lambda: self.checkpoints.commit(cut, self.keeper.fence, standing, journal=journal))
        return self._committed(committed)

    def publish(self, cut: Cut, command: PublishResults, journal: Sequence[Event]) -> Committed | None:
        """Commit the last cut together with the results, the run's end and the release of the lease.

        None if the run was due to end otherwise, and has: cancelled, or too late.
        """
        standing, tools = self.standing, self.tools
        with self.keeper.holding() as head:
            for _ in range(CONFLICT_RETRIES_MAX):
                wanted = conclude(head, command, tools.claimant, self.token, tools.clock.now(), tools.new_id)
                assert wanted is not None, "a run that is not finished is, after this"
                if not published_by(wanted):
                    appended = self.patiently(lambda wanted=wanted: effects.append_blocking(tools.log, wanted))  # type: ignore[misc]
                    self.keeper.moved(advanced(head, wanted, appended))
                    return None
                try:
                    committed = self.patiently(
                        lambda extra=wanted.events: self.checkpoints.commit(  # type: ignore[misc]
                            cut,
                            self.keeper.fence,
                            standing,
                            journal=journal,
                            extra=extra,
                            send=effects.publish_blocking,
                        )
                    )
                except VersionConflictError:
                    head = self.keeper.read()
                    continue
                appended = Appended(position=committed.position, recorded_at=committed.recorded_at)
                self.keeper.moved(advanced(head, wanted, appended))
                return self._committed(committed)
        raise VersionConflictError("the run kept moving on while its end was being written", at=self.run_id)

    def conclude(self, command: RunCommand) -> bool:
        """End the run as the command decides, and give the lease back. False if it decides nothing after all."""
        tools = self.tools
        with self.keeper.holding() as head:
            if isinstance(command, EndIfDue):  # what it is due for has come since we last looked
                head = self.patiently(self.keeper.read)
            for _ in range(CONFLICT_RETRIES_MAX):
                wanted = conclude(head, command, tools.claimant, self.token, tools.clock.now(), tools.new_id)
                if wanted is None:
                    return False
                try:
                    appended = self.patiently(lambda wanted=wanted: effects.append_blocking(tools.log, wanted))  # type: ignore[misc]
                except VersionConflictError:
                    head = self.keeper.read()
                    continue
                self.keeper.moved(advanced(head, wanted, appended))
                return True
        raise VersionConflictError("the run kept moving on while its end was being written", at=self.run_id)

    def release(self) -> int:
        """Give the lease back; the run goes on with its next owner. The position."""
        tools = self.tools
        with self.keeper.holding() as head:
            event = released(self.keeper.fence).event
            for _ in range(CONFLICT_RETRIES_MAX):
                news = NewEvent(lease_stream(self.run_id), head.lease_version + 1, event, tools.new_id())
                try:
                    return self._append((news,)).position
                except VersionConflictError:
                    head = self.keeper.read()
                    check_mine(head, tools.claimant, self.token)
        raise VersionConflictError("the lease kept changing", at=self.run_id)

    # ---------------------------------------------------------------- looks

    def look(self) -> bool:
        """Look what others have asked for: True if the run is due to end. Whose it is, the next append will be told."""
        tools = self.tools
        try:
            read = tools.log.read_streams_blocking([run_stream(self.run_id)])
            tools.clock.observe(read.now)
            self.standing = self.checkpoints.refresh(self.standing)
        except InfrastructureError as error:  # the next commit asks again
            self.say("stream.away", error=error)
            return False
        run = fold_run(self.run_id, read.streams[run_stream(self.run_id)])
        if run.state is not RunState.RUNNING or run.token != self.token:
            return False
        return run.cancellation_requested or tools.clock.now() >= self._deadline_at

    # ---------------------------------------------------------------- parts

    def patiently(self, effect: Callable[[], T]) -> T:
        """Try until the outside answers, for a bounded time."""
        began, tries = self.tools.monotonic(), 0
        while True:
            try:
                return effect()
            except InfrastructureError as error:
                self.say("stream.away", error=error)
                self.keeper.tick()
                patience = self.tools.settings.away_seconds_max
                if self._stop.is_set():
                    patience = min(patience, STOPPING_SECONDS_MAX)
                if self.tools.monotonic() - began >= patience:
                    raise
            time.sleep(AWAY_DELAY_SECONDS[min(tries, len(AWAY_DELAY_SECONDS) - 1)])
            tries += 1

    def say(
        self,
        name: str,
        *,
        position: int = 0,
        epoch: int = 0,
        records: int = 0,
        detail: str = "",
        error: BaseException | None = None,
        **facts: Any,
    ) -> None:
        """Tell outside what happened."""
        event = StreamEvent(
            name=name,
            run_id=self.run_id,
            token=self.token,
            position=position,
            epoch=epoch,
            records=records,
            detail=detail or (str(error) if error else ""),
            error=error,
            facts=facts,
        )
        self.tools.tell(event)

    def _append(self, news: Sequence[NewEvent]) -> Appended:
        append = Append(events=tuple(news), guard=self.keeper.fence, metadata=Metadata(correlation_id=self.run_id))
        return self.patiently(lambda: effects.append_blocking(self.tools.log, append))

    def _committed(self, committed: Committed) -> Committed:
        self.standing = committed.standing
        manifest = committed.manifest
        records = sum(manifest.counts.values()) - manifest.counts["absent"]
        self.say(
            "stream.committed",
            position=committed.position,
            epoch=manifest.epoch,
            records=records,
            manifest=manifest.manifest_hash,
        )
        return committed
