"""Quarantine: one row per record of a STREAM run that was omitted, late, or retried, in its current treatment.

What must stay true: a row is the fold of what the journal says of one offset; a record that was omitted and then taken keeps its
row, so that who asks what became of it is told. Only rows in state `omitted` that are not terminal can be retried.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.stream.messages import LateItem, OmittedItem, RecordsLate, RecordsOmitted, RecordsRetried, RetryRequested
from domain.stream.treatment import Treatment
from projections.folding import ReadModel

NAME: Final = "quarantine"

RecordKey: TypeAlias = tuple[str, int, int]
"""run_id, partition, offset"""

ItemsEvent: TypeAlias = RecordsOmitted | RecordsLate | RecordsRetried | RetryRequested


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """One record. `state` is its current treatment; `quarantine` addresses its bytes, None where they are not kept.

    `first_position` is the event's that first spoke of it; `requested_by` and `requested_at` are of the last request to retry it,
    `retried_at` and `retries` of those that were recorded.
    """

    run_id: str
    partition: int
    offset: int
    state: str
    detail: str
    terminal: bool
    quarantine: str | None
    event_id: str | None
    revision: int | None
    event_time: datetime | None
    requested: bool
    requested_by: str | None
    requested_at: datetime | None
    retries: int
    retried_at: datetime | None
    recorded_at: datetime
    first_position: int
    position: int


def parts_of(event: Event) -> Iterable[Event]:
    """The event once per item, each with that item alone."""
    if not isinstance(event, ItemsEvent):
        return (event,)
    replace = msgspec.structs.replace
    return [replace(event, items=(item,)) for item in event.items]


def key_of(event: Event) -> RecordKey | None:
    """The record that (a part of) an event is about, or None."""
    if not isinstance(event, ItemsEvent):
        return None
    (item,) = event.items
    return event.run_id, item.partition, item.offset


def apply(row: RecordRow | None, recorded: Recorded) -> RecordRow:
    """The row after (a part of) the event. Raises `IllegalTransitionError` for one that cannot follow."""
    match recorded.event:
        case RecordsOmitted(items=(omitted,)):
            if row is not None:
                raise IllegalTransitionError("the record was spoken of before", at=recorded.stream)
            return _omitted(recorded, omitted)
        case RecordsLate(items=(late,)):
            return _late(recorded, late, row)
        case RecordsRetried(items=(retried,)):
            return _changed(
                recorded,
                row,
                state=retried.treatment.value,
                detail=retried.detail,
                requested=False,
                retries=0 if row is None else row.retries + 1,
                retried_at=recorded.recorded_at,
            )
        case RetryRequested(principal=principal):
            return _changed(
                recorded,
                row,
                requested=row is not None and row.state == Treatment.OMITTED.value,
                requested_by=principal,
                requested_at=recorded.recorded_at,
            )
    raise AssertionError(f"{recorded.event.topic} touches no row")


def _omitted(recorded: Recorded, item: OmittedItem) -> RecordRow:
    return _first(
        recorded,
        item,
        state=Treatment.OMITTED.value,
        detail=item.detail,
        terminal=item.terminal,
        quarantine=item.quarantine,
    )


def _late(recorded: Recorded, item: LateItem, row: RecordRow | None) -> RecordRow:
    known = {"event_id": item.event_id, "revision": item.revision, "event_time": item.event_time}
    if row is None:
        return _first(recorded, item, state=Treatment.LATE.value, **known)
    return _changed(recorded, row, state=Treatment.LATE.value, **known)


def _first(recorded: Recorded, item: OmittedItem | LateItem, **known: Any) -> RecordRow:
    event = recorded.event
    assert isinstance(event, ItemsEvent)
    fields: dict[str, Any] = {
        "detail": "",
        "terminal": False,
        "quarantine": None,
        "event_id": None,
        "revision": None,
        "event_time": None,
    }
    return RecordRow(
        run_id=event.run_id,
        partition=item.partition,
        offset=item.offset,
        requested=False,
        requested_by=None,
        requested_at=None,
        retries=0,
        retried_at=None,
        recorded_at=recorded.recorded_at,
        first_position=recorded.position,
        position=recorded.position,
        **fields | known,
    )


def _changed(recorded: Recorded, row: RecordRow | None, **changes: Any) -> RecordRow:
    if row is None:
        raise IllegalTransitionError("the record was never omitted", at=recorded.stream)
    return msgspec.structs.replace(row, position=recorded.position, **changes)


MODEL: Final = ReadModel[RecordKey, RecordRow](NAME, ("journal",), key_of, apply, parts=parts_of)
