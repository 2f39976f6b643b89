"""The append function against its rules in plain Python (`MemoryLog`): equal verdicts and streams over random histories."""

import asyncio
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.chain import ChainedRow, chain
from domain.errors import FinazError
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from projections.inline import INLINE
from services.ports import Append, Fence, Guard, NewEvent, Tracking, Vacant
from services.store.application import Log
from tests.support.memory_log import MemoryLog
from tests.support.store import fact, opened

STREAMS = 3
RESOURCES = 2
GONE = 1e-6
"""Seconds of a lease that is over at the next append; the model's clock moves on by a second before each."""


class Step(msgspec.Struct, frozen=True):
    """One append, told relative to the state in which it will meet the log."""

    events: tuple[tuple[int, int], ...]  # stream, how far beyond the next version
    lease: tuple[str, int, str, float] | None  # what, resource, owner, TTL
    guard: tuple[str, int, str, int] | None  # kind, resource, owner, how far beyond the last token
    tracking: tuple[int, int] | None  # name, position
    repeat: int | None  # the events of that earlier append again, under the same ids


mostly = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
owners = st.sampled_from(["A", "A", "B"])
resources = st.integers(0, RESOURCES - 1)
steps = st.builds(
    Step,
    events=st.lists(st.tuples(st.integers(0, STREAMS - 1), mostly), max_size=3).map(tuple),
    lease=st.none()
    | st.tuples(
        st.sampled_from(["granted", "renewed", "released"]), resources, owners, st.sampled_from([3600.0, GONE])
    ),
    guard=st.none() | st.tuples(st.sampled_from(["fence", "vacant"]), resources, owners, mostly),
    tracking=st.none() | st.tuples(st.integers(0, 1), st.integers(1, 6)),
    repeat=st.none() | st.integers(0, 10),
)


class History:
    """Makes appends of steps and has the model judge them, one after another."""

    def __init__(self) -> None:
        self.model = MemoryLog()
        self.prefix = uuid4().hex[:12]
        self.appends: list[Append] = []
        self.verdicts: list[Any] = []

    def play(self, step: Step) -> None:
        append = self._append(step)
        self.appends.append(append)
        self.model.advance(1.0)
        self.verdicts.append(verdict_of(self.model, append))

    def streams(self) -> list[str]:
        plain = [f"run/{self.prefix}.{n}" for n in range(STREAMS)]
        return [*plain, *(f"lease/{self.prefix}.{n}" for n in range(RESOURCES))]

    def _append(self, step: Step) -> Append:
        if step.repeat is not None and step.repeat < len(self.appends):
            return self.appends[step.repeat]
        versions: dict[str, int] = {}
        events: list[NewEvent] = []
        for number, beyond in step.events:
            self._add(events, versions, self.streams()[number], beyond, fact(f"p{len(self.appends)}"))
        if step.lease is not None:
            what, number, owner, ttl = step.lease
            resource = f"{self.prefix}.{number}"
            token = self._token(resource) + (what == "granted")
            event: Any
            if what == "granted":
                event = LeaseGranted(resource=resource, owner=owner, token=token, ttl_seconds=ttl)
            elif what == "renewed":
                event = LeaseRenewed(resource=resource, owner=owner, token=token, ttl_seconds=ttl)
            else:
                event = LeaseReleased(resource=resource, owner=owner, token=token)
            self._add(events, versions, f"lease/{resource}", 0, event)
        tracking = None
        if step.tracking is not None:
            tracking = Tracking(f"{self.prefix}.{step.tracking[0]}", step.tracking[1])
        return Append(events=tuple(events), guard=self._guard(step), tracking=tracking)

    def _add(self, events: list[NewEvent], versions: dict[str, int], stream: str, beyond: int, event: Any) -> None:
        """One more event of the stream; within an append versions follow one another, or nobody would even be asked."""
        if stream in versions:
            version = versions[stream] + 1
        else:
            version = max(1, len(self.model.read_streams_blocking([stream]).streams[stream]) + 1 + beyond)
        versions[stream] = version
        events.append(NewEvent(stream, version, event, uuid4()))

    def _guard(self, step: Step) -> Guard | None:
        if step.guard is None:
            return None
        kind, number, owner, beyond = step.guard
        resource = f"{self.prefix}.{number}"
        token = max(0, self._token(resource) + beyond)
        return Fence(resource, owner, token) if kind == "fence" else Vacant(resource, token)

    def _token(self, resource: str) -> int:
        row = self.model._guards.get(resource)
        return row.token if row is not None else 0


Verdict: TypeAlias = str | tuple[str, bool]


def verdict_of(log: Any, append: Append) -> Verdict:
    try:
        return "stored", log.append_blocking(append).repeated
    except FinazError as error:
        return error.code


def content(log: Any, streams: list[str]) -> list[list[tuple[int, UUID, Any]]]:
    read = log.read_streams_blocking(streams).streams
    return [[(r.version, r.event_id, r.event) for r in read[stream]] for stream in streams]


def assert_whole(log: Log) -> None:
    """Positions without gaps, and a chain that Python computes alike."""
    columns = ", ".join(ChainedRow.__struct_fields__)
    rows = log.pool.rows(f"SELECT {columns}, chain FROM finaz.events ORDER BY position")
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    chained = [ChainedRow(**dict(zip(ChainedRow.__struct_fields__, row[:10], strict=True))) for row in rows]
    assert not rows or chain(chained) == bytes(rows[-1][10])


def test_one_after_another_the_verdicts_are_those_of_the_model(database: str) -> None:
    """Every append of a random history gets the model's verdict, and the streams end equal."""
    with opened(database) as log:

        @settings(suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(steps, max_size=12))
        def check(history_steps: list[Step]) -> None:
            history = History()
            for step in history_steps:
                history.play(step)
                assert verdict_of(log, history.appends[-1]) == history.verdicts[-1]
            assert content(log, history.streams()) == content(history.model, history.streams())

        check()
        assert_whole(log)


async def test_at_once_the_verdicts_are_those_of_one_after_another(database: str) -> None:
    """Appends asked for at the same time, so that they share calls, end as if executed in the order in which they were asked."""
    log = Log(database, INLINE)

    async def outcome(append: Append) -> Verdict:
        try:
            return "stored", (await log.append(append)).repeated
        except FinazError as error:
            return error.code

    histories: list[History] = []

    @given(st.lists(steps, max_size=12))
    def collect(history_steps: list[Step]) -> None:
        history = History()
        for step in history_steps:
            history.play(step)
        histories.append(history)

    collect()
    for first in range(0, len(histories), 10):
        some = histories[first : first + 10]
        interleaved = [
            (history, index)
            for index in range(max(len(h.appends) for h in some))
            for history in some
            if index < len(history.appends)
        ]
        outcomes = await asyncio.gather(*(outcome(history.appends[index]) for history, index in interleaved))
        assert outcomes == [history.verdicts[index] for history, index in interleaved]
    for history in histories:
        assert content(log, history.streams()) == content(history.model, history.streams())
    assert_whole(log)
    await asyncio.to_thread(log.close)
