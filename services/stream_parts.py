"""What the parts of the stream worker share: its settings, what it tells outside, and how an ownership of a run ends.

What must stay true: everything here is a value or a Protocol; nothing of it reads a clock or touches the outside.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from domain.runs.aggregate import RunState
from domain.stream.backpressure import PressureLimits
from domain.stream.worker_core import StreamLimits
from services.runs import PublishedResult

ATTEMPTS_MAX: Final = 5
"""Owners in a row that may be lost without one checkpoint; then the run ends FAILED."""

AWAY_DELAY_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries while the broker or the store is away; the last one repeats."""

PACE_SLICE_SECONDS: Final = 0.05
"""With a pace, records are taken in slices of about so long, so that the pace is even."""


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream worker behaves; seconds are by the database's clock for leases and by monotonic time for the rest."""

    label: str = ""
    lease_ttl_seconds: float = 30.0
    checkpoint_records: int = 100_000
    """A checkpoint is committed at exactly so many records after the last one, and at least every `checkpoint_seconds`."""
    checkpoint_seconds: float = 1.0
    poll_records: int = 2000
    poll_seconds: float = 0.1
    look_seconds: float = 1.0
    """How often the worker looks for cancellations, requests of operators, retention and the disk."""
    retention_look_seconds: float = 5.0
    """How often the broker is asked how far its retention has come."""
    standby: bool = False
    """Whether to wait for a lease that another holds, instead of refusing."""
    standby_look_seconds: float = 0.5
    """The longest wait between two looks at a lease that another holds."""
    total_records: int | None = None
    """Stop (orderly, and publish nothing) once the run has journalled so many records, resumes included."""
    pace: float | None = None
    """Records per second at most."""
    away_seconds_max: float = 300.0
    """How long the broker may be away before the worker gives the run up."""
    limits: StreamLimits = StreamLimits()
    pressure: PressureLimits = PressureLimits()


class StreamEnd(Enum):
    """How an ownership ended in order. Everything else is an error."""

    FINISHED = "FINISHED"
    """The run has ended; its state says how."""
    STOPPED = "STOPPED"
    """The worker was told to stop: it committed, and gave the lease back; the run goes on with its next owner."""
    TOTAL_REACHED = "TOTAL_REACHED"
    """The run has journalled the records that were asked for; as STOPPED."""


class StreamOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ownership. `token` is 0 where the run had ended before."""

    run_id: str
    end: StreamEnd
    state: RunState
    token: int = 0
    results: tuple[PublishedResult, ...] = ()


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a stream worker, for logs, metrics and tests. Names are permanent; see `EVENT_NAMES`."""

    name: str
    run_id: str = ""
    token: int = 0
    position: int = 0
    epoch: int = 0
    records: int = 0
    detail: str = ""
    error: BaseException | None = None
    facts: dict[str, Any] = {}
    """What more there is to it, as plain data."""


EVENT_NAMES: Final = frozenset(
    {
        "stream.waiting",  # another owner holds the lease; we stand by
        "stream.claimed",  # the lease is ours and the run is started
        "stream.taken_over",  # the lease is ours, and the run was another's
        "stream.opened",  # the source was opened for the first time; start and marks are in the journal
        "stream.restored",  # state and offsets are those of the last commit
        "stream.reading",  # partitions are assigned; records come in from now on
        "stream.committed",
        "stream.retried",  # records of the quarantine were judged again
        "stream.pressure",  # backpressure changed; `detail` says to what and why
        "stream.away",  # the broker or the store cannot be reached; tries again
        "stream.renewed",
        "stream.stalled",  # no progress since the last renewal, which is therefore left out
        "stream.lease_lost",
        "stream.blocked",  # cannot go on: partitions, retention or a checkpoint that does not fit
        "stream.succeeded",
        "stream.failed",
        "stream.cancelled",
        "stream.released",  # in order; the run goes on with its next owner
        "stream.defect",
    }
)

OnStreamEvent = Callable[[StreamEvent], None]


def no_listener(event: StreamEvent) -> None:
    """Nobody listens."""
