"""The stream worker without I/O: records in, treatments and ticks out.

Each record gets exactly one treatment, by the table of section 11, in its order. Lateness, revision and the release of ticks
depend on the record's own partition alone, so no interleaving of partitions changes a value.

What must stay true: the ticks are those of a batch over the accepted events, to the bit; state written out and restored goes on
as if nothing had happened, to the byte; an output is never rewritten; memory is bounded by the events between the watermark and
the newest one, and by the horizon. A crash loses nothing that was not committed: the caller commits state and ticks together.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domain.market.arrivals import partition_of
from domain.market.errors import StateInvalidError
from domain.market.event_runs import EventRun, runs_of
from domain.market.flow import FlowSpec, flow_address
from domain.market.lanes import Lane, LaneValues, lanes_of
from domain.market.records import MarketEvent
from domain.stream.bulk import Bulk, read_bulk
from domain.stream.identities import Identities, differs
from domain.stream.record_columns import RecordColumns
from domain.stream.records import Announcement, StreamRecord, UnreadableError, named, readable_event
from domain.stream.treatment import ACCEPTED as ACCEPTED
from domain.stream.treatment import Treated as Treated
from domain.stream.treatment import Treatment as Treatment
from domain.stream.watermark import PartitionWatermark

STATE_SCHEMA: Final = "FINAZ_STREAM_STATE_V3"
"""V3 has identities by column. V2 counts absent offsets; a state of V1 was never committed anywhere."""

STATE_SCHEMAS_READ: Final = ("FINAZ_STREAM_STATE_V2", STATE_SCHEMA)
"""Schemas of states that are gone on with; what is written is always the last."""

RELEASE_RECORDS_MAX: Final = 16_384
"""Records after which ticks are released at the latest: a release costs about as much as some records, however few its ticks."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of event time, in microseconds. They are part of a checkpoint's plan: other bounds are another computation."""

    lateness_micros: int = 5_000_000
    """How far an event may be behind the newest of its partition without being late."""
    horizon_micros: int = 3_600_000_000
    """How far behind the watermark an identity is remembered."""
    beyond_micros: int = 1_000_000
    """How far an event_time may be after its available_at: clocks of sources differ a little."""


DEFAULT_LIMITS: Final = StreamLimits()


class StreamCore:
    """The worker's mind. `process` records of each partition in their order; `drain` what was released. One thread at a time."""

    def __init__(self, flow: FlowSpec, partitions: int, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self.partitions = partitions
        self.counts: Counter[Treatment] = Counter()
        self._flow_address = flow_address(flow)
        self._limits = limits
        self._watermarks = [PartitionWatermark(limits.lateness_micros) for _ in range(partitions)]
        self._identities = [Identities(limits.horizon_micros) for _ in range(partitions)]
        self._lanes = {plan.instrument: Lane(plan) for plan in lanes_of(flow)}
        self._names = {instrument.encode("utf-8"): instrument for instrument in self._lanes}
        self._of_partition: list[list[Lane]] = [[] for _ in range(partitions)]
        for instrument, lane in self._lanes.items():
            self._of_partition[partition_of(instrument.encode("utf-8"), partitions)].append(lane)
        self._released: dict[str, list[LaneValues]] = {instrument: [] for instrument in self._lanes}
        self._unreleased = 0  # records since the last release
        self._left = 0  # events that it left

    @property
    def watermarks(self) -> tuple[int, ...]:
        """The watermark of each partition."""
        return tuple(mark.at for mark in self._watermarks)

    @property
    def ended(self) -> bool:
        """Whether every partition has said that there will be nothing more."""
        return all(mark.ended for mark in self._watermarks)

    def buffered_beyond(self, few: int) -> int:
        """Events accepted that the watermarks do not let go yet; 0, at no cost, where they are surely no more than `few`."""
        return 0 if self._left + self._unreleased <= few else self.buffered

    @property
    def buffered(self) -> int:
        """Events accepted that the watermarks do not let go yet."""
        marked = zip(self._watermarks, self._of_partition, strict=True)
        return sum(lane.waiting(mark.at) for mark, lanes in marked for lane in lanes)

    def process(self, record: StreamRecord) -> Treated:
        """Treat one record, which stands at an offset that was not treated before."""
        treated = self._treat(record, retried=False)
        self.counts[treated.treatment] += 1
        self._count_unreleased(1)
        return treated

    def read(self, records: RecordColumns) -> Bulk | None:
        """The records as `process_bulk` wants them; None where one of them is anything but plain. Nothing is changed."""
        return read_bulk(records, self._names, self.partitions, self._limits.beyond_micros)

    def process_bulk(self, partition: int, bulk: Bulk) -> list[EventRun] | None:
        """Treat records at once: those that are not filtered were consumed, and are returned by instrument.

        None, and nothing is done, where one of them is anything but new and in time: then take fewer, or one by one.
        """
        mark, identities = self._watermarks[partition], self._identities[partition]
        before = mark.before_each(bulk.times)
        if before is None:
            return None
        events, places = bulk.events, bulk.places
        runs: list[EventRun] = []
        if places:
            if (events.times < before[places]).any() or not identities.are_new(events.ids, bulk.loads):
                return None
            identities.add_all(events, bulk.instruments, bulk.loads, int(before[places[-1]]))
            runs = runs_of(events, bulk.instruments)
            for run in runs:
                self._lanes[run.instrument].accept_run(run)
        mark.see(int(bulk.times.max()))
        self.counts[Treatment.CONSUMED] += len(places)
        self.counts[Treatment.FILTERED] += len(bulk) - len(places)
        self._count_unreleased(len(bulk))
        return runs

    def copies(self, partition: int, bulk: Bulk) -> list[int]:
        """Which of the records are presumably copies of what was taken, or of one among them."""
        rows = self._identities[partition].repeated(bulk.events.ids)
        return [bulk.places[row] for row in rows]

    def retry(self, record: StreamRecord) -> Treated:
        """Judge a record that was omitted once more, as arriving now: its offset leaves `omitted` and is counted once."""
        assert self.counts[Treatment.OMITTED] > 0, "what is retried was omitted and counted so"
        treated = self._treat(record, retried=True)
        self.counts[Treatment.OMITTED] -= 1
        self.counts[treated.treatment] += 1
        return treated

    def _count_unreleased(self, records: int) -> None:
        self._unreleased += records
        if self._unreleased >= RELEASE_RECORDS_MAX:
            self.release()

    def release(self) -> None:
        """Compute the ticks that the watermarks let go. When it is done changes no value, only when it is known."""
        self._unreleased = self._left = 0
        for mark, lanes in zip(self._watermarks, self._of_partition, strict=True):
            for lane in lanes:
                if len(lane):
                    self._keep(lane.plan.instrument, lane.release(mark.at))
                    self._left += len(lane)

    def skip(self, partition: int, count: int) -> None:
        """Count offsets of a partition at which the log holds no record; they move nothing."""
        assert count > 0, "nothing is skipped"
        assert 0 <= partition < self.partitions, "a partition of another topic"
        self.counts[Treatment.ABSENT] += count

    def continue_behind(self, taken: Sequence[MarketEvent], watermark: int) -> None:
        """Begin where a batch over these events (in clock order) ended: its ticks released, its past closed before `watermark`."""
        for event in taken:
            self._lanes[event.instrument].accept(event)
            partition = partition_of(event.instrument.encode("utf-8"), self.partitions)
            if event.event_time >= watermark - self._limits.horizon_micros:
                self._identities[partition].add(event)
        for instrument, lane in self._lanes.items():
            self._keep(instrument, lane.finish())
        for mark in self._watermarks:
            mark.close_before(watermark)

    def finish(self) -> None:
        """The bounded source has ended in all partitions: release the rest."""
        for mark in self._watermarks:
            mark.end()
        for instrument, lane in self._lanes.items():
            self._keep(instrument, lane.finish())

    def drain(self) -> dict[str, tuple[LaneValues, ...]]:
        """The ticks released up to now and not drained yet, by instrument, in clock order."""
        self.release()
        drained = {instrument: tuple(parts) for instrument, parts in self._released.items() if parts}
        self._released = {instrument: [] for instrument in self._lanes}
        return drained

    # ---------------------------------------------------------------- treatments, in the order of the table

    def _treat(self, record: StreamRecord, retried: bool) -> Treated:
        if record.key not in self._names and record.instrument is not None:
            return self._filtered(record)
        if record.value is None:
            self._announced(record)
            return _treated(record, Treatment.OMITTED, detail="a tombstone", terminal=True)
        try:
            event = readable_event(record, self.partitions, self._limits.beyond_micros)
        except UnreadableError as error:
            return _treated(record, Treatment.OMITTED, detail=error.detail)
        return self._judged(record, event, retried)

    def _filtered(self, record: StreamRecord) -> Treated:
        """Of no interest, and yet it shows how far its partition has come."""
        if record.value is None:
            self._announced(record)
            return _treated(record, Treatment.FILTERED)
        try:
            event = readable_event(record, self.partitions, self._limits.beyond_micros)
        except UnreadableError:
            return _treated(record, Treatment.FILTERED)
        self._watermarks[record.partition].see(event.event_time)
        return _treated(record, Treatment.FILTERED)

    def _judged(self, record: StreamRecord, event: MarketEvent, retried: bool) -> Treated:
        """By identity first, then by the partition's watermark as it was before this record."""
        mark, identities = self._watermarks[record.partition], self._identities[record.partition]
        before = mark.at
        known = identities.find(event.event_id, before)
        if known is not None and (known.instrument != event.instrument or known.event_time != event.event_time):
            detail = "the event is known with another instrument or event_time"
            return _treated(record, Treatment.OMITTED, detail=detail)
        load = None if retried else record.load
        if load is not None:
            if identities.is_repeated(load):
                return _treated(record, Treatment.DUPLICATE, event)
            identities.add_load(load)
        if known is not None and event.revision <= known.revision:
            alert = event.revision == known.revision and differs(known, event)
            return _treated(record, Treatment.DUPLICATE, event, alert=alert)
        mark.see(event.event_time)
        if event.event_time < before or mark.ended:  # after its end a partition's rest is released
            return _treated(record, Treatment.LATE, event)
        identities.add(event)
        self._lanes[event.instrument].accept(event)
        return _treated(record, Treatment.CONSUMED if known is None else Treatment.REVISED, event)

    def _announced(self, record: StreamRecord) -> None:
        mark, instrument = self._watermarks[record.partition], named(record.key)
        match record.announcement:
            case Announcement.IDLE_CONFIRMED:
                mark.confirm_idle(record.instant)
            case Announcement.END_OF_BOUNDED_SOURCE:
                mark.end()
                for lane in self._of_partition[record.partition]:
                    self._keep(lane.plan.instrument, lane.finish())
            case Announcement.GAP_OPEN if instrument is not None:
                mark.open_gap(instrument, record.instant)
            case Announcement.GAP_CLOSED if instrument is not None:
                mark.close_gap(instrument)

    def _keep(self, instrument: str, values: LaneValues) -> None:
        if len(values):
            self._released[instrument].append(values)

    # ---------------------------------------------------------------- state

    def state_document(self) -> dict[str, Any]:
        """Everything that decides what comes next, as JSON; drained ticks are the caller's, undrained ones are refused."""
        return self._document([identities.state_document() for identities in self._identities])

    def packed_state(self, blocks: dict[str, bytes]) -> dict[str, Any]:
        """The same with blocks of identities by address; `blocks` gets the bytes of those that are new since the last time."""
        return self._document([identities.packed_state(blocks) for identities in self._identities])

    def _document(self, identities: list[dict[str, Any]]) -> dict[str, Any]:
        assert not any(self._released.values()), (
            "drain before writing the state out: ticks and state are committed together"
        )
        return {
            "counts": {treatment.value: self.counts[treatment] for treatment in Treatment},
            "flow": self._flow_address,
            "identities": identities,
            "lanes": [lane.state_document() for lane in self._lanes.values()],
            "limits": msgspec.structs.asdict(self._limits),
            "schema": STATE_SCHEMA,
            "watermarks": [mark.state_document() for mark in self._watermarks],
        }

    def restore(self, document: Any) -> None:
        """Take over what `state_document` wrote for the same flow, partitions and limits, or raise `StateInvalidError`."""
        plan = (self._flow_address, msgspec.structs.asdict(self._limits))
        if not isinstance(document, dict) or document.get("schema") not in STATE_SCHEMAS_READ:
            raise StateInvalidError("a state of another schema", at="state.schema", expected=STATE_SCHEMA)
        if tuple(document.get(name) for name in ("flow", "limits")) != plan:
            raise StateInvalidError("the state is of another plan", at="state", expected=f"flow {self._flow_address}")
        self._restore_each(document, "watermarks", self._watermarks)
        self._restore_each(document, "identities", self._identities)
        self._restore_each(document, "lanes", list(self._lanes.values()))
        self._left = sum(map(len, self._lanes.values()))
        counts = document.get("counts")
        if not isinstance(counts, dict) or counts.keys() != {treatment.value for treatment in Treatment}:
            raise StateInvalidError("no counts", at="state.counts", expected="one number per treatment")
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            raise StateInvalidError("no counts", at="state.counts", expected="numbers from 0 on")
        self.counts = Counter({Treatment(name): count for name, count in counts.items()})

    def _restore_each(self, document: dict[str, Any], name: str, parts: Sequence[Any]) -> None:
        states = document.get(name)
        if not isinstance(states, list) or len(states) != len(parts):
            raise StateInvalidError("another number of parts", at=f"state.{name}", expected=str(len(parts)))
        for part, state in zip(parts, states, strict=True):
            part.restore(state)


def _treated(
    record: StreamRecord,
    treatment: Treatment,
    event: MarketEvent | None = None,
    *,
    detail: str = "",
    terminal: bool = False,
    alert: bool = False,
) -> Treated:
    return Treated(
        treatment=treatment,
        partition=record.partition,
        offset=record.offset,
        event=event,
        detail=detail,
        terminal=terminal,
        alert=alert,
    )
