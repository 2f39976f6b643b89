"""Results over HTTP: every format holds the values that the run published, and artifacts are what they are called."""

import asyncio
import csv
import io
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet
import pytest

from api.artifacts import ARTIFACT_BYTES_MAX, OCTETS
from domain.canonical import address, address_of, parse
from services.batch_parts import WorkerSettings
from services.batch_worker import BatchWorker
from services.store.work_queue import OutboxQueue
from tests.support.api_calls import problem
from tests.support.api_rig import FLOW, ApiRig

GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"
VALUES = [None, None, 2.0, 3.0, 4.0, 5.0]
ARROW = "application/vnd.apache.arrow.file"
PARQUET = "application/vnd.apache.parquet"


async def executed(api: ApiRig, **changes: Any) -> str:
    """Admit a run and have a worker execute it; its id."""
    run_id: str = (await api.submit(**changes))["run_id"]
    worker = BatchWorker(api.log, api.parts.blobs, OutboxQueue(api.parts.log.pool), WorkerSettings(), "w")  # type: ignore[attr-defined]
    assert await worker.run_one() is not None
    return run_id


def values_of(form: str, data: bytes) -> list[float | None]:
    """The values in a rendered result, in its order, read by a reader that isn't ours."""
    if form == "json":
        return [tick["value"] for tick in parse(data)["ticks"]]
    if form == "csv":
        rows = csv.DictReader(io.StringIO(data.decode(), newline=""))
        return [float(row["value"]) if row["value"] else None for row in rows]
    reader = pa.ipc.open_file(data).read_all() if form == "arrow" else pyarrow.parquet.read_table(pa.BufferReader(data))
    found: list[float | None] = reader.column("value").to_pylist()
    return found


async def test_a_result_is_found_under_any_name_that_a_flow_may_give_it(api: ApiRig) -> None:
    """An output's name is one segment of the path, slashes and percent signs in it included."""
    names = ["o/ü", "a%2Fb", "a/b%2Fc", "%", "a b?c#d", "/", "+", "x/../y"]
    outputs = [{"name": name, "node": FLOW["nodes"][0]["id"]} for name in names]
    run_id = await executed(api, flow={**FLOW, "outputs": outputs})
    for name in names:
        answer = await api.as_().get(f"/v1/runs/{run_id}/results/{quote(name, safe='')}")
        assert (name, answer.status_code) == (name, 200)
        assert parse(answer.content)["output"] == name
    lower = await api.as_().get(f"/v1/runs/{run_id}/results/o%2f%C3%BC")
    assert lower.status_code == 200
    assert (await api.as_().get(f"/v1/runs/{run_id}%2Fresults/%2F")).status_code == 404


async def test_every_format_holds_the_values_that_were_published(api: ApiRig) -> None:
    """JSON, CSV, Arrow and Parquet give the golden, by `?format=` and by `Accept` alike."""
    run_id = await executed(api)
    (reference,) = (await api.as_().get(f"/v1/runs/{run_id}/results")).json()["items"]
    assert (reference["output"], reference["values_hash"], reference["rows"]) == ("ema", GOLDEN, 6)
    path = f"/v1/runs/{run_id}/results/ema"
    media_types = {"json": "application/json", "csv": "text/csv", "arrow": ARROW, "parquet": PARQUET}
    for form, media_type in media_types.items():
        asked = await api.as_().get(path, params={"format": form}, headers={"accept": "*/*"})
        negotiated = await api.as_().get(path, headers={"accept": media_type})
        assert asked.headers["content-type"].partition(";")[0] == media_type
        assert asked.content == negotiated.content
        assert values_of(form, asked.content) == VALUES
        assert address_of(values_of(form, asked.content)) == GOLDEN
    whole = parse((await api.as_().get(path)).content)
    assert [tick["event_id"] for tick in whole["ticks"]] == [f"fixture.event.0.{n}" for n in range(6)]


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("text/csv;q=0.5, application/json;q=0.4", "text/csv"),
        ("text/csv;q=0, */*;q=0.1", "application/json"),
        ("text/*", "text/csv"),
        (f"application/xml, {PARQUET};q=0.2", PARQUET),
        ("", "application/json"),
    ],
)
async def test_the_accept_header_is_read_as_http_says(api: ApiRig, accept: str, media_type: str) -> None:
    run_id = await executed(api)
    answer = await api.as_().get(f"/v1/runs/{run_id}/results/ema", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media_type)


async def test_what_is_not_offered_is_refused(api: ApiRig) -> None:
    """Another media type is 406, another format 400, another output 404, each saying what there is."""
    run_id = await executed(api)
    path = f"/v1/runs/{run_id}/results"
    for answer, status, code in (
        (await api.as_().get(f"{path}/ema", headers={"accept": "text/html"}), 406, "NOT_ACCEPTABLE"),
        (await api.as_().get(f"{path}/ema", params={"format": "xlsx"}), 400, "INPUT_INVALID"),
        (await api.as_().get(f"{path}/sma"), 404, "NOT_FOUND"),
    ):
        assert (answer.status_code, problem(answer)["code"]) == (status, code)
        assert problem(answer)["expected"]


async def test_a_run_without_a_result_says_so(api: ApiRig) -> None:
    run_id = (await api.submit())["run_id"]
    for path in ("results", "results/ema"):
        answer = await api.as_().get(f"/v1/runs/{run_id}/{path}")
        assert (answer.status_code, problem(answer)["code"]) == (409, "RUN_NOT_READY")
        assert "QUEUED" in problem(answer)["detail"]
        assert problem(answer)["state"] == "QUEUED"


async def test_a_corrupt_artifact_is_never_served(api: ApiRig, tmp_path: Any) -> None:
    run_id = await executed(api)
    (reference,) = (await api.as_().get(f"/v1/runs/{run_id}/results")).json()["items"]
    digest = reference["artifact"].removeprefix("sha256:")
    (tmp_path / "blobs" / digest[:2] / digest[2:4] / digest).write_bytes(b"{}")
    for path in (f"/v1/runs/{run_id}/results/ema", f"/v1/artifacts/{reference['artifact']}"):
        assert problem(await api.as_().get(path))["code"] == "BLOB_CORRUPT"


# ------------------------------------------------------------------------------------------------ artifacts


async def put(api: ApiRig, name: str, data: bytes, who: str = "ana", media_type: str = OCTETS) -> Any:
    return await api.as_(who).put(f"/v1/artifacts/{name}", content=data, headers={"content-type": media_type})


async def test_bytes_come_back_as_they_were_put(api: ApiRig) -> None:
    """Any bytes, the empty ones too; putting again changes nothing; the copy may be kept for ever."""
    for data in (b"", b"\x00\xff" * 1000, b'{"a":1}'):
        name = address(data)
        for _ in range(2):
            stored = await put(api, name, data)
            assert (stored.status_code, stored.json()) == (200, {"address": name, "size_bytes": len(data)})
        found = await api.as_("reader").get(f"/v1/artifacts/{name}")
        assert (found.content, found.headers["content-type"]) == (data, OCTETS)
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["etag"] == f'"{name}"'


async def test_bytes_under_another_name_are_refused(api: ApiRig) -> None:
    name = address(b"these")
    refused = await put(api, name, b"those")
    assert (refused.status_code, problem(refused)["code"]) == (409, "ARTIFACT_MISMATCH")
    assert problem(refused)["found"] == address(b"those")
    assert (await api.as_().get(f"/v1/artifacts/{name}")).status_code == 404


@pytest.mark.parametrize("name", ["sha256:" + "0" * 64, "sha256:0", "sha512:" + "0" * 64, "..%2f..%2fetc%2fpasswd"])
async def test_an_artifact_that_is_not_there_is_not_found(api: ApiRig, name: str) -> None:
    answer = await api.as_().get(f"/v1/artifacts/{name}")
    assert answer.status_code == 404
    assert problem(answer)["code"] in ("BLOB_MISSING", "NOT_FOUND")


async def test_an_artifact_over_the_limit_is_refused_unread(api: ApiRig) -> None:
    """The announced size decides: 413 comes although the body never does."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"PUT /v1/artifacts/sha256:{'0' * 64} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {api.tokens['ana']}\r\n"
        f"content-type: {OCTETS}\r\ncontent-length: {ARTIFACT_BYTES_MAX + 1}\r\n\r\n"
    )
    writer.write(head.encode())
    async with asyncio.timeout(20):
        answer = await reader.read()  # to the end: the server gives the connection up
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"BODY_TOO_LARGE" in answer


async def test_a_snapshot_can_be_imported_over_http(api: ApiRig) -> None:
    """Chunks and manifest put as artifacts are a snapshot that runs can name."""
    chunk = (
        b'{"available_at":"2026-01-05T09:00:00.25Z","close":7.0,"event_id":"e","event_time":"2026-01-05T09:00:00Z",'
        b'"instrument":"fixture.fx-0","revision":0}\n'
    )
    from domain.market.records import MarketEvent
    from domain.market.snapshot import build_snapshot, encode_manifest

    event = MarketEvent(
        event_id="e",
        instrument="fixture.fx-0",
        event_time=1767603600_000000,
        available_at=1767603600_250000,
        revision=0,
        values={"close": 7.0},
    )
    manifest, chunks = build_snapshot([event], name="posted")
    assert chunks == [chunk]
    for data in (*chunks, encode_manifest(manifest)):
        assert (await put(api, address(data), data)).status_code == 200
    run_id = await executed(api, snapshot=address(encode_manifest(manifest)))
    ticks = parse((await api.as_().get(f"/v1/runs/{run_id}/results/ema")).content)["ticks"]
    assert [tick["value"] for tick in ticks] == [None]
