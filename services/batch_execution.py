"""What a run of the batch worker computes: a flow over a snapshot, through the pipeline of `domain.market`, or a replay of it.

What must stay true: everything is read from CAS by address and verified; chunks are checked once, when they are read, and kept
parsed within `cache_bytes_max`; a snapshot beyond `inline_rows_max` is never in memory as a whole, its chunks are read one at a
time by the thread that computes. Equal work gives equal bytes. Nothing is written here.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from domain.instants import to_micros
from domain.market.chunks import Rows, read_chunk
from domain.market.feature_batch import FORMAT
from domain.market.flow import FlowSpec, IntervalClock
from domain.market.pipeline import FlowPlan, execute_rows, warm_up
from domain.market.snapshot import ChunkRef, Manifest
from domain.runs.messages import Mode, RunSpec
from services.batch_parts import Border, Computed, Output, Prepared, Tick
from services.bounded_cache import BoundedCache
from services.catalogue import Catalogue
from services.ports import BlobStore
from services.replay_execution import WORK_PER_RECORD, ReplayInputs
from services.schedules import load_schedule

ROW_BYTES: Final = 250
"""What a parsed row takes besides its values: two strings, three numbers, the lists' places; measured, rounded up."""


class FlowComputation:
    """The `Computation` of BATCH and REPLAY runs. Used from one event loop."""

    def __init__(self, blobs: BlobStore, cache_bytes_max: int, inline_rows_max: int) -> None:
        self._blobs = blobs
        self._inline_rows_max = inline_rows_max
        self._catalogue = Catalogue(blobs)
        self._chunks = BoundedCache[Rows](cache_bytes_max)

    async def warm_up(self) -> None:
        """Compile the kernels, or load them."""
        await asyncio.to_thread(warm_up)

    async def rows(self, spec: RunSpec) -> int:
        """How much work the run is: records of its snapshot (of a replay, a multiple), or the ticks that a clock may make, if more.

        Raises as `Catalogue.manifest` and `Catalogue.flow`.
        """
        manifest = await self._catalogue.manifest(spec.snapshot)
        weight = WORK_PER_RECORD if spec.mode is Mode.REPLAY else 1
        return max(manifest.rows * weight, cells_max((await self._catalogue.flow(spec.flow)).spec, manifest))

    async def prepare(self, spec: RunSpec, tick: Tick) -> Prepared:
        """Load flow and manifest, and the chunks of a small snapshot."""
        flow = await self._catalogue.flow(spec.flow)
        manifest = await self._catalogue.manifest(spec.snapshot)
        tick()
        parts: list[Rows] | None = None
        if manifest.rows <= self._inline_rows_max:
            parts = []
            for ref in manifest.chunks:
                held = self._chunks.held(ref.address)
                parts.append(await asyncio.to_thread(self._read, ref, manifest) if held is None else held)
                tick()
        as_of = to_micros(spec.as_of)
        if spec.mode is not Mode.REPLAY:
            return FlowInputs(self, flow.plan, manifest, as_of, parts)
        schedule = await asyncio.to_thread(load_schedule, self._blobs, spec.schedule)
        tick()
        read = partial(self.read, manifest) if parts is None else partial(iter, parts)
        return ReplayInputs(flow.plan, spec.snapshot, manifest, as_of, schedule, read)

    def read(self, manifest: Manifest) -> Iterator[Rows]:
        """The chunks one after another, for a thread. Raises `BlobMissingError`, `BlobCorruptError`, `SnapshotInvalidError`, …"""
        for ref in manifest.chunks:
            yield self._chunks.held(ref.address) or self._read(ref, manifest)

    def _read(self, ref: ChunkRef, manifest: Manifest) -> Rows:
        rows = read_chunk(self._blobs.get(ref.address), ref, manifest)
        self._chunks.put(ref.address, rows, ref.rows * (ROW_BYTES + 8 * len(manifest.columns)))
        return rows


def cells_max(flow: FlowSpec, manifest: Manifest) -> int:
    """The most ticks that the flow's interval clock can make over the snapshot; 0 for another clock."""
    if not isinstance(flow.clock, IntervalClock) or not manifest.chunks:
        return 0
    span = manifest.chunks[-1].last_event_time - manifest.chunks[0].first_event_time
    return len(flow.instruments) * (span // (flow.clock.length_seconds * 1_000_000) + 2)


class FlowInputs:
    """A flow and what it is computed over. `parts` None: they are read when they are needed."""

    def __init__(
        self,
        computation: FlowComputation,
        plan: FlowPlan,
        manifest: Manifest,
        as_of: int,
        parts: Sequence[Rows] | None,
    ) -> None:
        self._computation = computation
        self._plan = plan
        self._manifest = manifest
        self._as_of = as_of
        self._parts = parts

    def compute(self, border: Border, tick: Tick) -> Computed:
        """Clock and nodes. A border stands between the two; chunks and instruments done are progress."""

        def passed(stage: str) -> None:
            if stage == "clock":
                border("ops")
            else:
                tick()

        parts = self._computation.read(self._manifest) if self._parts is None else self._parts
        batch = execute_rows(self._plan, self._manifest, parts, self._as_of, passed)
        outputs = tuple(
            Output(
                name=output.name,
                values_hash=batch.values_hash(output.name, tick),
                rows=batch.rows(output.name),
                schema=FORMAT,
            )
            for output in self._plan.flow.outputs
        )
        return Computed(artifact=batch.encode(tick), outputs=outputs)
