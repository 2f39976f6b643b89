"""Opens any PostgreSQL projection for a rebuild, and rebuilds one from beginning to end without a job around it."""

from collections.abc import Callable
from contextlib import suppress

from domain.errors import StoreUnavailableError
from projections.postgres import InlineRows
from projections.rebuilding.inline import InlineRebuild
from projections.rebuilding.postgres import CopyRebuild
from projections.rebuilding.rebuildable import Builder, Goal, Rebuildable, Rebuilt
from projections.registry import Projection
from projections.runner import Point, nowhere

OnProgress = Callable[[int, int], bool]
"""Called with (position, high-water mark) after every batch; False cancels the rebuild."""


class _CancelledError(Exception):
    """`on_progress` said so."""


class _Told:
    """A pulse that passes on to a callback."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress

    def reached(self, position: int, total: int) -> None:
        if not self._on_progress(position, total):
            raise _CancelledError

    def alive(self, quiet_seconds: float = 0.0) -> None:
        return None


def opened(dsn: str, projection: Projection, builder: Builder, point: Point = nowhere) -> Rebuildable:
    """The projection, opened for a rebuild by `builder`."""
    if isinstance(projection.rows, InlineRows):
        return InlineRebuild(dsn, projection.model, projection.rows, builder, point)
    return CopyRebuild(dsn, projection.model, projection.rows, builder, point)


def rebuild_blocking(
    dsn: str,
    projection: Projection,
    owner: str,
    on_progress: OnProgress = lambda position, mark: True,
    keep_seconds: float = 0.0,
) -> Rebuilt | None:
    """Make the rows again from position 0 and serve them. None if `on_progress` cancelled it; then the old ones are served.

    For tests and benches; operators ask for a job. Raises `RebuildRunningError` for a second rebuild of one projection,
    `ProjectionStoppedError` for an event that cannot be applied (the old rows are served on), `StoreUnavailableError`.
    """
    rebuild = opened(dsn, projection, Builder(owner, owner))
    pulse = _Told(on_progress)
    try:
        rebuild.claim()
        rebuild.drop_built()
        rebuild.drop_old(expired_only=False)
        rebuild.begin()
        try:
            rebuild.catch_up(pulse, Goal.LOG)
            rebuilt = rebuild.switch(pulse, keep_seconds)
        except _CancelledError:
            rebuild.drop_built()
            return None
        except Exception:
            rebuild.drop_built()
            raise
        if not keep_seconds:
            _drop_old(rebuild)
        return rebuilt
    finally:
        rebuild.close()


def _drop_old(rebuild: Rebuildable) -> None:
    with suppress(StoreUnavailableError):  # somebody still reads the old copy: the next rebuild drops it
        rebuild.drop_old(expired_only=False)
