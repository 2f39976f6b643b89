"""Backpressure as a pure function: what pauses the source, what leaves it paused, and what is read meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from domain.stream.backpressure import (
    Measures,
    PressureLimits,
    Retention,
    Threshold,
    next_pressure,
    read_while_paused,
)
from domain.stream.messages import Pressure

LIMITS = PressureLimits(
    uncommitted_records=Threshold(100, 10),
    uncommitted_bytes=Threshold(1000, 100),
    buffered_events=Threshold(50, 20),
    disk_free_bytes=Threshold(2000, 1000),
)
FREE = {"disk_free_bytes": 10_000}


def state(before: Pressure, **measures: object) -> Pressure:
    return next_pressure(before, Measures(**{**FREE, **measures}), LIMITS)[0]  # type: ignore[arg-type]


def test_nothing_beyond_a_threshold_flows() -> None:
    """From any state, and without a reason."""
    for before in Pressure:
        assert next_pressure(before, Measures(), LIMITS) == (Pressure.FLOWING, "")


def test_each_threshold_has_two_sides() -> None:
    """Entered at `high`, kept until `low`: in between it depends on where one comes from, so nothing flaps."""
    cases = [
        ("uncommitted_records", 100, 99, 11, 10, Pressure.SOURCE_PAUSED),
        ("uncommitted_bytes", 1000, 999, 101, 100, Pressure.SOURCE_PAUSED),
        ("disk_free_bytes", 999, 1000, 1999, 2000, Pressure.SOURCE_PAUSED),
        ("buffered_events", 50, 49, 21, 20, Pressure.PROCESS_PAUSED),
    ]
    for name, enters, stays_out, stays_in, leaves, wanted in cases:
        assert state(Pressure.FLOWING, **{name: enters}) is wanted
        assert state(Pressure.FLOWING, **{name: stays_out}) is Pressure.FLOWING
        assert state(wanted, **{name: stays_in}) is wanted
        assert state(wanted, **{name: leaves}) is Pressure.FLOWING


def test_the_gravest_state_wins_and_says_why() -> None:
    """Retention before the source, the source before the process."""
    everything = Measures(uncommitted_records=500, buffered_events=500, threatened=(3, 1))
    found, reason = next_pressure(Pressure.FLOWING, everything, LIMITS)
    assert found is Pressure.RECOVERY_BLOCKED
    assert "3, 1" in reason
    assert state(Pressure.FLOWING, uncommitted_records=500, buffered_events=500) is Pressure.SOURCE_PAUSED


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=8).flatmap(
        lambda marks: st.tuples(st.just(marks), st.sets(st.integers(0, len(marks) - 1), min_size=1))
    ),
    st.integers(0, 10),
)
def test_the_partition_that_holds_the_minimum_is_always_read(case: tuple[list[int], set[int]], width: int) -> None:
    """Of those able to deliver; more with each look that found nothing, and in the end all of them."""
    watermarks, able = case
    read = read_while_paused(watermarks, able, width)
    least = min(able, key=lambda partition: (watermarks[partition], partition))
    assert least in read
    assert read <= able
    assert len(read) == min(len(able), max(1, width))


def test_retention_threatens_what_it_has_passed_or_passes_by_the_next_look() -> None:
    """A low that stands still threatens nothing; one that has passed does; one that moves is judged by its pace."""
    before = Retention({0: 0, 1: 0, 2: 50, 3: 100})
    needed = {0: 0, 1: 10, 2: 60, 3: 99}
    assert before.threatened({0: 0, 1: 0, 2: 50, 3: 100}, needed) == (3,)
    assert before.threatened({0: 0, 1: 6, 2: 54, 3: 99}, needed) == (1,)
    assert Retention().threatened({0: 5}, {0: 5}) == ()
    assert Retention().threatened({0: 6}, {0: 5}) == (0,)
