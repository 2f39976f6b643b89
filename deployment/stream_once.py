"""One stream worker for one run: what `finaz stream-worker` does.

What must stay true: flow and topic that are given must be the run's, or nothing is claimed; the emit is written beside its
place and renamed, after an orderly end only, and says what was committed; SIGTERM and SIGINT hand the run back.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deployment.collecting import rare_collections
from deployment.settings import Settings
from deployment.stream_wiring import stream_worker
from domain.canonical import canonical, parse
from domain.errors import InfrastructureError, InputError
from domain.market.flow import flow_address, parse_flow
from domain.market.pipeline import warm_up
from services.stream_export import StreamExport
from services.stream_parts import StreamEnd, StreamSettings
from services.stream_worker import StreamWorker


def work_stream(
    settings: Settings, how: StreamSettings, run_id: str, topic: str, group: str, flow: Path, emit: Path | None
) -> dict[str, Any]:
    """Work on the run to where it ends or is handed back; a summary as plain data, and the emit if one is wanted.

    Raises what `StreamWorker.run` raises, and `InputError` for a flow or topic that is not the run's, or an emit into no folder.
    """
    if emit is not None and not emit.absolute().parent.is_dir():  # told before hours of work, not behind them
        raise InputError("there is no such folder", at="--emit", expected="a file in a folder that is there")
    wanted = flow_address(parse_flow(parse(flow.read_bytes())))
    with stopping() as stop, stream_worker(settings, how, group) as worker:
        _check(worker, run_id, topic, wanted)
        warm_up()  # before the claim: a successor's first commit must not wait for compilers
        with rare_collections():
            outcome = worker.run(run_id, stop)
        head, export = worker.look(run_id), StreamExport(worker.log, worker.blobs)
        summary: dict[str, Any] = {
            "run_id": run_id,
            "end": outcome.end.value,
            "state": outcome.state.value,
            "fence_token": outcome.token,
            "values_hash": {result.output: result.values_hash for result in head.run.results},
            **export.progress(head),
        }
        # A stand-by that was stopped has nothing of its own to export.
        if emit is not None and (outcome.token or outcome.end is StreamEnd.FINISHED):
            document = export.document(head, outcome.token)
            if document is not None:
                write_emit(emit, document)
                summary["verdict"] = document["verdict"]
    return summary


def _check(worker: StreamWorker, run_id: str, topic: str, flow: str) -> None:
    spec = worker.look(run_id).run.spec
    assert spec is not None
    if spec.topic != topic:
        raise InputError(f"the run reads another topic than {topic!r}", at="--topic", expected=spec.topic)
    if spec.flow != flow:
        raise InputError(f"the run computes another flow than {flow}", at="--flow", expected=spec.flow)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, for the length of the block."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_emit(path: Path, document: dict[str, Any]) -> None:
    """The document as canonical JSON, whole or not at all. Raises `InfrastructureError`."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(canonical(document) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise InfrastructureError(f"the emit cannot be written: {error}", at=str(path)) from error
