"""Rebuilding a projection from the command line, with progress, and cancelled by Ctrl-C or SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import msgspec

from deployment.problems import RebuildCancelledError
from deployment.progress import Progress
from deployment.settings import load_settings
from projections.rebuilding.opening import rebuild_blocking
from projections.status import known


def rebuilt(name: str, *, quiet: bool) -> dict[str, Any]:
    """Rebuild the projection in the database of the settings; returns its name, generation and position.

    Raises `ProjectionUnknownError`, `RebuildCancelledError` and what `rebuild_blocking` raises; then the old rows are served on.
    """
    projection = known(name)
    dsn = load_settings().required_postgres_dsn()
    with _asked_to_stop() as stop, Progress("events", quiet=quiet) as progress:

        def on_progress(position: int, mark: int) -> bool:
            progress.reached(position, mark)
            return not stop.is_set()

        made = rebuild_blocking(dsn, projection, f"rebuild_{uuid4().hex}", on_progress)
        if made is None:
            raise RebuildCancelledError("the rebuild was cancelled; the old rows are served on", at=name)
    document: dict[str, Any] = msgspec.to_builtins(made)
    return document


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, in place of ending the process."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
