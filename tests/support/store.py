"""What the tests of the store share: stored events, appends and events that are short to write."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

from domain.events import Event
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.runs.messages import Mode, RunCancellationRequested, RunSpec
from projections.inline import INLINE
from services.ports import Append, Guard, NewEvent
from services.store.application import Log

RESOURCE = "run_" + "0" * 64


@contextmanager
def opened(dsn: str, **limits: float) -> Iterator[Log]:
    """A log with the system's inline projections, closed afterwards."""
    log = Log(dsn, INLINE, **limits)  # type: ignore[arg-type]  # tests pass numbers
    try:
        yield log
    finally:
        log.close()


def new(stream: str, version: int, event: Event, event_id: UUID | None = None) -> NewEvent:
    return NewEvent(stream, version, event, event_id or uuid4())


def fact(text: str = "ana", run_id: str = RESOURCE) -> Event:
    """Some event that changes no inline row."""
    return RunCancellationRequested(run_id=run_id, principal=text)


def facts(stream: str, *versions: int, guard: Guard | None = None) -> Append:
    return Append(events=tuple(new(stream, version, fact()) for version in versions), guard=guard)


def granted(token: int, owner: str = "A", ttl_seconds: float = 60.0, resource: str = RESOURCE) -> Event:
    return LeaseGranted(resource=resource, owner=owner, token=token, ttl_seconds=ttl_seconds)


def renewed(token: int, owner: str = "A", ttl_seconds: float = 60.0, resource: str = RESOURCE) -> Event:
    return LeaseRenewed(resource=resource, owner=owner, token=token, ttl_seconds=ttl_seconds)


def released(token: int, owner: str = "A", resource: str = RESOURCE) -> Event:
    return LeaseReleased(resource=resource, owner=owner, token=token)


def spec(priority: int = 0, mode: Mode = Mode.BATCH) -> RunSpec:
    return RunSpec(
        mode=mode,
        flow="sha256:" + "a" * 64,
        flow_name="f",
        snapshot="sha256:" + "b" * 64,
        as_of=datetime(2026, 1, 5, 9, tzinfo=UTC),
        priority=priority,
        deadline_seconds=60,
    )
