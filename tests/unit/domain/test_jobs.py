"""What a job remembers from one attempt to the next, and what it forgets: decisions and states, without a runner."""

from datetime import UTC, datetime, timedelta

import pytest

from domain.errors import RefusedError, StaleFenceError
from domain.jobs.aggregate import ATTEMPTS_MAX, RETRY_DELAY_SECONDS, Job, JobCommand, JobState, decide, evolve
from domain.jobs.messages import (
    AwaitConfirmation,
    CompleteJob,
    ConfirmJob,
    InterruptionReason,
    InterruptJob,
    JobError,
    ReportProgress,
    RequestJob,
    RequestJobCancellation,
    StartJob,
)

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
AWAY = JobError(code="STORE_UNAVAILABLE", message="away")
REQUEST = RequestJob(job_id="job_1", kind="rebuild", target="runs", document={}, principal="ana")


def told(*commands: JobCommand) -> Job:
    """A job told by commands, each a second after the one before."""
    job, at = Job("job_1"), NOW
    for command in commands:
        for event in decide(job, command):
            job = evolve(job, event, at)
        at += timedelta(seconds=1)
    return job


def started(token: int = 1) -> StartJob:
    return StartJob("a", token)


def away(token: int = 1) -> InterruptJob:
    return InterruptJob(token=token, reason=InterruptionReason.INFRASTRUCTURE, error=AWAY)


def asked(token: int = 1) -> AwaitConfirmation:
    return AwaitConfirmation(token=token, report="sha256:r", summary={"equal": True})


def test_a_confirmation_is_of_what_was_asked_last() -> None:
    """Once it waits again, nobody has confirmed yet; what another attempt found is another question."""
    once = told(REQUEST, started(), asked(), ConfirmJob("bo"))
    assert (once.state, once.confirmed_by) == (JobState.QUEUED, "bo")
    again = told(REQUEST, started(), asked(), ConfirmJob("bo"), started(2), asked(2))
    assert (again.state, again.confirmed_by) == (JobState.AWAITING, None)


def test_a_job_starts_once_and_is_attempted_often() -> None:
    """`started_at` is of the first attempt, `attempts` counts all, `failures` only faults and crashes."""
    handed = InterruptJob(token=1, reason=InterruptionReason.HANDED_BACK)
    job = told(REQUEST, started(), handed, started(2), away(2), started(3), started(4))
    assert job.started_at == NOW + timedelta(seconds=1)
    assert (job.attempts, job.failures, job.token) == (4, 2, 4)


def test_a_job_waits_for_its_delay_unless_it_is_to_be_cancelled() -> None:
    """After a fault it is due at the end of the delay, exactly; who asked for its end need not wait for that."""
    job = told(REQUEST, started(), away())
    due_at = NOW + timedelta(seconds=2 + RETRY_DELAY_SECONDS[0])
    assert job.due_at == due_at
    assert not job.is_due(due_at - timedelta(microseconds=1))
    assert job.is_due(due_at)
    assert told(REQUEST, started(), away(), RequestJobCancellation("bo")).is_due(NOW)


def test_delays_grow_to_the_last_and_the_limit_ends_it() -> None:
    """Each counted interruption waits longer than the one before; the one that reaches the limit is the end."""
    commands: list[JobCommand] = [REQUEST]
    delays = []
    for token in range(1, ATTEMPTS_MAX):
        commands += [started(token), away(token)]
        job = told(*commands)
        assert job.due_at is not None
        delays.append((job.due_at - NOW).total_seconds() - 2 * token)
    assert delays == list(RETRY_DELAY_SECONDS[: ATTEMPTS_MAX - 1])
    ended = told(*commands, started(ATTEMPTS_MAX), away(ATTEMPTS_MAX))
    assert ended.state is JobState.FAILED
    assert ended.error is not None
    assert (ended.error.code, "STORE_UNAVAILABLE" in ended.error.message) == ("ATTEMPTS_EXHAUSTED", True)


def test_who_has_tried_once_has_something_to_undo() -> None:
    """Cancelled before its first attempt it is over; afterwards a runner has to end it, wherever it waits."""
    assert told(REQUEST, RequestJobCancellation("bo")).state is JobState.CANCELLED
    for before in ((started(), away()), (started(), asked())):
        job = told(REQUEST, *before, RequestJobCancellation("bo"))
        assert (job.state, job.cancelled_by) == (JobState.QUEUED, "bo")


@pytest.mark.parametrize(
    "late", [ReportProgress(token=1, position=1, total=2, rate=1.0), CompleteJob(token=1, result={}), away()]
)
def test_an_owner_that_was_overtaken_or_has_let_go_says_nothing(late: JobCommand) -> None:
    """Not under an older token, and not once the job waits for another."""
    for job in (told(REQUEST, started(), started(2)), told(REQUEST, started(), away())):
        with pytest.raises(StaleFenceError):
            decide(job, late)
    with pytest.raises(RefusedError):
        decide(told(REQUEST, started(), CompleteJob(token=1, result={})), late)
