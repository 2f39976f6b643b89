"""What batch runs compute: the pipeline's bytes, from chunks that are read once and within bounds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, canonical
from domain.errors import BlobCorruptError, BlobMissingError
from domain.instants import format_instant, from_micros, parse_instant, to_micros
from domain.market import feature_batch
from domain.market.feature_batch import FeatureBatch, OutputSchema, parse_feature_batch, schema_body
from domain.market.flow import flow_body, parse_flow
from domain.market.lanes import LaneValues
from domain.market.pipeline import execute, execute_events
from domain.market.records import MarketEvent
from domain.market.snapshot import build_snapshot, parse_manifest
from domain.runs.messages import Mode, RunSpec
from services.batch_execution import FlowComputation, cells_max
from services.batch_parts import Computed
from services.cas import DirectoryBlobStore
from tests.support.fixture_market import AS_OF, GOLDEN, START, flow, store_snapshot

NAME_CHARACTERS = st.characters(exclude_categories=["Cc", "Cs"])
"""What names may hold: no control characters, no lone surrogates."""


class CountingStore(DirectoryBlobStore):
    """Counts what is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: list[str] = []

    def get(self, name: str) -> bytes:
        self.reads.append(name)
        return super().get(name)


@pytest.fixture
def blobs(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "cas")


def spec(blobs: DirectoryBlobStore, snapshot: str, instrument: str = "fixture.fx-0") -> RunSpec:
    stored = blobs.put(canonical(flow_body(parse_flow(flow(instrument)))))
    return RunSpec(
        mode=Mode.BATCH,
        flow=stored,
        flow_name="01_A_feature",
        snapshot=snapshot,
        as_of=parse_instant(AS_OF),
        deadline_seconds=60,
    )


async def computed(computation: FlowComputation, wanted: RunSpec, stages: list[str] | None = None) -> Computed:
    prepared = await computation.prepare(wanted, lambda: None)
    return prepared.compute((stages if stages is not None else []).append, lambda: None)


@pytest.mark.parametrize("inline_rows_max", [0, 10**6])
async def test_it_computes_what_the_pipeline_computes(blobs: CountingStore, inline_rows_max: int) -> None:
    """The same bytes, whether chunks are in memory before or read one at a time; one border, between clock and ops."""
    snapshot = store_snapshot(blobs, rows=300, chunk_events=64)
    wanted = spec(blobs, snapshot)
    stages: list[str] = []
    result = await computed(FlowComputation(blobs, 10**7, inline_rows_max), wanted, stages)
    manifest = parse_manifest(blobs.get(snapshot))
    chunks = [blobs.get(chunk.address) for chunk in manifest.chunks]
    batch = execute(parse_flow(flow()), manifest, chunks, to_micros(wanted.as_of))
    assert result.artifact == batch.encode()
    (output,) = result.outputs
    assert (output.name, output.rows, output.schema) == ("ema", 300, "FEATURE_BATCH_V1")
    assert output.values_hash == batch.values_hash("ema") == address_of(batch.values("ema"))
    assert stages == ["ops"]


async def test_the_golden(blobs: CountingStore) -> None:
    """Closes 1..6 at length 3."""
    result = await computed(FlowComputation(blobs, 10**7, 10**6), spec(blobs, store_snapshot(blobs)))
    assert result.outputs[0].values_hash == GOLDEN


async def test_what_is_under_an_address_is_read_once(blobs: CountingStore) -> None:
    """Flows, manifests and chunks; within the bounds of the cache, whose end is reached too."""
    snapshot = store_snapshot(blobs, rows=30, chunk_events=10)
    wanted = [spec(blobs, snapshot, f"fixture.fx-{n}") for n in (0, 1, 0, 2, 1)]
    computation = FlowComputation(blobs, 10**7, 10**6)
    for one in wanted:
        await computed(computation, one)
    assert len(blobs.reads) == len(set(blobs.reads)) == 3 + 1 + 9
    blobs.reads.clear()
    small = FlowComputation(blobs, 4000, 10**6)
    for one in wanted:
        await computed(small, one)
    assert len(blobs.reads) > 3 + 1 + 9
    assert small._chunks.bytes_held <= 4000


async def test_a_large_snapshot_is_read_chunk_by_chunk(blobs: CountingStore) -> None:
    """Preparing reads no chunk; computing reads each when it is its turn, and ticks after each, the lane, and what is encoded."""
    wanted = spec(blobs, store_snapshot(blobs, rows=30, chunk_events=10))
    computation = FlowComputation(blobs, 0, 0)
    prepared = await computation.prepare(wanted, lambda: None)
    before, seen = len(blobs.reads), []
    prepared.compute(lambda stage: None, lambda: seen.append(len(blobs.reads) - before))
    assert seen == [*range(1, 10), 9, 9, 9]


@pytest.mark.parametrize("how", ["missing", "rotten"])
async def test_a_bad_chunk_is_a_typed_error(blobs: CountingStore, how: str) -> None:
    """Found when it is read, with its address, in memory or not."""
    snapshot = store_snapshot(blobs)
    wanted, chunk = spec(blobs, snapshot), parse_manifest(blobs.get(snapshot)).chunks[0].address
    (path,) = blobs._folder.rglob(chunk.removeprefix("sha256:"))
    path.unlink() if how == "missing" else path.write_bytes(b"{}")
    for inline_rows_max in (0, 10**6):
        with pytest.raises(BlobMissingError if how == "missing" else BlobCorruptError) as caught:
            await computed(FlowComputation(blobs, 10**7, inline_rows_max), wanted)
        assert caught.value.at == chunk


@given(
    st.lists(st.tuples(st.text(NAME_CHARACTERS, min_size=1, max_size=5), st.floats()), max_size=20),
    st.sampled_from(["ema", 'a "name"', "é\\n"]),
)
def test_small_and_large_batches_are_written_alike(ticks: list[tuple[str, float]], output: str) -> None:
    """Row by row or by column: the bytes are those of canonical JSON, and what is read back is the batch."""
    times = np.arange(len(ticks), dtype=np.int64) * 1_500_000 + START
    values = np.array([value if value - value == 0.0 else np.nan for _, value in ticks], dtype=np.float64)
    lane = LaneValues("fx", times, [text for text, _ in ticks], {output: values})
    batch = FeatureBatch(address_of("flow"), (OutputSchema(output, "fx"),), (lane,))
    written, bound = [], feature_batch.SMALL_ROWS_MAX
    for limit in (-1, 10**9):
        feature_batch.SMALL_ROWS_MAX = limit  # type: ignore[misc]
        try:
            written.append((batch.encode(), batch.values_hash(output)))
        finally:
            feature_batch.SMALL_ROWS_MAX = bound  # type: ignore[misc]
    document = {
        "flow": batch.flow,
        "schema": schema_body(batch.schema),
        "ticks": [
            {"event_id": text, "event_time": format_instant(from_micros(int(time))), "values": {output: value}}
            for (text, _), time, value in zip(ticks, times, batch.values(output), strict=True)
        ],
    }
    assert written == [(canonical(document), address_of(batch.values(output)))] * 2
    assert parse_feature_batch(written[0][0]).values(output) == batch.values(output)


def test_a_sparse_snapshot_under_a_fine_interval_clock_counts_by_its_cells() -> None:
    """A small file can make millions of ticks: such a run is for a thread, not for the loop that keeps the others' leases."""
    events = [
        MarketEvent(
            event_id=f"e{n}",
            instrument="i",
            event_time=n * 86_400_000_000,
            available_at=0,
            revision=0,
            values={"close": 1.0},
        )
        for n in range(11)
    ]
    manifest, _ = build_snapshot(events, name="sparse")
    node = {"id": "n", "op": "ema", "inputs": [{"column": "close"}], "parameters": {"length": 2}}
    body = {
        "version": 1,
        "name": "fine",
        "source": {"instruments": ["i"]},
        "clock": {"kind": "interval", "length_seconds": 1, "empty_cells_max": 1_000_000},
        "nodes": [node],
        "outputs": [{"name": "o", "node": "n"}],
    }
    ticks = len(execute_events(parse_flow(body), events).lanes[0])
    assert ticks == 864_001
    assert ticks <= cells_max(parse_flow(body), manifest) <= ticks + 1
    assert cells_max(parse_flow(body | {"clock": {"kind": "event"}}), manifest) == 0
