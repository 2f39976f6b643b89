"""The journal of a STREAM run: where it reads from, what was set aside and is so still, who asked for what.

What must stay true: an offset stands in the quarantine from the checkpoint that omitted it to the one that retried it to another
treatment, once; a retry of what is not omitted decides nothing; the state holds what is omitted now, never all that ever was. The
journal is appended together with checkpoints, so a crash leaves both or neither; an operator's request is an append of its own.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.errors import RefusedError
from domain.events import Event
from domain.stream.errors import QuarantineFullError
from domain.stream.messages import (
    ITEMS_MAX,
    BoundedSourceEnded,
    CopiesDiffered,
    Place,
    Pressure,
    PressureEntered,
    RecordsLate,
    RecordsOmitted,
    RecordsRetried,
    RequestRetry,
    RetryRequested,
    SourceOpened,
    StreamHandedOff,
)
from domain.stream.treatment import Treatment
from domain.transitions import AggregateState, TransitionTable

QUARANTINE_MAX: Final = 100_000
"""Records of one run that may be omitted and not terminal at a time; a stream that fills it is not the one it was made for."""


class JournalState(AggregateState):
    """Whether the source was opened, and whether it has ended."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    ENDED = "ENDED"


_WHILE_OPEN: Final = (
    StreamHandedOff,
    RecordsOmitted,
    RecordsLate,
    RecordsRetried,
    CopiesDiffered,
    PressureEntered,
    RetryRequested,
)

JOURNAL_TRANSITIONS: Final = TransitionTable[JournalState](
    "journal",
    {
        (JournalState.CLOSED, StreamHandedOff): JournalState.CLOSED,
        (JournalState.CLOSED, PressureEntered): JournalState.CLOSED,
        (JournalState.CLOSED, SourceOpened): JournalState.OPEN,
        **{(JournalState.OPEN, event_type): JournalState.OPEN for event_type in _WHILE_OPEN},
        (JournalState.OPEN, BoundedSourceEnded): JournalState.ENDED,
    },
)


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A record in the quarantine: the address of its bytes, and whether an operator asked for it."""

    quarantine: str
    requested: bool = False


class Journal(msgspec.Struct, frozen=True, gc=False):
    """State of a journal. `omitted` has what is in the quarantine now, by `place_of`.

    `pressure` is the last that an owner entered, why, and under which token; a later owner says nothing while all flows.
    """

    run_id: str
    state: JournalState = JournalState.CLOSED
    source: str = ""
    partitions: int = 0
    start_offsets: Mapping[str, int] = {}
    marks: Mapping[str, int] | None = None
    source_identity: str = ""
    pressure: Pressure = Pressure.FLOWING
    pressure_reason: str = ""
    pressure_token: int = 0
    omitted: Mapping[str, Kept] = {}


def place_of(partition: int, offset: int) -> str:
    """The name of an offset's place in a journal."""
    return f"{partition}/{offset}"


class PendingRetry(msgspec.Struct, frozen=True, order=True):
    """A record in the quarantine that is to be judged again: place and address of its bytes; whether an operator asked."""

    partition: int
    offset: int
    quarantine: str
    requested: bool = False


def pending_retries(journal: Journal) -> tuple[PendingRetry, ...]:
    """What operators asked for and no checkpoint has settled yet, by place."""
    return tuple(retry for retry in omitted_now(journal) if retry.requested)


def omitted_now(journal: Journal) -> tuple[PendingRetry, ...]:
    """All that is in the quarantine, by place: what a resume retries."""
    return tuple(
        sorted(
            PendingRetry(*_numbers(place), kept.quarantine, kept.requested) for place, kept in journal.omitted.items()
        )
    )


def decide(journal: Journal, command: RequestRetry) -> tuple[Event, ...]:
    """The request for those places that are omitted and were not asked for yet; nothing for the others. Nothing named: all."""
    named = {place_of(item.partition, item.offset) for item in command.items} or journal.omitted.keys()
    fresh = sorted(_numbers(place) for place, kept in journal.omitted.items() if place in named and not kept.requested)
    if fresh:
        JOURNAL_TRANSITIONS.next_state(journal.state, RetryRequested)
    places = [Place(partition=partition, offset=offset) for partition, offset in fresh]
    return tuple(
        RetryRequested(
            run_id=journal.run_id, principal=command.principal, items=tuple(places[start : start + ITEMS_MAX])
        )
        for start in range(0, len(places), ITEMS_MAX)
    )


def evolve(journal: Journal, event: Event) -> Journal:
    """The journal after an event.

    Raises `IllegalTransitionError` by the table, `RefusedError` for an offset omitted twice or retried when it was not omitted,
    `QuarantineFullError` beyond `QUARANTINE_MAX`.
    """
    state = JOURNAL_TRANSITIONS.next_state(journal.state, type(event))
    changes: dict[str, Any] = {}
    match event:
        case SourceOpened():
            changes = {
                "source": event.source,
                "partitions": event.partitions,
                "start_offsets": event.start_offsets,
                "marks": event.marks,
                "source_identity": event.source_identity,
            }
        case RecordsOmitted():
            changes = {"omitted": _with_omitted(journal, event)}
        case RecordsRetried():
            changes = {"omitted": _without_retried(journal, event)}
        case RetryRequested():
            changes = {"omitted": _with_requested(journal, event)}
        case PressureEntered():
            changes = {"pressure": event.state, "pressure_reason": event.reason, "pressure_token": event.token}
    return msgspec.structs.replace(journal, state=state, **changes)


def journal_document(journal: Journal) -> dict[str, Any]:
    """The state as JSON, for a snapshot."""
    document: dict[str, Any] = msgspec.to_builtins(journal)
    return document


def journal_of(document: Any) -> Journal:
    """The state that `journal_document` wrote. Raises `msgspec.ValidationError` for something else."""
    return msgspec.convert(document, Journal)


def _numbers(place: str) -> tuple[int, int]:
    partition, _, offset = place.partition("/")
    return int(partition), int(offset)


def _with_omitted(journal: Journal, event: RecordsOmitted) -> dict[str, Kept]:
    omitted = dict(journal.omitted)
    for item in event.items:
        if item.quarantine is None:
            continue
        place = place_of(item.partition, item.offset)
        if place in omitted:
            raise RefusedError(f"offset {item.offset} is omitted already", at=f"partition {item.partition}")
        omitted[place] = Kept(item.quarantine)
    if len(omitted) > QUARANTINE_MAX:
        raise QuarantineFullError(
            f"{len(omitted)} records are omitted", at=journal.run_id, expected=f"at most {QUARANTINE_MAX}"
        )
    return omitted


def _with_requested(journal: Journal, event: RetryRequested) -> dict[str, Kept]:
    asked = dict(journal.omitted)
    for item in event.items:
        place = place_of(item.partition, item.offset)
        if place in asked:  # else a checkpoint settled it while the operator asked
            asked[place] = Kept(asked[place].quarantine, True)
    return asked


def _without_retried(journal: Journal, event: RecordsRetried) -> dict[str, Kept]:
    omitted = dict(journal.omitted)
    for item in event.items:
        place = place_of(item.partition, item.offset)
        if place not in omitted:
            raise RefusedError(f"offset {item.offset} is not omitted", at=f"partition {item.partition}")
        kept = omitted.pop(place)
        if item.treatment is Treatment.OMITTED:
            omitted[place] = Kept(kept.quarantine)
    return omitted
