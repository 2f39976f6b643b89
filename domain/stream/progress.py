"""Progress: a stream worker's core together with what it has read, so that every offset is accounted for once.

The worker gives it records in the order of their offsets and asks for a `Cut` whenever it wants to commit. What must stay true:
next offsets only grow; an offset between two records is absent; an offset at or beyond the captured mark of a bounded run is not
taken; the counts add up to how far the partitions were read; a cut holds everything since the cut before it, and nothing twice.
Pure: a crash loses what was not committed, and the successor reads it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from domain.instants import from_micros
from domain.market.event_runs import EventRun
from domain.market.lanes import LaneValues
from domain.market.records import MarketEvent
from domain.stream.bulk import BULK_RECORDS_MIN, Bulk
from domain.stream.messages import DETAIL_CHARACTERS_MAX, DifferingItem, LateItem, RetriedItem
from domain.stream.record_columns import RecordColumns, columns_of
from domain.stream.records import StreamRecord
from domain.stream.treatment import ACCEPTED, Treated, Treatment
from domain.stream.worker_core import StreamCore


class Omitted(msgspec.Struct, frozen=True):
    """A record set aside, and why."""

    record: StreamRecord
    detail: str
    terminal: bool


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a checkpoint commits: the state, how far it goes, and what is new since the cut before it.

    The state names blocks by address; `blocks` has the bytes of those that are not known to be stored. Whoever has committed the
    cut empties it.
    """

    state: dict[str, Any]
    blocks: dict[str, bytes]
    next_offsets: dict[int, int]
    counts: dict[str, int]
    watermarks: tuple[int, ...]
    ticks: Mapping[str, tuple[LaneValues, ...]]
    accepted: tuple[MarketEvent | EventRun, ...]
    omitted: tuple[Omitted, ...]
    late: tuple[LateItem, ...]
    retried: tuple[RetriedItem, ...]
    differing: tuple[DifferingItem, ...]


class Progress:
    """A core, from `start_offsets` on and now at `next_offsets`; `marks` bound a bounded run. One thread at a time.

    From `bulk_records_min` on, records of a partition are tried at once.
    """

    def __init__(
        self,
        core: StreamCore,
        start_offsets: Mapping[int, int],
        next_offsets: Mapping[int, int] | None = None,
        marks: Mapping[int, int] | None = None,
        *,
        bulk_records_min: int = BULK_RECORDS_MIN,
    ) -> None:
        self.core = core
        self.next_offsets = dict(start_offsets if next_offsets is None else next_offsets)
        self.marks = None if marks is None else dict(marks)
        self.uncommitted = 0
        """Offsets and retries since the last cut."""
        self._bulk_records_min = bulk_records_min
        self._start = sum(start_offsets.values())
        self._blocks: dict[str, bytes] = {}
        self._clear()

    @property
    def journalled(self) -> int:
        """Offsets treated by the run, resumes included, those without a record too."""
        return sum(self.next_offsets.values()) - self._start

    @property
    def at_marks(self) -> bool:
        """Whether a bounded run has read all that it will."""
        return self.marks is not None and all(self.next_offsets[p] >= mark for p, mark in self.marks.items())

    def take(self, record: StreamRecord) -> Treated | None:
        """Treat the record; None if its offset was treated before, or lies at or beyond the partition's mark."""
        expected = self.next_offsets[record.partition]
        if record.offset < expected or self._is_beyond(record.partition, record.offset):
            return None
        if record.offset > expected:
            self._skip(record.partition, record.offset)
        treated = self.core.process(record)
        self.next_offsets[record.partition] = record.offset + 1
        self.uncommitted += 1
        self._note(record, treated)
        return treated

    def take_all(self, records: Iterable[StreamRecord]) -> None:
        """As `take`, each in turn, but for the order among partitions, which changes no value; quicker where many are plain."""
        for columns in columns_of(records):
            self.take_columns(columns)

    def take_columns(self, records: RecordColumns) -> None:
        """The same for the records of one partition. What is odd is mostly rare, and its neighbours need not suffer for it."""
        count = len(records)
        bulk = self.core.read(records) if count >= self._bulk_records_min else None
        if bulk is not None:
            self._take_bulk(records, bulk)
        elif count < 2 * self._bulk_records_min:
            self._take_each(records)
        else:
            self.take_columns(records.rows(0, count // 2))
            self.take_columns(records.rows(count // 2, count))

    def _take_bulk(self, records: RecordColumns, bulk: Bulk) -> None:
        """Take records that were read at once; where that cannot be, what lies between copies, or each half."""
        if self._take_at_once(records, bulk):
            return
        copies = self.core.copies(records.partition, bulk)
        inner = [*copies, *(row + 1 for row in copies)] or [len(records) // 2]
        borders = sorted({0, *inner, len(records)})
        taken = 0
        for start, end in pairwise(borders):
            if end - start >= max(self._bulk_records_min, 2):
                self._take_each(records.rows(taken, start))
                self._take_bulk(records.rows(start, end), bulk.rows(start, end))
                taken = end
        self._take_each(records.rows(taken, len(records)))

    def _take_at_once(self, records: RecordColumns, bulk: Bulk) -> bool:
        partition, count = records.partition, len(records)
        expected = self.next_offsets[partition]
        if self._is_beyond(partition, records.offsets[-1]):
            return False
        if list(records.offsets) != list(range(expected, expected + count)):
            return False
        runs = self.core.process_bulk(partition, bulk)
        if runs is None:
            return False
        self.next_offsets[partition] = expected + count
        self.uncommitted += count
        self._accepted += runs
        return True

    def _take_each(self, records: RecordColumns) -> None:
        for record in records.records():
            self.take(record)

    def reach(self, partition: int, next_offset: int) -> None:
        """The log holds no record before `next_offset` that was not given: what lies between is absent."""
        if self.marks is not None:
            next_offset = min(next_offset, self.marks.get(partition, next_offset))
        if next_offset > self.next_offsets[partition]:
            self._skip(partition, next_offset)

    def retry(self, record: StreamRecord, requested: bool) -> Treated | None:
        """Judge a record from the quarantine as arriving now; None, and nothing done, if this cut has an outcome of it already.

        One that is omitted still is noted only if an operator `requested` it, so that no resume adds to the journal in vain.
        """
        place = (record.partition, record.offset)
        if place in self._judged:
            return None
        treated = self.core.retry(record)
        if treated.treatment is not Treatment.OMITTED or requested:
            self._judged.add(place)
            self.uncommitted += 1
            self._retried.append(
                RetriedItem(
                    partition=record.partition,
                    offset=record.offset,
                    treatment=treated.treatment,
                    detail=_told(treated.detail),
                )
            )
        if treated.treatment is not Treatment.OMITTED:
            self._note(record, treated)
        return treated

    def continue_behind(self, taken: Sequence[MarketEvent], watermark: int) -> None:
        """Begin behind a batch that took these events: they are accepted by the run too."""
        self.core.continue_behind(taken, watermark)
        self._accepted += taken
        self.uncommitted += 1

    def finish(self) -> None:
        """The bounded source has ended in all partitions: release the rest."""
        self.core.finish()
        self.uncommitted += 1

    def cut(self) -> Cut:
        """What is to be committed now. From here on, what is new belongs to the next cut."""
        ticks = self.core.drain()
        cut = Cut(
            state=self.core.packed_state(self._blocks),
            blocks=self._blocks,
            next_offsets=dict(self.next_offsets),
            counts={treatment.value: self.core.counts[treatment] for treatment in Treatment},
            watermarks=self.core.watermarks,
            ticks=ticks,
            accepted=tuple(self._accepted),
            omitted=tuple(self._omitted),
            late=tuple(self._late),
            retried=tuple(self._retried),
            differing=tuple(self._differing),
        )
        self._clear()
        return cut

    def _clear(self) -> None:
        self.uncommitted = 0
        self._accepted: list[MarketEvent | EventRun] = []
        self._omitted: list[Omitted] = []
        self._late: list[LateItem] = []
        self._retried: list[RetriedItem] = []
        self._judged: set[tuple[int, int]] = set()
        self._differing: list[DifferingItem] = []

    def _is_beyond(self, partition: int, offset: int) -> bool:
        return self.marks is not None and offset >= self.marks.get(partition, offset + 1)

    def _skip(self, partition: int, next_offset: int) -> None:
        count = next_offset - self.next_offsets[partition]
        self.core.skip(partition, count)
        self.next_offsets[partition] = next_offset
        self.uncommitted += count

    def _note(self, record: StreamRecord, treated: Treated) -> None:
        """Keep what later readers must know of it; most records leave nothing but their event."""
        treatment, event = treated.treatment, treated.event
        if treatment is Treatment.OMITTED:
            self._omitted.append(Omitted(record, _told(treated.detail), treated.terminal))
        elif event is None:
            return
        elif treatment in ACCEPTED:
            self._accepted.append(event)
        elif treatment is Treatment.LATE:
            self._late.append(_late(record, event))
        elif treated.alert:
            self._differing.append(
                DifferingItem(
                    partition=record.partition, offset=record.offset, event_id=event.event_id, revision=event.revision
                )
            )


def quarantined(cut: Cut) -> Sequence[Omitted]:
    """The omitted records whose bytes must be kept."""
    return [omitted for omitted in cut.omitted if not omitted.terminal]


def _late(record: StreamRecord, event: MarketEvent) -> LateItem:
    return LateItem(
        partition=record.partition,
        offset=record.offset,
        event_id=event.event_id,
        revision=event.revision,
        event_time=from_micros(event.event_time),
    )


def _told(detail: str) -> str:
    """The reason as an event can hold it: it may quote what the record had in it."""
    return detail[:DETAIL_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
