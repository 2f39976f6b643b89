"""Parity of two FeatureBatches: equal, or where they part.

What must stay true: equal means equal to the bit, tick by tick and hash by hash; a difference is named by its first tick in clock
order, and by what is missing, extra or mismatched, never by one boolean. Samples are bounded; counts are not. Pure.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from domain.instants import format_micros
from domain.market.feature_batch import FeatureBatch
from domain.market.lanes import LaneValues

SAMPLES_MAX: Final = 20
"""Ticks of each kind that a report shows; it counts all of them."""


class DifferenceKind(Enum):
    """How a tick of one batch stands to the other."""

    MISSING = "missing"
    """The reference has it, the other has not."""
    EXTRA = "extra"
    """The other has it, the reference has not."""
    MISMATCHED = "mismatched"
    """Both have it, with different values."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One tick that differs. Values are None for null; both are None where a side has no such tick, as `kind` says."""

    kind: DifferenceKind
    event_time: str
    event_id: str
    reference: float | None = None
    other: float | None = None


class OutputParity(msgspec.Struct, frozen=True, kw_only=True):
    """One output compared. `first` is the first tick in clock order that differs; `samples` the first of each kind."""

    output: str
    equal: bool
    reference_values_hash: str
    other_values_hash: str
    reference_rows: int
    other_rows: int
    missing: int
    extra: int
    mismatched: int
    first: Difference | None
    samples: tuple[Difference, ...]


def compared(
    reference: FeatureBatch, other: FeatureBatch, outputs: Sequence[str] | None = None
) -> tuple[OutputParity, ...]:
    """These outputs, or every one of the reference, in its order. Raises `NotFoundError` for one that the other lacks."""
    names = [described.name for described in reference.schema] if outputs is None else outputs
    return tuple(_compared(reference, other, name) for name in names)


def _compared(reference: FeatureBatch, other: FeatureBatch, output: str) -> OutputParity:
    left, right = reference.lane_of(output), other.lane_of(output)
    counts = dict.fromkeys(DifferenceKind, 0)
    samples: dict[DifferenceKind, list[Difference]] = {kind: [] for kind in DifferenceKind}
    first: Difference | None = None
    for difference in _differences(left, right, output):
        first = first or difference
        counts[difference.kind] += 1
        if len(samples[difference.kind]) < SAMPLES_MAX:
            samples[difference.kind].append(difference)
    return OutputParity(
        output=output,
        equal=first is None,
        reference_values_hash=reference.values_hash(output),
        other_values_hash=other.values_hash(output),
        reference_rows=len(left),
        other_rows=len(right),
        missing=counts[DifferenceKind.MISSING],
        extra=counts[DifferenceKind.EXTRA],
        mismatched=counts[DifferenceKind.MISMATCHED],
        first=first,
        samples=tuple(difference for found in samples.values() for difference in found),
    )


def _differences(left: LaneValues, right: LaneValues, output: str) -> Iterator[Difference]:
    """The ticks that differ, in clock order: both sides stand in it, so one walk over the two finds them."""
    if _same(left, right, output):
        return
    ours, theirs = _ticks(left, output), _ticks(right, output)
    one, two = next(ours, None), next(theirs, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one[0] < two[0]):
            assert one is not None
            yield _difference(DifferenceKind.MISSING, one[0], reference=one[1])
            one = next(ours, None)
        elif one is None or two[0] < one[0]:
            yield _difference(DifferenceKind.EXTRA, two[0], other=two[1])
            two = next(theirs, None)
        else:
            if repr(one[1]) != repr(two[1]):  # to the bit: 0.0 and -0.0 differ, null equals null
                yield _difference(DifferenceKind.MISMATCHED, one[0], reference=one[1], other=two[1])
            one, two = next(ours, None), next(theirs, None)


def _same(left: LaneValues, right: LaneValues, output: str) -> bool:
    """Whether the two are plainly equal; where they are, nothing needs to be walked."""
    return (
        len(left) == len(right)
        and bool((left.event_times == right.event_times).all())
        and left.event_ids == right.event_ids
        and left.outputs[output].tobytes() == right.outputs[output].tobytes()
    )


def _ticks(lane: LaneValues, output: str) -> Iterator[tuple[tuple[int, bytes], float | None]]:
    """The output's values, each with its tick's place in clock order."""
    for time, event_id, value in zip(
        lane.event_times.tolist(), lane.event_ids, lane.outputs[output].tolist(), strict=True
    ):
        yield (time, event_id.encode("utf-8")), None if value != value else value


def _difference(
    kind: DifferenceKind, place: tuple[int, bytes], reference: float | None = None, other: float | None = None
) -> Difference:
    return Difference(
        kind=kind,
        event_time=format_micros(place[0]),
        event_id=place[1].decode("utf-8"),
        reference=reference,
        other=other,
    )
