"""The normalised arrival log of a replay: the exact sequence of records as they would have arrived, faults applied.

Records stand in the order (arrival, place in the snapshot, place within one event): an announcement before its event, copies right
behind it. Faults apply in the order of `FaultKind`; `event_time` never changes, `available_at` does, and is the arrival.

What must stay true: same snapshot, as-of instant, schedule and seed give the same records and the same `log_hash`, on every
machine; wall time is in neither. Only records available by the as-of instant take part, before faults. Every fault of the schedule
is applied and says to which records. Pure: a crash leaves nothing.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.instants import format_micros, to_micros
from domain.market.errors import RunTooLargeError, ScheduleInvalidError
from domain.market.faults import ANNOUNCED, Fault, FaultKind, FaultSchedule, check_events, schedule_address
from domain.market.faults import FORMAT as SCHEDULE_FORMAT
from domain.market.records import REVISION_MAX, MarketEvent, encode_event

FORMAT: Final = "FINAZ_ARRIVALS_V1"

ARRIVALS_MAX: Final = 500_000
"""Records of one arrival log, which is held in memory: some 0.8 GB while a REPLAY run folds it, with three value columns."""

PROGRESS_RECORDS: Final = 1000
"""Records between two signs of progress: some 50 ms."""

Progress = Callable[[], None]

EVENT: Final = "EVENT"
"""The kind of a record that is no announcement."""

_MICROS: Final = 1_000_000
_LAST: Final = to_micros(datetime.max.replace(tzinfo=UTC))
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def no_progress() -> None:
    """Nobody waits for progress."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record of the log. `index` counts from 0; `at` is the arrival in microseconds since the UTC epoch.

    An event has `event`, and `value`, its canonical bytes; an announcement has neither, but `kind` (`PAUSE`, `SOURCE_FAILURE`) and
    `milliseconds`: a tombstone.
    """

    index: int
    at: int
    instrument: str
    event: MarketEvent | None = None
    value: bytes | None = None
    kind: str = EVENT
    milliseconds: int = 0


class AppliedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as it was applied: the indices of the records that it made or moved; a GAP has none. `removed` counts them."""

    fault: Fault
    records: tuple[int, ...]
    removed: int = 0


class ArrivalLog(msgspec.Struct, frozen=True, kw_only=True):
    """The records in order, what each fault did, and the hash of all of it."""

    arrivals: tuple[Arrival, ...]
    applied: tuple[AppliedFault, ...]
    log_hash: str


class _Draft(msgspec.Struct, frozen=True, gc=False):
    """A record before it has an index; `place` is (place in the snapshot, place within one event)."""

    at: int
    place: tuple[int, int]
    instrument: str
    event: MarketEvent | None
    value: bytes | None
    kind: str
    milliseconds: int
    faults: tuple[Fault, ...]


def arrival_log(
    events: Iterable[MarketEvent],
    as_of: int,
    schedule: FaultSchedule,
    snapshot: str,
    progress: Progress = no_progress,
) -> ArrivalLog:
    """The log of the events (in the order of their snapshot, whose address is `snapshot`) that were available at `as_of`.

    `progress` is called now and then, and may raise to leave. Raises `ScheduleInvalidError` for a schedule that names an event that
    doesn't take part, or moves one beyond what an instant or a revision can be, `RunTooLargeError` for more records than
    `ARRIVALS_MAX`.
    """
    return encoded_log(((event, encode_event(event)) for event in events), as_of, schedule, snapshot, progress)


def encoded_log(
    events: Iterable[tuple[MarketEvent, bytes]],
    as_of: int,
    schedule: FaultSchedule,
    snapshot: str,
    progress: Progress = no_progress,
) -> ArrivalLog:
    """As `arrival_log`, of events that come with their canonical bytes: whole chunks are encoded quicker at once."""
    taking_part = [pair for pair in events if pair[0].available_at <= as_of]
    check_events(schedule, (event.event_id for event, _ in taking_part))
    faults = schedule.by_event
    first, last = _first_and_last([event for event, _ in taking_part])
    drafts: list[_Draft] = []
    removed: dict[str, int] = {}
    for place, (event, value) in enumerate(taking_part):
        if place % PROGRESS_RECORDS == 0:
            progress()
        mine = faults.get(event.event_id, ())
        if any(fault.kind is FaultKind.GAP for fault in mine):
            removed[event.event_id] = removed.get(event.event_id, 0) + 1
            continue
        is_first, is_last = place == first[event.event_id], place == last[event.event_id]
        drafts += _drafted(event, value, place, mine, is_first=is_first, is_last=is_last)
        if len(drafts) > ARRIVALS_MAX:
            expected = f"at most {ARRIVALS_MAX}"
            raise RunTooLargeError("too many arrivals", at=event.event_id, expected=expected)
    drafts.sort(key=lambda draft: (draft.at, draft.place))
    arrivals = tuple(_arrival(index, draft) for index, draft in enumerate(drafts))
    touched: dict[tuple[str, FaultKind], list[int]] = {}
    for index, draft in enumerate(drafts):
        for fault in draft.faults:
            touched.setdefault((fault.event, fault.kind), []).append(index)
    applied = tuple(_applied(fault, touched.get((fault.event, fault.kind), []), removed) for fault in schedule.faults)
    hashed = log_hash(arrivals, as_of, schedule, snapshot, progress)
    return ArrivalLog(arrivals=arrivals, applied=applied, log_hash=hashed)


def log_hash(
    arrivals: Iterable[Arrival], as_of: int, schedule: FaultSchedule, snapshot: str, progress: Progress = no_progress
) -> str:
    """The content address of the log's canonical lines: a head that names its inputs, then a line per record."""
    digest = hashlib.sha256()
    for number, line in enumerate(log_lines(arrivals, as_of, schedule, snapshot)):
        if number % PROGRESS_RECORDS == 0:
            progress()
        digest.update(line)
    return "sha256:" + digest.hexdigest()


def log_lines(arrivals: Iterable[Arrival], as_of: int, schedule: FaultSchedule, snapshot: str) -> Iterator[bytes]:
    """The log as canonical JSON Lines."""
    head = {
        "as_of": format_micros(as_of),
        "format": FORMAT,
        "schedule": schedule_address(schedule),
        "schedule_format": SCHEDULE_FORMAT,
        "seed": schedule.seed,
        "snapshot": snapshot,
    }
    yield canonical(head) + b"\n"
    for arrival in arrivals:
        yield _line(arrival)


def _line(arrival: Arrival) -> bytes:
    """`arrival_document` as a canonical line, written directly: the log of a long snapshot has half a million of them."""
    if arrival.value is None:
        rest = f'"kind":"{arrival.kind}","milliseconds":{arrival.milliseconds}}}\n'
    else:
        rest = f'"kind":"{arrival.kind}","value":{encode_basestring(arrival.value.decode("utf-8"))}}}\n'
    name = encode_basestring(arrival.instrument)
    head = f'{{"at":"{format_micros(arrival.at)}","index":{arrival.index},"instrument":{name},'
    return (head + rest).encode("utf-8")


def arrival_document(arrival: Arrival) -> dict[str, Any]:
    """One record as JSON; the event stands in its own canonical text, as it does in the topic."""
    document: dict[str, Any] = {
        "at": format_micros(arrival.at),
        "index": arrival.index,
        "instrument": arrival.instrument,
        "kind": arrival.kind,
    }
    if arrival.value is None:
        document["milliseconds"] = arrival.milliseconds
    else:
        document["value"] = arrival.value.decode("utf-8")
    return document


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner gives a key: murmur2, its sign bit cleared, modulo the partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of the bytes, as an unsigned 32-bit integer."""
    length = len(data)
    h = (_MURMUR_SEED ^ length) & _MASK
    whole = length - length % 4
    for start in range(0, whole, 4):
        k = (int.from_bytes(data[start : start + 4], "little") * _MURMUR_M) & _MASK
        k = ((k ^ (k >> 24)) * _MURMUR_M) & _MASK
        h = ((h * _MURMUR_M) & _MASK) ^ k
    if whole < length:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _MURMUR_M) & _MASK
    h = ((h ^ (h >> 13)) * _MURMUR_M) & _MASK
    return h ^ (h >> 15)


def _first_and_last(events: list[MarketEvent]) -> tuple[dict[str, int], dict[str, int]]:
    """Where each event's first and last record stand: copies and announcements go with the first, revisions with the last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, event in enumerate(events):
        first.setdefault(event.event_id, place)
        last[event.event_id] = place
    return first, last


def _drafted(
    event: MarketEvent, value: bytes, place: int, faults: tuple[Fault, ...], *, is_first: bool, is_last: bool
) -> list[_Draft]:
    """The records that one record of the snapshot becomes, faults applied in their order."""
    made: list[_Draft] = []
    touched: list[Fault] = []
    for fault in faults:
        if fault.kind is FaultKind.DELAY:
            event = _later(event, fault)
            value = encode_event(event)
            touched.append(fault)
    revised = [fault for fault in faults if fault.kind is FaultKind.REVISION and is_last]
    copies = [fault for fault in faults if fault.kind in (FaultKind.DUPLICATE, FaultKind.BURST) and is_first]
    announced = [fault for fault in faults if fault.kind in ANNOUNCED and is_first]
    number = 0
    for fault in announced:
        milliseconds = fault.parameters["milliseconds"]
        made.append(
            _Draft(
                event.available_at,
                (place, number),
                event.instrument,
                None,
                None,
                fault.kind.value,
                milliseconds,
                (fault,),
            )
        )
        number += 1
    made.append(_event_draft(event, value, (place, number), tuple(touched)))
    for fault in copies:
        for _ in range(fault.parameters.get("copies", 2) - 1):
            number += 1
            made.append(_event_draft(event, value, (place, number), (fault,)))
    for fault in revised:
        number += 1
        revision = _revised(event, fault)
        made.append(_event_draft(revision, encode_event(revision), (place, number), (fault,)))
    return made


def _event_draft(event: MarketEvent, value: bytes, place: tuple[int, int], faults: tuple[Fault, ...]) -> _Draft:
    return _Draft(event.available_at, place, event.instrument, event, value, EVENT, 0, faults)


def _later(event: MarketEvent, fault: Fault) -> MarketEvent:
    available_at = event.available_at + fault.parameters["seconds"] * _MICROS
    if available_at > _LAST:
        raise ScheduleInvalidError(
            f"{fault.kind.value} of {fault.event} moves it beyond the year 9999",
            at=fault.event,
            expected="fewer seconds",
        )
    return msgspec.structs.replace(event, available_at=available_at)


def _revised(event: MarketEvent, fault: Fault) -> MarketEvent:
    later = _later(event, fault)
    if event.revision >= REVISION_MAX:
        raise ScheduleInvalidError(
            f"{fault.event} has the highest revision there is", at=fault.event, expected="an event that can be revised"
        )
    return msgspec.structs.replace(
        later, revision=event.revision + 1, values={**event.values, **fault.parameters["values"]}
    )


def _arrival(index: int, draft: _Draft) -> Arrival:
    return Arrival(
        index=index,
        at=draft.at,
        instrument=draft.instrument,
        event=draft.event,
        value=draft.value,
        kind=draft.kind,
        milliseconds=draft.milliseconds,
    )


def _applied(fault: Fault, records: list[int], removed: dict[str, int]) -> AppliedFault:
    gone = removed.get(fault.event, 0) if fault.kind is FaultKind.GAP else 0
    assert records or gone, f"{fault.kind.value} of {fault.event} did nothing"
    return AppliedFault(fault=fault, records=tuple(records), removed=gone)
