"""Health, metrics, and what clients see when a part goes away in the middle."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from api import app, health, server
from api.answers import Answer, json_answer
from api.metrics import METRIC_NAMES
from api.operations import AnswerSpec, Call, Operation
from api.server import HEAD_BYTES_MAX
from deployment.embedded import EmbeddedPostgres
from services.store import connections
from tests.support.api_calls import post, problem
from tests.support.api_rig import ApiRig, api_rig


async def test_a_process_that_lives_says_so(api: ApiRig) -> None:
    answer = await api.as_(None).get("/health/live")
    assert (answer.status_code, answer.json()["status"]) == (200, "live")


async def test_projections_without_a_runner_are_not_ready(api: ApiRig) -> None:
    """Ready means that each projection's runner beats; which don't is named, and each thing that holds is shown as well."""
    answer = await api.as_(None).get("/health/ready")
    checks = answer.json()["checks"]
    assert (answer.status_code, answer.json()["status"]) == (503, "unready")
    assert checks["database"] == {"ok": True, "detail": None}
    assert not checks["projections"]["ok"]
    assert "runs" in checks["projections"]["detail"]


async def test_a_probe_that_hangs_does_not_hang_the_answer(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS_MAX", 0.01)

    async def hangs() -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(api.parts.probes, "hangs", hangs)  # type: ignore[arg-type]
    answer = await api.as_(None).get("/health/ready")
    assert answer.status_code == 503
    assert not answer.json()["checks"]["hangs"]["ok"]


async def test_metrics_count_what_happened(api: ApiRig) -> None:
    """Requests, admissions, the queue, the runs and the projections' lags stand on the page, under frozen names only."""
    await post(api, "k", api.body())
    await post(api, "k", api.body())
    page = (await api.as_(None).get("/metrics")).text
    for line in (
        'finaz_http_requests_total{method="POST",operation="submitRun",status="202"} 2.0',
        'finaz_admissions_total{operation="runs.create",outcome="new"} 1.0',
        'finaz_admissions_total{operation="runs.create",outcome="replayed"} 1.0',
        "finaz_appends_total 1.0",
        "finaz_measured 1.0",
        "finaz_log_position 2.0",
        'finaz_projection_lag_events{projection="runs"} 2.0',
        'finaz_projection_alive{projection="runs"} 0.0',
    ):
        assert line in page.splitlines()
    assert any(line.startswith("finaz_queue_items{") and 'state="pending"' in line for line in page.splitlines())
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert {name for name in names if not name.endswith("_created")} <= set(METRIC_NAMES)


async def test_a_database_that_goes_away_is_503_and_comes_back(
    mortal_postgres: EmbeddedPostgres, mortal_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away: each operation that needs it is a 503 problem, live stays live, metrics say so. Back: the repeat is admitted."""
    monkeypatch.setattr(connections, "POOL_WAIT_SECONDS_MAX", 0.2)
    async with api_rig(mortal_database, tmp_path, retry_seconds_max=0.2) as api:
        run_id = (await api.submit("before"))["run_id"]
        await asyncio.to_thread(mortal_postgres.stop, "immediate")
        refused = await post(api, "during", api.body())
        assert (refused.status_code, problem(refused)["code"]) == (503, "STORE_UNAVAILABLE")
        assert refused.headers["retry-after"]
        for path in (f"/v1/runs/{run_id}", "/v1/runs", f"/v1/runs/{run_id}/watch", f"/v1/runs/{run_id}/results"):
            away = await api.as_().get(path)
            assert (away.status_code, problem(away)["code"]) == (503, "STORE_UNAVAILABLE")
        assert (await api.as_(None).get("/health/live")).status_code == 200
        ready = await api.as_(None).get("/health/ready")
        assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
        assert "finaz_measured 0.0" in (await api.as_(None).get("/metrics")).text
        await asyncio.to_thread(mortal_postgres.start)
        assert (await until_back(lambda: post(api, "during", api.body()))).status_code == 202
        again = await until_back(lambda: post(api, "before", api.body()))
        assert (again.json()["run_id"], again.headers["idempotency-replayed"]) == (run_id, "true")


async def until_back(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Ask as a client does: again after a 503, for a while."""
    async with asyncio.timeout(60):
        while (answer := await ask()).status_code == 503:  # noqa: ASYNC110 -- a server that is away sends no signal
            await asyncio.sleep(0.1)
    return answer


# ------------------------------------------------------------------------------------------------ limits, stopping


class Gate:
    """An operation that waits until it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def handler(self, call: Call) -> Answer:
        self.entered.set()
        await self.open.wait()
        return json_answer({"done": True})

    @property
    def operation(self) -> Operation:
        return Operation(
            name="gate",
            method="GET",
            path="/gate",
            summary="",
            answers=(AnswerSpec(status=200, description=""),),
            handler=self.handler,
        )


async def test_requests_at_once_are_bounded(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit is answered OVERLOADED at once; when one has left, there is room again."""
    monkeypatch.setattr(app, "REQUESTS_MAX", 1)
    gate = Gate()
    async with api_rig(database, tmp_path, extra=[gate.operation]) as api:
        waiting = asyncio.create_task(api.as_(None).get("/gate"))
        await gate.entered.wait()
        refused = await api.as_(None).get("/health/live")
        assert (refused.status_code, problem(refused)["code"]) == (503, "OVERLOADED")
        gate.open.set()
        assert (await waiting).status_code == 200
        assert (await api.as_(None).get("/health/live")).status_code == 200


async def test_a_stopping_server_finishes_what_it_has_begun(database: str, tmp_path: Path) -> None:
    """A request in flight when the server is told to stop is answered before the server ends."""
    gate = Gate()
    async with api_rig(database, tmp_path, extra=[gate.operation]) as api:
        waiting = asyncio.create_task(api.as_(None).get("/gate"))
        await gate.entered.wait()
        assert api.server is not None
        api.server.should_exit = True
        asyncio.get_running_loop().call_later(0.3, gate.open.set)
        assert (await waiting).json() == {"done": True}


async def test_a_stopping_server_waits_no_longer_than_its_limit(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that never ends is answered that it may be made again, and the server ends all the same."""
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS_MAX", 0.2)
    gate = Gate()
    async with api_rig(database, tmp_path, extra=[gate.operation]) as api:
        waiting = asyncio.create_task(api.as_(None).get("/gate"))
        await gate.entered.wait()
        assert api.server is not None
        api.server.should_exit = True
        cut = await waiting
        assert (cut.status_code, problem(cut)["code"]) == (503, "OVERLOADED")


async def asked(api: ApiRig, request: bytes) -> bytes:
    """What the server sends for these bytes until it closes the connection; the client's half stays open."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("begun", [b"", b"G", b"GET /health/live HTTP/1.1\r\nhost: h\r\nx: "])
async def test_a_head_that_does_not_arrive_is_cut(api: ApiRig, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """A silent connection, or one in the midst of its first or second head, is given up in time."""
    monkeypatch.setattr(server, "HEAD_SECONDS_MAX", 0.2)
    assert (await asked(api, begun)).startswith(b"HTTP/1.1 400 ")
    whole = b"GET /health/live HTTP/1.1\r\nhost: h\r\n\r\n"
    if begun:
        assert (await asked(api, whole + begun)).startswith(b"HTTP/1.1 200 ")
    assert (await api.as_().get("/health/live")).status_code == 200


@pytest.mark.parametrize("requests", [1, 2])
async def test_garbage_behind_a_whole_request_takes_nothing_from_it(api: ApiRig, requests: int) -> None:
    """What was asked is done and answered as ever, pipelined or not; then the connection ends."""
    whole = b"GET /health/live HTTP/1.1\r\nhost: h\r\n\r\n"
    answer = await asked(api, whole * requests + b"\x00garbage\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == requests
    assert b"HTTP/1.1 400" not in answer


async def test_a_request_head_without_an_end_is_cut(api: ApiRig) -> None:
    """One header line, or many, beyond the limit: refused with a problem and the connection given up, without a token too."""
    host, port = api.url.removeprefix("http://").split(":")
    for line in (b"x" * 4096, b"x: y\r\n" * 512):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: h\r\nx: ")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                for _ in range(4 * HEAD_BYTES_MAX // 4096):
                    writer.write(line)
                    await writer.drain()
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
        writer.close()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    long = await api.as_().get("/health/live", headers={"x": "y" * (HEAD_BYTES_MAX // 2)})
    assert long.status_code == 200
    assert (await api.as_().get("/health/live")).status_code == 200
