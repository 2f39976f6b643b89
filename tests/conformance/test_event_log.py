"""What every event log must do: the rules of the append function, on the real log and on the one in memory alike."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from domain.errors import LeaseHeldError, PositionConflictError, StaleFenceError, VersionConflictError
from domain.events import Event, Metadata
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.runs.messages import RunCancellationRequested, RunStarted
from services.ports import Append, Fence, Guard, NewEvent, Tracking, Vacant
from tests.support.logs import LogUnderTest, log_under_test

RESOURCE = "run_" + "a" * 64
LEASE = "lease/" + RESOURCE
RUN = "run/" + RESOURCE

under_test = pytest.fixture(params=["memory", "postgres"])(log_under_test)


def new(stream: str, version: int, event: Event, event_id: UUID | None = None) -> NewEvent:
    return NewEvent(stream, version, event, event_id or uuid4())


def fact(number: int = 1) -> Event:
    """Some event that changes no inline row."""
    return RunCancellationRequested(run_id=RESOURCE, principal=f"principal-{number}")


def facts(stream: str, *versions: int) -> tuple[NewEvent, ...]:
    return tuple(new(stream, version, fact(version)) for version in versions)


def granted(token: int, owner: str = "A", ttl_seconds: float = 60.0) -> Event:
    return LeaseGranted(resource=RESOURCE, owner=owner, token=token, ttl_seconds=ttl_seconds)


def released(token: int, owner: str = "A") -> Event:
    return LeaseReleased(resource=RESOURCE, owner=owner, token=token)


async def put(under_test: LogUnderTest, *events: NewEvent, guard: Guard | None = None) -> datetime:
    appended = await under_test.log.append(Append(events=events, guard=guard))
    return appended.recorded_at


async def versions_of(under_test: LogUnderTest, *streams: str) -> list[int]:
    read = await under_test.log.read_streams(streams)
    return [len(read.streams[stream]) for stream in streams]


# ------------------------------------------------------------------------------------------------ what was written is read


async def test_events_are_read_back_as_they_were_written(under_test: LogUnderTest) -> None:
    """Stream, version, id, event and metadata come back equal; positions follow one another; the database's clock stamps."""
    metadata = Metadata(causation_id=uuid4(), correlation_id="request-1", principal="ana")
    events = (*facts("run/x", 1, 2), new("run/y", 1, granted(1)))
    before = under_test.log.now()
    appended = await under_test.log.append(Append(events=events, metadata=metadata))
    read = await under_test.log.read_streams(["run/y", "run/x", "run/nothing"])
    assert list(read.streams["run/nothing"]) == []
    found = [*read.streams["run/x"], *read.streams["run/y"]]
    assert [NewEvent(r.stream, r.version, r.event, r.event_id) for r in found] == list(events)
    assert [r.metadata for r in found] == [metadata] * 3
    assert [r.position for r in found] == [appended.position - 2, appended.position - 1, appended.position]
    assert all(before <= r.recorded_at <= read.now for r in found)
    assert {r.recorded_at.utcoffset() for r in found} == {timedelta(0)}
    assert found[-1].recorded_at == appended.recorded_at
    assert not appended.repeated


async def test_streams_are_read_alike_from_a_thread(under_test: LogUnderTest) -> None:
    """The blocking reader and the blocking append are the same as the asynchronous ones."""
    appended = await asyncio.to_thread(under_test.log.append_blocking, Append(events=facts("run/x", 1)))
    read = await asyncio.to_thread(under_test.log.read_streams_blocking, ["run/x"])
    assert [r.position for r in read.streams["run/x"]] == [appended.position]
    assert read.streams == (await under_test.log.read_streams(["run/x"])).streams


async def test_the_log_is_read_by_position(under_test: LogUnderTest) -> None:
    """Positions have no gap, pages follow one another, topics select, and the high-water mark is the end."""
    assert under_test.log.high_water_mark() == 0
    for version in range(1, 8):
        await put(under_test, new("run/x", version, granted(version) if version == 4 else fact()))
    everything = await asyncio.to_thread(under_test.log.read_log, 0, 100)
    assert [r.position for r in everything] == list(range(1, 8))
    assert [r.position for r in under_test.log.read_log(2, 3)] == [3, 4, 5]
    assert [r.position for r in under_test.log.read_log(0, 100, [LeaseGranted.topic])] == [4]
    assert under_test.log.high_water_mark() == 7


# ------------------------------------------------------------------------------------------------ versions


@pytest.mark.parametrize("versions", [(2,), (1, 3), (1, 1), (2, 1), (0,)])
async def test_versions_are_contiguous_from_one(under_test: LogUnderTest, versions: Sequence[int]) -> None:
    """A gap, a repetition or a wrong start is refused, and nothing of it is written."""
    with pytest.raises(VersionConflictError):
        await put(under_test, *facts("run/x", *versions))
    assert await versions_of(under_test, "run/x") == [0]


async def test_an_append_over_streams_is_all_or_nothing(under_test: LogUnderTest) -> None:
    """A conflict in one stream refuses the events of all."""
    await put(under_test, *facts("run/x", 1))
    with pytest.raises(VersionConflictError):
        await put(under_test, *facts("run/y", 1), *facts("run/x", 1), *facts("run/z", 1))
    assert await versions_of(under_test, "run/x", "run/y", "run/z") == [1, 0, 0]
    assert under_test.log.high_water_mark() == 1


async def test_of_two_appends_of_one_version_one_wins(under_test: LogUnderTest) -> None:
    """The expected version makes an append a compare-and-set; a refusal reaches only its caller."""
    appends = [Append(events=facts("run/x", 1)) for _ in range(20)] + [Append(events=facts("run/y", 1))]
    outcomes = await asyncio.gather(*map(under_test.log.append, appends), return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, VersionConflictError)]
    assert len(refused) == 19
    assert not isinstance(outcomes[-1], BaseException)
    assert await versions_of(under_test, "run/x", "run/y") == [1, 1]


# ------------------------------------------------------------------------------------------------ repeats


async def test_the_same_append_again_is_the_same_append(under_test: LogUnderTest) -> None:
    """Appending is idempotent by event id: position and instant are those of the first time, and `repeated` tells."""
    append = Append(events=(*facts("run/x", 1, 2), *facts("run/y", 1)))
    first = await under_test.log.append(append)
    await put(under_test, *facts("run/x", 3))
    again = await under_test.log.append(append)
    assert (again.position, again.recorded_at, again.repeated) == (first.position, first.recorded_at, True)
    assert await versions_of(under_test, "run/x", "run/y") == [3, 1]


async def test_a_repeat_is_recognised_although_its_guard_fails_by_now(under_test: LogUnderTest) -> None:
    """An append that released its own lease, sent again because the answer was lost, is a repeat and not a stale fence."""
    await put(under_test, new(LEASE, 1, granted(1)), guard=Vacant(RESOURCE, 0))
    append = Append(events=(new(LEASE, 2, released(1)), *facts("run/x", 1)), guard=Fence(RESOURCE, "A", 1))
    first = await under_test.log.append(append)
    again = await under_test.log.append(append)
    assert (again.position, again.repeated) == (first.position, True)


async def test_repeats_at_once_are_one(under_test: LogUnderTest) -> None:
    """The same append sent ten times at once is stored once, and all are told the same position."""
    append = Append(events=facts("run/x", 1, 2))
    outcomes = await asyncio.gather(*(under_test.log.append(append) for _ in range(10)))
    assert {o.position for o in outcomes} == {2}
    assert sum(not o.repeated for o in outcomes) == 1


async def test_an_event_id_that_is_stored_elsewhere_is_refused(under_test: LogUnderTest) -> None:
    """An append of which only a part is stored is no repeat."""
    event_id = uuid4()
    await put(under_test, new("run/x", 1, fact(), event_id))
    with pytest.raises(VersionConflictError):
        await put(under_test, new("run/y", 1, fact(), event_id), *facts("run/y", 2))
    assert await versions_of(under_test, "run/y") == [0]


# ------------------------------------------------------------------------------------------------ guards


async def test_a_fence_lets_only_the_present_owner_append(under_test: LogUnderTest) -> None:
    """Owner, token and resource must all be those of the live lease."""
    await put(under_test, new(LEASE, 1, granted(1)), guard=Vacant(RESOURCE, 0))
    await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "A", 1))
    for stale in (Fence(RESOURCE, "B", 1), Fence(RESOURCE, "A", 0), Fence(RESOURCE, "A", 2), Fence("other", "A", 1)):
        with pytest.raises(StaleFenceError):
            await put(under_test, *facts(RUN, 2), guard=stale)
    assert await versions_of(under_test, RUN) == [1]


async def test_a_fence_ends_with_its_lease(under_test: LogUnderTest) -> None:
    """An expired lease lets nothing through, not even its own renewal or release."""
    await put(under_test, new(LEASE, 1, granted(1, ttl_seconds=0.05)), guard=Vacant(RESOURCE, 0))
    await under_test.let_pass(0.06)
    fence = Fence(RESOURCE, "A", 1)
    renewed = LeaseRenewed(resource=RESOURCE, owner="A", token=1, ttl_seconds=60.0)
    for event in (new(RUN, 1, fact()), new(LEASE, 2, renewed), new(LEASE, 2, released(1))):
        with pytest.raises(StaleFenceError):
            await put(under_test, event, guard=fence)
    assert await versions_of(under_test, RUN, LEASE) == [0, 1]


async def test_a_renewal_prolongs_the_fence(under_test: LogUnderTest) -> None:
    """After a renewal the lease ends a TTL after the renewal was recorded."""
    await put(under_test, new(LEASE, 1, granted(1, ttl_seconds=60.0)), guard=Vacant(RESOURCE, 0))
    renewed = LeaseRenewed(resource=RESOURCE, owner="A", token=1, ttl_seconds=0.05)
    await put(under_test, new(LEASE, 2, renewed), guard=Fence(RESOURCE, "A", 1))
    await under_test.let_pass(0.06)
    with pytest.raises(StaleFenceError):
        await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "A", 1))


async def test_a_released_lease_fences_nothing_and_is_vacant(under_test: LogUnderTest) -> None:
    """After a release the token is no longer good, and the next grant is one higher."""
    await put(under_test, new(LEASE, 1, granted(1)), guard=Vacant(RESOURCE, 0))
    await put(under_test, new(LEASE, 2, released(1)), guard=Fence(RESOURCE, "A", 1))
    with pytest.raises(StaleFenceError):
        await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "A", 1))
    await put(under_test, new(LEASE, 3, granted(2, "B")), guard=Vacant(RESOURCE, 1))
    await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "B", 2))


async def test_vacant_is_refused_while_a_lease_is_live(under_test: LogUnderTest) -> None:
    """Taking over before the end is `LEASE_HELD`, whatever token is named."""
    await put(under_test, new(LEASE, 1, granted(1)), guard=Vacant(RESOURCE, 0))
    for token in (0, 1, 2):
        with pytest.raises(LeaseHeldError):
            await put(under_test, new(LEASE, 2, granted(2, "B")), guard=Vacant(RESOURCE, token))


async def test_vacant_is_refused_when_the_token_has_moved_on(under_test: LogUnderTest) -> None:
    """Who read an older token than the last one given must read again."""
    await put(under_test, new(LEASE, 1, granted(1)), guard=Vacant(RESOURCE, 0))
    await put(under_test, new(LEASE, 2, released(1)), guard=Fence(RESOURCE, "A", 1))
    for token in (0, 2):
        with pytest.raises(StaleFenceError):
            await put(under_test, new(LEASE, 3, granted(token + 1, "B")), guard=Vacant(RESOURCE, token))
    with pytest.raises(StaleFenceError):
        await put(under_test, *facts(RUN, 1), guard=Vacant("never leased", 1))


async def test_an_expired_lease_is_vacant(under_test: LogUnderTest) -> None:
    """Reclaiming needs only that the lease has run out by the log's clock and the token is the last one."""
    await put(under_test, new(LEASE, 1, granted(1, ttl_seconds=0.05)), guard=Vacant(RESOURCE, 0))
    await under_test.let_pass(0.06)
    await put(under_test, new(LEASE, 2, granted(2, "B")), guard=Vacant(RESOURCE, 1))
    await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "B", 2))


async def test_of_many_claims_at_once_one_wins(under_test: LogUnderTest) -> None:
    """Appends of one group see the leases that earlier ones took: exactly one of twenty claimants gets the token."""
    claims = [
        Append(events=(new(LEASE, 1, granted(1, f"owner-{n}")), *facts(f"run/{n}", 1)), guard=Vacant(RESOURCE, 0))
        for n in range(20)
    ]
    outcomes = await asyncio.gather(*map(under_test.log.append, claims), return_exceptions=True)
    lost = [o for o in outcomes if isinstance(o, LeaseHeldError | StaleFenceError | VersionConflictError)]
    assert len(lost) == 19
    assert sum(await versions_of(under_test, *(f"run/{n}" for n in range(20)))) == 1


async def test_a_group_sees_the_leases_of_its_earlier_appends(under_test: LogUnderTest) -> None:
    """Granting, using and releasing a lease can meet in one group, in the order in which they were asked for."""
    fence = Fence(RESOURCE, "A", 1)
    appends = [
        Append(events=(new(LEASE, 1, granted(1)),), guard=Vacant(RESOURCE, 0)),
        Append(events=facts(RUN, 1), guard=fence),
        Append(events=(new(LEASE, 2, released(1)),), guard=fence),
        Append(events=facts(RUN, 2), guard=fence),
        Append(events=(new(LEASE, 3, granted(2, "B")),), guard=Vacant(RESOURCE, 1)),
    ]
    outcomes = await asyncio.gather(*map(under_test.log.append, appends), return_exceptions=True)
    assert [isinstance(o, StaleFenceError) for o in outcomes] == [False, False, False, True, False]


async def test_a_stale_fence_is_told_before_a_version_conflict(under_test: LogUnderTest) -> None:
    """Who wakes late is told that it was overtaken, not that it should read again and try."""
    await put(under_test, new(LEASE, 1, granted(1, ttl_seconds=0.05)), guard=Vacant(RESOURCE, 0))
    await under_test.let_pass(0.06)
    await put(under_test, new(LEASE, 2, granted(2, "B")), *facts(RUN, 1), guard=Vacant(RESOURCE, 1))
    with pytest.raises(StaleFenceError):
        await put(under_test, *facts(RUN, 1), guard=Fence(RESOURCE, "A", 1))


# ------------------------------------------------------------------------------------------------ tracking


async def test_a_tracking_position_only_grows(under_test: LogUnderTest) -> None:
    """Events are stored together with the position, or neither: a repeated or lower position refuses both."""
    await under_test.log.append(Append(events=facts("run/x", 1), tracking=Tracking("reactor", 5)))
    for position in (5, 4):
        with pytest.raises(PositionConflictError):
            await under_test.log.append(Append(events=facts("run/x", 2), tracking=Tracking("reactor", position)))
    assert await versions_of(under_test, "run/x") == [1]
    await under_test.log.append(Append(events=facts("run/x", 2), tracking=Tracking("reactor", 6)))
    await under_test.log.append(Append(events=facts("run/y", 1), tracking=Tracking("another", 1)))


async def test_a_refused_append_moves_no_position(under_test: LogUnderTest) -> None:
    """A position is taken only by an append that was accepted."""
    with pytest.raises(VersionConflictError):
        await under_test.log.append(Append(events=facts("run/x", 2), tracking=Tracking("reactor", 5)))
    await under_test.log.append(Append(events=facts("run/x", 1), tracking=Tracking("reactor", 5)))


async def test_a_position_can_move_without_events(under_test: LogUnderTest) -> None:
    """A manager that had nothing to do still records how far it has read."""
    await under_test.log.append(Append(events=(), tracking=Tracking("reactor", 3)))
    with pytest.raises(PositionConflictError):
        await under_test.log.append(Append(events=(), tracking=Tracking("reactor", 3)))


async def test_started_runs_and_their_leases_are_one_append(under_test: LogUnderTest) -> None:
    """The claim of the batch worker: the loser of two gets neither the lease nor the start."""

    def claim(owner: str) -> Append:
        started = RunStarted(run_id=RESOURCE, owner=owner, token=1, attempt=1)
        return Append(events=(new(LEASE, 1, granted(1, owner)), new(RUN, 1, started)), guard=Vacant(RESOURCE, 0))

    outcomes = await asyncio.gather(*(under_test.log.append(claim(o)) for o in "AB"), return_exceptions=True)
    assert sum(isinstance(o, BaseException) for o in outcomes) == 1
    assert await versions_of(under_test, LEASE, RUN) == [1, 1]
