"""Jobs as lists show them: a row is what the job's stream folds to, and its place in a list never changes."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.jobs.aggregate import Job, evolve
from domain.jobs.messages import JobProgressed, JobRequested, JobStarted, JobSucceeded
from projections.folding import fold_all
from projections.jobs.projection import MODEL

REQUESTED = JobRequested(job_id="job_1", kind="rebuild", target="runs", document={"a": 1}, principal="ana")
STARTED = JobStarted(job_id="job_1", owner="w", token=1, attempt=1)
PROGRESSED = JobProgressed(job_id="job_1", token=1, position=5, total=10, rate=2.0)
SUCCEEDED = JobSucceeded(job_id="job_1", token=1, result={})


def recorded(*events: Event) -> list[Recorded]:
    """The events of the job's stream, at every second position of the log."""
    return [
        Recorded(
            position=2 * version,
            stream="job/job_1",
            version=version,
            event_id=UUID(int=version),
            recorded_at=datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=version),
            event=event,
        )
        for version, event in enumerate(events, 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_row_is_what_the_stream_folds_to_and_keeps_its_place(count: int) -> None:
    """State and columns are the aggregate's; `first_position` is of the request, `position` of the last event."""
    events = recorded(*(REQUESTED, STARTED, PROGRESSED, SUCCEEDED)[:count])
    job = Job("job_1")
    for one in events:
        job = evolve(job, one.event, one.recorded_at)
    (row,) = fold_all(MODEL, events).values()
    assert row.job == job
    assert (row.job_id, row.kind, row.target, row.state) == ("job_1", "rebuild", "runs", job.state.value)
    assert (row.first_position, row.position) == (2, 2 * count)


def test_a_job_that_nobody_asked_for_is_refused() -> None:
    """Its stream begins with the request."""
    with pytest.raises(IllegalTransitionError):
        fold_all(MODEL, recorded(STARTED))
