"""Commands and events of a run: a computation over market data that somebody asked for.

Events say everything that later readers need (mode, priority, token), so that read models are functions of the events alone.
Addresses are content addresses (`sha256:…`); instants are aware.
"""

from datetime import datetime
from enum import Enum
from typing import ClassVar

import msgspec

from domain.events import Event, registered


class Mode(Enum):
    """How a run is executed; the same flow gives the same bytes in each."""

    BATCH = "BATCH"
    REPLAY = "REPLAY"
    STREAM = "STREAM"


class RequeueReason(Enum):
    """Why a run went back to the queue. Only `counts` towards the limit of attempts."""

    INFRASTRUCTURE = "INFRASTRUCTURE"
    ORPHANED = "ORPHANED"
    HANDED_BACK = "HANDED_BACK"

    @property
    def counts(self) -> bool:
        """An orderly hand-back is nobody's failure; a fault or a crash is."""
        return self is not RequeueReason.HANDED_BACK


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was asked for, as admitted: the typed body, with the flow replaced by its address.

    `snapshot` is the address of a snapshot's manifest; `as_of` the instant up to which its records were available;
    `deadline_seconds` counts from the admission. A STREAM run has a `topic`; with `snapshot` "" nothing is known of its source, and
    `as_of` is the epoch. It is `bounded` by the marks captured when it first opens its topic, or endless; `continues` is the BATCH
    run behind which it goes on. A REPLAY run may have the address of a fault `schedule`; "" means no faults.
    """

    mode: Mode
    flow: str
    flow_name: str
    snapshot: str
    as_of: datetime
    tags: tuple[str, ...] = ()
    priority: int = 0
    deadline_seconds: int
    topic: str = ""
    bounded: bool = True
    continues: str = ""
    schedule: str = ""


class RunError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that went wrong: code, sentence, place, and in which attempt."""

    code: str
    message: str
    at: str | None = None
    attempt: int = 0


class ResultRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where one output of a run is, and what it is.

    `artifact` addresses the FeatureBatch; `values_hash` is the address of the bare list of this output's values; `published_at`
    is not here: it is the instant at which the event that carries this was recorded. `inputs` addresses what it was computed
    from: the snapshot, then, of a REPLAY run, schedule, arrival log and report. `code` is the version of the code that computed
    it ("" where that was not recorded yet).
    """

    output: str
    artifact: str
    values_hash: str
    rows: int
    schema: str
    flow: str
    inputs: tuple[str, ...]
    code: str = ""


class RequestRun(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a run; the first thing that happens to one."""

    run_id: str
    principal: str
    spec: RunSpec
    body_hash: str
    sweep_id: str | None = None


class StartRun(msgspec.Struct, frozen=True):
    """Take the run for execution under the fence token of a lease just granted."""

    owner: str
    token: int


class RequestCancellation(msgspec.Struct, frozen=True):
    """Ask that the run end without a result; honoured at the next border between stages."""

    principal: str


class CancelRun(msgspec.Struct, frozen=True):
    """Honour a cancellation at a border, under the owner's token."""

    token: int


class EndIfDue(msgspec.Struct, frozen=True):
    """Reach a border between stages: end the run if a cancellation was asked for or its deadline has passed."""

    token: int


class RequeueRun(msgspec.Struct, frozen=True, kw_only=True):
    """Put a running run back into the queue; a limit of attempts may turn this into its end."""

    token: int
    reason: RequeueReason
    error: RunError | None = None


class FailRun(msgspec.Struct, frozen=True, kw_only=True):
    """End the run FAILED. `token` is 0 where nobody was executing it."""

    error: RunError
    token: int = 0


class PublishResults(msgspec.Struct, frozen=True):
    """Publish all outputs, each if absent, and end the run SUCCEEDED, under the owner's token."""

    token: int
    results: tuple[ResultRef, ...]


@registered
class RunRequested(Event, frozen=True, kw_only=True):
    """A run was admitted and waits for a worker."""

    topic: ClassVar[str] = "run.requested.v1"
    run_id: str
    principal: str
    spec: RunSpec
    body_hash: str
    sweep_id: str | None = None


@registered
class RunStarted(Event, frozen=True, kw_only=True):
    """A worker took the run under a live lease; this, and only this, counts as an attempt."""

    topic: ClassVar[str] = "run.started.v1"
    run_id: str
    owner: str
    token: int
    attempt: int


@registered
class RunCancellationRequested(Event, frozen=True, kw_only=True):
    """Somebody asked a running run to stop; the worker will see it at the next border."""

    topic: ClassVar[str] = "run.cancellation_requested.v1"
    run_id: str
    principal: str


@registered
class RunCancelled(Event, frozen=True, kw_only=True):
    """The run ended without a result because that was asked for. `token` is 0 if nobody was executing it."""

    topic: ClassVar[str] = "run.cancelled.v1"
    run_id: str
    token: int = 0


@registered
class RunRequeued(Event, frozen=True, kw_only=True):
    """The run waits again, not before `delay_seconds` from now."""

    topic: ClassVar[str] = "run.requeued.v1"
    run_id: str
    token: int
    reason: RequeueReason
    delay_seconds: float
    error: RunError | None = None


@registered
class RunFailed(Event, frozen=True, kw_only=True):
    """The run ended without a result. `token` is 0 if nobody was executing it."""

    topic: ClassVar[str] = "run.failed.v1"
    run_id: str
    error: RunError
    token: int = 0


@registered
class ResultPublished(Event, frozen=True, kw_only=True):
    """One output of the run is visible, from now on and for ever."""

    topic: ClassVar[str] = "run.result_published.v1"
    run_id: str
    token: int
    result: ResultRef


@registered
class RunSucceeded(Event, frozen=True, kw_only=True):
    """The run ended with all its outputs published by the owner of `token`."""

    topic: ClassVar[str] = "run.succeeded.v1"
    run_id: str
    token: int


@registered
class RunHandedOff(Event, frozen=True, kw_only=True):
    """A STREAM run goes on under another owner and a higher token; it never waits in the queue meanwhile."""

    topic: ClassVar[str] = "run.handed_off.v1"
    run_id: str
    token: int
    previous_token: int
    owner: str
