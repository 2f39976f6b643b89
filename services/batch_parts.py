"""What the parts of the batch worker share: its settings, what it tells outside, and the computation that it drives.

What must stay true: everything here is a value or a Protocol; nothing of it reads a clock or touches the outside.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

import msgspec

from domain.errors import Fault, FinazError, InfrastructureError, RunCancelledError, RunFailedError
from domain.runs.aggregate import RunState
from domain.runs.messages import RunError, RunSpec
from services.runs import PublishedResult

RESERVE_MAX: Final = 50
"""Candidates that one reservation asks for."""

IN_FLIGHT_MAX: Final = 128
"""Runs that one worker executes at once; their appends meet in the log's group commit."""

GATHER_SECONDS: Final = 0.01
"""While runs are in flight, a round begins no sooner than this after the last one: what comes due meanwhile is one round."""

INLINE_ROWS_MAX: Final = 20_000
"""Records of a snapshot up to which a run is computed on the event loop: it holds up the others for some milliseconds."""

HAND_BACK_SECONDS_MAX: Final = 5.0
"""Seconds after the grace period in which runs reach a border by themselves; then they are handed back wherever they are."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch worker behaves; seconds are by the database's clock for leases and by monotonic time for the rest."""

    lanes: tuple[str, ...] = ("BATCH", "REPLAY")
    label: str = ""
    lease_ttl_seconds: float = 30.0
    poll_seconds: float = 1.0
    grace_seconds: float = 10.0
    hand_back_seconds: float = HAND_BACK_SECONDS_MAX
    reserve_max: int = RESERVE_MAX
    reserve_seconds: float = 5.0
    gather_seconds: float = GATHER_SECONDS
    in_flight_max: int = IN_FLIGHT_MAX
    inline_rows_max: int = INLINE_ROWS_MAX
    thread_slots: int = 2
    cache_bytes_max: int = 256 * 1024 * 1024
    border_read_seconds: float = 0.1
    """A border reads the run's stream again when what is known of it is older than this; publishing always checks."""


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a worker, for logs, metrics and tests. Names are permanent; see `EVENT_NAMES`."""

    name: str
    run_id: str = ""
    token: int = 0
    position: int = 0
    stage: str = ""
    detail: str = ""
    error: BaseException | None = None


EVENT_NAMES: Final = frozenset(
    {
        "run.claimed",  # the lease is granted and the run is started
        "run.lost_race",  # somebody else took it first
        "run.stage",  # a border was passed; `stage` is the one that begins
        "run.succeeded",
        "run.failed",
        "run.cancelled",
        "run.requeued",  # a fault of the infrastructure; it will be tried again
        "run.handed_back",  # this worker is stopping
        "run.lease_lost",  # another owner may have it; nothing was published here
        "run.stalled",  # no progress since the last heartbeat, which is therefore left out
        "run.abandoned",  # the log could not be reached for as long as the lease may live
        "run.unreadable",  # its stream cannot be read; set aside, the others go on
        "run.defect",  # an unexpected exception; the run ends FAILED
        "lease.renewed",
        "worker.idle",  # nothing to do; waits for a notification or the poll
        "worker.unavailable",  # the database or another part is away; tries again
        "worker.defect",  # the loop itself met an unexpected exception; goes on
        "worker.stopping",
        "worker.stopped",
    }
)

OnEvent = Callable[[WorkerEvent], None]
Border = Callable[[str], None]
Tick = Callable[[], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt at a run ended here. `state` is the run's, or None if that is not ours to say (lost, not reached)."""

    run_id: str
    state: RunState | None = None
    results: tuple[PublishedResult, ...] = ()
    error: RunError | None = None
    due_in_seconds: float | None = None
    """When it may be tried again, if it went back to the queue."""

    def first_result(self) -> PublishedResult:
        """The run's (first) result. Raises `RunCancelledError`, `RunFailedError`, or `InfrastructureError` if it did not end."""
        if self.results:
            return self.results[0]
        text = f"{self.error.code}: {self.error.message}" if self.error else "the run did not end here"
        if self.state is RunState.CANCELLED:
            raise RunCancelledError("the run was cancelled", at=self.run_id)
        if self.state is RunState.FAILED:
            raise RunFailedError(text, at=self.run_id, error=self.error)
        raise InfrastructureError(text, at=self.run_id)


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What the reference to one output says, but for where the artifact is."""

    name: str
    values_hash: str
    rows: int
    schema: str


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run computed: the bytes of its FeatureBatch, and its outputs, which are all in there.

    `inputs` are documents that were made on the way, to be stored too: what the result says that it was computed from, behind
    the snapshot.
    """

    artifact: bytes
    outputs: tuple[Output, ...]
    inputs: tuple[bytes, ...] = ()


class Prepared(Protocol):
    """A run's inputs, in memory and ready to be computed."""

    def compute(self, border: Border, tick: Tick) -> Computed:
        """Compute all outputs. Calls `border(stage)` between stages and `tick()` as it gets on; both may raise to end it.

        Raises errors of `Fault.INPUT` for what is wrong with flow or data. No effects: it can be dropped at any point.
        """
        ...


class Computation(Protocol):
    """What a batch run computes: the only thing that the worker knows about markets."""

    async def warm_up(self) -> None:
        """Do now what the first run would otherwise wait for. Called before the first run is taken."""
        ...

    async def rows(self, spec: RunSpec) -> int:
        """How much work the run is, in records of a BATCH run. Raises what preparing would raise, if that cannot be told."""
        ...

    async def prepare(self, spec: RunSpec, tick: Tick) -> Prepared:
        """Load the run's inputs. Raises `BlobMissingError` and the like; calls `tick()` as it gets on."""
        ...


class Interruption(Enum):
    """Why an attempt must not go on."""

    LEASE_LOST = "its lease was lost"
    HANDING_BACK = "its worker is stopping"
    DUE = "a cancellation was asked for or its deadline has passed"


class InterruptedAtBorderError(FinazError):
    """The attempt must not go on; `reason` says why. It never leaves the worker."""

    code = "INTERRUPTED"
    fault = Fault.REFUSED

    def __init__(self, reason: Interruption) -> None:
        super().__init__(reason.value)
        self.reason = reason
