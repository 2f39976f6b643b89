"""The journal of a STREAM run: where it reads from, what was set aside and is so still, who asked for what.

What must stay true: an offset stands in the quarantine from the checkpoint that omitted it to the one that retried it to another
treatment, once; a retry of what is not omitted decides nothing; the state holds what is omitted now, never all that ever was. The
journal is appended together with checkpoints, so a crash leaves both or neither; an operator's request is an append of its own.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
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
from domain.transitions import TransitionTable

QUARANTINE_MAX: Final = 100_000
"""Records of one run that may be omitted and not terminal at a time; a stream that fills it is not the one it was made for."""


class JournalState(Enum):
    """Whether the source was opened, and whether it has ended."""

    ABSENT = "ABSENT"
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
        (JournalState.ABSENT, StreamHandedOff): JournalState.ABSENT,
        (JournalState.ABSENT, PressureEntered): JournalState.ABSENT,
        (JournalState.ABSENT, SourceOpened): JournalState.OPEN,
        **{(JournalState.OPEN, event_type): JournalState.OPEN for event_type in _WHILE_OPEN},
        (JournalState.OPEN, BoundedSourceEnded): JournalState.ENDED,
    },
)


class Journal(msgspec.Struct, frozen=True, gc=False):
    """State of a journal. `omitted` maps places that are in the quarantine to the addresses of their bytes."""

    run_id: str
    state: JournalState = JournalState.ABSENT
    source: str = ""
    partitions: int = 0
    start_offsets: Mapping[str, int] = {}
    marks: Mapping[str, int] | None = None
    pressure: Pressure = Pressure.FLOWING
    omitted: Mapping[tuple[int, int], str] = {}
    requested: frozenset[tuple[int, int]] = frozenset()


class PendingRetry(msgspec.Struct, frozen=True, order=True):
    """A record in the quarantine that is to be judged again: place and address of its bytes; whether an operator asked."""

    partition: int
    offset: int
    quarantine: str
    requested: bool = False


def pending_retries(journal: Journal) -> tuple[PendingRetry, ...]:
    """What operators asked for and no checkpoint has settled yet, by place."""
    return _retries(journal, journal.requested)


def omitted_now(journal: Journal) -> tuple[PendingRetry, ...]:
    """All that is in the quarantine, by place: what a resume retries."""
    return _retries(journal, journal.omitted)


def decide(journal: Journal, command: RequestRetry) -> tuple[Event, ...]:
    """The request for those places that are omitted and were not asked for yet; nothing for the others. Nothing named: all."""
    wanted: Iterable[tuple[int, int]] = [(item.partition, item.offset) for item in command.items] or journal.omitted
    fresh = sorted({place for place in wanted if place in journal.omitted} - journal.requested)
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
            }
        case RecordsOmitted():
            changes = {"omitted": _with_omitted(journal, event)}
        case RecordsRetried():
            changes = _without_retried(journal, event)
        case RetryRequested():
            changes = {"requested": journal.requested | {(item.partition, item.offset) for item in event.items}}
        case PressureEntered():
            changes = {"pressure": event.state}
    return msgspec.structs.replace(journal, state=state, **changes)


def journal_document(journal: Journal) -> dict[str, Any]:
    """The state as JSON, for a snapshot."""
    return {
        "marks": None if journal.marks is None else dict(journal.marks),
        "omitted": [[*place, journal.omitted[place]] for place in sorted(journal.omitted)],
        "partitions": journal.partitions,
        "pressure": journal.pressure.value,
        "requested": [list(place) for place in sorted(journal.requested)],
        "run_id": journal.run_id,
        "source": journal.source,
        "start_offsets": dict(journal.start_offsets),
        "state": journal.state.value,
    }


def journal_of(document: dict[str, Any]) -> Journal:
    """The state that `journal_document` wrote. Raises `KeyError`, `TypeError` or `ValueError` for something else."""
    return Journal(
        document["run_id"],
        JournalState(document["state"]),
        document["source"],
        document["partitions"],
        document["start_offsets"],
        document["marks"],
        Pressure(document["pressure"]),
        {(partition, offset): quarantine for partition, offset, quarantine in document["omitted"]},
        frozenset((partition, offset) for partition, offset in document["requested"]),
    )


def _retries(journal: Journal, places: Iterable[tuple[int, int]]) -> tuple[PendingRetry, ...]:
    return tuple(
        PendingRetry(*place, journal.omitted[place], place in journal.requested)
        for place in sorted(places)
        if place in journal.omitted
    )


def _with_omitted(journal: Journal, event: RecordsOmitted) -> dict[tuple[int, int], str]:
    omitted = dict(journal.omitted)
    for item in event.items:
        if item.quarantine is None:
            continue
        place = (item.partition, item.offset)
        if place in omitted:
            raise RefusedError(f"offset {item.offset} is omitted already", at=f"partition {item.partition}")
        omitted[place] = item.quarantine
    if len(omitted) > QUARANTINE_MAX:
        raise QuarantineFullError(
            f"{len(omitted)} records are omitted", at=journal.run_id, expected=f"at most {QUARANTINE_MAX}"
        )
    return omitted


def _without_retried(journal: Journal, event: RecordsRetried) -> dict[str, Any]:
    omitted = dict(journal.omitted)
    for item in event.items:
        place = (item.partition, item.offset)
        if place not in omitted:
            raise RefusedError(f"offset {item.offset} is not omitted", at=f"partition {item.partition}")
        if item.treatment is not Treatment.OMITTED:
            del omitted[place]
    settled = {(item.partition, item.offset) for item in event.items}
    return {"omitted": omitted, "requested": journal.requested - settled}
