"""Admission: from a typed body and an idempotency key to a requested run, once.

What must stay true: the claim of the key and the request of its runs are one append, so a key without its runs, or the other way
round, does not exist; the same key with the same body gives an answer equal to the first, whoever wins a race; what fails a
check burns no key. A flow is stored in CAS before the append that names it: a crash in between leaves a blob that nothing names.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final
from uuid import UUID

import msgspec

from domain.admission.aggregate import Admission
from domain.admission.aggregate import decide as decide_admission
from domain.admission.aggregate import evolve as evolve_admission
from domain.admission.messages import ClaimKey
from domain.canonical import address_of, canonical
from domain.errors import BodyInvalidError, ModeUnavailableError, VersionConflictError
from domain.events import Event, Metadata
from domain.identity import (
    admission_stream,
    checked_key,
    checked_principal,
    derived_key,
    run_id_of,
    run_stream,
    sweep_id_of,
)
from domain.instants import EPOCH
from domain.market.errors import SnapshotInvalidError
from domain.market.flow import FlowSpec, flow_body, instantiate
from domain.market.flow_columns import check_columns
from domain.runs.aggregate import Run
from domain.runs.aggregate import decide as decide_run
from domain.runs.messages import Mode, RequestRun, RunSpec
from services import effects
from services.blob_writer import store_all
from services.catalogue import Catalogue, StoredFlow
from services.event_ids import new_event_id
from services.known_flows import known_flow
from services.ports import Append, BlobStore, EventLog, NewEvent
from services.requests import B, Flow, RunBody, SweepBody, body_hash_of, body_value, placed
from services.runs import fold_run
from services.schedules import admitted_schedule

NAMES_SAID_MAX: Final = 5
"""Instruments of a snapshot that a refusal names."""

RUNS_CREATE: Final = "runs.create"
SWEEPS_CREATE: Final = "sweeps.create"
SWEEPS_RUN: Final = "sweeps.run"
"""Operations, which scope idempotency keys; the last is that of the derived keys of a sweep's runs."""

MODES_AVAILABLE: Final = frozenset(Mode)
"""Modes that this version can execute."""

SWEEP_MODES_AVAILABLE: Final = frozenset({Mode.BATCH, Mode.REPLAY})
"""Modes of which it can execute many at once; a stream has a topic of its own."""


class SubmittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted run. `position` is where it was requested; `replayed` tells that the key had been used before, for this body."""

    run_id: str
    position: int
    replayed: bool
    body_hash: str


class SubmittedSweep(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted sweep and its runs, in the order of flows, instruments, parameters."""

    sweep_id: str
    run_ids: tuple[str, ...]
    position: int
    replayed: bool
    body_hash: str


class Admissions:
    """The two use cases of admission. Used from one event loop."""

    def __init__(
        self,
        log: EventLog,
        blobs: BlobStore,
        *,
        catalogue: Catalogue | None = None,
        modes: frozenset[Mode] = MODES_AVAILABLE,
        new_id: Callable[[], UUID] = new_event_id,
    ) -> None:
        self._log = log
        self._blobs = blobs
        self._catalogue = catalogue or Catalogue(blobs)
        self._modes = modes
        self._new_id = new_id

    async def submit_run(self, principal: str, key: str | None, body: RunBody) -> SubmittedRun:
        """Admit one run, or give the answer that its key was given before.

        Raises `IdempotencyKeyInvalidError`, `IdempotencyKeyReusedError`, `ModeUnavailableError`, `BlobMissingError` and
        `BlobCorruptError` (flow, snapshot or schedule), `FlowInvalidError`, `UnknownOpError`, `ColumnUnknownError`,
        `SnapshotInvalidError`, `ScheduleInvalidError`.
        """
        principal, key = checked_principal(principal), checked_key(key)
        self._check_mode(body, self._modes)
        flow = await self._flow(body.flow, "$.flow")
        if body.snapshot:
            body = await self._check_inputs(body, [flow.spec], {"$.flow": flow.spec})
        if body.continues:
            await self._check_continued(body, principal, flow.address)
        await self._store([flow])
        body_hash = body_hash_of(msgspec.structs.replace(body, flow=flow.body))
        run_id = run_id_of(principal, RUNS_CREATE, key, body_hash)
        request = RequestRun(
            run_id=run_id, principal=principal, spec=_spec_of(body, flow.address, flow.spec.name), body_hash=body_hash
        )
        claim = ClaimKey(
            principal=principal, operation=RUNS_CREATE, key=key, body_hash=body_hash, subject_ids=(run_id,)
        )
        position, replayed = await self._admit([claim], [request], run_id)
        return SubmittedRun(run_id=run_id, position=position, replayed=replayed, body_hash=body_hash)

    async def submit_sweep(self, principal: str, key: str | None, body: SweepBody) -> SubmittedSweep:
        """Admit all runs of a sweep in one append, or give the answer that its key was given before.

        Raises what `submit_run` raises, for the first run that it is true of.
        """
        principal, key = checked_principal(principal), checked_key(key)
        self._check_mode(body, self._modes & SWEEP_MODES_AVAILABLE)
        templates = [await self._flow(flow, f"$.flows[{index}]") for index, flow in enumerate(body.flows)]
        specs = [template.spec for template in templates]
        given = {f"$.flows[{index}]": spec for index, spec in enumerate(specs)}
        flows = await asyncio.to_thread(lambda: [_as_stored(spec) for spec in _members(body, specs)])
        body = await self._check_inputs(body, [flow.spec for flow in flows], given)
        await self._store(flows)
        body_hash = body_hash_of(msgspec.structs.replace(body, flows=tuple(t.body for t in templates)))
        sweep_id = sweep_id_of(principal, SWEEPS_CREATE, key, body_hash)
        claims, requests = await asyncio.to_thread(_admitted, principal, sweep_id, body, flows)
        run_ids = tuple(request.run_id for request in requests)
        sweep = ClaimKey(
            principal=principal, operation=SWEEPS_CREATE, key=key, body_hash=body_hash, subject_ids=run_ids
        )
        position, replayed = await self._admit([sweep, *claims], requests, sweep_id)
        return SubmittedSweep(
            sweep_id=sweep_id, run_ids=run_ids, position=position, replayed=replayed, body_hash=body_hash
        )

    # ---------------------------------------------------------------- checks, before the key is burnt

    def _check_mode(self, body: RunBody | SweepBody, modes: frozenset[Mode]) -> None:
        if body.mode not in modes:
            expected = "one of " + ", ".join(sorted(mode.value for mode in modes))
            what = "runs" if isinstance(body, RunBody) else "sweeps"
            raise ModeUnavailableError(
                f"{body.mode.value} {what} cannot be executed by this version", at="$.mode", expected=expected
            )

    async def _flow(self, flow: Flow, at: str) -> StoredFlow:
        """The flow of a body, stored or given; a given one is stored later."""
        with placed(at):
            if isinstance(flow, str):
                return await self._catalogue.flow(flow)
            known = known_flow(flow)
            if self._catalogue.knows_flow(known.address):
                return await self._catalogue.flow(known.address)
            return StoredFlow(known.address, known.spec, known.body)

    async def _check_inputs(self, body: B, flows: Sequence[FlowSpec], given: Mapping[str, FlowSpec]) -> B:
        """The body with the address of its schedule, which is then stored, and fits the snapshot, as the flows do.

        `given` are the flows as the body has them, by place; `flows` those of its runs, which differ in instruments and parameters,
        never in columns. What a stream without a snapshot will read is known by its topic alone, record by record.
        """
        with placed("$.snapshot"):
            manifest = await self._catalogue.manifest(body.snapshot)
        for place, spec in given.items():
            check_columns(spec, manifest.name, manifest.columns, at=place)
        known = set(manifest.instruments) if len(flows) > 1 else manifest.instruments
        for flow in flows:
            for instrument in flow.instruments:
                if instrument not in known:
                    raise SnapshotInvalidError(
                        f"the snapshot has no instrument {instrument!r}",
                        at="$.snapshot",
                        expected=f"all instruments of the flow in it; it has {_some(manifest.instruments)}",
                    )
        if not body.schedule:
            return body
        with placed("$.schedule"):
            schedule = await admitted_schedule(self._blobs, manifest, body)
        return msgspec.structs.replace(body, schedule=schedule)

    async def _check_continued(self, body: RunBody, principal: str, flow: str) -> None:
        """What a stream goes on behind is a BATCH run of the same flow and principal that has succeeded."""
        read = await self._log.read_streams([run_stream(body.continues)])
        run = fold_run(body.continues, read.streams[run_stream(body.continues)])
        spec = run.spec
        fits = spec is not None and (spec.mode, spec.flow, run.principal) == (Mode.BATCH, flow, principal)
        if not fits or not run.results:
            expected = "a BATCH run of yours, of the same flow, that has SUCCEEDED"
            raise BodyInvalidError("it cannot be continued", at="$.continues", expected=expected)

    async def _store(self, flows: Sequence[StoredFlow]) -> None:
        """Make sure that every flow is in CAS."""
        fresh = {f.address: f for f in flows if not self._catalogue.knows_flow(f.address)}
        if not fresh:
            return
        blobs = {name: canonical(flow.body) for name, flow in fresh.items()}
        for outcome in await store_all(self._blobs, list(blobs.values())):
            if isinstance(outcome, Exception):
                raise outcome
        for name, flow in fresh.items():
            self._catalogue.remember_flow(flow, len(blobs[name]))

    # ---------------------------------------------------------------- the append

    async def _admit(
        self, claims: Sequence[ClaimKey], requests: Sequence[RequestRun], correlation: str
    ) -> tuple[int, bool]:
        """Claim and request, hoping that the key is free; else answer as whoever took it. Position, and whether it was taken."""
        last = run_stream(requests[-1].run_id)
        metadata = Metadata(correlation_id=correlation, principal=claims[0].principal)
        try:
            append = Append(events=tuple(self._news(claims, requests)), metadata=metadata)
            return (await effects.append(self._log, append)).position, False
        except VersionConflictError:
            pass
        stream = admission_stream(claims[0].principal, claims[0].operation, claims[0].key)
        read = await self._log.read_streams([stream, last])
        admission = Admission()
        for recorded in read.streams[stream]:
            admission = evolve_admission(admission, recorded.event)
        if decide_admission(admission, claims[0]):
            raise VersionConflictError("a run of this id exists, but its key is free", at=stream)
        return read.streams[last][0].position, True

    def _news(self, claims: Sequence[ClaimKey], requests: Sequence[RequestRun]) -> Iterator[NewEvent]:
        for claim in claims:
            (event,) = decide_admission(Admission(), claim)
            yield self._new(admission_stream(claim.principal, claim.operation, claim.key), event)
        for request in requests:
            (event,) = decide_run(Run(request.run_id), request, EPOCH)  # asking for a run is not a matter of time
            yield self._new(run_stream(request.run_id), event)

    def _new(self, stream: str, event: Event) -> NewEvent:
        return NewEvent(stream, 1, event, self._new_id())


def _members(body: SweepBody, flows: Sequence[FlowSpec]) -> Iterator[FlowSpec]:
    """The flows of a sweep's runs: flows × instruments × parameters, in this order."""
    instruments: Sequence[tuple[int, str | None]] = list(enumerate(body.instruments)) or [(0, None)]
    for (number, flow), (place, instrument), (index, parameters) in product(
        enumerate(flows), instruments, enumerate(body.parameters)
    ):
        with placed(f"$ (flows[{number}], instruments[{place}], parameters[{index}])"):
            yield instantiate(flow, instrument, parameters)


def _as_stored(spec: FlowSpec) -> StoredFlow:
    body = flow_body(spec)
    return StoredFlow(address_of(body), spec, body)


def _admitted(
    principal: str, sweep_id: str, body: SweepBody, flows: Sequence[StoredFlow]
) -> tuple[list[ClaimKey], list[RequestRun]]:
    """Claims and requests of a sweep's runs, each as if it had been posted by itself under its derived key."""
    claims, requests = [], []
    alone = RunBody(
        mode=body.mode,
        flow="",
        snapshot=body.snapshot,
        as_of=body.as_of,
        tags=body.tags,
        priority=body.priority,
        deadline_seconds=body.deadline_seconds,
        schedule=body.schedule,
    )
    for index, flow in enumerate(flows):
        key = derived_key(sweep_id, str(index))
        body_hash = address_of(body_value(msgspec.structs.replace(alone, flow=flow.body)))
        run_id = run_id_of(principal, SWEEPS_RUN, key, body_hash)
        spec = _spec_of(alone, flow.address, flow.spec.name)
        claims.append(
            ClaimKey(principal=principal, operation=SWEEPS_RUN, key=key, body_hash=body_hash, subject_ids=(run_id,))
        )
        requests.append(
            RequestRun(run_id=run_id, principal=principal, spec=spec, body_hash=body_hash, sweep_id=sweep_id)
        )
    return claims, requests


def _spec_of(body: RunBody, flow: str, flow_name: str) -> RunSpec:
    return RunSpec(
        mode=body.mode,
        flow=flow,
        flow_name=flow_name,
        snapshot=body.snapshot,
        as_of=body.as_of,
        tags=body.tags,
        priority=body.priority,
        deadline_seconds=body.deadline_seconds,
        topic=body.topic,
        bounded=body.bounded,
        continues=body.continues,
        schedule=body.schedule if isinstance(body.schedule, str) else "",
    )


def _some(names: Sequence[str]) -> str:
    """The first of the names, for a message."""
    return ", ".join(names[:NAMES_SAID_MAX]) + (", …" if len(names) > NAMES_SAID_MAX else "")
