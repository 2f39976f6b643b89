"""The lease of a stream run, kept by a thread of its own while its owner gets on.

Renewals are appends on the lease's stream alone, so they and the commits of the loop never cross. What must stay true: a lease
is renewed a third of its TTL after it was granted or last renewed, at the latest, and only if the loop made progress since
(waiting for input and a declared pause are progress: the loop `tick`s then); a lease that was lost is lost for good, and the
loop learns of it at its next `check`. A store that is away ends nothing here: the next look tries again. A crash stops all
renewals.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from domain.errors import InfrastructureError, StaleFenceError, VersionConflictError
from domain.stream.errors import StreamFenceStaleError
from services import effects
from services.database_clock import DatabaseClock
from services.ports import BlobStore, EventLog, Fence
from services.run_appends import Claimant, Head, NewId, advanced, check_mine, head_of, renew, streams_of
from services.stream_parts import OnStreamEvent, StreamEvent

LOOKS_PER_INTERVAL: Final = 4
"""How often the keeper looks in a third of a TTL, so that a renewal is at most a quarter of it early, and never late."""

STOP_SECONDS_MAX: Final = 5.0
"""How long `stop` waits for a renewal that is under way; the thread is a daemon, and what it does is fenced."""

_log: Final = logging.getLogger("finaz.stream_worker")


class LeaseKeeper:
    """Keeps the lease of `head`, which was asked for at the monotonic instant `sent_at`. `check` and `tick` are the loop's."""

    def __init__(
        self,
        log: EventLog,
        claimant: Claimant,
        head: Head,
        sent_at: float,
        clock: DatabaseClock,
        new_id: NewId,
        tell: OnStreamEvent,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id = head.run_id
        self.token = head.lease.token
        self.renewed_at = sent_at
        self._log = log
        self._claimant = claimant
        self._head = head
        self._clock = clock
        self._new_id = new_id
        self._tell = tell
        self._monotonic = monotonic
        self._lock = threading.Lock()  # held while an append of ours on the lease's stream is under way
        self._stopped = threading.Event()
        self._progress = 0
        self._progress_told = -1
        self._stalled = False
        self._lost: StaleFenceError | None = None
        self._thread = threading.Thread(target=self._keep, name="finaz-stream-lease", daemon=True)

    @property
    def fence(self) -> Fence:
        """The guard of everything that is done under this lease."""
        return Fence(self.run_id, self._claimant.owner, self.token)

    def start(self) -> None:
        """Renew from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    def tick(self) -> None:
        """Progress was made."""
        self._progress += 1

    def check(self) -> None:
        """Raise `StreamFenceStaleError` if the lease is known to be lost."""
        if self._lost is not None:
            raise obsolete(self._lost)

    @contextmanager
    def holding(self) -> Iterator[Head]:
        """The newest head, for an append on the lease's stream; no renewal comes in between. Tell `moved` what became of it."""
        with self._lock:
            yield self._head

    def moved(self, head: Head) -> None:
        """The head is another now; within `holding`."""
        self._head = head

    def read(self) -> Head:
        """Read run and lease anew; within `holding`. Raises `StaleFenceError` if the token is no longer the last."""
        read = self._log.read_streams_blocking(streams_of([self.run_id]))
        self._clock.observe(read.now)
        self._head = head_of(self.run_id, read)
        check_mine(self._head, self._claimant, self.token)
        return self._head

    def renew_if_due(self) -> bool:
        """Renew if it is time and there was progress. Whether it did. Never raises."""
        every = self._claimant.ttl_seconds / 3 * (1 - 1 / LOOKS_PER_INTERVAL)
        if self._lost is not None or self._monotonic() - self.renewed_at < every:
            return False
        progress = self._progress
        stalled = progress == self._progress_told
        if stalled and not self._stalled:
            self._say("stream.stalled")
        self._stalled = stalled
        return not stalled and self._renewed(progress)

    def _keep(self) -> None:
        pause = self._claimant.ttl_seconds / 3 / LOOKS_PER_INTERVAL
        while not self._stopped.wait(pause):
            self.renew_if_due()

    def _renewed(self, progress: int) -> bool:
        try:
            with self._lock:
                if self._stopped.is_set():
                    return False
                sent_at = self._monotonic()
                try:
                    wanted = renew(self._head, self._claimant, self.token, self._new_id)
                    appended = effects.append_blocking(self._log, wanted)
                except VersionConflictError:
                    self.read()
                    return False
                self._head = advanced(self._head, wanted, appended)
                self.renewed_at, self._progress_told = sent_at, progress
        except StaleFenceError as error:
            self._lost = error
            self._say("stream.lease_lost", error=error)
            return False
        except InfrastructureError as error:
            self._say("stream.away", error=error)
            return False
        except Exception as error:
            _log.exception("the lease of %s could not be renewed", self.run_id)
            self._say("stream.defect", error=error)
            return False
        self._say("stream.renewed", position=appended.position)
        return True

    def _say(self, name: str, position: int = 0, error: Exception | None = None) -> None:
        detail = "" if error is None else str(error)
        self._tell(
            StreamEvent(name=name, run_id=self.run_id, token=self.token, position=position, detail=detail, error=error)
        )


class TickingBlobs:
    """A blob store each of whose uses is progress: a cut of many blobs, or a long walk over segments, keeps the lease."""

    def __init__(self, blobs: BlobStore, tick: Callable[[], None]) -> None:
        self._blobs = blobs
        self._tick = tick

    def put(self, data: bytes) -> str:
        """As the store's."""
        self._tick()
        return self._blobs.put(data)

    def get(self, address: str) -> bytes:
        """As the store's."""
        self._tick()
        return self._blobs.get(address)

    def has(self, address: str) -> bool:
        """As the store's."""
        return self._blobs.has(address)


def obsolete(error: StaleFenceError) -> StreamFenceStaleError:
    """The store's refusal by the stream's name for it."""
    if isinstance(error, StreamFenceStaleError):
        return error
    return StreamFenceStaleError(
        f"this owner was overtaken, or its lease ran out: {error.detail}", at=error.at, **error.context
    )
