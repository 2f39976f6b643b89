"""Events that touch several rows: applied all or none, and never cut in two by a batch."""

from datetime import UTC, datetime
from uuid import UUID

from domain.errors import RowsRefusedError
from domain.events import Recorded
from domain.stream.messages import OmittedItem, RecordsOmitted
from projections.folding import Batch, fold
from projections.quarantine.projection import MODEL, RecordKey

RUN = "run_" + "a" * 64


def omitted(position: int, *offsets: int) -> Recorded:
    """An event about several offsets."""
    items = tuple(
        OmittedItem(partition=0, offset=offset, detail="x", terminal=False, quarantine="q") for offset in offsets
    )
    return Recorded(
        position=position,
        stream=f"journal/{RUN}",
        version=position,
        event_id=UUID(int=position),
        recorded_at=datetime(2026, 1, 5, tzinfo=UTC),
        event=RecordsOmitted(run_id=RUN, epoch=1, items=items),
    )


def batch(*events: Recorded) -> Batch[RecordKey]:
    """The events as a batch of the quarantine."""
    return Batch([part for event in events for part in MODEL.each(event)], events[-1].position)


def test_a_refused_part_takes_the_whole_event_back_and_nothing_of_those_before() -> None:
    """The rows stand as after the event before it, and the failure names it."""
    folded = fold(MODEL, {}, batch(omitted(1, 0, 1), omitted(2, 2, 3, 1)))
    assert [key[2] for key in folded.rows] == [0, 1]
    assert folded.up_to == 1
    assert folded.failure is not None
    assert folded.failure.position == 2


def test_an_event_may_touch_a_row_twice() -> None:
    """Its second part sees what its first one did: here it is refused, and so is the event."""
    folded = fold(MODEL, {}, batch(omitted(1, 5), omitted(2, 6, 6)))
    assert ([key[2] for key in folded.rows], folded.up_to) == ([5], 1)


def test_halving_never_cuts_an_event_in_two() -> None:
    """Whatever the numbers of parts, a half has whole events, is not empty and is not all; one event is not divisible."""
    for sizes in ((1, 1), (5, 1), (1, 5), (3, 3, 3), (1, 7, 1), (9, 2, 2)):
        offsets = iter(range(100))
        whole = batch(
            *(omitted(position, *(next(offsets) for _ in range(size))) for position, size in enumerate(sizes, 1))
        )
        while whole.divisible:
            half = whole.halved()
            assert 0 < len(half.events) < len(whole.events)
            assert half.up_to == half.events[-1][1].position
            assert whole.events[len(half.events)][1].position == half.up_to + 1
            whole = half
        refused = whole.refused(RowsRefusedError("no"))
        assert (refused.up_to, list(refused.events)) == (0, [])
