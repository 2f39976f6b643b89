"""Backpressure: when a stream worker stops asking its source for more, and when it must say that no recovery can be promised.

Four states. SOURCE_PAUSED: what was received and not committed, or the disk that a commit needs, is beyond a threshold.
PROCESS_PAUSED: too many accepted events wait for their watermark. RECOVERY_BLOCKED: the broker's retention has removed, or by
its pace is about to remove, offsets that the last checkpoint needs. FLOWING: none of these. The broker's own lag is never a
reason: a pause only grows it.

What must stay true: each threshold has a `high` at which a state is entered and a `low` at which it is left, so that it does
not flap; in PROCESS_PAUSED some partition that can still deliver is always read, the one that holds the minimum watermark
first: only progress empties the buffer. Pure: measures in, state and reason out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from domain.stream.messages import Pressure


class Threshold(msgspec.Struct, frozen=True):
    """Entered at `high` and above, left at `low` and below."""

    high: int
    low: int

    def holds(self, value: int, *, entered: bool) -> bool:
        """Whether the threshold is passed, given that it was (`entered`) or was not."""
        return value > self.low if entered else value >= self.high


class PressureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds. `disk_free_bytes` reads the other way round: entered below `low`, left above `high`."""

    uncommitted_records: Threshold = Threshold(500_000, 0)
    uncommitted_bytes: Threshold = Threshold(256 * 1024 * 1024, 0)
    buffered_events: Threshold = Threshold(1_000_000, 500_000)
    disk_free_bytes: Threshold = Threshold(512 * 1024 * 1024, 256 * 1024 * 1024)


BUFFERED_EVENTS_MAX: Final = 4
"""How many times the upper threshold of `buffered_events` a worker may hold; more ends the run: its watermarks don't move."""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker measured. `threatened` are partitions whose offsets, needed by the last checkpoint, go or have gone."""

    uncommitted_records: int = 0
    uncommitted_bytes: int = 0
    buffered_events: int = 0
    disk_free_bytes: int = 2**62
    threatened: tuple[int, ...] = ()


def next_pressure(before: Pressure, measures: Measures, limits: PressureLimits) -> tuple[Pressure, str]:
    """The state after these measures, and why; the reason of FLOWING is empty."""
    if measures.threatened:
        partitions = ", ".join(map(str, measures.threatened))
        return Pressure.RECOVERY_BLOCKED, f"retention reaches what the last checkpoint needs of partitions {partitions}"
    paused = before is Pressure.SOURCE_PAUSED
    for name in ("uncommitted_records", "uncommitted_bytes"):
        threshold: Threshold = getattr(limits, name)
        value: int = getattr(measures, name)
        if threshold.holds(value, entered=paused):
            return Pressure.SOURCE_PAUSED, f"{name.replace('_', ' ')}: {value}, from {threshold.high} on"
    disk = limits.disk_free_bytes
    if measures.disk_free_bytes < (disk.high if paused else disk.low):
        return Pressure.SOURCE_PAUSED, f"{measures.disk_free_bytes} bytes are free on the disk, below {disk.low}"
    held = limits.buffered_events
    if held.holds(measures.buffered_events, entered=before is Pressure.PROCESS_PAUSED):
        return (
            Pressure.PROCESS_PAUSED,
            f"{measures.buffered_events} events wait for their watermark, from {held.high} on",
        )
    return Pressure.FLOWING, ""


def read_while_paused(watermarks: Sequence[int], able: Iterable[int], width: int) -> frozenset[int]:
    """The partitions to read in PROCESS_PAUSED: the `width` lowest of those `able` to deliver, by watermark, then number.

    `width` is 1, and one more for every look at which these had nothing: so what empties the buffer is always reached.
    """
    ordered = sorted(able, key=lambda partition: (watermarks[partition], partition))
    return frozenset(ordered[: max(1, width)])


class Retention(msgspec.Struct, frozen=True):
    """How far retention had come in each partition at the last look."""

    lows: Mapping[int, int] = {}

    def threatened(self, lows: Mapping[int, int], needed: Mapping[int, int]) -> tuple[int, ...]:
        """Partitions in which an offset that is needed has gone, or goes by the next look at the pace since the last one."""
        found = []
        for partition, offset in needed.items():
            low = lows.get(partition, 0)
            pace = low - self.lows.get(partition, low)
            if low > offset or (pace > 0 and low + pace > offset):
                found.append(partition)
        return tuple(sorted(found))
