"""Leases by the table of the documentation: case by case, and as a random walk against a model, on both logs.

The client appends what workers append, the steps of `services.leases`, and the log judges.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from domain.errors import FinazError, LeaseHeldError, StaleFenceError
from domain.identity import lease_stream, run_stream
from domain.runs.messages import RunCancellationRequested
from services.leases import fold_lease
from services.ports import Append, NewEvent
from tests.support.lease_clients import Grant, LeaseClient
from tests.support.logs import LogUnderTest, log_under_test, opened
from tests.support.memory_log import MemoryLog

under_test = pytest.fixture(params=["memory", "postgres"])(log_under_test)

RESOURCE = "run_" + "b" * 64
T = TypeVar("T")


@pytest.fixture
def leases(under_test: LogUnderTest) -> LeaseClient:
    return LeaseClient(under_test.log)


async def topics(under_test: LogUnderTest) -> list[str]:
    read = await under_test.log.read_streams([lease_stream(RESOURCE)])
    return [recorded.event.topic for recorded in read.streams[lease_stream(RESOURCE)]]


async def test_no_lease_yet_is_created(leases: LeaseClient, under_test: LogUnderTest) -> None:
    """Token 1; it ends a TTL after the instant at which it was recorded."""
    grant = await leases.acquire(RESOURCE, "A", 60.0, label="desk 3")
    read = await under_test.log.read_streams([lease_stream(RESOURCE)])
    (recorded,) = read.streams[lease_stream(RESOURCE)]
    assert (grant.owner, grant.token) == ("A", 1)
    assert (grant.expires_at - recorded.recorded_at).total_seconds() == 60.0
    assert grant.expires_at.utcoffset() is not None
    assert fold_lease(RESOURCE, [recorded]).is_live(read.now)


async def test_live_and_anothers_is_refused(leases: LeaseClient) -> None:
    """`LEASE_HELD`; the token is unchanged, and nothing was written."""
    first = await leases.acquire(RESOURCE, "A", 60.0)
    with pytest.raises(LeaseHeldError) as caught:
        await leases.acquire(RESOURCE, "B", 60.0)
    assert caught.value.context["token"] == 1
    assert (await leases.renew(first)).token == 1


async def test_live_and_mine_is_renewed(leases: LeaseClient, under_test: LogUnderTest) -> None:
    """The token is unchanged, the end moves on."""
    first = await leases.acquire(RESOURCE, "A", 60.0)
    await under_test.let_pass(0.02)
    again = await leases.acquire(RESOURCE, "A", 60.0)
    assert again.token == 1
    assert again.expires_at > first.expires_at
    assert await topics(under_test) == ["lease.granted.v1", "lease.renewed.v1"]


@pytest.mark.parametrize("how", ["expired", "released"])
@pytest.mark.parametrize("who", ["A", "B"])
async def test_expired_or_released_is_reclaimed_by_whoever_asks(
    leases: LeaseClient, under_test: LogUnderTest, how: str, who: str
) -> None:
    """The token is one higher, also for the last owner."""
    grant = await leases.acquire(RESOURCE, "A", 60.0 if how == "released" else 0.03)
    if how == "released":
        await leases.release(grant)
    else:
        await under_test.let_pass(0.04)
    assert (await leases.acquire(RESOURCE, who, 60.0)).token == 2


async def test_the_worked_case(leases: LeaseClient, under_test: LogUnderTest) -> None:
    """TTL 6: A acquires (1); 7 pass; B acquires (2); A renews: `STALE_FENCE`. (In hundredths of a second.)"""
    a = await leases.acquire(RESOURCE, "A", 0.06)
    await under_test.let_pass(0.07)
    b = await leases.acquire(RESOURCE, "B", 60.0)
    assert (a.token, b.token) == (1, 2)
    with pytest.raises(StaleFenceError):
        await leases.renew(a)
    with pytest.raises(StaleFenceError):
        await leases.release(a)
    assert await topics(under_test) == ["lease.granted.v1", "lease.granted.v1"]


async def test_an_expired_lease_cannot_be_renewed_by_its_last_owner(
    leases: LeaseClient, under_test: LogUnderTest
) -> None:
    """Not even if nobody else wants it; it can be acquired again, under a new token."""
    grant = await leases.acquire(RESOURCE, "A", 0.03)
    await under_test.let_pass(0.04)
    with pytest.raises(StaleFenceError):
        await leases.renew(grant)
    assert (await leases.acquire(RESOURCE, "A", 60.0)).token == 2


async def test_of_many_who_acquire_at_once_one_gets_it(leases: LeaseClient) -> None:
    """The others are refused with `LEASE_HELD`, not with a conflict."""
    outcomes = await asyncio.gather(
        *(leases.acquire(RESOURCE, f"owner-{n}", 60.0) for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(o, Grant) for o in outcomes) == 1
    assert sum(isinstance(o, LeaseHeldError) for o in outcomes) == 19


async def test_one_owner_acquiring_at_once_has_one_token(leases: LeaseClient) -> None:
    """Whoever comes second finds the lease live and its own, and renews it."""
    grants = await asyncio.gather(*(leases.acquire(RESOURCE, "A", 60.0) for _ in range(5)))
    assert {grant.token for grant in grants} == {1}


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
async def test_a_ttl_is_more_than_nothing_and_at_most_a_day(leases: LeaseClient, ttl: float) -> None:
    """Refused with a typed error, and nothing is written."""
    with pytest.raises(FinazError, match="ttl_seconds"):
        await leases.acquire(RESOURCE, "A", ttl)
    assert (await leases.acquire(RESOURCE, "A", 86_400.0)).token == 1


# ------------------------------------------------------------------------------------------------ a random walk


SHORT, LONG = 0.01, 600.0
OWNERS = st.sampled_from(["A", "B", "C"])


class LeaseMachine(RuleBasedStateMachine):
    """Random owners acquire, renew, release and act, with grants old and new; a few lines say what must happen."""

    under_test: LogUnderTest
    runner: "asyncio.Runner"

    def __init__(self) -> None:
        super().__init__()
        self.resource = f"run_{uuid4().hex}{uuid4().hex}"
        self.leases = LeaseClient(self.under_test.log)
        self.owner, self.token, self.live = "", 0, False
        self.grants: list[Grant] = []
        self.facts = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def is_current(self, grant: Grant) -> bool:
        return self.live and (grant.owner, grant.token) == (self.owner, self.token)

    def pass_if_short(self, ttl: float) -> None:
        if ttl == SHORT:
            self.do(self.under_test.let_pass(SHORT * 1.5))
            self.live = False

    @rule(owner=OWNERS, ttl=st.sampled_from([SHORT, LONG, LONG]))
    def acquire(self, owner: str, ttl: float) -> None:
        if self.live and owner != self.owner:
            with pytest.raises(LeaseHeldError):
                self.do(self.leases.acquire(self.resource, owner, ttl))
            return
        grant = self.do(self.leases.acquire(self.resource, owner, ttl))
        self.token += not self.live
        self.owner, self.live = owner, True
        assert (grant.owner, grant.token) == (self.owner, self.token)
        self.grants.append(grant)
        self.pass_if_short(ttl)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        if not self.is_current(grant):
            with pytest.raises(StaleFenceError):
                self.do(self.leases.renew(grant))
            return
        renewed = self.do(self.leases.renew(grant))
        assert renewed.token == self.token
        self.grants.append(renewed)
        self.pass_if_short(grant.ttl_seconds)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        if not self.is_current(grant):
            with pytest.raises(StaleFenceError):
                self.do(self.leases.release(grant))
            return
        self.do(self.leases.release(grant))
        self.live = False

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        event = RunCancellationRequested(run_id=self.resource, principal=grant.owner)
        new = NewEvent(run_stream(self.resource), self.facts + 1, event, uuid4())
        if not self.is_current(grant):
            with pytest.raises(StaleFenceError):
                self.do(self.under_test.log.append(Append(events=(new,), guard=grant.fence)))
            return
        self.do(self.under_test.log.append(Append(events=(new,), guard=grant.fence)))
        self.facts += 1

    @invariant()
    def the_stream_says_the_same(self) -> None:
        stream, facts = lease_stream(self.resource), run_stream(self.resource)
        read = self.do(self.under_test.log.read_streams([stream, facts]))
        lease = fold_lease(self.resource, read.streams[stream])
        assert (lease.owner, lease.token, lease.is_live(read.now)) == (self.owner, self.token, self.live)
        assert len(read.streams[facts]) == self.facts


@pytest.fixture(params=["memory", "postgres"])
def any_log(request: pytest.FixtureRequest) -> Iterator[LogUnderTest]:
    if request.param == "memory":
        yield LogUnderTest(MemoryLog())
        return
    with opened(request.getfixturevalue("database")) as log:
        yield LogUnderTest(log)


def test_leases_behave_as_their_model(any_log: LogUnderTest) -> None:
    """Whatever the order of acquire, renew, release, expiry and effects: token, owner and life are those of the model."""
    real = not isinstance(any_log.log, MemoryLog)
    with asyncio.Runner() as runner:

        class Machine(LeaseMachine):
            pass

        Machine.under_test, Machine.runner = any_log, runner
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Machine,
            settings=settings(
                max_examples=10 if real else 60,
                stateful_step_count=20 if real else 40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
