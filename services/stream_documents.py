"""What a STREAM run stored, made again from its checkpoints: the sink's segments hold every tick that it released.

What must stay true: only what was committed is used, through the log; equal ticks give equal bytes, so what is made is what was
published, or it is refused by its address. Nothing is written here. Blocks.
"""

from domain.canonical import canonical
from domain.checkpoints.manifest import Manifest, check_manifest, parse_checkpoint
from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import BlobMissingError
from domain.identity import checkpoint_stream
from domain.runs.messages import RunSpec
from services.checkpoints import CheckpointLog, Checkpoints
from services.ports import BlobStore
from services.stream_results import READ_FORMAT, final_batch, stored_flow


def last_manifest(log: CheckpointLog, blobs: BlobStore, run_id: str) -> Manifest:
    """The last committed cut of a run, as the log has it.

    Raises `BlobMissingError` if nothing was committed or the manifest is gone, `BlobCorruptError`, `CheckpointInvalidError`.
    """
    stream = checkpoint_stream(run_id)
    cuts = [recorded.event for recorded in log.read_streams_blocking([stream]).streams[stream]]
    committed = [event for event in cuts if isinstance(event, CheckpointCommitted)]
    if not committed:
        raise BlobMissingError("nothing was committed", at=run_id, expected="a checkpoint")
    manifest = parse_checkpoint(blobs.get(committed[-1].manifest), committed[-1].manifest)
    check_manifest(manifest, committed[-1])
    return manifest


class StreamDocuments:
    """Makes again what STREAM runs stored with their results."""

    def __init__(self, log: CheckpointLog, blobs: BlobStore) -> None:
        self._log = log
        self._blobs = blobs

    def __call__(self, run_id: str, spec: RunSpec) -> tuple[bytes, ...]:
        """The document of what was read, and the FeatureBatch. Raises as `last_manifest`, and for a lost segment or flow."""
        manifest = last_manifest(self._log, self._blobs, run_id)
        flow = stored_flow(self._blobs, spec.flow)
        batch = final_batch(flow, Checkpoints(self._log, self._blobs), manifest, None)
        read = {
            "format": READ_FORMAT,
            "next_offsets": dict(manifest.next_offsets),
            "start_offsets": dict(manifest.start_offsets),
            "topic": spec.topic,
            "treatments": dict(manifest.counts),
        }
        return canonical(read), batch.encode()
