"""Parity of two runs: are their results equal to the bit, and where do they part?

Any two runs can be compared, of any mode. What must stay true: artifacts are read from CAS and verified, as for a result that is
served; equal means equal values and equal ticks of every output that the two have, and no output that only one has. What cannot be
compared is an error, never "equal". Nothing is written.
"""

import asyncio
from typing import Final

import msgspec

from domain.canonical import parse
from domain.errors import BlobCorruptError, RunNotReadyError
from domain.market.feature_batch import FeatureBatch, parse_feature_batch
from domain.market.parity import OutputParity, compared
from domain.runs.aggregate import Run
from domain.runs.messages import Mode, ResultRef
from services.ports import BlobStore
from services.runs import Runs

COMPARED_AT_ONCE_MAX: Final = 2
"""Comparisons at the same time; each holds two results in memory. More wait."""


class OutputSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One output of one run."""

    output: str
    rows: int
    values_hash: str


class ParitySide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. `counts` are the treatments of its records; a BATCH run has none."""

    run_id: str
    mode: Mode
    flow: str
    code: str
    artifact: str
    outputs: tuple[OutputSummary, ...]
    counts: dict[str, int]


class ParityReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the other run stands to the reference. `outputs` are those that both have, in the reference's order."""

    equal: bool
    reference: ParitySide
    other: ParitySide
    outputs: tuple[OutputParity, ...]
    only_in_reference: tuple[str, ...]
    only_in_other: tuple[str, ...]


class Parity:
    """The use case of comparing runs. `principal` asks; `operates` lets it see everybody's."""

    def __init__(self, runs: Runs, blobs: BlobStore) -> None:
        self._runs = runs
        self._blobs = blobs
        self._turns = asyncio.Semaphore(COMPARED_AT_ONCE_MAX)

    async def compare(self, reference: str, other: str, principal: str, operates: bool = False) -> ParityReport:
        """Compare two runs that published.

        Raises `RunNotFoundError`, `RunNotReadyError`, `BlobMissingError` and `BlobCorruptError`.
        """
        runs = [await self._runs.folded(run_id, principal, operates) for run_id in (reference, other)]
        for run in runs:
            if not run.results:
                raise RunNotReadyError(
                    f"the run is {run.state.value} and has published nothing",
                    at=run.run_id,
                    expected="SUCCEEDED",
                    state=run.state,
                )
        async with self._turns:
            return await asyncio.to_thread(self._compared, *runs)

    def _compared(self, reference: Run, other: Run) -> ParityReport:
        left, right = self._batch(reference), self._batch(other)
        names = [described.name for described in left.schema]
        both = [name for name in names if name in {described.name for described in right.schema}]
        parities = compared(left, right, both)
        missing = tuple(name for name in names if name not in both)
        extra = tuple(described.name for described in right.schema if described.name not in both)
        return ParityReport(
            equal=not missing and not extra and all(parity.equal for parity in parities),
            reference=self._side(reference),
            other=self._side(other),
            outputs=parities,
            only_in_reference=missing,
            only_in_other=extra,
        )

    def _batch(self, run: Run) -> FeatureBatch:
        """The run's batch, as it was published."""
        result = run.results[0]
        batch = parse_feature_batch(self._blobs.get(result.artifact))
        for published in run.results:
            if batch.values_hash(published.output) != published.values_hash or batch.flow != published.flow:
                raise BlobCorruptError(
                    "the artifact does not hold the values that were published",
                    at=result.artifact,
                    expected=published.values_hash,
                )
        return batch

    def _side(self, run: Run) -> ParitySide:
        assert run.spec is not None
        result = run.results[0]
        return ParitySide(
            run_id=run.run_id,
            mode=run.spec.mode,
            flow=result.flow,
            code=result.code,
            artifact=result.artifact,
            outputs=tuple(OutputSummary(output=r.output, rows=r.rows, values_hash=r.values_hash) for r in run.results),
            counts=self._counts(run.spec.mode, result),
        )

    def _counts(self, mode: Mode, result: ResultRef) -> dict[str, int]:
        """The treatments that the run's last input tells: a REPLAY's report, or what a STREAM run read."""
        if mode is Mode.BATCH or not result.inputs:
            return {}
        document = parse(self._blobs.get(result.inputs[-1]))
        treatments = document.get("treatments") if isinstance(document, dict) else None
        return dict(treatments) if isinstance(treatments, dict) else {}
