"""Claiming a STREAM run: start it, take it over, or say whose it is.

A queued run is claimed as any run; one that is RUNNING without a live lease is handed off: lease, run and journal in one
append, whose handoff manifest names the cut from which the new owner goes on. What must stay true: the lease comes before the
first record; a live lease of another is never touched; the cut in the manifest is the previous owner's last, because it is read
after the lease was seen dead and the append is refused if anybody held it since. A crash leaves the run as it was, or ours
until our lease expires.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from domain.checkpoints.manifest import Plan
from domain.errors import (
    AttemptsExhaustedError,
    InfrastructureError,
    InputError,
    LeaseHeldError,
    RunNotFoundError,
    StaleFenceError,
    VersionConflictError,
)
from domain.events import Event, Metadata, Recorded
from domain.identity import journal_stream, lease_stream, run_stream
from domain.instants import format_instant, parse_instant
from domain.leases.aggregate import Lease, LeaseState
from domain.leases.aggregate import evolve as evolve_lease
from domain.leases.messages import LeaseReleased
from domain.runs.aggregate import RunState, decide
from domain.runs.messages import EndIfDue, FailRun, Mode, RunError, RunHandedOff, RunSpec
from domain.stream.messages import PressureEntered, StreamHandedOff
from domain.stream.worker_core import DEFAULT_LIMITS, StreamLimits
from services import effects
from services.checkpoint_appends import Standing, journal_news
from services.checkpoints import CheckpointLog, Checkpoints
from services.database_clock import DatabaseClock
from services.leases import acquired
from services.ports import Append, Appended, NewEvent, StreamsRead, Vacant
from services.run_appends import Claimant, Head, NewId, advanced, claim, head_of, streams_of
from services.store.states import Fold
from services.stream_parts import ATTEMPTS_MAX

CLAIM_TRIES_MAX: Final = 8
"""Times that a claim is decided again because somebody else moved, or sent again because its answer was lost."""

_MOVED_ON: Final = (VersionConflictError, LeaseHeldError, StaleFenceError)


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is ours: its head after the claim, and the monotonic instant before the lease was asked for.

    `taken_over` tells that it was another owner's before.
    """

    head: Head
    sent_at: float
    taken_over: bool


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Another owner's live lease, and when it ends if nobody prolongs it (the database's clock)."""

    owner: str
    token: int
    expires_at: datetime


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended; by us just now, if that was due."""

    head: Head


def _lease_document(lease: Lease) -> dict[str, Any]:
    return {
        "expires_at": None if lease.expires_at is None else format_instant(lease.expires_at),
        "owner": lease.owner,
        "resource": lease.resource,
        "state": lease.state.value,
        "token": lease.token,
    }


def _lease_of(document: dict[str, Any]) -> Lease:
    expires_at = document["expires_at"]
    return Lease(
        document["resource"],
        LeaseState(document["state"]),
        document["owner"],
        document["token"],
        None if expires_at is None else parse_instant(expires_at),
    )


LEASE_FOLD: Final = Fold[Lease](
    name="lease",
    schema=1,
    initial=lambda stream: Lease(stream.partition("/")[2]),
    evolve=lambda lease, recorded: evolve_lease(lease, recorded.event, recorded.recorded_at),
    to_document=_lease_document,
    from_document=_lease_of,
)
"""A lease without reading all its renewals: a stream run's lease has thousands of them a day."""


class Claims:
    """Claims of one owner. Blocking; used by one thread."""

    def __init__(
        self,
        log: CheckpointLog,
        checkpoints: Checkpoints,
        claimant: Claimant,
        clock: DatabaseClock,
        new_id: NewId,
        monotonic: Callable[[], float],
    ) -> None:
        self._log = log
        self._checkpoints = checkpoints
        self._claimant = claimant
        self._clock = clock
        self._new_id = new_id
        self._monotonic = monotonic

    def look(self, run_id: str) -> Head:
        """The run and its lease as they are. Raises `RunNotFoundError`, and `InputError` for a run of another mode."""
        return self._read(run_id)[0]

    def held(self, run_id: str) -> Held | None:
        """Whose lease is live, if anybody's; a look that stays cheap however long the run has been going."""
        read = self._log.read_state_blocking(lease_stream(run_id), LEASE_FOLD)
        self._clock.observe(read.now)
        lease = read.state
        if not lease.is_live(read.now) or lease.expires_at is None:
            return None
        return Held(owner=lease.owner, token=lease.token, expires_at=lease.expires_at)

    def attempt(self, run_id: str) -> Claimed | Held | Ended:
        """Claim the run if it is to be had. Raises as `look`, and what the store raises when it is away."""
        for left in reversed(range(CLAIM_TRIES_MAX)):
            head, leases, now = self._read(run_id)
            if head.run.finished:
                return Ended(head=head)
            if head.lease.is_live(now):
                assert head.lease.expires_at is not None
                return Held(owner=head.lease.owner, token=head.lease.token, expires_at=head.lease.expires_at)
            wanted = self._wanted(head, leases, now)
            sent_at = self._monotonic()
            try:
                appended = self._sent(wanted)
            except _MOVED_ON:
                if not left:
                    raise
                continue
            claimed = advanced(head, wanted, appended)
            if claimed.run.finished:
                return Ended(head=claimed)
            return Claimed(head=claimed, sent_at=sent_at, taken_over=head.running)
        raise AssertionError("the last try raises")

    # ---------------------------------------------------------------- what a claim appends

    def _wanted(self, head: Head, leases: Sequence[Recorded], now: datetime) -> Append:
        if head.run.state is RunState.QUEUED:
            wanted = claim(head, self._claimant, now, self._new_id)
            assert wanted is not None, "a queued run without a live lease can be claimed"
            return wanted
        due = decide(head.run, EndIfDue(head.run.token), now)
        if due:
            return self._append(head, due, ())
        standing = self._checkpoints.standing(head.run_id)
        crashes = crashes_since(standing.checkpoint.token, head.lease.token, leases)
        if crashes >= ATTEMPTS_MAX:
            failed = FailRun(token=head.run.token, error=self._exhausted(crashes, standing, head))
            return self._append(head, decide(head.run, failed, now), ())
        return self._handoff(head, standing, now)

    def _handoff(self, head: Head, standing: Standing, now: datetime) -> Append:
        claimant = self._claimant
        step = acquired(head.lease, claimant.owner, claimant.ttl_seconds, now, claimant.label)
        token, owner = step.event.token, claimant.owner
        handed = RunHandedOff(run_id=head.run_id, token=token, previous_token=head.run.token, owner=owner)
        manifest = handoff_manifest(head, standing, owner, token)
        wanted = self._append(head, (handed,), (step.event,))
        news = journal_news(standing, (manifest,), self._new_id)
        return msgspec.structs.replace(wanted, events=(*wanted.events, *news))

    def _exhausted(self, crashes: int, standing: Standing, head: Head) -> RunError:
        """The end of a run whose owners die again and again, with the last word that one of them left in the journal."""
        stream = journal_stream(head.run_id)
        events = [recorded.event for recorded in self._log.read_streams_blocking([stream]).streams[stream]]
        words = [event.reason for event in events if isinstance(event, PressureEntered) and event.reason]
        last = f"; the last word of one: {words[-1]}" if words else "; none left a word"
        message = f"{crashes} owners were lost since checkpoint {standing.checkpoint.epoch}{last}"
        return RunError(code=AttemptsExhaustedError.code, message=message, attempt=head.run.attempts)

    def _append(self, head: Head, run_events: Sequence[Event], lease_events: Sequence[Event]) -> Append:
        leases, runs = lease_stream(head.run_id), run_stream(head.run_id)
        news = [NewEvent(leases, v, e, self._new_id()) for v, e in enumerate(lease_events, head.lease_version + 1)]
        news += [NewEvent(runs, v, e, self._new_id()) for v, e in enumerate(run_events, head.run_version + 1)]
        metadata = Metadata(causation_id=head.cause, correlation_id=head.run_id, principal=head.run.principal or None)
        return Append(events=tuple(news), guard=Vacant(head.run_id, head.lease.token), metadata=metadata)

    def _sent(self, wanted: Append) -> Appended:
        for left in reversed(range(CLAIM_TRIES_MAX)):
            try:
                return effects.append_blocking(self._log, wanted)
            except InfrastructureError:  # the same append again is the same append, even if its answer was lost
                if not left:
                    raise
        raise AssertionError("the last try raises")

    def _read(self, run_id: str) -> tuple[Head, Sequence[Recorded], datetime]:
        read: StreamsRead = self._log.read_streams_blocking(streams_of([run_id]))
        self._clock.observe(read.now)
        head = head_of(run_id, read)
        if head.run.spec is None:
            raise RunNotFoundError("there is no such run", at=run_id[:80], expected="the run_id of a STREAM run")
        if head.run.spec.mode is not Mode.STREAM:
            raise InputError(f"a {head.run.spec.mode.value} run", at=run_id, expected="a STREAM run")
        return head, read.streams[lease_stream(run_id)], read.now


def plan_of(spec: RunSpec, partitions: int, limits: StreamLimits = DEFAULT_LIMITS) -> Plan:
    """What the run computes, and from where."""
    return Plan(flow=spec.flow, limits=limits, partitions=partitions, source=spec.topic)


def handoff_manifest(head: Head, standing: Standing, owner: str, token: int) -> StreamHandedOff:
    """From whom to whom, and from which cut on."""
    checkpoint = standing.checkpoint
    return StreamHandedOff(
        run_id=head.run_id,
        previous_owner=head.lease.owner,
        previous_token=head.lease.token,
        owner=owner,
        token=token,
        epoch=checkpoint.epoch,
        manifest=checkpoint.manifest,
        manifest_hash=checkpoint.manifest_hash,
        next_offsets=dict(checkpoint.next_offsets or standing.journal.start_offsets),
    )


def crashes_since(committed_token: int, last_token: int, leases: Sequence[Recorded]) -> int:
    """Owners, from the one that made the last checkpoint on, that never gave their lease back."""
    released = {recorded.event.token for recorded in leases if isinstance(recorded.event, LeaseReleased)}
    return sum(token not in released for token in range(max(1, committed_token), last_token + 1))
