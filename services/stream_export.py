"""What a stream run has committed, exported: the emit, with the verdict on a run that has ended.

What must stay true: everything in it is read from the log and CAS, as committed; a run that goes on has no verdict yet. The
verdict is over what the run recorded as accepted; `services.stream_parity` looks into the topic besides. Nothing is written.
"""

from typing import Any

import msgspec

from domain.checkpoints.manifest import Manifest
from domain.identity import journal_stream
from domain.instants import to_micros
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec
from domain.runs.aggregate import RunState
from domain.stream.verdict import Verdict, verdict
from services.checkpoints import CheckpointLog, Checkpoints
from services.ports import BlobStore
from services.run_appends import Head
from services.stream_claim import plan_of
from services.stream_parity import late_identities, source_events
from services.stream_results import emit_document, final_batch, stored_flow


class StreamExport:
    """Exports runs. Blocking."""

    def __init__(self, log: CheckpointLog, blobs: BlobStore) -> None:
        self._log = log
        self._blobs = blobs
        self._checkpoints = Checkpoints(log, blobs)

    def progress(self, head: Head) -> dict[str, Any]:
        """How far the run has been committed: counts and offsets, without a look at its values. Empty before the first commit."""
        manifest = self._manifest(head)
        if manifest is None:
            return {}
        return {"counts": dict(manifest.counts), "next_offsets": dict(manifest.next_offsets)}

    def document(self, head: Head, token: int = 0) -> dict[str, Any] | None:
        """The emit of the run as of its last commit; None if nothing was committed. Raises what restoring raises.

        `token` is the exporting owner's; without one it is the last owner's.
        """
        manifest, spec = self._manifest(head), head.run.spec
        if manifest is None or spec is None:
            return None
        flow = stored_flow(self._blobs, spec.flow)
        batch = final_batch(flow, self._checkpoints, manifest, None)
        judged = self._judged(head, flow, manifest, batch) if head.run.state is RunState.SUCCEEDED else None
        return emit_document(
            head.run_id,
            batch,
            manifest,
            token or head.run.token,
            None if judged is None else msgspec.to_builtins(judged),
        )

    def _manifest(self, head: Head) -> Manifest | None:
        assert head.run.spec is not None
        partitions = self._checkpoints.standing(head.run_id).journal.partitions
        return self._checkpoints.restore(head.run_id, plan_of(head.run.spec, partitions)).manifest

    def _judged(self, head: Head, flow: FlowSpec, manifest: Manifest, batch: FeatureBatch) -> Verdict:
        spec = head.run.spec
        assert spec is not None
        stream = journal_stream(head.run_id)
        journal = self._log.read_streams_blocking([stream]).streams[stream]
        source = None
        if spec.snapshot:
            source = source_events(self._blobs, spec.snapshot, to_micros(spec.as_of), flow)
        return verdict(flow, self._checkpoints.accepted(manifest), batch, source, late_identities(journal))
