"""Ticks and event times between arrays and plain lists: what the stream and its checkpoints need of arrays.

What must stay true: values pass to the bit, NaN in an array being None in a list. Pure.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from domain.market.compiled import Floats, Ints
from domain.market.lanes import LaneValues

Column = list[float | None]


def lane_of(
    instrument: str, times: Sequence[int], ids: Sequence[str], outputs: Mapping[str, Sequence[float | None]]
) -> LaneValues:
    """Ticks from lists."""
    columns = {name: np.array(column, dtype=np.float64) for name, column in outputs.items()}
    return LaneValues(instrument, np.array(times, dtype=np.int64), list(ids), columns)


def listed(values: Floats) -> Column:
    """A column as a list."""
    if not np.isnan(values).any():
        whole: Column = values.tolist()
        return whole
    return [None if value != value else value for value in values.tolist()]


def greatest_before(first: int, times: Ints) -> Ints:
    """For each of the times the greatest of `first` and those before it."""
    greatest: Ints = np.maximum.accumulate(np.concatenate(([first], times[:-1])))
    return greatest


def at_least(times: Ints, least: int) -> Ints:
    """Each of the times, raised to `least`."""
    raised: Ints = np.maximum(times, least)
    return raised
