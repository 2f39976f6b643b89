"""Records taken at once are what they are one by one: counts, state to the byte, ticks, everything that a cut has."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical, parse
from domain.checkpoints.segments import encode_segment, segments_of
from domain.market.arrivals import partition_of
from domain.market.event_runs import EventRun, events_of
from domain.market.flow import FlowSpec
from domain.market.records import MarketEvent, encode_event
from domain.stream.bulk import Bulk
from domain.stream.progress import Cut, Progress
from domain.stream.records import StreamRecord
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamCore, StreamLimits
from tests.unit.domain.stream.test_worker_core import flow_over

SECOND = 1_000_000
PARTITIONS = 2
LIMITS = StreamLimits(lateness_micros=2 * SECOND, horizon_micros=8 * SECOND)
NAMES = ("a", "b", "c", "d")


MORE: list[dict[str, float | None]] = [
    {},
    {"volume": 1.0},
    {"volume": None},
    dict.fromkeys("vwxyz", 2.0),
    {"a,b": 1e-7},
]
"""Value columns that events may have besides."""


def records_of(dice: random.Random, count: int, oddity: float) -> list[StreamRecord]:
    """Records about in order, with oddities of every kind at this rate."""
    offsets, made, load = [0] * PARTITIONS, [], 0
    for number in range(count):
        odd = dice.random() < oddity
        event = MarketEvent(
            event_id=f"e{dice.randrange(number + 1) if odd else number}",
            instrument=dice.choice(NAMES),
            event_time=(number + (dice.randrange(-8, 8) if odd else 0)) * SECOND // 4,
            available_at=number * SECOND // 4 + dice.randrange(4) * SECOND,
            revision=dice.randrange(2) if odd else 0,
            values={"close": dice.choice([None, float(number), 0.1])} | (dice.choice(MORE) if odd else {}),
        )
        key = event.instrument.encode()
        partition = partition_of(key, PARTITIONS)
        load += dice.randrange(2) if odd else 1
        headers = {} if odd and dice.random() < 0.3 else {"load_id": b"l", "index": str(load).encode()}
        record = StreamRecord(
            partition=partition, offset=offsets[partition], key=key, value=encode_event(event), headers=headers
        )
        if odd:
            record = dice.choice(ODDITIES)(record)
        offsets[record.partition] = record.offset + 1
        made.append(record)
    return made


def with_value(record: StreamRecord, value: bytes | None) -> StreamRecord:
    return msgspec.structs.replace(record, value=value)


def value_of(record: StreamRecord) -> bytes:
    assert record.value is not None
    return record.value


ODDITIES: list[Any] = [
    lambda record: record,
    lambda record: with_value(record, None),
    lambda record: with_value(record, b"{"),
    lambda record: with_value(record, b" " + value_of(record)),
    lambda record: with_value(record, value_of(record).replace(b'"e', b'"\xc3\xa9')),
    lambda record: with_value(record, value_of(record).replace(b'"e', b'"\x7f')),
    lambda record: with_value(record, value_of(record).replace(b'"event_id":"', b'"event_id":"' + b"x" * 255)),
    lambda record: msgspec.structs.replace(record, key=b"a"),
    lambda record: msgspec.structs.replace(record, key=None),
    lambda record: msgspec.structs.replace(record, offset=record.offset + 2),
    lambda record: msgspec.structs.replace(record, headers={"load_id": b"m", "index": b"x"}),
    lambda record: msgspec.structs.replace(record, headers=dict(record.headers) | {"load_id": b"m"}),
    lambda record: msgspec.structs.replace(record, value=None, headers={"kind": b"END_OF_BOUNDED_SOURCE"}),
    lambda record: msgspec.structs.replace(
        record, value=None, headers={"kind": b"IDLE_CONFIRMED", "instant": b"1970-01-01T00:00:05Z"}
    ),
    lambda record: msgspec.structs.replace(
        record, value=None, headers={"kind": b"GAP_OPEN", "instant": b"1970-01-01T00:00:09Z"}
    ),
]
"""What else may come: some of it as good as the rest, some not."""


def shown(cut: Cut) -> Any:
    """All of a cut that can be compared."""
    ticks = {
        instrument: [
            (lane.event_times.tolist(), lane.event_ids, {n: c.tobytes() for n, c in lane.outputs.items()})
            for lane in parts
        ]
        for instrument, parts in cut.ticks.items()
    }
    accepted = {name: [event for event in events_of(cut.accepted) if event.instrument == name] for name in NAMES}
    others = (cut.next_offsets, cut.counts, cut.watermarks, sorted(map(repr, cut.omitted)), sorted(map(repr, cut.late)))
    return canonical(cut.state), cut.blocks, ticks, accepted, others, sorted(map(repr, cut.differing))


def fresh(interval: bool, selected: int, marks: dict[int, int] | None) -> Progress:
    """Nothing taken yet."""
    core = StreamCore(flow_over(NAMES[:selected], interval), PARTITIONS, LIMITS)
    return Progress(core, dict.fromkeys(range(PARTITIONS), 0), None, marks, bulk_records_min=1)


def committed(progress: Progress, blocks: dict[str, bytes]) -> tuple[Any, list[bytes]]:
    """The next cut as it can be compared, with the bytes of its segments; `blocks` has what was stored before."""
    cut = progress.cut()
    found = shown(cut), [encode_segment(segment, None) for segment in segments_of(cut.ticks, cut.accepted)]
    blocks |= cut.blocks
    cut.blocks.clear()
    return found


def restarted(progress: Progress, state: bytes, blocks: dict[str, bytes], flow: FlowSpec) -> Progress:
    """A successor that begins at the cut."""
    document = parse(state)
    for identities in document["identities"]:
        identities["blocks"] = [parse(blocks[name]) for name in identities["blocks"]]
    core = StreamCore(flow, PARTITIONS, LIMITS)
    core.restore(document)
    assert canonical(core.packed_state({})) == state
    start = dict.fromkeys(range(PARTITIONS), 0)
    return Progress(core, start, progress.next_offsets, progress.marks, bulk_records_min=1)


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 40),
    st.none() | st.integers(0, 60),
)
def test_at_once_is_as_one_by_one(
    seed: int, oddity: float, interval: bool, selected: int, batch: int, mark: int | None
) -> None:
    """Whatever is among the records, however many come at a time, wherever the marks are: the same cuts, again and again.

    The same state to the byte, the same segments to the byte; successors go on from it alike, and so does who changes the way.
    """
    dice = random.Random(seed)
    records = records_of(dice, dice.randrange(1, 120), oddity)
    marks = None if mark is None else dict.fromkeys(range(PARTITIONS), mark)
    kept: dict[str, bytes] = {}
    single, bulk = fresh(interval, selected, marks), fresh(interval, selected, marks)
    for start in range(0, len(records), batch):
        some = records[start : start + batch]
        for record in some:
            single.take(record)
        if dice.random() < 0.1:
            for record in some:
                bulk.take(record)
        else:
            bulk.take_all(some)
        if dice.random() < 0.3:
            mine, others = dict[str, bytes](), dict[str, bytes]()
            stored, other = committed(single, mine), committed(bulk, others)
            assert stored == other
            kept |= mine | others
            if dice.random() < 0.3:
                bulk = restarted(bulk, other[0][0], kept, flow_over(NAMES[:selected], interval))
    single.finish()
    bulk.finish()
    assert committed(single, kept) == committed(bulk, {})


class Watched(StreamCore):
    """A core that keeps what came of taking records at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.outcomes: list[list[EventRun] | None] = []

    def process_bulk(self, partition: int, bulk: Bulk) -> list[EventRun] | None:
        self.outcomes.append(super().process_bulk(partition, bulk))
        return self.outcomes[-1]


@pytest.mark.parametrize("selected", [1, 4])
def test_plain_records_are_taken_at_once(selected: int) -> None:
    """The short way is gone at all, with filtered records among them, and not for few records."""
    records = records_of(random.Random(1), 400, 0.0)
    core = Watched(flow_over(NAMES[:selected], False), PARTITIONS, LIMITS)
    progress = Progress(core, dict.fromkeys(range(PARTITIONS), 0))
    progress.take_all(records)
    assert [outcome is not None for outcome in core.outcomes] == [True] * PARTITIONS
    assert sum(len(run) for outcome in core.outcomes for run in outcome or ()) == core.counts[Treatment.CONSUMED] > 0
    assert progress.journalled == len(records)
    core.outcomes.clear()
    progress.take_all(records[:3])
    assert core.outcomes == []
