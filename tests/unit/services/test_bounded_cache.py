"""The cache never holds more than its bytes, and one miss is one load."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.bounded_cache import BoundedCache


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 12)), max_size=60))
def test_it_never_holds_more_than_its_bytes(puts: list[tuple[str, int]]) -> None:
    """After any puts the sizes of what is held add up to `bytes_held`, at most `bytes_max`; the last that fits is held."""
    cache = BoundedCache[int](10)
    sizes: dict[str, int] = {}
    for key, size in puts:
        cache.put(key, size, size)
        sizes[key] = size
        held = [k for k in "abcdefgh" if cache.held(k) is not None]
        assert cache.bytes_held == sum(sizes[k] for k in held) <= 10
        assert (key in held) == (size <= 10)


def test_the_least_recently_used_goes_first() -> None:
    """Looking at a value keeps it."""
    cache = BoundedCache[str](2)
    cache.put("a", "A", 1)
    cache.put("b", "B", 1)
    assert cache.held("a") == "A"
    cache.put("c", "C", 1)
    assert (cache.held("a"), cache.held("b"), cache.held("c")) == ("A", None, "C")


async def test_two_who_miss_at_once_share_one_load() -> None:
    """And what was loaded is there for the third."""
    cache, loads, go_on = BoundedCache[str](10), [], asyncio.Event()

    async def load() -> tuple[str, int]:
        loads.append(1)
        await go_on.wait()
        return "value", 1

    first, second = (asyncio.create_task(cache.get("key", load)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    assert [await first, await second, await cache.get("key", load)] == ["value"] * 3
    assert len(loads) == 1


async def test_a_failed_load_fails_who_waits_and_is_not_remembered() -> None:
    """The next one tries again."""
    cache, faults = BoundedCache[str](10), [OSError("away")]

    async def load() -> tuple[str, int]:
        await asyncio.sleep(0)
        if faults:
            raise faults.pop()
        return "value", 1

    outcomes = await asyncio.gather(*(cache.get("key", load) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, OSError) for outcome in outcomes)
    assert await cache.get("key", load) == "value"


async def test_what_is_too_large_is_loaded_and_not_kept() -> None:
    """The caller gets it all the same."""
    cache = BoundedCache[str](10)

    async def load() -> tuple[str, int]:
        return "large", 11

    assert await cache.get("key", load) == "large"
    assert cache.held("key") is None
    with pytest.raises(ZeroDivisionError):
        await cache.get("other", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
