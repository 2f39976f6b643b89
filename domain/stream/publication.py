"""What publishing an arrival log means: which record goes where, under which headers, when, and what is still missing.

A publication is one or several loads of one log. Records go to the partition of their key (murmur2), a load behind the one before
it; within a partition (load number, index) only grows. So whoever finds the last record of the publication in a partition knows
what that partition lacks. What must stay true: same log, same load, same partitions, same records; each load has the same
records but for its id. Pure: a crash leaves nothing.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from domain.errors import InputError
from domain.market.arrivals import EVENT, Arrival, ArrivalLog, partition_of
from domain.stream.records import HEADER_INDEX, HEADER_KIND, HEADER_LOAD, HEADER_MILLISECONDS, StreamRecord

DEFAULT_TOPIC: Final = "finaz-te-sim.fixture.replay.faults.normalized.v1"
"""Where a replay is published unless it is told otherwise."""

DEFAULT_PARTITIONS: Final = 4
"""Partitions of a topic that a replay creates, and of the log that a REPLAY run folds in memory."""

LOADS_MAX: Final = 10_000
"""Loads of one publication."""

_LOAD_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}\Z")
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(/s|x)\Z")
_MILLIS: Final = 1_000
_MICROS: Final = 1_000_000


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A record to be sent. `load` is the number of its load within the publication."""

    load: int
    index: int
    partition: int
    key: bytes
    value: bytes | None
    headers: dict[str, bytes]
    arrival: Arrival


def load_base(log: ArrivalLog) -> str:
    """The name of a publication that has none of its own: the same log is the same publication."""
    return log.log_hash.removeprefix("sha256:")[:16]


def load_ids(base: str, loads: int) -> tuple[str, ...]:
    """The ids of a publication's loads. Raises `InputError` for a name that no header should have, or too many loads."""
    if _LOAD_ID.match(base) is None:
        raise InputError(f"{base[:80]!r} is no load id", at="load_id", expected="1 to 200 of A-Z a-z 0-9 . _ : -")
    if not 1 <= loads <= LOADS_MAX:
        raise InputError(f"{loads} loads", at="loads", expected=f"1 to {LOADS_MAX}")
    return tuple(f"{base}.{number}" for number in range(loads))


def partitions_of(arrivals: Iterable[Arrival], partitions: int) -> dict[str, int]:
    """The partition of each instrument."""
    found: dict[str, int] = {}
    for arrival in arrivals:
        if arrival.instrument not in found:
            found[arrival.instrument] = partition_of(arrival.instrument.encode("utf-8"), partitions)
    return found


def headers_of(arrival: Arrival, load_id: str) -> dict[str, bytes]:
    """Identity and kind of a record; an announcement further says how long, in milliseconds."""
    headers = {
        HEADER_KIND: arrival.kind.encode("utf-8"),
        HEADER_LOAD: load_id.encode("utf-8"),
        HEADER_INDEX: b"%d" % arrival.index,
    }
    if arrival.kind != EVENT:
        headers[HEADER_MILLISECONDS] = b"%d" % arrival.milliseconds
    return headers


def outgoing(
    arrivals: Sequence[Arrival], ids: Sequence[str], partitions: int, published: Mapping[int, tuple[int, int]]
) -> Iterator[Outgoing]:
    """The records of the publication that its partitions lack, load by load, in the log's order.

    `published` has, for each partition that holds some, (load number, index) of the last one.
    """
    partition = partitions_of(arrivals, partitions)
    for number, load_id in enumerate(ids):
        for arrival in arrivals:
            place = partition[arrival.instrument]
            if (number, arrival.index) <= published.get(place, (-1, -1)):
                continue
            yield Outgoing(
                load=number,
                index=arrival.index,
                partition=place,
                key=arrival.instrument.encode("utf-8"),
                value=arrival.value,
                headers=headers_of(arrival, load_id),
                arrival=arrival,
            )


def missing_records(
    arrivals: Sequence[Arrival], ids: Sequence[str], partitions: int, published: Mapping[int, tuple[int, int]]
) -> int:
    """How many records `outgoing` gives."""
    indices: dict[int, list[int]] = {}
    partition = partitions_of(arrivals, partitions)
    for arrival in arrivals:
        indices.setdefault(partition[arrival.instrument], []).append(arrival.index)
    missing = len(arrivals) * len(ids)
    for place, (load, index) in published.items():
        mine = indices.get(place, [])
        missing -= load * len(mine) + bisect_right(mine, index)
    return missing


def last_published(records: Iterable[StreamRecord], ids: Sequence[str]) -> dict[int, tuple[int, int]]:
    """(load number, index) of the publication's last record in each partition that has one among these records."""
    numbers = {load_id: number for number, load_id in enumerate(ids)}
    last: dict[int, tuple[int, int]] = {}
    for record in records:
        if record.load is not None and record.load[0] in numbers:
            place = (numbers[record.load[0]], record.load[1])
            last[record.partition] = max(place, last.get(record.partition, place))
    return last


def records_of(arrivals: Sequence[Arrival], load_id: str, partitions: int) -> Iterator[StreamRecord]:
    """The records as a reader of a topic would see them that holds this one load and nothing else."""
    offsets = [0] * partitions
    for sent in outgoing(arrivals, (load_id,), partitions, {}):
        yield StreamRecord(
            partition=sent.partition,
            offset=offsets[sent.partition],
            key=sent.key,
            value=sent.value,
            headers=sent.headers,
        )
        offsets[sent.partition] += 1


# ------------------------------------------------------------------------------------------------ pace


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast: `records_per_second`, or `speed_multiplier` times as fast as the records arrived; neither: as fast as it goes."""

    records_per_second: float | None = None
    speed_multiplier: float | None = None


AS_FAST_AS_POSSIBLE: Final = Pace()


def parse_pace(text: str) -> Pace:
    """`max`, `100/s` (records per second) or `60x` (sixty times as fast as recorded). Raises `InputError`."""
    if text == "max":
        return AS_FAST_AS_POSSIBLE
    match = _RATE.match(text)
    if match is None or float(match[1]) <= 0.0:
        raise InputError(f"{text[:40]!r} is no pace", at="pace", expected="max, a rate as 100/s, or a speed as 60x")
    rate = float(match[1])
    return Pace(records_per_second=rate) if match[2] == "/s" else Pace(speed_multiplier=rate)


def timed(records: Iterable[Outgoing], pace: Pace) -> Iterator[tuple[float, Outgoing]]:
    """Each record with the seconds after the start at which it is due.

    An announced pause or failure of the source holds up, by the wall clock and at any pace, all that comes behind it.
    """
    due = 0.0
    before: Outgoing | None = None
    for record in records:
        if before is not None:
            due += _gap(before, record, pace) + before.arrival.milliseconds / _MILLIS
        yield due, record
        before = record


def _gap(before: Outgoing, record: Outgoing, pace: Pace) -> float:
    if pace.records_per_second is not None:
        return 1.0 / pace.records_per_second
    if pace.speed_multiplier is None or before.load != record.load:
        return 0.0
    return (record.arrival.at - before.arrival.at) / _MICROS / pace.speed_multiplier
