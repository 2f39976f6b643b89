"""Jobs on a log in memory: what they live through, whoever dies or asks for what in between."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from domain.errors import BlobMissingError, StaleFenceError, StoreUnavailableError
from domain.jobs.aggregate import ATTEMPTS_MAX
from domain.jobs.errors import (
    JobFinishedError,
    JobKindUnknownError,
    JobNotAwaitingError,
    JobNotFoundError,
    JobRunningError,
)
from services import faultpoints
from services.job_attempt import STALL_SECONDS_MAX
from services.job_kinds import Confirm, Done, JobWork, Outcome, Refused
from services.job_runner import END_TRIES_MAX, LIVING_JOBS_MAX, living_in
from services.jobs import DOCUMENT_BYTES_MAX
from services.ports import Append, Appended
from tests.support.job_rig import TTL_SECONDS, JobRig, ScriptedKind
from tests.support.memory_log import MemoryLog

REPORT = "sha256:" + "a" * 64


class CrashError(BaseException):
    """The process dies: nothing may catch it."""


def crashes(work: JobWork) -> Outcome:
    raise CrashError


def one_border(work: JobWork) -> Outcome:
    work.reached(1, 2)
    return Done({})


def test_a_job_succeeds_once_and_its_slot_is_free_again() -> None:
    """Requested, started, ended; its result and parameters are shown; another of the same target may be asked for."""
    rig = JobRig(MemoryLog(), ScriptedKind(lambda work: Done({"rows": 3}, REPORT)))
    job_id = rig.request(depth=2)
    assert rig.runner("a").run_once() == job_id
    assert rig.topics(job_id) == ["requested", "started", "succeeded"]
    view = rig.view(job_id)
    assert (view.state, view.result, view.report, view.attempts) == ("SUCCEEDED", {"rows": 3}, REPORT, 1)
    assert (view.document, view.principal, view.finished_at is not None) == ({"depth": 2}, "ana", True)
    assert rig.runner("a").run_once() is None
    assert rig.request() != job_id


def test_a_second_living_job_of_a_target_is_refused_by_the_log() -> None:
    """Queued, running or waiting: JOB_RUNNING, naming the one that lives; of another target it is none of its business."""
    rig = JobRig(MemoryLog())
    first = rig.request("runs")
    with pytest.raises(JobRunningError) as refused:
        rig.request("runs")
    assert refused.value.context["job_id"] == first
    rig.request("leases")
    assert len(rig.living()) == 2


def test_of_many_who_ask_at_once_one_gets_the_slot() -> None:
    """The slot is taken in the append itself."""
    rig = JobRig(MemoryLog())

    async def ask() -> list[object]:
        asked = (rig.jobs.request("scripted", "runs", {}, "ana") for _ in range(20))
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    assert sum(isinstance(answer, JobRunningError) for answer in answers) == 19


def test_a_job_whose_runner_died_is_taken_up_again_when_its_lease_has_run_out() -> None:
    """Not before; under the next token; what the dead one knows counts for nothing any more."""
    log = MemoryLog()
    rig = JobRig(log, ScriptedKind(crashes))
    job_id = rig.request()
    with pytest.raises(CrashError):
        rig.runner("a").run_once()
    rig.kind.script = lambda work: Done({"token": work.fence.token})  # type: ignore[attr-defined]
    assert rig.runner("b").run_once() is None
    log.advance(TTL_SECONDS)
    assert rig.runner("b").run_once() == job_id
    assert rig.view(job_id).result == {"token": 2}
    assert rig.topics(job_id) == ["requested", "started", "started", "succeeded"]


def test_a_job_that_keeps_killing_its_runner_is_given_up() -> None:
    """`ATTEMPTS_MAX` crashes, then FAILED with ATTEMPTS_EXHAUSTED, and the slot is free."""
    log = MemoryLog()
    rig = JobRig(log, ScriptedKind(crashes))
    job_id = rig.request()
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(CrashError):
            rig.runner("a").run_once()
        log.advance(TTL_SECONDS)
    assert rig.runner("a").run_once() is None
    view = rig.view(job_id)
    assert (view.state, view.attempts, view.error and view.error.code) == ("FAILED", ATTEMPTS_MAX, "ATTEMPTS_EXHAUSTED")
    assert rig.living() == []


def test_a_fault_of_the_infrastructure_is_tried_again_with_growing_delay_up_to_the_limit() -> None:
    """Not before it is due; after the last, FAILED with the last error in the sentence."""

    def away(work: JobWork) -> Outcome:
        raise StoreUnavailableError("the database is away")

    log = MemoryLog()
    rig = JobRig(log, ScriptedKind(away))
    job_id = rig.request()
    for _ in range(ATTEMPTS_MAX):
        assert rig.runner("a").run_once() == job_id
        assert rig.runner("a").run_once() is None
        log.advance(60.0)
    error = rig.view(job_id).error
    assert error is not None
    assert error.code == "ATTEMPTS_EXHAUSTED"
    assert "the database is away" in error.message


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (lambda work: Refused("ROWS_DIFFER", "3 rows differ", REPORT), "ROWS_DIFFER"),
        (lambda work: (_ for _ in ()).throw(BlobMissingError("no blob")), "BLOB_MISSING"),
        (lambda work: 1 / 0, "DEFECT"),
    ],
)
def test_what_a_kind_refuses_or_breaks_on_ends_the_job_honestly(
    script: Callable[[JobWork], Outcome], code: str
) -> None:
    """FAILED at once, with code and sentence."""
    rig = JobRig(MemoryLog(), ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    error = rig.view(job_id).error
    assert error is not None
    assert error.code == code
    assert rig.topics(job_id)[-1] == "failed"
    assert rig.living() == []


def test_cancelled_before_it_started_it_is_never_executed() -> None:
    """CANCELLED at once; cancelling what has ended is refused."""
    rig = JobRig(MemoryLog())
    job_id = rig.request()
    assert rig.cancel(job_id).state == "CANCELLED"
    assert rig.runner("a").run_once() is None
    with pytest.raises(JobFinishedError):
        rig.cancel(job_id)
    assert rig.living() == []


def test_cancelled_while_running_it_ends_at_the_next_border_and_is_undone() -> None:
    """The kind's `reached` does not come back; what it made is dropped before the job ends."""

    def script(work: JobWork) -> Outcome:
        rig.cancel(work.job_id)
        work.reached(1, 10)
        raise AssertionError("went on")

    rig = JobRig(MemoryLog(), kind := ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.topics(job_id) == ["requested", "started", "cancellation_requested", "cancelled"]
    assert kind.undone == [job_id]
    assert rig.view(job_id).cancelled_by == "bo"


@pytest.mark.parametrize("end", [Done({}), Refused("NO", "no")])
def test_a_cancellation_loses_to_what_has_been_done(end: Outcome) -> None:
    """Asked for after the last border, the job ends as it did; only a question is no longer asked."""

    def script(work: JobWork) -> Outcome:
        rig.cancel(work.job_id)
        return end

    rig = JobRig(MemoryLog(), ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.view(job_id).state in ("SUCCEEDED", "FAILED")


def test_a_question_is_not_asked_of_those_who_have_cancelled() -> None:
    """The next attempt undoes the job; it never waits for a confirmation that nobody will give."""

    def script(work: JobWork) -> Outcome:
        rig.cancel(work.job_id)
        return Confirm(REPORT, {})

    rig = JobRig(MemoryLog(), kind := ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.runner("b").run_once() == job_id
    assert (rig.view(job_id).state, kind.undone, kind.attempts) == ("CANCELLED", [job_id], [1])


def test_a_job_waits_for_its_confirmation_and_goes_on_then() -> None:
    """Nothing happens meanwhile and its lease is free; afterwards its kind knows who said go on."""
    rig = JobRig(
        MemoryLog(),
        kind := ScriptedKind(lambda w: Done({"ok": 1}) if w.confirmed else Confirm(REPORT, {"different": 2})),
    )
    job_id = rig.request()
    with pytest.raises(JobNotAwaitingError):
        rig.confirm(job_id)
    rig.runner("a").run_once()
    view = rig.view(job_id)
    assert (view.state, view.summary, view.report) == ("AWAITING", {"different": 2}, REPORT)
    assert rig.runner("b").run_once() is None
    rig.confirm(job_id)
    assert rig.runner("b").run_once() == job_id
    assert (rig.view(job_id).state, rig.view(job_id).confirmed_by, kind.attempts) == ("SUCCEEDED", "bo", [1, 2])
    with pytest.raises(JobFinishedError):
        rig.confirm(job_id)


def test_cancelled_while_it_waits_it_is_undone_by_a_runner() -> None:
    """AWAITING is left for the queue, and from there it ends."""
    rig = JobRig(MemoryLog(), kind := ScriptedKind(lambda work: Confirm(REPORT, {})))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.cancel(job_id).state == "QUEUED"
    rig.runner("a").run_once()
    assert (rig.view(job_id).state, kind.undone) == ("CANCELLED", [job_id])


def test_told_to_stop_a_runner_hands_its_job_back() -> None:
    """At the next border, at no cost: the attempt counts towards no limit."""
    rig = JobRig(MemoryLog(), ScriptedKind())
    job_id = rig.request()
    runner = rig.runner("a")

    def script(work: JobWork) -> Outcome:
        runner.stop()
        work.reached(1, 2)
        raise AssertionError("went on")

    rig.kind.script = script  # type: ignore[attr-defined]
    runner.run_once()
    assert rig.topics(job_id) == ["requested", "started", "interrupted"]
    rig.kind.script = lambda work: Done({})  # type: ignore[attr-defined]
    assert rig.runner("b").run_once() == job_id


def test_a_runner_that_was_overtaken_says_nothing_more() -> None:
    """It wakes after its lease ran out and another took the job: no word of it reaches the log."""
    log = MemoryLog()

    def script(work: JobWork) -> Outcome:
        if work.fence.token == 1:
            log.advance(TTL_SECONDS)
            assert rig.runner("b").run_once() == work.job_id
            count = log.high_water_mark()
            with pytest.raises(StaleFenceError):
                work.reached(5, 10)
            assert log.high_water_mark() == count
        return Done({"by": work.fence.owner})

    rig = JobRig(log, ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.view(job_id).result == {"by": "b"}
    assert rig.topics(job_id).count("succeeded") == 1


def test_a_job_that_hangs_is_renewed_no_longer() -> None:
    """Its beat goes on only as long as the kind shows signs of life, so that somebody else can take it."""
    now = 0.0
    log = MemoryLog()

    def script(work: JobWork) -> Outcome:
        nonlocal now
        attempt = runner._attempt
        assert attempt is not None
        now += TTL_SECONDS / 2
        attempt.beat()
        renewed = log.high_water_mark()
        now += STALL_SECONDS_MAX + TTL_SECONDS
        attempt.beat()
        assert log.high_water_mark() == renewed
        work.alive()
        attempt.beat()
        assert log.high_water_mark() == renewed + 1
        return Done({})

    rig = JobRig(log, ScriptedKind(script), lambda: now)
    rig.request()
    runner = rig.runner("a")
    runner.run_once()
    assert rig.reports[-1] == "job_attempt_ended"


def test_progress_is_told_at_most_once_a_second_and_less_often_as_the_job_gets_long() -> None:
    """However often a kind reaches a border, its stream stays short; the rate is of positions a second."""
    now = 0.0

    def script(work: JobWork) -> Outcome:
        nonlocal now
        for position in range(0, 100_000, 10):
            work.reached(position, 100_000)
            now += 0.1
        return Done({})

    rig = JobRig(MemoryLog(), ScriptedKind(script), lambda: now)
    job_id = rig.request()
    rig.runner("a").run_once()
    events = asyncio.run(rig.jobs.events(job_id))
    told = [event for event in events if event.event.topic == "job.progressed.v1"]
    assert 100 < len(told) < 400
    view = rig.view(job_id)
    assert view.rate == pytest.approx(100.0)
    assert view.total == 100_000


def test_progress_that_is_none_is_told_once() -> None:
    """A kind that stays at one position for hours, comparing tables, writes nothing more into the log; moving on is told again."""
    now = 0.0

    def script(work: JobWork) -> Outcome:
        nonlocal now
        for position, total in ((5, 10), (10, 10), (10, 12)):
            for _ in range(200):
                work.reached(position, total)
                now += 60.0
        return Done({})

    rig = JobRig(MemoryLog(), ScriptedKind(script), lambda: now)
    job_id = rig.request()
    rig.runner("a").run_once()
    told = [e.event for e in asyncio.run(rig.jobs.events(job_id)) if e.event.topic == "job.progressed.v1"]
    assert [(event.position, event.total) for event in told] == [(5, 10), (10, 10), (10, 12)]  # type: ignore[attr-defined]


def test_a_crash_at_any_append_of_a_job_leaves_it_to_the_next_runner() -> None:
    """Killed before or after each append, the job is done by the next one, and ends once."""
    for where in (faultpoints.APPEND_BEFORE, faultpoints.APPEND_AFTER):
        for passes in range(3):
            log = MemoryLog()
            rig = JobRig(log, ScriptedKind(one_border))
            job_id = rig.request()
            left = passes

            def die(name: str, where: str = where) -> None:
                nonlocal left
                if name == where:
                    left -= 1
                    if left < 0:
                        raise CrashError

            with faultpoints.armed(die), pytest.raises(CrashError):
                rig.runner("a").run_once()
            log.advance(TTL_SECONDS)
            rig.runner("b").run_once()
            assert rig.view(job_id).state == "SUCCEEDED"
            assert rig.topics(job_id).count("succeeded") == 1


def test_a_loop_over_jobs_outlives_a_store_that_is_away_and_stops_when_told() -> None:
    """Whatever looking raises is reported and tried again; `stop` ends the thread."""
    rig = JobRig(MemoryLog())
    runner = rig.runner("a")
    failed, worked = threading.Event(), threading.Event()

    def script(work: JobWork) -> Outcome:
        worked.set()
        return Done({})

    rig.kind.script = script  # type: ignore[attr-defined]
    living = runner._living

    def away() -> list[tuple[str, str, str]]:
        if not failed.is_set():
            failed.set()
            raise StoreUnavailableError("away")
        return list(living())

    runner._living = away
    job_id = rig.request()
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    assert worked.wait(10)
    runner.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert rig.view(job_id).state == "SUCCEEDED"
    assert "jobs_retrying" in rig.reports


def test_bad_requests_are_refused_by_name() -> None:
    """An unknown kind, a name that is none, parameters beyond the limit, a job that isn't there."""
    rig = JobRig(MemoryLog())
    with pytest.raises(JobKindUnknownError):
        asyncio.run(rig.jobs.request("baking", "it", {}, "ana"))
    with pytest.raises(Exception, match="control character"):
        rig.request("a\nb")
    with pytest.raises(Exception, match="too long"):
        rig.request(depth="x" * DOCUMENT_BYTES_MAX)
    for bad in ("job_1", "job_" + "0" * 32, "x"):
        with pytest.raises(JobNotFoundError):
            rig.view(bad)
    assert rig.log.high_water_mark() == 0


@pytest.mark.parametrize("failures", [1, END_TRIES_MAX - 1, END_TRIES_MAX])
def test_an_end_that_cannot_be_told_is_told_again_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The store is away when the job ends: `END_TRIES_MAX` tries; after that its lease runs out, and the next attempt ends it."""

    class Away(MemoryLog):
        left = 0

        def append_blocking(self, append: Append) -> Appended:
            if self.left > 0:
                self.left -= 1
                raise StoreUnavailableError("away")
            return super().append_blocking(append)

    def script(work: JobWork) -> Outcome:
        log.left = failures if work.attempt == 1 else 0
        return Done({})

    monkeypatch.setattr("services.job_runner.time.sleep", lambda seconds: None)
    log = Away()
    rig = JobRig(log, ScriptedKind(script))
    job_id = rig.request()
    rig.runner("a").run_once()
    assert rig.reports.count("job_end_untold") == failures
    if failures == END_TRIES_MAX:
        assert rig.view(job_id).state == "RUNNING"
        log.advance(TTL_SECONDS)
        rig.runner("b").run_once()
    assert rig.view(job_id).state == "SUCCEEDED"


def test_a_runner_looks_at_a_bounded_number_of_jobs() -> None:
    """`LIVING_JOBS_MAX`, the oldest first: what the statement is asked for."""
    asked: list[Any] = []

    class Rows:
        def rows(self, statement: str, arguments: Any = ()) -> list[tuple[Any, ...]]:
            asked.append(arguments)
            return [("rebuild", "runs", "job_1")]

    assert list(living_in(Rows())()) == [("rebuild", "runs", "job_1")]
    assert asked == [{"limit": LIVING_JOBS_MAX}]
