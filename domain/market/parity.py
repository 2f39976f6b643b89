"""Parity of two FeatureBatches: equal, or where they part.

What must stay true: equal means equal to the bit, tick by tick and hash by hash; a difference is named by its first tick in clock
order, and by what is missing, extra or mismatched, never by one boolean. Samples are bounded; counts are not. Pure.
"""

from enum import Enum
from typing import Final

import msgspec

from domain.instants import format_micros
from domain.market.feature_batch import FeatureBatch

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


def compared(reference: FeatureBatch, other: FeatureBatch) -> tuple[OutputParity, ...]:
    """Every output that both have, in the reference's order. Raises `NotFoundError` for one that the other lacks."""
    return tuple(_compared(reference, other, described.name) for described in reference.schema)


def _compared(reference: FeatureBatch, other: FeatureBatch, output: str) -> OutputParity:
    left, right = _ticks(reference, output), _ticks(other, output)
    differences = [
        difference for place in sorted({*left, *right}) if (difference := _at(place, left, right)) is not None
    ]
    counts = {kind: sum(difference.kind is kind for difference in differences) for kind in DifferenceKind}
    samples: list[Difference] = []
    for kind in DifferenceKind:
        samples += [difference for difference in differences if difference.kind is kind][:SAMPLES_MAX]
    return OutputParity(
        output=output,
        equal=not differences,
        reference_values_hash=reference.values_hash(output),
        other_values_hash=other.values_hash(output),
        reference_rows=len(left),
        other_rows=len(right),
        missing=counts[DifferenceKind.MISSING],
        extra=counts[DifferenceKind.EXTRA],
        mismatched=counts[DifferenceKind.MISMATCHED],
        first=differences[0] if differences else None,
        samples=tuple(samples),
    )


def _ticks(batch: FeatureBatch, output: str) -> dict[tuple[int, bytes], float | None]:
    """The output's values by the tick's place in clock order."""
    lane = batch.lane_of(output)
    ids = [event_id.encode("utf-8") for event_id in lane.event_ids]
    return dict(zip(zip(lane.event_times.tolist(), ids, strict=True), batch.values(output), strict=True))


def _at(
    place: tuple[int, bytes], left: dict[tuple[int, bytes], float | None], right: dict[tuple[int, bytes], float | None]
) -> Difference | None:
    if place in left and place in right:
        if repr(left[place]) == repr(right[place]):  # to the bit: 0.0 and -0.0 differ, null equals null
            return None
        kind = DifferenceKind.MISMATCHED
    else:
        kind = DifferenceKind.MISSING if place in left else DifferenceKind.EXTRA
    return Difference(
        kind=kind,
        event_time=format_micros(place[0]),
        event_id=place[1].decode("utf-8"),
        reference=left.get(place),
        other=right.get(place),
    )
