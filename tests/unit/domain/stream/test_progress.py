"""Progress: which offsets are taken, which are absent, and what a cut has of them."""

import pytest

from domain.events import encode
from domain.market.arrivals import partition_of
from domain.market.event_runs import events_of
from domain.stream.messages import DETAIL_CHARACTERS_MAX, OmittedItem, RecordsOmitted
from domain.stream.progress import Progress, quarantined
from domain.stream.records import StreamRecord
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamCore
from tests.unit.domain.stream.test_worker_core import INSTRUMENT, PARTITIONS, event, fixture_flow
from tests.unit.domain.stream.test_worker_core import record as record_of

HERE = partition_of(INSTRUMENT.encode(), PARTITIONS)


def progress(mark: int | None = None, start: int = 0) -> Progress:
    """From `start` on, up to `mark`, in every partition."""
    everywhere = range(PARTITIONS)
    marks = None if mark is None else dict.fromkeys(everywhere, mark)
    return Progress(StreamCore(fixture_flow(), PARTITIONS), dict.fromkeys(everywhere, start), None, marks)


def record(offset: int, value: bytes | None = b"{") -> StreamRecord:
    """One that cannot be read."""
    return StreamRecord(partition=HERE, offset=offset, key=INSTRUMENT.encode(), value=value)


def test_an_offset_is_taken_once_and_those_between_are_absent() -> None:
    """What comes again is left alone; a jump counts what it passes over; the journal counts offsets, not records."""
    at = progress(start=10)
    assert at.take(record(9)) is None
    assert at.take(record(12)) is not None
    assert at.take(record(12)) is None
    assert at.take(record(11)) is None
    at.reach(HERE, 15)
    at.reach(HERE, 14)
    assert (at.next_offsets[HERE], at.journalled, at.uncommitted) == (15, 5, 5)
    counts = at.cut().counts
    assert (counts["omitted"], counts["absent"], sum(counts.values())) == (1, 4, 5)
    assert at.uncommitted == 0


def test_a_bounded_run_ends_at_its_marks() -> None:
    """A record at or beyond the mark is not taken, an absent offset there is not counted, not even in one go with others."""
    at = progress(mark=3)
    assert at.take(record(2)) is not None
    assert at.take(record(3)) is None
    at.take_all([record(offset) for offset in range(3, 60)])
    at.reach(HERE, 9)
    assert (at.next_offsets[HERE], at.at_marks) == (3, False)
    for partition in range(PARTITIONS):
        at.reach(partition, 7)
    assert at.at_marks
    assert at.journalled == 3 * PARTITIONS
    assert not progress().at_marks


def test_a_record_is_judged_again_once_in_a_cut() -> None:
    """A resume and an operator may both ask; what is omitted still is noted for the operator alone."""
    at = progress()
    for offset in range(3):
        at.take(record(offset))
    at.cut()
    assert at.retry(record(0), requested=False) is not None
    assert at.retry(record(0), requested=True) is not None
    assert at.retry(record(0), requested=True) is None
    good = record_of(event(1, 1), offset=1)
    taken = at.retry(good, requested=False)
    assert taken is not None
    assert taken.treatment is Treatment.CONSUMED
    assert at.retry(good, requested=True) is None
    cut = at.cut()
    assert [(item.offset, item.treatment) for item in cut.retried] == [
        (0, Treatment.OMITTED),
        (1, Treatment.CONSUMED),
    ]
    assert [one.event_id for one in events_of(cut.accepted)] == ["e1"]
    assert (cut.counts["omitted"], cut.counts["consumed"]) == (2, 1)
    assert at.retry(record(0), requested=True) is not None


@pytest.mark.parametrize(
    "value", [b'{"\\ud800":1}', b'{"\\u0000":1}', b'{"' + b"x" * 1000 + b'":true,"event_id":1}', b"\xff" * 50, b"["]
)
def test_a_reason_can_be_recorded_whatever_the_record_has_in_it(value: bytes) -> None:
    """Bounded, and as an event can hold it: a poison record must not poison the commit."""
    at = progress()
    at.take(record(0, value))
    (one,) = quarantined(at.cut())
    assert 0 < len(one.detail) <= DETAIL_CHARACTERS_MAX
    item = OmittedItem(partition=0, offset=0, detail=one.detail, terminal=False, quarantine="q")
    assert encode(RecordsOmitted(run_id="r", epoch=1, items=(item,)))


def test_a_tombstone_is_terminal_and_not_kept() -> None:
    """It is counted and told, and its bytes are nothing that anybody could retry."""
    at = progress()
    at.take(record(0, None))
    cut = at.cut()
    assert (cut.counts["omitted"], len(cut.omitted), quarantined(cut)) == (1, 1, [])
