"""What a stream run publishes and exports: the FeatureBatch of all committed ticks, references to its outputs, and the emit.

What must stay true: the batch is made of committed ticks and those of the last cut alone; an emit says what was committed, nothing
else. Only the artifact is written here, and nothing names it before the append that publishes.
"""

from collections.abc import Mapping
from typing import Any, Final

from domain.canonical import canonical, parse
from domain.checkpoints.manifest import Manifest
from domain.market.feature_batch import FORMAT, FeatureBatch, Progress
from domain.market.flow import FlowSpec, parse_flow
from domain.market.lanes import LaneValues
from domain.runs.messages import ResultRef, RunSpec
from domain.stream.collected import batch_of
from domain.stream.progress import Cut
from services import effects
from services.checkpoints import Checkpoints
from services.code_version import code_version
from services.ports import BlobStore

EMIT_FORMAT: Final = "FINAZ_STREAM_EMIT_V1"

READ_FORMAT: Final = "FINAZ_STREAM_READ_V1"
"""Of the document that a stream's result has as its last input: what was read of the topic, and what became of it."""


def stored_flow(blobs: BlobStore, address: str) -> FlowSpec:
    """The flow at an address. Raises `BlobMissingError`, `BlobCorruptError`, and what a flow may be refused for."""
    return parse_flow(parse(blobs.get(address)))


def final_batch(flow: FlowSpec, checkpoints: Checkpoints, manifest: Manifest | None, cut: Cut | None) -> FeatureBatch:
    """The ticks of everything committed up to the manifest, and behind them those of a cut that is not committed yet."""
    parts: dict[str, list[LaneValues]] = {}
    if manifest is not None:
        parts = {instrument: [ticks] for instrument, ticks in checkpoints.ticks(manifest).items()}
    for instrument, released in {} if cut is None else cut.ticks.items():
        parts.setdefault(instrument, []).extend(released)
    return batch_of(flow, parts)


def read_document(topic: str, start_offsets: Mapping[str, int], cut: Cut) -> dict[str, Any]:
    """What was read of the topic, from where to where, and what became of it: an input like a snapshot, by its address."""
    return {
        "format": READ_FORMAT,
        "next_offsets": {str(partition): offset for partition, offset in sorted(cut.next_offsets.items())},
        "start_offsets": dict(start_offsets),
        "topic": topic,
        "treatments": dict(cut.counts),
    }


def stored_results(
    blobs: BlobStore, batch: FeatureBatch, spec: RunSpec, read: Mapping[str, Any], tick: Progress
) -> tuple[ResultRef, ...]:
    """Store the artifact and what was read; the references to the outputs. `tick` is called as it gets on.

    Raises `InfrastructureError`.
    """
    artifact = effects.store_blob(blobs, batch.encode(tick))
    inputs = ((spec.snapshot,) if spec.snapshot else ()) + (effects.store_blob(blobs, canonical(read)),)
    return tuple(
        ResultRef(
            output=output.name,
            artifact=artifact,
            values_hash=batch.values_hash(output.name, tick),
            rows=batch.rows(output.name),
            schema=FORMAT,
            flow=spec.flow,
            inputs=inputs,
            code=code_version(),
        )
        for output in batch.schema
    )


def emit_document(
    run_id: str, batch: FeatureBatch, manifest: Manifest, token: int, verdict: dict[str, Any] | None
) -> dict[str, Any]:
    """What `--emit` exports, as canonical JSON: per output its ticks, values and their hash; counts, verdict, token, offsets."""
    outputs = {}
    for output in batch.schema:
        lane = batch.lane_of(output.name)
        outputs[output.name] = {
            "event_ids": list(lane.event_ids),
            "values": batch.values(output.name),
            "values_hash": batch.values_hash(output.name),
        }
    return {
        "counts": dict(manifest.counts),
        "epoch": manifest.epoch,
        "fence_token": token,
        "format": EMIT_FORMAT,
        "manifest": manifest.manifest_hash,
        "next_offsets": dict(manifest.next_offsets),
        "outputs": outputs,
        "run_id": run_id,
        "verdict": verdict,
    }
