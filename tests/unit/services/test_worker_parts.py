"""Threads, blob writer and clock of the batch worker, each by itself."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address
from domain.errors import InfrastructureError
from domain.instants import to_micros
from services.blob_writer import GROUP_MAX, BlobWriter, store_all
from services.database_clock import OBSERVATIONS, DatabaseClock
from services.threads import ThreadSlots

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


# ------------------------------------------------------------------------------------------------ threads


async def test_slots_are_limited_and_come_back() -> None:
    """No more than `size` at once; a slot is free when its thread has ended, or when it is closed unused."""
    freed: list[int] = []
    slots = ThreadSlots(2, lambda: freed.append(1))
    first, second = slots.take(), slots.take()
    assert first is not None
    assert second is not None
    assert slots.take() is None
    second.close()
    second.close()
    assert (slots.free, len(freed)) == (1, 1)
    assert await first.run(threading.get_ident) != threading.get_ident()
    first.close()
    assert (slots.free, len(freed)) == (2, 2)


async def test_an_exception_in_a_thread_reaches_who_waits() -> None:
    """And the slot is free again."""
    slots = ThreadSlots(1)
    slot = slots.take()
    assert slot is not None
    with pytest.raises(ZeroDivisionError):
        await slot.run(lambda: 1 // 0)
    assert slots.free == 1


async def test_a_slot_stays_taken_while_its_abandoned_thread_runs() -> None:
    """Whoever stops waiting does not free the slot; the end of the thread does."""
    free, go_on = asyncio.Event(), threading.Event()
    slots = ThreadSlots(1, free.set)
    slot = slots.take()
    assert slot is not None
    future = slot.run(lambda: go_on.wait(20))
    future.cancel()
    await asyncio.sleep(0)
    assert slots.take() is None
    go_on.set()
    await asyncio.wait_for(free.wait(), 20)
    assert slots.free == 1


# ------------------------------------------------------------------------------------------------ blobs


class Blobs:
    """A store in memory that can fail, and counts."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.puts = 0

    def put(self, data: bytes) -> str:
        self.puts += 1
        if data.startswith(b"bad"):
            raise InfrastructureError("the disk is full")
        self.stored[address(data)] = data
        return address(data)

    def get(self, address: str) -> bytes:
        return self.stored[address]

    def has(self, address: str) -> bool:
        return address in self.stored


async def test_blobs_are_written_and_equal_ones_once_per_group() -> None:
    """Every caller gets the address of its own bytes, stored; what waits together is written together."""
    blobs = Blobs()
    writer = BlobWriter(blobs)
    data = [b"%d" % (n % 10) for n in range(200)]
    assert await asyncio.gather(*map(writer.put, data)) == [address(d) for d in data]
    assert sorted(blobs.stored.values()) == sorted(set(data))
    groups = -(-len(data) // GROUP_MAX) + 1  # the first caller starts a group by itself
    assert blobs.puts <= groups * 10


async def test_a_blob_that_fails_reaches_only_its_caller() -> None:
    """The others of its group are stored."""
    blobs = Blobs()
    writer = BlobWriter(blobs)
    outcomes = await asyncio.gather(*map(writer.put, (b"a", b"bad", b"b")), return_exceptions=True)
    assert [isinstance(o, InfrastructureError) for o in outcomes] == [False, True, False]
    assert await writer.put(b"c") == address(b"c")


@given(st.lists(st.binary(max_size=4), unique=True, max_size=40))
def test_addresses_come_back_in_order(data: list[bytes]) -> None:
    """However many threads share the work."""
    good = [d for d in data if not d.startswith(b"bad")]
    assert asyncio.run(store_all(Blobs(), good)) == [address(d) for d in good]


async def test_a_caller_that_is_gone_holds_up_nobody() -> None:
    """A cancelled put is stored all the same, and the rest of its group is answered."""
    writer = BlobWriter(Blobs())
    gone, there = asyncio.create_task(writer.put(b"gone")), asyncio.create_task(writer.put(b"there"))
    await asyncio.sleep(0)
    gone.cancel()
    assert await asyncio.wait_for(there, 20) == address(b"there")


# ------------------------------------------------------------------------------------------------ clock


MILLISECONDS = st.integers(0, 10_000).map(lambda number: number / 1000)


@given(st.lists(st.tuples(MILLISECONDS, MILLISECONDS), min_size=1, max_size=40), MILLISECONDS)
def test_the_clock_is_never_ahead_of_the_database(answers: list[tuple[float, float]], later: float) -> None:
    """Whatever the delays of the answers, the estimate is at most the true time, and behind by the least recent delay."""
    local, true = 1000.0, NOON
    clock = DatabaseClock(lambda: local)
    for pause, delay in answers:
        said = true + timedelta(seconds=pause)
        local, true = local + pause + delay, said + timedelta(seconds=delay)
        clock.observe(said)
        assert clock.now() <= true
    local, true = local + later, true + timedelta(seconds=later)
    assert clock.now() <= true
    least = min(delay for _, delay in answers[-OBSERVATIONS:])
    assert (true - clock.now()).total_seconds() <= least + 0.001
    assert clock.micros() == to_micros(clock.now())


def test_a_clock_that_was_told_nothing_calls_nothing_late() -> None:
    """Before the first answer it is long ago."""
    assert DatabaseClock().now() < datetime(1900, 1, 1, tzinfo=UTC)
