"""The API with everything behind it, for tests: a real log, blobs, tokens, and a real server on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from api.app import Api, create_app
from api.auth import Scope, Tokens, mint_token
from api.health import database_probe, projections_probe
from api.metrics import Metrics
from api.operations import Operation
from api.parts import ApiParts
from api.server import Server, make_server
from api.tail import LogTail
from deployment.inspection_wiring import inspection_parts
from deployment.jobs_wiring import rebuild_targets
from domain.canonical import parse
from projections.checkpoints.postgres import CheckpointsReader
from projections.inline import INLINE
from projections.jobs.postgres import JobsReader
from projections.postgres import PostgresSession
from projections.quarantine.postgres import QuarantineReader
from projections.registry import PROJECTIONS
from projections.runner import run_once
from projections.runs.postgres import RunsReader
from projections.staging.clickhouse import FeatureValues
from projections.staging.postgres import StagedAttempts
from projections.status import Projections
from services.adapters.gateway_http import HmacWebhookReader
from services.adapters.manager_store import ManagerOperations
from services.adapters.staged_tables import staged_tables
from services.admission import Admissions
from services.alert_sources import alert_sources
from services.alerts import Alerts
from services.business_clock import DatabaseBusinessClock
from services.cas import DirectoryBlobStore
from services.contacts import Contacts
from services.job_kinds import JobKind
from services.jobs import Jobs
from services.projection_operations import ProjectionOperations
from services.purchases import Purchases
from services.read_models import ReadModels
from services.rebuild import RebuildKind
from services.results import Results
from services.run_listing import RunListing
from services.runs import Runs
from services.shop import Shop
from services.staging import Staging
from services.store.application import Log
from services.store.notifications import EVENTS
from services.stream_records import StreamRecords

FIXTURES = Path(__file__).parents[2] / "fixtures"
SNAPSHOT_FILES = FIXTURES / "snapshots"
FLOW: dict[str, Any] = parse((FIXTURES / "flows" / "01_A_feature.json").read_bytes())
WEBHOOK_SECRET = "what-the-gateway-signs-with"
WHO = {
    "ana": (Scope.RUNS_READ, Scope.RUNS_WRITE),
    "bob": (Scope.RUNS_READ, Scope.RUNS_WRITE),
    "reader": (Scope.RUNS_READ,),
    "writer": (Scope.RUNS_WRITE,),
    "buyer": (Scope.PURCHASES_READ, Scope.PURCHASES_WRITE),
    "other": (Scope.PURCHASES_READ, Scope.PURCHASES_WRITE),
    "operator": tuple(Scope),
}


class ApiRig:
    """The API at `url`. `as_(name)` is a client of one of `WHO`."""

    def __init__(self, parts: ApiParts, dsn: str, tokens: dict[str, str], snapshot: str) -> None:
        self.parts = parts
        self.log = parts.log
        self.dsn = dsn
        self.tokens = tokens
        self.snapshot = snapshot
        self.url = ""
        self.server: Server | None = None
        self._clients: dict[str | None, httpx.AsyncClient] = {}

    def as_(self, name: str | None = "ana", token: str | None = None) -> httpx.AsyncClient:
        """A client with the principal's token, or with another, or with none."""
        chosen = token or (self.tokens[name] if name else None)
        if chosen not in self._clients:
            headers = {"authorization": f"Bearer {chosen}"} if chosen else {}
            limits = httpx.Limits(max_connections=200)
            self._clients[chosen] = httpx.AsyncClient(
                base_url=self.url, headers=headers, limits=limits, timeout=30, trust_env=False
            )
        return self._clients[chosen]

    def body(self, **changes: Any) -> dict[str, Any]:
        """A body of `POST /v1/runs` that is right, with changes; None removes a member."""
        whole = {"mode": "BATCH", "flow": FLOW, "snapshot": self.snapshot, "as_of": "2026-01-06T00:00:00Z"} | changes
        return {name: value for name, value in whole.items() if value is not None}

    async def submit(self, key: str | None = None, who: str = "ana", **changes: Any) -> dict[str, Any]:
        """Admit a run; the answer."""
        headers = {"idempotency-key": key or uuid4().hex}
        answer = await self.as_(who).post("/v1/runs", json=self.body(**changes), headers=headers)
        assert answer.status_code == 202, answer.text
        document: dict[str, Any] = answer.json()
        return document

    async def project(self, *names: str) -> None:
        """Bring read models up to date."""
        for name in names or ("runs",):
            await asyncio.to_thread(project_blocking, self.dsn, name)

    async def events_in_log(self) -> int:
        """How many events there are."""
        return await asyncio.to_thread(self.log.high_water_mark)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()


def project_blocking(dsn: str, name: str) -> None:
    """Fold a projection up to the log's end, as its runner does."""
    model, rows = PROJECTIONS[name].model, PROJECTIONS[name].rows
    session = PostgresSession(dsn, model, rows, "test")  # type: ignore[arg-type]
    try:
        session.claim()
        while not run_once(session, model).caught_up:
            pass
    finally:
        session.close()


def staging(log: Log, projections: Projections, clickhouse: str) -> Staging:
    """The reading of staged values."""
    values = FeatureValues(clickhouse)
    return Staging(Runs(log), StagedAttempts(log.pool), projections, values, staged_tables, "embedded", "api")


def store_fixture_snapshot(blobs: DirectoryBlobStore) -> str:
    """Put the fixture snapshot into CAS; the address of its manifest."""
    blobs.put((SNAPSHOT_FILES / "fixture.snapshot.01.jsonl").read_bytes())
    return blobs.put((SNAPSHOT_FILES / "fixture.snapshot.01.manifest.json").read_bytes())


@asynccontextmanager
async def served(app: Api) -> AsyncIterator[tuple[Server, str]]:
    """The application on a real server on loopback; the server and its address."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = make_server(app, on_ready=ready.set_result, owns_process=False)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # pytest has them
    serving = asyncio.create_task(server.serve())
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield server, f"http://127.0.0.1:{ready.result()}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def api_rig(
    dsn: str, folder: Path, extra: Iterable[Operation] = (), clickhouse: str | None = None, **log_limits: Any
) -> AsyncIterator[ApiRig]:
    """Everything, started; everything ended at the end. With a ClickHouse, what is staged there can be read."""
    blobs = DirectoryBlobStore(folder / "blobs")
    snapshot = await asyncio.to_thread(store_fixture_snapshot, blobs)
    minted = {name: mint_token(name, scopes) for name, scopes in WHO.items()}
    log = Log(dsn, INLINE, **log_limits)
    try:
        projections = Projections(log.pool)
        read_models = ReadModels(projections, log.pool)
        with log.listener.waker(EVENTS) as wakeups:
            rebuild = RebuildKind(rebuild_targets(dsn), blobs, projections.note)
            kinds: dict[str, JobKind] = {rebuild.name: rebuild}
            parts = ApiParts(
                log=log,
                blobs=blobs,
                admissions=Admissions(log, blobs),
                runs=Runs(log),
                results=Results(blobs),
                listing=RunListing(RunsReader(log.pool), projections),
                alerts=Alerts(log, alert_sources(log.pool), ManagerOperations(log.pool), projections),
                jobs=Jobs(log, kinds, JobsReader(log.pool)),
                projection_operations=ProjectionOperations(projections, ManagerOperations(log.pool)),
                stream_records=StreamRecords(log, Runs(log), CheckpointsReader(log.pool), QuarantineReader(log.pool)),
                shop=Shop(
                    Purchases(
                        log, DatabaseBusinessClock(log.pool), Contacts(log.pool), HmacWebhookReader(WEBHOOK_SECRET)
                    ),
                    log.pool,
                ),
                read_models=read_models,
                tokens=Tokens([entry for _, entry in minted.values()]),
                tail=LogTail(log, wakeups),
                **inspection_parts(dsn, log),
                metrics=Metrics(),
                probes={"database": database_probe(log), "projections": projections_probe(read_models)},
                version="0.0.0",
                staging=None if clickhouse is None else staging(log, projections, clickhouse),
            )
            rig = ApiRig(parts, dsn, {name: token for name, (token, _) in minted.items()}, snapshot)
            async with served(create_app(parts, extra)) as (rig.server, rig.url):
                try:
                    yield rig
                finally:
                    await rig.close()
    finally:
        await asyncio.to_thread(log.close)
