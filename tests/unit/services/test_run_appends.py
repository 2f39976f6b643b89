"""What a worker wants of the log for one run: pure decisions, case by case."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from domain.errors import RunFinishedError, StaleFenceError
from domain.events import Event, Recorded
from domain.identity import lease_stream, run_stream
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.runs.messages import (
    EndIfDue,
    PublishResults,
    RequeueReason,
    RequeueRun,
    RunCancellationRequested,
    RunCancelled,
    RunStarted,
)
from services.event_ids import new_event_id
from services.ports import Append, Appended, Fence, StreamsRead, Vacant
from services.run_appends import Claimant, Head, advanced, check_mine, claim, conclude, head_of, renew
from tests.support.worker_rig import requested

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
ME, OTHER = Claimant("me", 30.0, "desk"), Claimant("other", 30.0)
REQUESTED = requested()
RUN = REQUESTED.run_id


def started(token: int = 1, owner: str = "me") -> Event:
    return RunStarted(run_id=RUN, owner=owner, token=token, attempt=1)


def granted(token: int = 1, owner: str = "me") -> Event:
    return LeaseGranted(resource=RUN, owner=owner, token=token, ttl_seconds=30.0)


def head(*events: Event, at: datetime = NOW) -> Head:
    """The head after these events, all recorded at one instant."""
    streams: dict[str, list[Recorded]] = {run_stream(RUN): [], lease_stream(RUN): []}
    for position, event in enumerate(events, 1):
        stream = lease_stream(RUN) if event.topic.startswith("lease.") else run_stream(RUN)
        streams[stream].append(
            Recorded(
                position=position,
                stream=stream,
                version=len(streams[stream]) + 1,
                event_id=uuid4(),
                recorded_at=at,
                event=event,
            )
        )
    return head_of(RUN, StreamsRead(streams=streams, now=at))


def shape(append: Append | None) -> Any:
    """What matters of an append: guard, and stream, version, topic of each event."""
    assert append is not None
    return append.guard, [(new.stream.split("/")[0], new.version, new.event.topic) for new in append.events]


def test_a_claim_grants_the_lease_and_starts_the_run() -> None:
    """One append over both streams, guarded by "nobody holds it and the last token is still the one I read"."""
    wanted = claim(head(REQUESTED), ME, NOW, new_event_id)
    assert shape(wanted) == (Vacant(RUN, 0), [("lease", 1, "lease.granted.v1"), ("run", 2, "run.started.v1")])
    again = head(REQUESTED, granted(), LeaseReleased(resource=RUN, owner="me", token=1))
    assert shape(claim(again, OTHER, NOW, new_event_id)) == (
        Vacant(RUN, 1),
        [("lease", 3, "lease.granted.v1"), ("run", 2, "run.started.v1")],
    )


@pytest.mark.parametrize(
    "events",
    [
        (),
        (REQUESTED, granted(owner="other")),
        (REQUESTED, granted()),
        (REQUESTED, granted(), started()),
        (REQUESTED, RunCancelled(run_id=RUN)),
    ],
    ids=["absent", "leased by another", "leased by me", "running", "ended"],
)
def test_what_is_not_to_be_had_is_not_claimed(events: tuple[Event, ...]) -> None:
    """No append at all."""
    assert claim(head(*events), ME, NOW, new_event_id) is None


def test_an_expired_lease_is_no_obstacle() -> None:
    """A queued run whose lease has run out is claimed under the next token."""
    late = NOW + timedelta(seconds=30)
    wanted = claim(head(REQUESTED, granted(owner="other")), ME, late, new_event_id)
    assert shape(wanted)[0] == Vacant(RUN, 1)


def test_a_claim_past_the_deadline_ends_the_run_without_a_lease() -> None:
    """FAILED instead of started, under the same guard."""
    late = NOW + timedelta(seconds=3600)
    assert shape(claim(head(REQUESTED), ME, late, new_event_id)) == (Vacant(RUN, 0), [("run", 2, "run.failed.v1")])


def test_an_end_gives_the_lease_back_in_the_same_append() -> None:
    """Whatever the end: published, requeued, cancelled; under the fence, on top of the versions that were read."""
    running = head(REQUESTED, granted(), started())
    fence = Fence(RUN, "me", 1)
    published = conclude(running, PublishResults(1, ()), ME, 1, NOW, new_event_id)
    assert shape(published) == (fence, [("lease", 2, "lease.released.v1"), ("run", 3, "run.succeeded.v1")])
    handed_back = RequeueRun(token=1, reason=RequeueReason.HANDED_BACK)
    assert shape(conclude(running, handed_back, ME, 1, NOW, new_event_id))[1][1] == ("run", 3, "run.requeued.v1")
    asked = head(REQUESTED, granted(), started(), RunCancellationRequested(run_id=RUN, principal="ana"))
    for command in (PublishResults(1, ()), handed_back, EndIfDue(1)):
        assert shape(conclude(asked, command, ME, 1, NOW, new_event_id))[1][1] == ("run", 4, "run.cancelled.v1")


def test_a_border_where_nothing_is_due_appends_nothing() -> None:
    """Neither a cancellation nor the deadline."""
    assert conclude(head(REQUESTED, granted(), started()), EndIfDue(1), ME, 1, NOW, new_event_id) is None


@pytest.mark.parametrize(
    "events",
    [
        (REQUESTED, granted(), started(), granted(2, "other")),
        (REQUESTED, granted(owner="other"), started(owner="other")),
    ],
    ids=["overtaken", "never mine"],
)
def test_who_was_overtaken_ends_nothing(events: tuple[Event, ...]) -> None:
    """`STALE_FENCE`, before anything is sent."""
    lost = head(*events)
    with pytest.raises(StaleFenceError):
        check_mine(lost, ME, 1)
    with pytest.raises(StaleFenceError):
        conclude(lost, PublishResults(1, ()), ME, 1, NOW, new_event_id)


def test_a_run_that_ended_is_not_ended_again() -> None:
    """`RUN_FINISHED`."""
    over = head(REQUESTED, granted(), started(), RunCancelled(run_id=RUN, token=1))
    with pytest.raises(RunFinishedError):
        conclude(over, PublishResults(1, ()), ME, 1, NOW, new_event_id)


def test_advancing_is_folding() -> None:
    """The head after an append that was accepted is the head that a fresh read would give."""
    before = head(REQUESTED)
    wanted = claim(before, ME, NOW, new_event_id)
    assert wanted is not None
    after = advanced(before, wanted, Appended(position=3, recorded_at=NOW))
    read = head(REQUESTED, *(new.event for new in wanted.events))
    assert (after.run, after.run_version, after.lease, after.lease_version) == (
        read.run,
        read.run_version,
        read.lease,
        read.lease_version,
    )
    renewal = renew(after, ME, 1, new_event_id)
    assert shape(renewal) == (Fence(RUN, "me", 1), [("lease", 2, LeaseRenewed.topic)])
    later = advanced(after, renewal, Appended(position=4, recorded_at=NOW + timedelta(seconds=10)))
    assert later.lease.expires_at == NOW + timedelta(seconds=40)
    assert (later.run, later.cause) == (after.run, after.cause)


def test_what_is_appended_says_why() -> None:
    """Caused by the run's last event, correlated by the run, on behalf of its principal."""
    queued = head(REQUESTED)
    wanted = claim(queued, ME, NOW, new_event_id)
    assert wanted is not None
    metadata = wanted.metadata
    assert (metadata.causation_id, metadata.correlation_id, metadata.principal) == (queued.cause, RUN, "ana")
