"""How a stream becomes a state, by its category, and what must hold besides the transition tables.

`FOLDS` has every kind of stream there is. Whoever looks at a stream without being its service (inspection, audits) folds it here.
What must stay true: a fold is the aggregate's own `evolve`; `problem` states an invariant of a stream that no table can: tokens
that never go back, counts without gaps. Pure.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from domain.admission import aggregate as admission
from domain.checkpoints import aggregate as checkpoints
from domain.checkpoints.messages import CheckpointCommitted
from domain.discrepancies import aggregate as discrepancies
from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.jobs import aggregate as jobs
from domain.jobs import slot as job_slots
from domain.jobs.messages import JobStarted
from domain.leases import aggregate as leases
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.log_errors import AggregateUnknownError
from domain.purchases import ledger, saga, seats
from domain.purchases.messages import NoticeDelivered, NoticePosted
from domain.purchases.messages_seats import ShowCreated
from domain.runs import aggregate as runs
from domain.runs.messages import ResultPublished, RunHandedOff, RunStarted, RunSucceeded
from domain.stream import journal


def _no_problem(state: Any, event: Event) -> str | None:
    return None


class AggregateFold(msgspec.Struct, frozen=True):
    """How streams of one category are folded.

    `initial` takes the stream's key (what follows the category); `evolve` raises `IllegalTransitionError` for an event that cannot
    follow; `problem` says what else is wrong with an event after a state, or None.
    """

    initial: Callable[[str], Any]
    evolve: Callable[[Any, Recorded], Any]
    problem: Callable[[Any, Any], str | None] = _no_problem


def category_of(stream: str) -> str:
    """`run` of `run/run_…`."""
    return stream.partition("/")[0]


def key_of(stream: str) -> str:
    """`run_…` of `run/run_…`."""
    return stream.partition("/")[2]


def fold_of(stream: str) -> AggregateFold:
    """The fold of a stream. Raises `AggregateUnknownError`."""
    try:
        return FOLDS[category_of(stream)]
    except KeyError:
        raise AggregateUnknownError(
            f"nothing folds streams of the category {category_of(stream)[:64]!r}",
            at=stream[:200],
            expected=f"one of {', '.join(FOLDS)}",
        ) from None


def _lease_problem(lease: leases.Lease, event: Event) -> str | None:
    """The token grows by one with each grant, except to the owner of a live one; nothing else changes token or owner."""
    if isinstance(event, LeaseGranted):
        if event.token != lease.token + 1:
            return f"token {event.token} is granted after token {lease.token}"
    elif isinstance(event, LeaseRenewed | LeaseReleased) and (event.token, event.owner) != (lease.token, lease.owner):
        return f"token {event.token} of {event.owner} acts on a lease of {lease.owner} with token {lease.token}"
    return None


def _run_problem(run: runs.Run, event: Event) -> str | None:
    """Tokens only grow; attempts count without gaps; only the token that executes publishes, and each output once."""
    match event:
        case RunStarted():
            if event.token <= run.token:
                return f"token {event.token} starts a run after token {run.token}"
            if event.attempt != run.attempts + 1:
                return f"attempt {event.attempt} follows attempt {run.attempts}"
        case RunHandedOff():
            if event.token <= run.token:
                return f"token {event.token} is handed a run after token {run.token}"
        case ResultPublished():
            if event.token != run.token:
                return f"token {event.token} publishes while token {run.token} executes"
            if run.results and any(result.output == event.result.output for result in run.results):
                return f"the output {event.result.output!r} is published again"
        case RunSucceeded():
            if event.token != run.token:
                return f"token {event.token} ends a run that token {run.token} executes"
    return None


def _checkpoint_problem(checkpoint: checkpoints.Checkpoint, event: Event) -> str | None:
    """Epochs count without gaps; tokens and offsets never go back."""
    if not isinstance(event, CheckpointCommitted):
        return None
    if event.epoch != checkpoint.epoch + 1:
        return f"epoch {event.epoch} follows epoch {checkpoint.epoch}"
    if event.token < checkpoint.token:
        return f"token {event.token} commits after token {checkpoint.token}"
    for partition, offset in checkpoint.next_offsets.items():
        if event.next_offsets.get(partition, -1) < offset:
            return f"partition {partition} goes back from {offset} to {event.next_offsets.get(partition)}"
    return None


def _slot(key: str) -> job_slots.Slot:
    kind, _, target = key.partition("/")
    return job_slots.Slot(kind, target)


class Facts(msgspec.Struct, frozen=True):
    """State of a stream that no aggregate decides about: its events so far."""

    events: tuple[Event, ...] = ()


def _in_order(*types: type[Event]) -> AggregateFold:
    """The fold of a stream that holds these events and no others, in this order, each once."""

    def evolve(facts: Facts, recorded: Recorded) -> Facts:
        place = len(facts.events)
        if place >= len(types) or type(recorded.event) is not types[place]:
            raise IllegalTransitionError(
                f"{recorded.event.topic} cannot be event {place + 1}",
                at=recorded.stream,
                expected=types[place].topic if place < len(types) else "nothing: the stream has ended",
            )
        return Facts((*facts.events, recorded.event))

    return AggregateFold(lambda key: Facts(), evolve)


def _job_problem(job: jobs.Job, event: Event) -> str | None:
    """Tokens only grow."""
    if isinstance(event, JobStarted) and event.token <= job.token:
        return f"token {event.token} starts a job after token {job.token}"
    return None


FOLDS: Final[Mapping[str, AggregateFold]] = MappingProxyType(
    {
        "run": AggregateFold(runs.Run, lambda s, r: runs.evolve(s, r.event, r.recorded_at), _run_problem),
        "lease": AggregateFold(leases.Lease, lambda s, r: leases.evolve(s, r.event, r.recorded_at), _lease_problem),
        "admission": AggregateFold(lambda key: admission.Admission(), lambda s, r: admission.evolve(s, r.event)),
        "checkpoint": AggregateFold(
            checkpoints.Checkpoint, lambda s, r: checkpoints.evolve(s, r.event), _checkpoint_problem
        ),
        "discrepancy": AggregateFold(
            lambda key: discrepancies.Discrepancy(), lambda s, r: discrepancies.evolve(s, r.event)
        ),
        "journal": AggregateFold(journal.Journal, lambda s, r: journal.evolve(s, r.event)),
        "job": AggregateFold(jobs.Job, lambda s, r: jobs.evolve(s, r.event, r.recorded_at), _job_problem),
        "job_slot": AggregateFold(_slot, lambda s, r: job_slots.evolve(s, r.event)),
        "show": _in_order(ShowCreated),
        "seat": AggregateFold(lambda key: seats.Seat(), lambda s, r: seats.evolve_seat(s, r.event)),
        "reservation": AggregateFold(
            lambda key: seats.Reservation(), lambda s, r: seats.evolve_reservation(s, r.event)
        ),
        "purchase": AggregateFold(lambda key: saga.Saga(), lambda s, r: saga.evolve(s, r.event)),
        "ledger": AggregateFold(lambda key: ledger.Account(), lambda s, r: ledger.evolve(s, r.event)),
        "notice": _in_order(NoticePosted, NoticeDelivered),
    }
)
"""By category: the part of a stream's name before the first slash."""
