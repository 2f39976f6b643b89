"""A stream run through crashes, lost answers, handoffs, retries at any point: nothing lost, nothing twice, equal to the batch."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, canonical
from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import StaleFenceError, StoreUnavailableError
from domain.identity import checkpoint_stream, journal_stream
from domain.market.arrivals import arrival_log, partition_of
from domain.market.event_runs import events_of
from domain.market.faults import FaultKind, random_schedule
from domain.market.flow import FlowSpec
from domain.market.records import MarketEvent
from domain.stream.journal import JournalState, omitted_now, pending_retries
from domain.stream.journal import decide as decide_journal
from domain.stream.messages import (
    BoundedSourceEnded,
    Place,
    RecordsLate,
    RecordsOmitted,
    RecordsRetried,
    RequestRetry,
)
from domain.stream.progress import Progress
from domain.stream.records import StreamRecord
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamCore, StreamLimits
from services import faultpoints
from services.checkpoint_appends import Committed
from services.ports import Append, NewEvent
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_log import MemoryLog
from tests.support.stream_runs import PARTITIONS, RUN, Owner, lease, plan_of, records_of
from tests.unit.domain.market.test_arrivals import SNAPSHOT, fixture_log, random_events
from tests.unit.domain.stream.test_worker_core import GOLDEN, INSTRUMENT, batch_of, fixture_flow, flow_over

SECOND = 1_000_000
BROKEN = b"\x00"
"""What stands before a value that the present reader cannot read and the mended one can."""


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more."""


class Topic:
    """A log by partition, with offsets that hold no record, and its high-water marks."""

    def __init__(self, dice: random.Random, records: Iterable[StreamRecord], damage: float) -> None:
        self.records: dict[int, list[StreamRecord]] = {partition: [] for partition in range(PARTITIONS)}
        self.marks = Counter[int]()
        for record in records:
            self._jump(dice, record.partition, damage)
            offset = self.marks[record.partition]
            value = record.value
            if value is not None and dice.random() < damage:
                value = BROKEN + value
            elif dice.random() < damage / 4:
                value = None
            self.records[record.partition].append(msgspec.structs.replace(record, offset=offset, value=value))
            self.marks[record.partition] = offset + 1
        for partition in range(PARTITIONS):
            self._jump(dice, partition, damage)

    def poll(
        self, dice: random.Random, next_offsets: dict[int, int], limit: int
    ) -> tuple[int, list[StreamRecord], int]:
        """A partition that is not at its mark, records from its next offset on, and the first offset not delivered."""
        partition = dice.choice([p for p in self.records if next_offsets[p] < self.marks[p]])
        there = [record for record in self.records[partition] if record.offset >= next_offsets[partition]]
        some = there[:limit]
        return partition, some, some[-1].offset + 1 if len(there) > len(some) else self.marks[partition]

    def _jump(self, dice: random.Random, partition: int, damage: float) -> None:
        if dice.random() < damage / 2:
            self.marks[partition] += dice.randrange(1, 4)


def mended(record: StreamRecord) -> StreamRecord:
    """As the mended reader sees it."""
    return msgspec.structs.replace(record, value=record.value and record.value.removeprefix(BROKEN))


class History:
    """One run from its first owner to its end, driven by dice."""

    def __init__(self, dice: random.Random, flow: FlowSpec, topic: Topic, limits: StreamLimits) -> None:
        self.dice, self.flow, self.topic, self.limits = dice, flow, topic, limits
        self.log, self.blobs = MemoryLog(), MemoryBlobs()
        self.token = 0
        self.reader_mended = False
        self.zombies: list[Owner] = []
        self.owner = self._successor()

    def run(self) -> Committed:
        """To the end; the last commit."""
        while True:
            self.dice.choice(
                [self._read, self._read, self._read, self._settle_and_commit, self._ask, self._hand_off, self._wake]
            )()
            if self.owner.progress.at_marks and self.dice.random() < 0.5:
                last = self._finish()
                if last is not None:
                    return last

    def _successor(self) -> Owner:
        """The lease of whoever was there has run out; the next owner restores and tries what is omitted again."""
        self.log.advance(7)
        self.token += 1
        fence = lease(self.log, f"owner-{self.token}", self.token)
        owner = Owner(self.log, self.blobs, fence, self.flow, self.limits, self.topic.marks)
        if owner.restored.state is not None:
            assert canonical(owner.progress.core.state_document()) == canonical(owner.restored.state)
        for pending in omitted_now(owner.standing.journal):
            self._retry(owner, pending)
        return owner

    def _retry(self, owner: Owner, pending: Any) -> None:
        record = owner.checkpoints.quarantined(pending)
        owner.progress.retry(mended(record) if self.reader_mended else record, pending.requested)

    def _read(self) -> None:
        progress = self.owner.progress
        if progress.at_marks:
            return
        partition, records, next_offset = self.topic.poll(self.dice, progress.next_offsets, self.dice.randrange(1, 9))
        for record in [*records, *records[:1]]:  # the broker gives one of them twice
            progress.take(record)
        progress.reach(partition, next_offset)

    def _settle(self) -> None:
        for pending in pending_retries(self.owner.standing.journal):
            self._retry(self.owner, pending)

    def _commit(self, **more: Any) -> Committed | None:
        """Commit; perhaps the process dies between any two effects, or the answer is lost and it asks again."""
        cut, passed = self.owner.progress.cut(), 0
        die_at = self.dice.randrange(1, 12) if self.dice.random() < 0.4 else 0
        lose_answer = self.dice.random() < 0.2

        def at(name: str) -> None:
            nonlocal passed, lose_answer
            passed += 1
            if passed == die_at:
                raise KilledError
            if lose_answer and name == faultpoints.APPEND_AFTER:
                lose_answer = False
                raise StoreUnavailableError("the connection was lost")

        with faultpoints.armed(at):
            for _ in range(3):
                try:
                    committed = self.owner.commit(cut=cut, **more)
                    self.owner.standing = self.owner.checkpoints.refresh(committed.standing)
                    return committed
                except StoreUnavailableError:
                    if self.dice.random() < 0.5:
                        self._ask()  # an operator's request comes in before the commit is made again
                except KilledError:
                    self.owner = self._successor()
                    return self._ended()
        raise AssertionError("one lost answer was retried for ever")

    def _settle_and_commit(self) -> None:
        self._settle()
        self._commit()

    def _ended(self) -> Committed | None:
        """What the process that died committed last, if that was the run's end: in the system nobody would succeed it then."""
        standing = self.owner.standing
        if standing.journal.state is not JournalState.ENDED or standing.manifest is None:
            return None
        return Committed(
            standing=standing,
            manifest=standing.manifest,
            address=standing.checkpoint.manifest,
            recorded_at=self.log.now(),
        )

    def _finish(self) -> Committed | None:
        self._settle()
        self.owner.progress.finish()
        ended = BoundedSourceEnded(run_id=RUN, epoch=1, token=self.token, marks={})
        return self._commit(journal=[ended])

    def _ask(self) -> None:
        """An operator asks for some offsets, omitted or not; the reader may have been mended by now."""
        self.reader_mended = self.reader_mended or self.dice.random() < 0.3
        read = self.owner.checkpoints.refresh(self.owner.standing)
        if read.journal.state is JournalState.ENDED:
            return
        places = [Place(partition=p.partition, offset=p.offset) for p in omitted_now(read.journal)]
        wanted = tuple(self.dice.sample(places, self.dice.randrange(len(places) + 1)))
        wanted += (Place(partition=0, offset=self.dice.randrange(50)),)
        for number, event in enumerate(decide_journal(read.journal, RequestRetry(principal="ana", items=wanted)), 1):
            news = NewEvent(journal_stream(RUN), read.journal_version + number, event, uuid4())
            self.log.append_blocking(Append(events=(news,)))

    def _hand_off(self) -> None:
        """A successor takes over while the owner before it still believes that it is one."""
        if self.token < 6:
            self.zombies.append(self.owner)
            self.owner = self._successor()

    def _wake(self) -> None:
        """An overtaken owner commits what it has: refused, and nothing is written."""
        for zombie in self.zombies:
            before = self.log.high_water_mark()
            with pytest.raises(StaleFenceError):
                zombie.commit()
            assert self.log.high_water_mark() == before
        self.zombies.clear()


def rows_of(history: History, last: Committed) -> dict[str, list[Any]]:
    """The committed ticks, as `batch_of` gives a batch's."""
    ticks = {}
    for instrument, lane in history.owner.checkpoints.ticks(last.manifest).items():
        columns = [[None if v != v else v for v in lane.outputs[name].tolist()] for name in sorted(lane.outputs)]
        ticks[instrument] = list(
            zip(lane.event_times.tolist(), lane.event_ids, zip(*columns, strict=True), strict=True)
        )
    return ticks


def check(history: History, last: Committed) -> None:
    """Everything that must hold at the end of any history."""
    accepted = list(history.owner.checkpoints.accepted(last.manifest))
    assert rows_of(history, last) == batch_of(history.flow, accepted)
    check_offsets(history, last)
    check_treatments(history, last, accepted)


def check_offsets(history: History, last: Committed) -> None:
    """Epochs contiguous, tokens and offsets never back, each manifest in CAS, the last one at the marks."""
    committed = history.log.read_streams_blocking([checkpoint_stream(RUN)]).streams[checkpoint_stream(RUN)]
    events = [recorded.event for recorded in committed]
    assert all(isinstance(event, CheckpointCommitted) for event in events)
    assert [event.epoch for event in events] == list(range(1, len(events) + 1))  # type: ignore[attr-defined]
    tokens = [event.token for event in events]  # type: ignore[attr-defined]
    assert tokens == sorted(tokens)
    for before, after in itertools.pairwise(events):
        assert all(after.next_offsets[p] >= offset for p, offset in before.next_offsets.items())  # type: ignore[attr-defined]
    assert all(history.blobs.has(event.manifest) for event in events)  # type: ignore[attr-defined]
    assert last.manifest.next_offsets == {str(p): history.topic.marks[p] for p in range(PARTITIONS)}
    assert last.address == events[-1].manifest  # type: ignore[attr-defined]


def check_treatments(history: History, last: Committed, accepted: list[MarketEvent]) -> None:
    """Each offset has one current treatment; the journal's are those that the counts say."""
    current: dict[tuple[int, int], Treatment] = {}
    for recorded in history.log.read_streams_blocking([journal_stream(RUN)]).streams[journal_stream(RUN)]:
        match recorded.event:
            case RecordsOmitted(items=items):
                for item in items:
                    assert (item.partition, item.offset) not in current, "omitted twice"
                    current[item.partition, item.offset] = Treatment.OMITTED
            case RecordsRetried(items=retried):
                for again in retried:
                    assert current[again.partition, again.offset] is Treatment.OMITTED
                    current[again.partition, again.offset] = again.treatment
            case RecordsLate(items=late):
                for one in late:
                    assert current.get((one.partition, one.offset), Treatment.LATE) is Treatment.LATE
                    current[one.partition, one.offset] = Treatment.LATE
    counts = last.manifest.counts
    assert sum(counts.values()) == sum(history.topic.marks.values())
    holes = sum(history.topic.marks.values()) - sum(map(len, history.topic.records.values()))
    assert counts["absent"] == holes
    found = Counter(treatment.value for treatment in current.values())
    assert (found["omitted"], found["late"]) == (counts["omitted"], counts["late"])
    assert len(accepted) == counts["consumed"] + counts["revised"]
    journal = history.owner.standing.journal
    terminal = sum(record.value is None for records in history.topic.records.values() for record in records)
    assert len(omitted_now(journal)) <= counts["omitted"] <= len(omitted_now(journal)) + terminal


RATES = st.dictionaries(st.sampled_from(list(FaultKind)), st.floats(0, 0.6))


@given(random_events(), st.integers(0, 2**32), RATES, st.integers(0, 30), st.booleans(), st.floats(0, 0.5))
def test_any_history_of_kills_handoffs_and_retries_gives_the_batch_over_what_was_accepted(
    events: list[MarketEvent], seed: int, rates: dict[FaultKind, float], lateness: int, interval: bool, damage: float
) -> None:
    """Killed between any two effects, overtaken, its answers lost, retried by resume and operator: nothing lost or twice."""
    dice = random.Random(seed)
    ids = list(dict.fromkeys(event.event_id for event in events))
    arrivals = arrival_log(events, 10**15, random_schedule(seed, rates, ids), SNAPSHOT).arrivals
    flow = flow_over(sorted({event.instrument for event in events})[:2], interval)
    topic = Topic(dice, records_of(arrivals, "a", Counter()), damage)
    limits = StreamLimits(lateness_micros=lateness * SECOND, horizon_micros=20 * SECOND)
    history = History(dice, flow, topic, limits)
    last = history.run()
    check(history, last)
    if not history.reader_mended:
        check_against_one_pass(history, last)


def check_against_one_pass(history: History, last: Committed) -> None:
    """A worker that nothing happened to, and that reads the partitions one after the other, gives the same."""
    core = StreamCore(history.flow, PARTITIONS, history.limits)
    progress = Progress(core, dict.fromkeys(range(PARTITIONS), 0))
    for partition, records in history.topic.records.items():
        for record in records:
            progress.take(record)
        progress.reach(partition, history.topic.marks[partition])
    progress.finish()
    cut = progress.cut()
    assert sum(cut.counts.values()) == sum(last.manifest.counts.values())
    journal = history.owner.standing.journal
    if not any("another instrument" in omitted.detail for omitted in cut.omitted) and journal.source:
        assert cut.counts == last.manifest.counts
        accepted = history.owner.checkpoints.accepted(last.manifest)
        assert sorted(e.event_id for e in events_of(cut.accepted)) == sorted(e.event_id for e in accepted)


def test_on_resume_no_high_water_mark_over_accepted_but_unreleased_events_is_taken_and_no_seen_identity_is_forgotten() -> (
    None
):
    """A system before this one failed here: on resume it took the high-water mark over accepted but unreleased events and forgot
    seen identities, and one duplicate bent the average. Committed after every record, by a new owner each time, then all again.
    """
    log, blobs = MemoryLog(), MemoryBlobs()
    records = records_of(fixture_log().arrivals, "a", Counter())
    again = records_of(fixture_log().arrivals, "b", Counter(record.partition for record in records))
    committed = None
    for token, record in enumerate([*records, *again, None], 1):
        log.advance(7)
        owner = Owner(log, blobs, lease(log, f"owner-{token}", token), fixture_flow())
        if record is None:
            owner.progress.finish()
        else:
            owner.progress.take(record)
        committed = owner.commit()
    assert committed is not None
    values = owner.checkpoints.ticks(committed.manifest)[INSTRUMENT].outputs["ema"].tolist()
    assert address_of([None if value != value else value for value in values]) == GOLDEN
    counts = committed.manifest.counts
    wanted = ("consumed", "filtered", "omitted", "duplicates_skipped", "late")
    assert tuple(counts[name] for name in wanted) == (6, 30, 2, 8, 0)


@given(random_events(), st.integers(0, 2**32), st.integers(0, 60), st.booleans())
def test_commit_then_restore_gives_the_state_byte_for_byte(
    events: list[MarketEvent], seed: int, cut_at: int, interval: bool
) -> None:
    """The restored core writes out the very document that was committed, and goes on as the one before it would have."""
    ids = list(dict.fromkeys(event.event_id for event in events))
    rates = dict.fromkeys(FaultKind, 0.3)
    arrivals = arrival_log(events, 10**15, random_schedule(seed, rates, ids), SNAPSHOT).arrivals
    flow = flow_over(sorted({event.instrument for event in events}), interval)
    records = records_of(arrivals, "a", Counter())
    log, blobs = MemoryLog(), MemoryBlobs()
    first = Owner(log, blobs, lease(log, "a", 1), flow)
    for record in records[:cut_at]:
        first.progress.take(record)
    committed = first.commit()
    written = canonical(first.progress.core.state_document())
    restored = first.checkpoints.restore(RUN, plan_of(flow))
    assert restored.state is not None
    assert canonical(restored.state) == written
    again = StreamCore(flow, PARTITIONS)
    again.restore(restored.state)
    blocks: dict[str, bytes] = {}
    assert canonical(again.packed_state(blocks)) == blobs.get(committed.manifest.state)
    assert all(blobs.get(name) == data for name, data in blocks.items())
    log.advance(7)
    second = Owner(log, blobs, lease(log, "b", 2), flow)
    assert canonical(second.progress.core.state_document()) == written
    for record in records[cut_at:]:
        assert first.progress.take(record) == second.progress.take(record)
    assert canonical(second.progress.cut().state) == canonical(first.progress.cut().state)


def partition_for(instrument: str) -> int:
    """Where its records are."""
    return partition_of(instrument.encode(), PARTITIONS)


MENDING: dict[str, Callable[[StreamRecord], StreamRecord]] = {"mended": mended, "not mended": lambda record: record}


@pytest.mark.parametrize("reader", MENDING)
def test_a_retry_moves_an_offset_from_omitted_to_what_it_is_now_once(reader: str) -> None:
    """Counted once before and after; a second request for it decides nothing; still omitted, it settles the request alone."""
    log, blobs = MemoryLog(), MemoryBlobs()
    value = parse_value()
    record = StreamRecord(
        partition=partition_for(INSTRUMENT), offset=0, key=INSTRUMENT.encode(), value=BROKEN + value, headers={}
    )
    owner = Owner(log, blobs, lease(log, "a", 1), fixture_flow())
    owner.progress.take(record)
    assert owner.commit().manifest.counts["omitted"] == 1
    for turn in range(2):
        place = Place(partition=record.partition, offset=0)
        asked = decide_journal(owner.standing.journal, RequestRetry(principal="ana", items=(place,)))
        assert len(asked) == (1 if turn == 0 or reader == "not mended" else 0)
        for event in asked:
            stream = journal_stream(RUN)
            version = owner.standing.journal_version + 1
            log.append_blocking(Append(events=(NewEvent(stream, version, event, uuid4()),)))
        owner.standing = owner.checkpoints.refresh(owner.standing)
        for pending in pending_retries(owner.standing.journal):
            owner.progress.retry(MENDING[reader](owner.checkpoints.quarantined(pending)), pending.requested)
        counts = owner.commit().manifest.counts
        assert sum(counts.values()) == 1
        assert counts["consumed" if reader == "mended" else "omitted"] == 1
        assert pending_retries(owner.standing.journal) == ()


def parse_value() -> bytes:
    """The value of the fixture's first record of the instrument."""
    return next(a.value for a in fixture_log().arrivals if a.instrument == INSTRUMENT and a.value is not None)
