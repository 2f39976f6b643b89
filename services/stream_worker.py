"""The stream worker: owns one STREAM run at a time, from its claim to its end, or stands by for it.

What must stay true: the lease comes before the first record; an intruder while another's lease is live is refused and has done
nothing; a stand-by wakes when the lease ends by the database's clock, or soon after it was given back; every start is another
owner. A crash leaves a RUNNING run whose lease expires.
"""

import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from domain.errors import InfrastructureError, RunCancelledError, RunFailedError
from domain.runs.aggregate import Run, RunState
from domain.stream.errors import StreamLeaseHeldError
from services.broker import Broker
from services.checkpoints import CheckpointLog, Checkpoints
from services.database_clock import DatabaseClock
from services.event_ids import new_event_id
from services.ports import BlobStore
from services.run_appends import Claimant, Head
from services.stream_claim import Claimed, Claims, Ended, Held
from services.stream_parts import OnStreamEvent, StreamEnd, StreamEvent, StreamOutcome, StreamSettings, no_listener
from services.stream_run import Ownership
from services.stream_session import Tools

EXPIRY_SLACK_SECONDS: Final = 0.02
"""Our estimate of the database's clock is never ahead of it; so long after the expiry a claim is tried."""


class StreamWorker:
    """Works on stream runs under one owner id, which must be new at every process start. Blocking; one run at a time.

    `tell` may be called from two threads (the loop's and the lease's) and must not block.
    """

    def __init__(
        self,
        log: CheckpointLog,
        blobs: BlobStore,
        broker: Broker,
        settings: StreamSettings,
        owner: str,
        tell: OnStreamEvent = no_listener,
        *,
        disk_free: Callable[[], int] = lambda: 2**62,
        new_id: Callable[[], UUID] = new_event_id,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self.blobs = blobs
        checkpoints = Checkpoints(log, blobs)
        self._tools = Tools(
            log=log,
            blobs=blobs,
            broker=broker,
            clock=DatabaseClock(monotonic),
            claimant=Claimant(owner, settings.lease_ttl_seconds, settings.label),
            settings=settings,
            tell=tell,
            new_id=new_id,
            disk_free=disk_free,
            monotonic=monotonic,
        )
        self._claims = Claims(log, checkpoints, self._tools.claimant, self._tools.clock, new_id, monotonic)

    def look(self, run_id: str) -> Head:
        """The run and its lease as they are. Raises `RunNotFoundError`, and `InputError` for a run of another mode."""
        return self._claims.look(run_id)

    def run(self, run_id: str, stop: threading.Event) -> StreamOutcome:
        """Claim the run and work on it until it ends or `stop` is set; with `standby`, wait for it first.

        Raises `StreamLeaseHeldError` (another's, and no stand-by), `RunFailedError` and `RunCancelledError` for a run that
        ended so, and what `Ownership.execute` raises.
        """
        while True:
            claimed = self._claims.attempt(run_id)
            match claimed:
                case Ended():
                    return _ended(claimed.head.run, self._told(claimed.head))
                case Claimed():
                    self._say("stream.taken_over" if claimed.taken_over else "stream.claimed", claimed.head)
                    outcome = Ownership(self._tools, claimed, stop).execute()
                    if outcome.end is StreamEnd.FINISHED:
                        return _ended(self.look(run_id).run, outcome)
                    return outcome
                case Held():
                    if not self._tools.settings.standby:
                        raise StreamLeaseHeldError(
                            f"the run is worked on under token {claimed.token}", at=run_id, token=claimed.token
                        )
                    if self._stood_by(run_id, claimed, stop):
                        return StreamOutcome(run_id=run_id, end=StreamEnd.STOPPED, state=RunState.RUNNING)

    def _stood_by(self, run_id: str, held: Held | None, stop: threading.Event) -> bool:
        """Wait until nobody holds a live lease any more; whether we were told to stop meanwhile."""
        tools = self._tools
        while held is not None:
            left = (held.expires_at - tools.clock.now()).total_seconds() + EXPIRY_SLACK_SECONDS
            event = StreamEvent(name="stream.waiting", run_id=run_id, token=held.token, detail=f"{left:.3f} s")
            tools.tell(event)
            if stop.wait(min(max(left, EXPIRY_SLACK_SECONDS), tools.settings.standby_look_seconds)):
                return True
            try:
                held = self._claims.held(run_id)
            except InfrastructureError as error:  # a stand-by waits for its store too
                tools.tell(StreamEvent(name="stream.away", run_id=run_id, detail=str(error), error=error))
        return False

    def _told(self, head: Head) -> StreamOutcome:
        return StreamOutcome(run_id=head.run_id, end=StreamEnd.FINISHED, state=head.run.state)

    def _say(self, name: str, head: Head) -> None:
        self._tools.tell(StreamEvent(name=name, run_id=head.run_id, token=head.lease.token))


def _ended(run: Run, outcome: StreamOutcome) -> StreamOutcome:
    """The outcome of a run that has SUCCEEDED; an error for one that ended otherwise."""
    if run.state is RunState.CANCELLED:
        raise RunCancelledError("the run was cancelled", at=run.run_id)
    if run.state is RunState.FAILED:
        error = run.errors[-1] if run.errors else None
        text = f"{error.code}: {error.message}" if error else "the run failed"
        raise RunFailedError(text, at=run.run_id, error=error)
    return outcome
