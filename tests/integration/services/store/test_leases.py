"""The table of leases (who gets which token when), case by case on the real log with the database's clock."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from domain.errors import LeaseHeldError, StaleFenceError
from domain.identity import lease_stream
from domain.leases.aggregate import Lease, decide, evolve
from domain.leases.messages import AcquireLease, ReleaseLease, RenewLease
from services.ports import Append, Fence, Guard, Vacant
from services.store.application import Log
from tests.support.store import RESOURCE, facts, new, opened

SHORT = 0.03
LONG = 3600.0


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


def lease_of(log: Log) -> tuple[Lease, int]:
    recorded = log.read_streams_blocking([lease_stream(RESOURCE)]).streams[lease_stream(RESOURCE)]
    lease = Lease(RESOURCE)
    for each in recorded:
        lease = evolve(lease, each.event, each.recorded_at)
    return lease, len(recorded)


def do(log: Log, command: AcquireLease | RenewLease | ReleaseLease) -> int:
    """Decide on what was read, append under the guard that fits, and return the token."""
    lease, version = lease_of(log)
    events = decide(lease, command, log.now())
    guard: Guard
    if isinstance(command, AcquireLease) and events[0].token != lease.token:  # type: ignore[attr-defined]
        guard = Vacant(RESOURCE, lease.token)
    else:
        guard = Fence(RESOURCE, command.owner, lease.token)
    news = tuple(new(lease_stream(RESOURCE), version + 1 + n, event) for n, event in enumerate(events))
    log.append_blocking(Append(events=news, guard=guard))
    return lease_of(log)[0].token


def acquire(log: Log, owner: str, ttl_seconds: float = LONG) -> int:
    return do(log, AcquireLease(RESOURCE, owner, ttl_seconds))


def let_expire(log: Log) -> None:
    """Return when the lease is over by the database's clock."""
    expires_at = lease_of(log)[0].expires_at
    assert expires_at is not None
    while log.now() < expires_at:
        threading.Event().wait(0.002)


def test_no_lease_yet(log: Log) -> None:
    """Created, token 1."""
    assert acquire(log, "A") == 1


def test_live_another_owner(log: Log) -> None:
    """Refused, `LEASE_HELD`, token unchanged; also by the log itself, whatever the caller believes."""
    acquire(log, "A")
    with pytest.raises(LeaseHeldError):
        acquire(log, "B")
    with pytest.raises(LeaseHeldError):
        log.append_blocking(facts("run/x", 1, guard=Vacant(RESOURCE, 1)))
    assert lease_of(log)[0].token == 1


def test_live_mine(log: Log) -> None:
    """Renewed, token unchanged, and the end moves."""
    acquire(log, "A", LONG)
    before = lease_of(log)[0].expires_at
    assert acquire(log, "A", LONG * 2) == 1
    after = lease_of(log)[0].expires_at
    assert before is not None
    assert after is not None
    assert after - before > timedelta(seconds=LONG / 2)


@pytest.mark.parametrize("owner", ["A", "B"])
def test_expired_is_reclaimed_by_whoever_asks(log: Log, owner: str) -> None:
    """Token + 1, also for the last owner."""
    acquire(log, "A", SHORT)
    let_expire(log)
    assert acquire(log, owner) == 2


@pytest.mark.parametrize("owner", ["A", "B"])
def test_released_is_reclaimed_by_whoever_asks(log: Log, owner: str) -> None:
    """Token + 1, before its instant has come."""
    acquire(log, "A")
    do(log, ReleaseLease("A", 1))
    assert acquire(log, owner) == 2


def test_an_expired_lease_cannot_be_renewed_or_released(log: Log) -> None:
    """Not even by its last owner, and not even if it decided a moment before the end: the log judges again."""
    acquire(log, "A", SHORT)
    lease, version = lease_of(log)
    decided_at = lease.expires_at
    assert decided_at is not None
    moment_before = decided_at - timedelta(microseconds=1)
    let_expire(log)
    for command in (RenewLease("A", 1, LONG), ReleaseLease("A", 1)):
        with pytest.raises(StaleFenceError):
            decide(lease, command, log.now())
        (event,) = decide(lease, command, moment_before)
        with pytest.raises(StaleFenceError):
            log.append_blocking(
                Append(events=(new(lease_stream(RESOURCE), version + 1, event),), guard=Fence(RESOURCE, "A", 1))
            )
    assert lease_of(log) == (lease, version)


def test_the_worked_case(log: Log) -> None:
    """A acquires (1); its time passes; B acquires (2); A renews: `STALE_FENCE`, and nothing fenced by A is written."""
    assert acquire(log, "A", SHORT) == 1
    let_expire(log)
    assert acquire(log, "B") == 2
    with pytest.raises(StaleFenceError):
        do(log, RenewLease("A", 1, LONG))
    for stale in (Fence(RESOURCE, "A", 1), Fence(RESOURCE, "A", 2), Fence(RESOURCE, "B", 1)):
        with pytest.raises(StaleFenceError):
            log.append_blocking(facts("run/x", 1, guard=stale))
    log.append_blocking(facts("run/x", 1, guard=Fence(RESOURCE, "B", 2)))


def test_the_guard_row_ends_when_the_events_say(log: Log) -> None:
    """The row's expiry and the fold of the events are the same instant, to the microsecond, for awkward TTLs too."""
    version = 0
    for ttl in (0.1, 1 / 3, 2.0000005, 1e-6, 86_399.999_999_5):
        lease, version = lease_of(log)
        event = decide(Lease(RESOURCE, token=version), AcquireLease(RESOURCE, "A", ttl), log.now())[0]
        log.append_blocking(Append(events=(new(lease_stream(RESOURCE), version + 1, event),)))
        rows = log.pool.rows("SELECT expires_at, token, owner, released FROM finaz.lease_guard")
        lease, version = lease_of(log)
        assert rows == [(lease.expires_at, lease.token, lease.owner, False)]
