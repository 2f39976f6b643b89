"""The pipeline of a batch run: snapshot → clock → nodes → FeatureBatch.

`execute` is a pure function of the flow, the manifest, the chunks and the as-of instant; between stages it calls `border`, where
a worker looks at cancellation, deadline and progress, and may raise to leave. What must stay true: per `event_id` the highest
revision available at or before the as-of instant takes part and no other; a chunk that is not what the manifest says, or an
unreadable value anywhere in it, ends the run (fails closed); equal work gives equal bytes.

Nothing is written here, so a crash half-way leaves nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from domain.market import ops
from domain.market.chunks import EventColumns, Rows, encode_columns, read_chunk
from domain.market.clock import Ticks
from domain.market.compiled import Ints
from domain.market.errors import InstrumentUnknownError, RunTooLargeError, SnapshotInvalidError
from domain.market.feature_batch import FeatureBatch, OutputSchema, make_feature_batch, schema_of
from domain.market.flow import FlowSpec, flow_address
from domain.market.flow_columns import check_columns
from domain.market.lanes import Lane, LanePlan, lanes_of
from domain.market.records import MarketEvent
from domain.market.snapshot import Manifest, build_snapshot
from domain.market.text_columns import texts_of

EVENTS_MAX: Final = 100_000_000
"""Events of its instruments that one batch run may hold."""

RESULT_TICKS_MAX: Final = 4_000_000
"""Ticks that the result of one batch run may have: the shortest ones of more would not fit into one artifact."""

Border = Callable[[str], None]


@dataclass(frozen=True)
class FlowPlan:
    """A flow and what follows from it alone, worked out once for all runs of it."""

    flow: FlowSpec
    address: str
    lanes: tuple[LanePlan, ...]
    schema: tuple[OutputSchema, ...]


def plan_flow(flow: FlowSpec) -> FlowPlan:
    """The plan of a flow."""
    return FlowPlan(flow, flow_address(flow), lanes_of(flow), schema_of(flow))


def no_border(stage: str) -> None:
    """The border of a run that nobody watches."""


def execute(
    flow: FlowSpec, manifest: Manifest, chunks: Iterable[bytes], as_of: int, border: Border = no_border
) -> FeatureBatch:
    """Compute a flow over a snapshot as of an instant (microseconds since the epoch).

    `chunks` gives the bytes of the manifest's chunks in its order, one at a time, so that they need not be in memory at once.
    `border` is called with the stage behind it: `snapshot` per chunk, `clock`, then `lane` per instrument.
    """
    parts = (read_chunk(data, ref, manifest) for ref, data in zip(manifest.chunks, chunks, strict=True))
    return execute_rows(plan_flow(flow), manifest, parts, as_of, border)


def execute_rows(
    plan: FlowPlan, manifest: Manifest, parts: Iterable[Rows], as_of: int, border: Border = no_border
) -> FeatureBatch:
    """As `execute`, for chunks that were read (and so checked) before; `parts` are theirs, in the manifest's order."""
    plans = plan.lanes
    check_inputs(plan, manifest)
    gathered = {lane.instrument: _Gathered(lane) for lane in plans}
    for rows in parts:
        for instrument, places in _places(rows, gathered.keys(), as_of).items():
            gathered[instrument].add(rows, places)
        border("snapshot")
    events = [gathered[lane.instrument].ticks() for lane in plans]
    border("clock")
    lanes = []
    total = 0
    for lane, ticks in zip(plans, events, strict=True):
        lanes.append(Lane(lane).fill(ticks))
        total += len(lanes[-1])
        if total > RESULT_TICKS_MAX:
            raise RunTooLargeError(
                f"more than {RESULT_TICKS_MAX} ticks", at=lane.instrument, expected=f"at most {RESULT_TICKS_MAX} in all"
            )
        border("lane")
    return FeatureBatch(plan.address, plan.schema, tuple(lanes))


def execute_events(flow: FlowSpec, events: Iterable[MarketEvent]) -> FeatureBatch:
    """Compute a flow over events at hand, in any order, the highest revision of each: what parity compares a stream with."""
    highest: dict[str, MarketEvent] = {}
    for event in events:
        held = highest.get(event.event_id)
        if held is None or event.revision > held.revision:
            highest[event.event_id] = event
    ordered = sorted(highest.values(), key=lambda event: (event.event_time, event.event_id))
    lanes = []
    for plan in lanes_of(flow):
        mine = [event for event in ordered if event.instrument == plan.instrument]
        columns = {
            column: np.array([event.values.get(column) for event in mine], dtype=np.float64) for column in plan.columns
        }
        times = np.array([event.event_time for event in mine], dtype=np.int64)
        lanes.append(Lane(plan).fill(Ticks(times, [event.event_id for event in mine], columns)))
    return make_feature_batch(flow, lanes)


def warm_up() -> None:
    """Compile all kernels, or load them from the cache, so that the first run doesn't wait for it (seconds, without a cache)."""
    ops.warm_up()
    event = MarketEvent(event_id="e", instrument="i", event_time=0, available_at=0, revision=0, values={"x": 0.1})
    manifest, (blob,) = build_snapshot([event], name="warm up")
    rows = read_chunk(blob, manifest.chunks[0], manifest)
    texts = texts_of(rows.ids)
    encode_columns(EventColumns(texts, texts, rows.event_times, rows.available_at, rows.revisions, rows.values))


class _Gathered:
    """The events of one lane, gathered chunk by chunk in snapshot order."""

    def __init__(self, plan: LanePlan) -> None:
        self._plan = plan
        self._ids: list[str] = []
        self._times: list[Ints] = []
        self._columns: dict[str, list[np.ndarray]] = {column: [] for column in plan.columns}

    def add(self, rows: Rows, places: Ints) -> None:
        self._ids += [rows.ids[place] for place in places.tolist()]
        if len(self._ids) > EVENTS_MAX:
            raise RunTooLargeError("too many events", at=self._plan.instrument, expected=f"at most {EVENTS_MAX}")
        self._times.append(rows.event_times[places])
        for column, parts in self._columns.items():
            parts.append(rows.values[column][places])

    def ticks(self) -> Ticks:
        """One event per id: the revisions of an id stand next to each other, the highest last."""
        ids = self._ids
        times = _joined(self._times, np.int64)
        columns = {column: _joined(parts, np.float64) for column, parts in self._columns.items()}
        if len(set(ids)) == len(ids):
            return Ticks(times, ids, columns)
        keep = np.ones(len(ids), dtype=bool)
        keep[:-1] = [left != right for left, right in pairwise(ids)]
        keep[:-1] |= np.diff(times) != 0
        kept = [ids[place] for place in np.flatnonzero(keep).tolist()]
        if len(set(kept)) != len(kept):
            raise SnapshotInvalidError(
                "an event_id has two times", at=self._plan.instrument, expected="one event_time per event_id"
            )
        return Ticks(times[keep], kept, {column: values[keep] for column, values in columns.items()})


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    """The parts as one array; one part as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=kind), *parts])


def _places(rows: Rows, instruments: Iterable[str], as_of: int) -> dict[str, Ints]:
    """Where in a chunk the events of each instrument stand that were available."""
    places: dict[str, list[int]] = {instrument: [] for instrument in instruments}
    for place, instrument in enumerate(rows.instruments):
        if instrument in places:
            places[instrument].append(place)
    available = rows.available_at <= as_of
    found = {}
    for instrument, standing in places.items():
        index = np.array(standing, dtype=np.int64)
        found[instrument] = index[available[index]]
    return found


def check_inputs(plan: FlowPlan, manifest: Manifest) -> None:
    """Raise `InstrumentUnknownError` or `ColumnUnknownError` for what a flow asks of a snapshot that doesn't have it.

    Admission refuses such a run; this is for those that were admitted before it did, and for snapshots executed without it.
    """
    for lane in plan.lanes:
        if lane.instrument not in manifest.instruments:
            raise InstrumentUnknownError(
                f"the snapshot {manifest.name!r} has no instrument {lane.instrument!r}",
                at="source.instruments",
                expected="one of " + ", ".join(manifest.instruments[:16]),
            )
    check_columns(plan.flow, manifest.name, manifest.columns)
