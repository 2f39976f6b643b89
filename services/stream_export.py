"""What a stream run has committed, exported: the emit, with the verdict on a run that has ended.

What must stay true: everything in it is read from the log and CAS, as committed; a run that goes on has no verdict yet. Nothing
is written.
"""

from typing import Any

from services.checkpoints import Checkpoints
from services.ports import BlobStore
from services.run_appends import Head
from services.stream_claim import plan_of
from services.stream_parts import StreamOutcome
from services.stream_results import emit_document, final_batch, stored_flow


def exported(checkpoints: Checkpoints, blobs: BlobStore, head: Head, outcome: StreamOutcome) -> dict[str, Any] | None:
    """The emit of the run as of its last commit; None if nothing was committed. Raises what restoring raises."""
    spec = head.run.spec
    assert spec is not None
    partitions = checkpoints.standing(head.run_id).journal.partitions
    manifest = checkpoints.restore(head.run_id, plan_of(spec, partitions)).manifest
    if manifest is None:
        return None
    flow = stored_flow(blobs, spec.flow)
    batch = final_batch(flow, checkpoints, manifest, None)
    return emit_document(head.run_id, batch, manifest, outcome.token or head.run.token, None)
