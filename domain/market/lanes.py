"""Lanes: the part of a flow that belongs to one instrument: its clock and, behind it, its nodes in order.

The batch fills a lane with all events at once, the stream feeds it event by event; both go through `_fold`, so they agree to the
bit. What must stay true: a lane's values are a function of its own instrument's accepted events alone, in clock order; the
state between two releases can be written out and restored, to the byte.

A node that joins instruments would be a lane over lanes, gated by the least of their watermarks; version 1 has none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from domain.market.clock import Clock, Ticks, project
from domain.market.compiled import Floats, Ints
from domain.market.errors import StateInvalidError
from domain.market.event_runs import EventRun
from domain.market.flow import ColumnInput, EventClock, FlowSpec, IntervalClock, Node, NodeInput, Output, op_of, owners
from domain.market.ops import OpState
from domain.market.records import MarketEvent


@dataclass(frozen=True)
class LanePlan:
    """What one lane computes: value columns read (sorted), nodes behind those that they read, outputs in the flow's order."""

    instrument: str
    clock: EventClock | IntervalClock
    columns: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class LaneValues:
    """Ticks of one lane with the values of its outputs (NaN is null)."""

    instrument: str
    event_times: Ints
    event_ids: list[str]
    outputs: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.event_ids)


def joined(plan: LanePlan, parts: Sequence[LaneValues]) -> LaneValues:
    """The ticks of one lane, its parts one behind the other."""
    return joined_parts(plan.instrument, [output.name for output in plan.outputs], parts)


def joined_parts(instrument: str, outputs: Sequence[str], parts: Sequence[LaneValues]) -> LaneValues:
    """The ticks of a lane with these outputs, its parts one behind the other."""
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([np.zeros(0, dtype=np.int64), *(part.event_times for part in parts)])
    columns: dict[str, Floats] = {
        name: np.concatenate([np.zeros(0, dtype=np.float64), *(part.outputs[name] for part in parts)])
        for name in outputs
    }
    return LaneValues(instrument, times, list(chain.from_iterable([part.event_ids for part in parts])), columns)


def lanes_of(flow: FlowSpec) -> tuple[LanePlan, ...]:
    """The lanes of a flow that have outputs, in the order of its instruments."""
    owner = owners(flow)
    nodes = {node.id: node for node in flow.nodes}
    plans = []
    for instrument in flow.instruments:
        mine = tuple(nodes[node_id] for node_id, owned_by in owner.items() if owned_by == instrument)
        columns = {entry.column for node in mine for entry in node.inputs if isinstance(entry, ColumnInput)}
        outputs = tuple(output for output in flow.outputs if owner[output.node] == instrument)
        if outputs:
            plans.append(LanePlan(instrument, flow.clock, tuple(sorted(columns)), mine, outputs))
    return tuple(plans)


class Lane:
    """One lane at work. Feed it accepted events and release it by watermark, or `fill` it once. Not shared between threads."""

    def __init__(self, plan: LanePlan) -> None:
        self.plan = plan
        self._clock = Clock(plan.clock, plan.instrument, plan.columns)
        self._states = {node.id: OpState(op_of(node), node.parameters) for node in plan.nodes}

    def __len__(self) -> int:
        """Events accepted and not yet released."""
        return len(self._clock)

    def has_passed(self, event_time: int, event_id: str) -> bool:
        """Whether an event of that place would come too late: at or before the last tick released."""
        return self._clock.has_passed(event_time, event_id)

    def accept(self, event: MarketEvent) -> None:
        """Take an event of this instrument, or a higher revision of one not yet released. Raises as `Clock.accept`."""
        self._clock.accept(event)

    def accept_all(self, events: Iterable[MarketEvent]) -> None:
        """As `accept`, each in turn."""
        self._clock.accept_all(events)

    def accept_run(self, run: EventRun) -> None:
        """As `accept`, each in turn; quicker where they stand in order."""
        self._clock.accept_run(run)

    def waiting(self, watermark: int) -> int:
        """How many of the accepted events the watermark does not let go."""
        return self._clock.waiting(watermark)

    def release(self, watermark: int) -> LaneValues:
        """Release the ticks that a watermark (microseconds) lets go, and compute their values."""
        return self._fold(self._clock.release(watermark))

    def finish(self) -> LaneValues:
        """Release all that is left; the input has ended."""
        return self._fold(self._clock.finish())

    def fill(self, events: Ticks) -> LaneValues:
        """All at once, for a lane that was fed nothing: events in clock order, one per `event_id`."""
        return self._fold(project(self.plan.clock, self.plan.instrument, events))

    def state_document(self) -> dict[str, Any]:
        """Clock and nodes as JSON, for a checkpoint."""
        nodes = {node_id: state.state_document() for node_id, state in self._states.items()}
        return {"clock": self._clock.state_document(), "instrument": self.plan.instrument, "nodes": nodes}

    def restore(self, document: Any) -> None:
        """Take over what `state_document` wrote for the same plan. `StateInvalidError` if it does not fit."""
        if not isinstance(document, dict) or document.get("instrument") != self.plan.instrument:
            raise StateInvalidError("the state is of another lane", at="instrument", expected=self.plan.instrument)
        nodes = document.get("nodes")
        if not isinstance(nodes, dict) or nodes.keys() != self._states.keys():
            raise StateInvalidError("the nodes are others", at="nodes", expected=", ".join(self._states))
        self._clock.restore(document.get("clock"))
        for node_id, state in self._states.items():
            state.restore(nodes[node_id])

    def _fold(self, ticks: Ticks) -> LaneValues:
        results: dict[str, Floats] = {}
        for node in self.plan.nodes:
            inputs = (
                results[entry.node] if isinstance(entry, NodeInput) else ticks.columns[entry.column]
                for entry in node.inputs
            )
            results[node.id] = self._states[node.id].fold(tuple(inputs))
        outputs = {output.name: results[output.node] for output in self.plan.outputs}
        return LaneValues(self.plan.instrument, ticks.event_times, ticks.event_ids, outputs)
