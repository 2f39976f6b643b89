"""Where a result comes from: the determinism contract of a run, and what a REPLAY run did to its input.

The contract is what decides a result: whoever runs the same code on the same flow and inputs gets the same bytes, under the
conditions of `docs/determinism.md`. What must stay true: everything here is read from the run's own events and the blobs that they
name, so it cannot drift from what was done. It is no part of the FeatureBatch, which is equal for equal work. Nothing is written.
"""

import asyncio
from datetime import datetime
from typing import Any, Final

import msgspec

from domain.errors import BlobCorruptError, NotFoundError, RunNotReadyError
from domain.runs.aggregate import Run
from domain.runs.messages import Mode, RunSpec
from domain.stream.replayed import ReplayReport, parse_report
from services.catalogue import Catalogue
from services.ports import BlobStore
from services.runs import Runs
from services.schedules import read_schedule

APPLIED_MAX: Final = 1000
"""Applied faults that one look at a replay shows; the report, a document of its own, has all of them."""


class OpVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the flow and the version of the op that it names."""

    node: str
    op: str
    version: int


class DeterminismContract(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a run's result. `inputs` are addresses, in the order of `ResultRef`; `seed` is that of a REPLAY's schedule.

    A STREAM run has a topic besides, and may go on behind the BATCH run that `continues` names: its input is what it accepted,
    which its journal says.
    """

    run_id: str
    mode: Mode
    flow: str
    flow_name: str
    ops: tuple[OpVersion, ...]
    code: str
    snapshot: str
    as_of: datetime | None
    inputs: tuple[str, ...]
    schedule: str
    seed: int | None
    topic: str
    continues: str


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """What a REPLAY run made of its snapshot: `log` and `report` are addresses of artifacts, the log's being its hash.

    `applied` has the first `APPLIED_MAX` of `faults` applied faults: `records` are the indices, in the log, of what a fault made or
    moved, `removed` counts what never arrived.
    """

    run_id: str
    log: str
    report: str
    snapshot: str
    as_of: str
    schedule: str
    seed: int
    arrivals: int
    partitions: tuple[int, ...]
    treatments: dict[str, int]
    faults: int
    applied: tuple[dict[str, Any], ...]


class Provenance:
    """The use cases of asking where a result comes from. `principal` asks; `operates` lets it see everybody's runs."""

    def __init__(self, runs: Runs, blobs: BlobStore) -> None:
        self._runs = runs
        self._blobs = blobs
        self._catalogue = Catalogue(blobs)

    async def contract(self, run_id: str, principal: str, operates: bool = False) -> DeterminismContract:
        """The contract of a run that published. Raises `RunNotFoundError`, `RunNotReadyError`, `BlobMissingError`."""
        run, spec = await self._published(run_id, principal, operates)
        result = run.results[0]
        flow = (await self._catalogue.flow(spec.flow)).spec
        is_replay = spec.mode is Mode.REPLAY
        schedule = result.inputs[1] if is_replay else ""
        return DeterminismContract(
            run_id=run_id,
            mode=spec.mode,
            flow=spec.flow,
            flow_name=spec.flow_name,
            ops=tuple(OpVersion(node=node.id, op=node.op, version=node.op_version) for node in flow.nodes),
            code=result.code,
            snapshot=spec.snapshot,
            as_of=spec.as_of if spec.snapshot else None,
            inputs=result.inputs,
            schedule=schedule,
            seed=await asyncio.to_thread(self._seed, schedule) if is_replay else None,
            topic=spec.topic,
            continues=spec.continues,
        )

    async def replay(self, run_id: str, principal: str, operates: bool = False) -> ReplayView:
        """What a REPLAY run did. Raises `RunNotFoundError`, `RunNotReadyError`, `NotFoundError` for a run of another mode."""
        run, spec = await self._published(run_id, principal, operates)
        if spec.mode is not Mode.REPLAY:
            raise NotFoundError(f"the run is {spec.mode.value}", at=run_id, expected="a REPLAY run")
        address = run.results[0].inputs[3]
        report = await asyncio.to_thread(self._report, address)
        return ReplayView(
            run_id=run_id,
            log=report.log_hash,
            report=address,
            snapshot=report.snapshot,
            as_of=report.as_of,
            schedule=report.schedule,
            seed=report.seed,
            arrivals=report.arrivals,
            partitions=report.partitions,
            treatments=report.treatments,
            faults=len(report.applied),
            applied=report.applied[:APPLIED_MAX],
        )

    async def _published(self, run_id: str, principal: str, operates: bool) -> tuple[Run, RunSpec]:
        run = await self._runs.folded(run_id, principal, operates)
        if not run.results or run.spec is None:
            raise RunNotReadyError(
                f"the run is {run.state.value} and has published nothing",
                at=run_id,
                expected="SUCCEEDED",
                state=run.state,
            )
        return run, run.spec

    def _seed(self, schedule: str) -> int:
        return read_schedule(self._blobs.get(schedule), schedule).schedule.seed

    def _report(self, address: str) -> ReplayReport:
        report = parse_report(self._blobs.get(address))
        if report is None:
            raise BlobCorruptError("no report of a replay", at=address, expected="the document that the run stored")
        return report
