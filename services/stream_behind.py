"""Batch → stream: a stream run begins with the state that a BATCH run of its flow ended with.

What must stay true: the events are those that the batch took, read from the same snapshot as of the same instant; the ticks
that come of them are those that the batch published, or the run does not begin. Nothing is written here.
"""

from domain.errors import BlobCorruptError, RunNotFoundError
from domain.identity import run_stream
from domain.instants import to_micros
from domain.market.flow import FlowSpec
from domain.runs.aggregate import Run
from domain.stream.collected import batch_of
from domain.stream.continuation import taken_by_batch, watermark_behind
from domain.stream.progress import Cut, Progress
from services.ports import BlobStore, EventLog
from services.runs import fold_run
from services.stream_parity import source_events


def begin_behind(log: EventLog, blobs: BlobStore, run_id: str, flow: FlowSpec, progress: Progress) -> None:
    """Give the core what the batch run took. Raises `RunNotFoundError`, `BlobMissingError` and the like."""
    spec = _batch(log, run_id).spec
    assert spec is not None
    taken = taken_by_batch(flow, source_events(blobs, spec.snapshot, to_micros(spec.as_of), flow))
    watermark = watermark_behind(flow, taken)
    if watermark is not None:
        progress.continue_behind(taken, watermark)


def check_continued(log: EventLog, run_id: str, flow: FlowSpec, cut: Cut) -> None:
    """That the ticks of the cut are what the batch run published. Raises `BlobCorruptError` naming the output that is not."""
    batch = batch_of(flow, cut.ticks)
    for result in _batch(log, run_id).results:
        found = batch.values_hash(result.output)
        if found != result.values_hash:
            raise BlobCorruptError(
                f"behind the batch the output {result.output!r} has the values {found}",
                at=run_id,
                expected=result.values_hash,
            )


def _batch(log: EventLog, run_id: str) -> Run:
    run = fold_run(run_id, log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)])
    if run.spec is None or not run.results:
        raise RunNotFoundError("there is no result to go on behind", at=run_id, expected="a BATCH run that SUCCEEDED")
    return run
