"""Computes what a run stored once more, for the reconciler: equal inputs give equal bytes, so what was lost can be made again.

Never silent: whoever calls this records that it did and why. Nothing is written here; a crash leaves nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from domain.errors import BlobMissingError
from domain.runs.messages import Mode, RunSpec
from services.batch_parts import Computation

LABEL: Final = "computed again from the run's flow and snapshot"


Remake = Callable[[str, RunSpec], tuple[bytes, ...]]


class Recomputation:
    """Blocks; used from one thread. Keeps one event loop, because a `Computation` belongs to one.

    `streams` makes again what STREAM runs stored, which are not computed from a snapshot; without it that cannot be done.
    """

    def __init__(self, computation: Computation, streams: Remake | None = None) -> None:
        self._computation = computation
        self._streams = streams
        self._loop = asyncio.Runner()

    def __call__(self, run_id: str, spec: RunSpec) -> tuple[bytes, ...]:
        """The documents that the run stored: those made on the way, and its FeatureBatch.

        Raises what computing a run raises (`BlobMissingError`, …).
        """
        if spec.mode is Mode.STREAM:
            if self._streams is None:
                raise BlobMissingError("a stream's result is not made again here", at=run_id)
            return self._streams(run_id, spec)
        return self._loop.run(self._compute(spec))

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()

    async def _compute(self, spec: RunSpec) -> tuple[bytes, ...]:
        prepared = await self._computation.prepare(spec, _no_tick)
        computed = prepared.compute(_no_border, _no_tick)
        return (*computed.inputs, computed.artifact)


def _no_tick() -> None:
    """Nobody waits for progress."""


def _no_border(stage: str) -> None:
    """Nobody cancels."""
