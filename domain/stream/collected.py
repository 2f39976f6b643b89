"""What a stream released, part by part, as one FeatureBatch: the same bytes that a batch over the same ticks has.

What must stay true: the parts of an instrument follow each other in clock order, as a core drained them. Pure.
"""

from collections.abc import Mapping, Sequence

from domain.market.feature_batch import FeatureBatch, make_feature_batch
from domain.market.flow import FlowSpec
from domain.market.lanes import LaneValues, joined, lanes_of
from domain.stream.worker_core import StreamCore


class Collected:
    """The ticks of a core as they are released. `take` after each few records."""

    def __init__(self) -> None:
        self.rows = 0
        self._parts: dict[str, list[LaneValues]] = {}

    def take(self, core: StreamCore) -> None:
        """Drain the core."""
        for instrument, parts in core.drain().items():
            self._parts.setdefault(instrument, []).extend(parts)
            self.rows += sum(map(len, parts))

    def batch(self, flow: FlowSpec) -> FeatureBatch:
        """All of it, as the flow's FeatureBatch."""
        return batch_of(flow, self._parts)


def batch_of(flow: FlowSpec, released: Mapping[str, Sequence[LaneValues]]) -> FeatureBatch:
    """The FeatureBatch of a flow from what was released of each instrument; an instrument that isn't there has no ticks."""
    return make_feature_batch(flow, [joined(plan, released.get(plan.instrument, ())) for plan in lanes_of(flow)])
