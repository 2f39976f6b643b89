"""Leases are linearizable: real histories of rival clients, some of whom die or lose their connection, have a legal order."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from domain.errors import FinazError, LeaseHeldError, StaleFenceError, StoreUnavailableError
from domain.events import Metadata
from domain.identity import lease_stream
from domain.leases.messages import LeaseReleased
from services.ports import Append, Fence, NewEvent
from services.store.application import Log
from tests.support.lease_clients import Grant, LeaseClient
from tests.support.linearizability import HELD, STALE, UNKNOWN, Operation, linearizable
from tests.support.store import fact, opened

TTL_SECONDS = 0.06
RESOURCE = "run_" + "5" * 64
START = datetime(2026, 1, 5, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def op(kind: str, owner: str, token: int, called: float, returned: float, answer: int | str) -> Operation:
    """An operation of a hand-made history; an accepted one was recorded in the middle of its interval."""
    recorded_at = at((called + returned) / 2) if isinstance(answer, int) else None
    return Operation(kind, owner, token, at(called), at(returned), answer, recorded_at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "legal"),
    [
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 2, 3, HELD), op("acquire", "B", 0, 7, 8, 2)], True),
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 7, 8, 2), op("renew", "A", 1, 9, 10, STALE)], True),
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 2, 3, 2)], False),
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 7, 8, HELD)], False),
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 7, 8, 2), op("effect", "A", 1, 9, 10, 1)], False),
        ([op("acquire", "A", 0, 0, 1, 1), op("effect", "A", 1, 7, 8, 1)], False),
        ([op("acquire", "A", 0, 0, 1, 1), op("effect", "A", 1, 2, 3, STALE)], False),
        ([op("acquire", "A", 0, 0, 1, 1), op("acquire", "B", 0, 7, 8, 1)], False),
        ([op("acquire", "A", 0, 0, 1, UNKNOWN), op("acquire", "B", 0, 2, 3, HELD)], True),
        ([op("acquire", "A", 0, 0, 1, UNKNOWN), op("acquire", "B", 0, 2, 3, 1)], True),
        ([op("acquire", "B", 0, 2, 3, HELD)], False),
    ],
)
def test_the_checker_tells_a_legal_history_from_an_illegal_one(history: Sequence[Operation], legal: bool) -> None:
    """A checker that cannot fail proves nothing: two owners at once, a zombie's effect, a token twice are all found."""
    assert linearizable(list(history), timedelta(seconds=6)) is legal


class Client:
    """One rival: random operations by a seed, with what it believes of its grant."""

    def __init__(self, log: Log, owner: str, seed: int) -> None:
        self.log = log
        self.leases = LeaseClient(log)
        self.owner = owner
        self.dice = random.Random(seed)
        self.grant: Grant | None = None
        self.effects = 0
        self.history: list[Operation] = []

    async def act(self, operations: int) -> None:
        """The client's life; now and then it dies in the middle of a call, and another begins under its name."""
        for _ in range(operations):
            kind = (
                "acquire"
                if self.grant is None
                else self.dice.choice(["acquire", "renew", "release", "effect", "effect"])
            )
            called_at, token = await self.now(), self.grant.token if self.grant else 0
            call = asyncio.ensure_future(getattr(self, kind)())
            if self.dice.random() < 0.08:
                (outcome,) = await asyncio.gather(call, return_exceptions=True)
                happened_at = None if isinstance(outcome, BaseException) else outcome[1]
                self.note(kind, token, called_at, datetime.max.replace(tzinfo=UTC), UNKNOWN, happened_at)
                self.reborn()
                continue
            try:
                answer, recorded_at = await call
            except StoreUnavailableError:  # reading found its connection cut, so nothing was appended
                self.note(kind, token, called_at, datetime.max.replace(tzinfo=UTC), UNKNOWN, None)
                self.reborn()
                continue
            except (LeaseHeldError, StaleFenceError) as refused:
                answer, recorded_at, self.grant = refused.code, None, None
            self.note(kind, token, called_at, await self.now(), answer, recorded_at)
            await asyncio.sleep(self.dice.random() * TTL_SECONDS * self.dice.choice([0.1, 0.5, 2.0]))

    def reborn(self) -> None:
        """Another client, that knows nothing, begins under a new name."""
        self.grant, self.owner, self.effects = None, f"{self.owner}'", 0

    async def now(self) -> datetime:
        """The database's clock, however often the connection is cut."""
        while True:
            try:
                return await asyncio.to_thread(self.log.now)
            except StoreUnavailableError:
                continue

    def note(
        self, kind: str, token: int, called: datetime, returned: datetime, answer: int | str, recorded: datetime | None
    ) -> None:
        self.history.append(Operation(kind, self.owner, token, called, returned, answer, recorded))  # type: ignore[arg-type]

    async def acquire(self) -> tuple[int, datetime]:
        self.grant = await self.leases.acquire(RESOURCE, self.owner, TTL_SECONDS)
        return self.grant.token, self.grant.expires_at - timedelta(seconds=TTL_SECONDS)

    async def renew(self) -> tuple[int, datetime]:
        assert self.grant is not None
        self.grant = await self.leases.renew(self.grant)
        return self.grant.token, self.grant.expires_at - timedelta(seconds=TTL_SECONDS)

    async def release(self) -> tuple[int, datetime]:
        grant, self.grant = self.grant, None
        assert grant is not None
        await self.leases.release(grant)
        while True:
            try:
                events = (await self.log.read_streams([lease_stream(RESOURCE)])).streams[lease_stream(RESOURCE)]
            except StoreUnavailableError:
                continue
            released = [e for e in events if isinstance(e.event, LeaseReleased) and e.event.token == grant.token]
            return grant.token, released[0].recorded_at

    async def effect(self) -> tuple[int, datetime]:
        assert self.grant is not None
        self.effects += 1
        event = NewEvent(f"effects/{self.owner}", self.effects, fact(), uuid4())
        guard = Fence(RESOURCE, self.owner, self.grant.token)
        try:
            appended = await self.log.append(Append(events=(event,), guard=guard, metadata=Metadata()))
        except FinazError:
            self.effects -= 1
            raise
        return self.grant.token, appended.recorded_at


@pytest.mark.parametrize("seed", range(3))
async def test_rival_clients_leave_a_linearizable_history(database: str, seed: int) -> None:
    """Six clients on two processes' logs, with deaths and with the server cutting the connections in between."""
    with opened(database) as one, opened(database) as two:
        clients = [Client((one, two)[n % 2], f"owner-{n}", seed * 100 + n) for n in range(6)]

        async def cut_connections() -> None:
            for _ in range(3):
                await asyncio.sleep(0.15)
                await asyncio.to_thread(
                    two.pool.rows,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
                )

        await asyncio.gather(cut_connections(), *(client.act(14) for client in clients))
        history = sorted((o for client in clients for o in client.history), key=lambda o: o.called_at)
        answers = {str(o.answer) if isinstance(o.answer, str) else o.kind for o in history}
        assert {"acquire", HELD} <= answers
        assert linearizable(history, timedelta(seconds=TTL_SECONDS))
        streams = (await one.read_streams([lease_stream(RESOURCE)])).streams[lease_stream(RESOURCE)]
        tokens = [recorded.event.token for recorded in streams]  # type: ignore[attr-defined]
        assert tokens == sorted(tokens)
