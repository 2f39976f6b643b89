"""What the simulated workers live in: a topic, the database with its log and clock, blobs, and an oracle who keeps its own books.

What must stay true: everything is a function of the dice; the oracle trusts nothing that it could have been told wrongly: it
folds leases, epochs, offsets, watermarks and treatments from the events as they are appended.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from domain.canonical import address
from domain.checkpoints.manifest import Manifest, Plan
from domain.checkpoints.messages import CheckpointCommitted
from domain.events import Recorded
from domain.instants import format_micros
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.market.arrivals import partition_of
from domain.market.flow import FlowSpec, flow_address, parse_flow
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent
from domain.runs.messages import RunSucceeded
from domain.stream.messages import RecordsOmitted, RecordsRetried
from domain.stream.records import StreamRecord
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamLimits
from services.checkpoints import Checkpoints
from services.ports import Append, Appended, Fence, Guard
from services.store.states import Fold, StateRead
from tests.support.memory_log import MemoryLog, S
from tests.support.stream_runs import SOURCE

PARTITIONS: Final = 2
SECOND: Final = 1_000_000
BROKEN: Final = b"\x00"
"""What stands before a value that only the mended reader can read."""


class Mutant(Enum):
    """A fault to plant, to show that the simulation finds it."""

    NONE = "none"
    FENCE = "the log does not check the fence"
    DEDUPE = "a restored worker has forgotten the identities that it saw"
    OFFSETS = "a restored worker goes on behind what was read, not behind what was committed"
    RETRY = "a retried record is counted as a new one"
    RESTORE = "a worker restores the checkpoint before the last one"


class BrokenInvariantError(AssertionError):
    """A history in which something did not hold."""


class CrashedError(BaseException):
    """A worker's process is gone."""


# ------------------------------------------------------------------------------------------------ the market


def _flow(clock: dict[str, Any]) -> FlowSpec:
    nodes = [
        {
            "id": f"ema{n}",
            "op": "ema",
            "inputs": [{"column": "close", "instrument": f"i{n}"}],
            "parameters": {"length": 2},
        }
        for n in range(2)
    ]
    outputs = [{"name": f"ema{n}", "node": f"ema{n}"} for n in range(2)]
    source = {"instruments": ["i0", "i1"]}
    return parse_flow(
        {"version": 1, "name": "simulated", "source": source, "clock": clock, "nodes": nodes, "outputs": outputs}
    )


FLOWS: Final = (_flow({"kind": "event"}), _flow({"kind": "interval", "length_seconds": 3}))
LIMITS: Final = StreamLimits(lateness_micros=4 * SECOND, horizon_micros=15 * SECOND)
PLANS: Final = {
    id(flow): Plan(flow=flow_address(flow), limits=LIMITS, partitions=PARTITIONS, source=SOURCE) for flow in FLOWS
}


_TIMES: Final = {second: format_micros(second * SECOND) for second in range(-10, 30)}
_manifest_of: Final = msgspec.json.Decoder(Manifest).decode


def value_of(event: MarketEvent) -> bytes:
    """What `encode_event` gives, ten times as fast: a third of a history would go into it."""
    time_text, close = _TIMES[event.event_time // SECOND], event.values["close"]
    return (
        f'{{"available_at":"{time_text}","close":{close!r},"event_id":"{event.event_id}","event_time":"{time_text}",'
        f'"instrument":"{event.instrument}","revision":{event.revision}}}'
    ).encode()


class Topic:
    """The broker's log: records by partition, appearing over time, with holes; and the marks at which it ends."""

    def __init__(self, dice: random.Random) -> None:
        self.records: list[list[StreamRecord]] = [[] for _ in range(PARTITIONS)]
        self.due: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.marks = dict.fromkeys(range(PARTITIONS), 0)
        at = 0.0
        for event in self.arrivals(dice):
            at += dice.random() * 0.4
            self._add(dice, event, at)

    @staticmethod
    def arrivals(dice: random.Random) -> Iterator[MarketEvent]:
        """Events about in order, some of them several times, revised, or too late; of a third instrument too."""
        made: list[MarketEvent] = []
        for number in range(dice.randrange(4, 16)):
            instant = (number + dice.randrange(-6, 3)) * SECOND
            event = MarketEvent(
                event_id=f"e{number}",
                instrument=f"i{dice.randrange(3)}",
                event_time=instant,
                available_at=instant,
                revision=0,
                values={"close": float(number)},
            )
            made.append(event)
            yield event
            again = dice.random()
            if again < 0.25:
                yield dice.choice(made)
            elif again < 0.4:
                old = dice.choice(made)
                revised = msgspec.structs.replace(old, revision=old.revision + 1, values={"close": number + 0.5})
                made.append(revised)
                yield revised

    def _add(self, dice: random.Random, event: MarketEvent, at: float) -> None:
        key = event.instrument.encode()
        partition = partition_of(key, PARTITIONS)
        luck = dice.random()
        if luck < 0.1:
            self.marks[partition] += dice.randrange(1, 3)  # a transaction's marker
        value: bytes | None = value_of(event)
        if luck > 0.85:
            value = BROKEN + value_of(event)
        elif luck > 0.8:
            value = None
        record = StreamRecord(partition=partition, offset=self.marks[partition], key=key, value=value, headers={})
        self.records[partition].append(record)
        self.due[partition].append(at)
        self.marks[partition] += 1

    def poll(self, partition: int, offset: int, limit: int, now: float) -> tuple[list[StreamRecord], int]:
        """Up to `limit` records that have appeared, and the first offset not delivered."""
        some: list[StreamRecord] = []
        for record, due in zip(self.records[partition], self.due[partition], strict=True):
            if record.offset < offset:
                continue
            if due > now or len(some) == limit:
                return some, some[-1].offset + 1 if some else offset
            some.append(record)
        return some, self.marks[partition]


# ------------------------------------------------------------------------------------------------ the database


class Database(MemoryLog):
    """The log in memory, without documents: what goes in comes out, and states are folded on from where they were."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__()
        self._mutant = mutant
        self._states: dict[tuple[str, str], tuple[int, Any]] = {}
        self.on_event: Callable[[Recorded], None] = lambda recorded: None

    def read_state_blocking(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        events = self._streams.get(stream, ())
        version, state = self._states.get((stream, fold.topic), (0, None))
        state = fold.initial(stream) if state is None else state
        for recorded in events[version:]:
            state = fold.evolve(state, recorded)
        self._states[stream, fold.topic] = (len(events), state)
        return StateRead(state=state, version=len(events), now=self._now)

    def _check_guard(self, guard: Guard | None) -> None:
        if self._mutant is not Mutant.FENCE or not isinstance(guard, Fence):
            super()._check_guard(guard)

    def _store(self, append: Append) -> Appended:
        for new in append.events:
            recorded = Recorded(
                position=len(self._events) + 1,
                stream=new.stream,
                version=new.version,
                event_id=new.event_id,
                recorded_at=self._now,
                event=new.event,
                metadata=append.metadata,
            )
            self.on_event(recorded)
            self._events.append(recorded)
            self._streams.setdefault(new.stream, []).append(recorded)
            self._by_id[new.event_id] = recorded
            self._move_guard(recorded)
        return Appended(position=len(self._events), recorded_at=self._now)


class Blobs:
    """Content-addressed storage at which a process may die."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.on_put: Callable[[], None] = lambda: None

    def put(self, data: bytes) -> str:
        self.on_put()
        name = address(data)
        self.blobs[name] = data
        return name

    def get(self, name: str) -> bytes:
        return self.blobs[name]

    def has(self, name: str) -> bool:
        return name in self.blobs


# ------------------------------------------------------------------------------------------------ what must hold


class History(Protocol):
    """What the oracle asks of a history that has ended."""

    topic: Topic
    database: Database
    flow: FlowSpec
    mended: bool

    def reference(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """Counts and accepted identities of a worker to whom nothing happens."""
        ...


class Oracle:
    """Keeps its own books of leases, epochs, offsets, watermarks and treatments, from the events as they are appended."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.token = 0
        self._owner = ""
        self._expires_at: datetime | None = None
        self.manifest: Manifest | None = None
        self._omitted: set[tuple[int, int]] = set()
        self.ended = 0

    def see(self, recorded: Recorded) -> None:
        """The next event, before it is in the log."""
        event, now = recorded.event, recorded.recorded_at
        match event:
            case LeaseGranted():
                self.hold(event.token == self.token + 1, "tokens are monotone, by one")
                self.hold(self._expires_at is None or now >= self._expires_at, "no live lease is taken away")
                self.token, self._owner = event.token, event.owner
                self._expires_at = now + timedelta(seconds=event.ttl_seconds)
            case LeaseRenewed():
                self._effect(event.token, now)
                self._expires_at = now + timedelta(seconds=event.ttl_seconds)
            case LeaseReleased():
                self._effect(event.token, now)
                self._expires_at = now
            case CheckpointCommitted():
                self._effect(event.token, now)
                self._committed(event)
            case RunSucceeded():
                self._effect(event.token, now)
                self.ended += 1
            case RecordsOmitted():
                for item in event.items:
                    self.hold((item.partition, item.offset) not in self._omitted, "an offset is omitted once")
                    self._omitted.add((item.partition, item.offset))
            case RecordsRetried():
                for again in event.items:
                    self.hold((again.partition, again.offset) in self._omitted, "what is retried was omitted")
                    if again.treatment is not Treatment.OMITTED:
                        self._omitted.discard((again.partition, again.offset))

    def hold(self, holds: bool, what: str) -> None:
        """Raise unless it holds."""
        if not holds:
            raise BrokenInvariantError(what)

    def _effect(self, token: int, now: datetime) -> None:
        self.hold(token == self.token, "no effect by an overtaken owner")
        self.hold(self._expires_at is not None and now < self._expires_at, "no effect without a live lease")

    def _committed(self, event: CheckpointCommitted) -> None:
        before, manifest = self.manifest, _manifest_of(self._blobs.get(event.manifest))
        self.hold(manifest.epoch == (before.epoch if before else 0) + 1, "epochs are contiguous")
        journalled = sum(manifest.next_offsets.values()) - sum(manifest.start_offsets.values())
        self.hold(sum(manifest.counts.values()) == journalled, "the counts add up to how far was read")
        if before is not None:
            back = any(manifest.next_offsets[p] < offset for p, offset in before.next_offsets.items())
            self.hold(not back, "offsets never go back")
            lower = any(now < then for now, then in zip(manifest.watermarks, before.watermarks, strict=True))
            self.hold(not lower, "a watermark never goes back")
        self.manifest = manifest

    def at_end(self, simulation: "History") -> None:
        """What must hold of a run that has succeeded."""
        manifest, topic = self.manifest, simulation.topic
        assert manifest is not None
        self.hold(self.ended == 1, "a run succeeds once")
        self.hold({int(p): o for p, o in manifest.next_offsets.items()} == topic.marks, "all was read to the marks")
        self.hold(manifest.counts["omitted"] == len(self._omitted), "omitted offsets are counted once")
        holes = sum(topic.marks.values()) - sum(map(len, topic.records))
        self.hold(manifest.counts["absent"] == holes, "only offsets without a record are absent")
        checkpoints = Checkpoints(simulation.database, self._blobs)
        accepted = list(checkpoints.accepted(manifest))
        counts = manifest.counts
        self.hold(len(accepted) == counts["consumed"] + counts["revised"], "what was accepted is in the sink, once")
        copies = Counter((event.event_id, event.revision) for event in accepted)
        self.hold(max(copies.values(), default=1) == 1, "no identity is accepted twice")
        self.hold(_rows(checkpoints.ticks(manifest).values()) == batch(simulation.flow, accepted), "equal to the batch")
        if not simulation.mended:
            reference = simulation.reference()
            self.hold(counts == reference[0], "no record is lost or counted twice")
            self.hold(sorted(copies) == reference[1], "what is accepted depends on the records alone")


def batch(flow: FlowSpec, accepted: Sequence[MarketEvent]) -> dict[str, Any]:
    """The ticks of a batch over events."""
    return _rows(execute_events(flow, accepted).lanes)


def _rows(lanes: Any) -> dict[str, Any]:
    return {
        lane.instrument: (
            lane.event_times.tolist(),
            lane.event_ids,
            {name: column.tobytes() for name, column in lane.outputs.items()},
        )
        for lane in lanes
        if len(lane)
    }
