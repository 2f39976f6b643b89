"""One record of a stream run in the quarantine: what its row says after each thing that the journal may say of it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.stream.messages import (
    LateItem,
    OmittedItem,
    Place,
    RecordsLate,
    RecordsOmitted,
    RecordsRetried,
    RetriedItem,
    RetryRequested,
)
from domain.stream.treatment import Treatment
from projections.folding import fold_all
from projections.quarantine.projection import MODEL, RecordRow

RUN = "run_" + "a" * 64
START = datetime(2026, 1, 5, tzinfo=UTC)
PLACE = Place(partition=0, offset=7)
OMITTED = RecordsOmitted(
    run_id=RUN,
    epoch=1,
    items=(OmittedItem(partition=0, offset=7, detail="no JSON", terminal=False, quarantine="sha256:q"),),
)
ASKED = RetryRequested(run_id=RUN, principal="bo", items=(PLACE,))


def at(position: int) -> datetime:
    return START + timedelta(seconds=position)


def recorded(position: int, event: Event) -> Recorded:
    return Recorded(
        position=position,
        stream=f"journal/{RUN}",
        version=position,
        event_id=UUID(int=position),
        recorded_at=at(position),
        event=event,
    )


def row(*events: Event) -> RecordRow:
    """The row of the record after these events."""
    (found,) = fold_all(MODEL, [recorded(position, event) for position, event in enumerate(events, 1)]).values()
    return found


def retried(treatment: Treatment, detail: str = "") -> RecordsRetried:
    item = RetriedItem(partition=0, offset=7, treatment=treatment, detail=detail)
    return RecordsRetried(run_id=RUN, epoch=2, items=(item,))


def late() -> RecordsLate:
    item = LateItem(partition=0, offset=7, event_id="e", revision=1, event_time=START)
    return RecordsLate(run_id=RUN, epoch=2, items=(item,))


def test_an_omitted_record_is_there_to_be_retried() -> None:
    """Why, and where its bytes are; nobody has asked for it yet."""
    found = row(OMITTED)
    assert (found.state, found.detail, found.quarantine, found.terminal) == ("omitted", "no JSON", "sha256:q", False)
    assert (found.requested, found.requested_by, found.retries, found.retried_at) == (False, None, 0, None)
    assert (found.first_position, found.position, found.recorded_at) == (1, 1, at(1))


def test_a_retry_that_was_asked_for_waits_until_it_is_judged() -> None:
    """Who asked, and when; judged, the wish is met, whatever came of it, and each judgement is counted."""
    asked = row(OMITTED, ASKED)
    assert (asked.requested, asked.requested_by, asked.requested_at) == (True, "bo", at(2))
    again = row(OMITTED, ASKED, retried(Treatment.OMITTED, "still none"))
    assert (again.state, again.detail, again.requested, again.retries) == ("omitted", "still none", False, 1)
    taken = row(OMITTED, ASKED, retried(Treatment.OMITTED), ASKED, retried(Treatment.CONSUMED))
    assert (taken.state, taken.requested, taken.retries, taken.retried_at) == ("consumed", False, 2, at(5))
    assert (taken.quarantine, taken.first_position, taken.position) == ("sha256:q", 1, 5)


def test_what_is_no_longer_omitted_waits_for_nothing() -> None:
    """A wish that comes too late is remembered, and is not pending."""
    found = row(OMITTED, retried(Treatment.CONSUMED), ASKED)
    assert (found.state, found.requested, found.requested_by) == ("consumed", False, "bo")


def test_a_late_record_says_which_event_it_was() -> None:
    """By itself, or once it was read after all; the row of the omission is gone on with."""
    for events, first in (((late(),), 1), ((OMITTED, retried(Treatment.LATE), late()), 1)):
        found = row(*events)
        assert (found.state, found.event_id, found.revision, found.event_time) == ("late", "e", 1, START)
        assert (found.first_position, found.position) == (first, len(events))
    assert row(late()).quarantine is None


@pytest.mark.parametrize("events", [(OMITTED, OMITTED), (ASKED,), (retried(Treatment.CONSUMED),)])
def test_what_cannot_follow_is_refused(events: tuple[Event, ...]) -> None:
    """Omitted twice, or asked for and retried without having been omitted."""
    with pytest.raises(IllegalTransitionError):
        row(*events)
