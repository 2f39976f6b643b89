"""A stream run's checkpoints and records over HTTP: listed page by page, seen by whom they concern, retried by operators."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from domain.canonical import parse
from domain.identity import journal_stream, lease_stream, run_stream
from domain.leases.messages import LeaseReleased
from domain.market.arrivals import partition_of
from domain.runs.messages import RunStarted
from domain.stream.journal import pending_retries
from domain.stream.messages import Pressure, PressureEntered, RetryRequested
from domain.stream.records import StreamRecord
from services.event_ids import new_event_id
from services.ports import Append, NewEvent
from services.stream_records import RETRY_ITEMS_MAX
from tests.support import command_line
from tests.support.api_calls import problem
from tests.support.api_rig import ApiRig
from tests.support.stream_runs import PARTITIONS, Owner, lease
from tests.unit.domain.stream.test_worker_core import INSTRUMENT, fixture_flow

PARTITION = partition_of(INSTRUMENT.encode(), PARTITIONS)
NO_RUN = "run_" + "0" * 64


def owner_of(api: ApiRig, run_id: str) -> Owner:
    """The run's worker."""
    fence = lease(api.log, "owner", 1, run_id, ttl_seconds=600.0)  # type: ignore[arg-type]
    return Owner(api.log, api.parts.blobs, fence, fixture_flow())  # type: ignore[arg-type]


def record(offset: int, value: bytes | None = b"{") -> StreamRecord:
    """One that cannot be read."""
    return StreamRecord(
        partition=PARTITION, offset=offset, key=INSTRUMENT.encode(), value=value, headers={"k": b"\xff"}
    )


async def running(api: ApiRig, records: int = 3) -> tuple[str, Owner]:
    """A run with two checkpoints: unreadable records, and a tombstone."""
    run_id = (await api.submit())["run_id"]
    owner = await asyncio.to_thread(owner_of, api, run_id)
    for offset in range(records):
        owner.progress.take(record(offset))
    await asyncio.to_thread(owner.commit)
    owner.progress.take(record(records, None))
    await asyncio.to_thread(owner.commit)
    await api.project("checkpoints", "quarantine")
    return run_id, owner


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    """The answer is that problem."""
    document = problem(answer)
    assert (document["status"], document["code"]) == (status, code)


async def pages(api: ApiRig, path: str, **filters: Any) -> list[dict[str, Any]]:
    """All rows, two at a time."""
    rows: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await api.as_().get(path, params={"limit": "2", **filters, **cursor})
        assert answer.status_code == 200, answer.text
        rows += answer.json()["items"]
        if answer.json()["next_cursor"] is None:
            return rows
        cursor = {"cursor": answer.json()["next_cursor"]}


async def test_checkpoints_and_records_are_listed_page_by_page(api: ApiRig) -> None:
    """Newest epoch first; records by partition and offset, by their treatment now; the bytes are an artifact."""
    run_id, owner = await running(api)
    checkpoints = await pages(api, f"/v1/runs/{run_id}/checkpoints")
    assert [row["epoch"] for row in checkpoints] == [2, 1]
    assert checkpoints[0]["next_offsets"][str(PARTITION)] == 4
    assert owner.standing.manifest is not None
    assert checkpoints[0]["manifest_hash"] == owner.standing.manifest.manifest_hash
    records = await pages(api, f"/v1/runs/{run_id}/quarantine")
    assert [(row["offset"], row["state"], row["terminal"]) for row in records] == [
        (0, "omitted", False),
        (1, "omitted", False),
        (2, "omitted", False),
        (3, "omitted", True),
    ]
    kept = parse(api.parts.blobs.get(records[1]["quarantine"]))
    assert (kept["source"], kept["partition"], kept["offset"]) == ("market", PARTITION, 1)
    assert await pages(api, f"/v1/runs/{run_id}/quarantine", state="late") == []


async def test_a_run_is_seen_by_its_principal_and_by_operators_only(api: ApiRig) -> None:
    """To others there is no such run; only who operates asks for a retry."""
    run_id, _ = await running(api)
    for what in ("checkpoints", "quarantine"):
        for name, status in (("ana", 200), ("bob", 404), ("operator", 200)):
            answer = await api.as_(name).get(f"/v1/runs/{run_id}/{what}")
            assert answer.status_code == status, (what, name)
        assert_problem(await api.as_().get(f"/v1/runs/{NO_RUN}/{what}"), 404, "RUN_NOT_FOUND")
    body = {"items": [{"partition": PARTITION, "offset": 0}]}
    assert_problem(await api.as_().post(f"/v1/runs/{run_id}/quarantine/retry", json=body), 403, "FORBIDDEN")
    assert_problem(
        await api.as_("operator").post(f"/v1/runs/{NO_RUN}/quarantine/retry", json=body), 404, "RUN_NOT_FOUND"
    )


async def test_an_operators_request_is_recorded_once_and_reaches_the_worker(api: ApiRig) -> None:
    """With the operator's name; what is terminal, unknown, or asked for already is left out; the worker finds the rest pending."""
    run_id, owner = await running(api)
    client, path = api.as_("operator"), f"/v1/runs/{run_id}/quarantine/retry"
    wanted = [{"partition": PARTITION, "offset": offset} for offset in (1, 3, 99)]
    asked = (await client.post(path, json={"items": wanted})).json()
    assert asked["requested"] == wanted[:1]
    again = (await client.post(path, json={"items": wanted})).json()
    assert (again["requested"], again["position"]) == ([], 0)
    rest = (await client.post(path, json={"items": []})).json()
    assert [place["offset"] for place in rest["requested"]] == [0, 2]
    stream = journal_stream(run_id)
    requests = [r for r in (await api.log.read_streams([stream])).streams[stream] if type(r.event) is RetryRequested]
    assert [r.metadata.principal for r in requests] == ["operator", "operator"]
    await api.project("quarantine")
    shown = await pages(api, f"/v1/runs/{run_id}/quarantine")
    assert [row["requested_by"] for row in shown] == ["operator", "operator", "operator", None]
    await asyncio.to_thread(settle, owner)
    await api.project("quarantine")
    shown = await pages(api, f"/v1/runs/{run_id}/quarantine")
    assert [(row["requested"], row["retries"]) for row in shown] == [(False, 1), (False, 1), (False, 1), (False, 0)]


async def test_nothing_is_asked_of_a_run_that_has_ended(api: ApiRig) -> None:
    """Nobody would take it up: refused, whatever is named, and nothing is written."""
    run_id, _ = await running(api)
    cancelled = await api.as_().post(f"/v1/runs/{run_id}/cancel")
    assert cancelled.json()["state"] == "CANCELLED"
    stream = journal_stream(run_id)
    before = (await api.log.read_streams([stream])).streams[stream]
    for items in ([], [{"partition": PARTITION, "offset": 1}], [{"partition": PARTITION, "offset": 99}]):
        answer = await api.as_("operator").post(f"/v1/runs/{run_id}/quarantine/retry", json={"items": items})
        assert_problem(answer, 409, "RUN_FINISHED")
    assert (await api.log.read_streams([stream])).streams[stream] == before


def settle(owner: Owner) -> None:
    """The worker tries again what was asked for, in vain."""
    owner.standing = owner.checkpoints.refresh(owner.standing)
    for pending in pending_retries(owner.standing.journal):
        owner.progress.retry(owner.checkpoints.quarantined(pending), pending.requested)
    owner.commit()
    assert pending_retries(owner.standing.journal) == ()


async def finaz(api: ApiRig, *arguments: str) -> tuple[int, Any]:
    """The exit status of an operator's command and, if it is 0, what it answers with `--json`."""
    where = {"FINAZ_API_URL": api.url, "FINAZ_TOKEN": api.tokens["operator"]}
    done = await asyncio.to_thread(command_line.finaz, *arguments, "--json", **where)
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else None


async def test_the_command_line_shows_and_asks_the_same(api: ApiRig) -> None:
    """`finaz stream checkpoints`, `quarantine`, `retry`: the API's rows, and a request under the operator's name."""
    run_id, _ = await running(api)
    status, checkpoints = await finaz(api, "stream", "checkpoints", run_id, "--limit", "1")
    assert (status, [row["epoch"] for row in checkpoints["items"]]) == (0, [2])
    status, records = await finaz(api, "stream", "quarantine", run_id, "--state", "omitted")
    assert records["items"] == await pages(api, f"/v1/runs/{run_id}/quarantine", state="omitted")
    status, one = await finaz(api, "stream", "retry", run_id, f"{PARTITION}:1")
    assert one["requested"] == [{"partition": PARTITION, "offset": 1}]
    status, rest = await finaz(api, "stream", "retry", run_id, "--all")
    assert [place["offset"] for place in rest["requested"]] == [0, 2]
    before = await api.events_in_log()
    assert (await finaz(api, "stream", "retry", run_id, "3:x"))[0] != 0
    assert await api.events_in_log() == before


BAD_BODIES: tuple[Any, ...] = (
    "all",
    [],
    {},
    {"items": None},
    {"items": [1]},
    {"items": [{"partition": 0}]},
    {"items": [{"partition": 0, "offset": "1"}]},
    {"items": [{"partition": 0, "offset": 1.0}]},
    {"items": [{"partition": -1, "offset": 1}]},
    {"items": [{"partition": 0, "offset": 1, "x": 1}]},
    {"items": [{"partition": 0, "offset": 2**63}]},
    {"items": [], "all": True},
    {"items": [{"partition": 0, "offset": 1}] * (RETRY_ITEMS_MAX + 1)},
)


async def test_a_body_that_is_something_else_is_refused_and_nothing_is_written(api: ApiRig) -> None:
    """Typed, before the journal is looked at."""
    run_id = (await api.submit())["run_id"]
    before = await api.events_in_log()
    for body in BAD_BODIES:
        answer = await api.as_("operator").post(f"/v1/runs/{run_id}/quarantine/retry", json=body)
        assert_problem(answer, 422, "BODY_INVALID")
    assert await api.events_in_log() == before


async def streaming(api: ApiRig) -> tuple[str, Owner]:
    """A STREAM run with an owner that has committed one record of its topic."""
    run_id = (await api.submit(mode="STREAM", topic="arrivals"))["run_id"]
    owner = await asyncio.to_thread(owner_of, api, run_id)
    owner.progress.take(record(0))
    await asyncio.to_thread(owner.commit)
    return run_id, owner


@pytest.mark.parametrize(("token", "pressure"), [(1, "RECOVERY_BLOCKED"), (0, "FLOWING")])
async def test_a_stream_run_says_how_it_stands(api: ApiRig, token: int, pressure: str) -> None:
    """Offsets and quarantine of its last cut; what its last owner was held up by, unless a later owner has committed since."""
    run_id, _ = await streaming(api)
    path, stream, why = f"/v1/runs/{run_id}/stream", journal_stream(run_id), "TOPIC_MISSING: there is no such topic"
    status = (await api.as_().get(path)).json()
    assert (status["topic"], status["epoch"], status["quarantined"]) == ("arrivals", 1, 1)
    assert status["committed_offsets"][str(PARTITION)] == 1
    assert (status["pressure"], status["reason"]) == ("FLOWING", "")
    blocked = PressureEntered(run_id=run_id, token=token, state=Pressure.RECOVERY_BLOCKED, reason=why)
    version = (await api.log.read_streams([stream])).streams[stream][-1].version
    await api.log.append(Append(events=(NewEvent(stream, version + 1, blocked, new_event_id()),)))
    status = (await api.as_().get(path)).json()
    assert (status["pressure"], status["reason"]) == (pressure, why if token else "")
    assert await finaz(api, "stream", "status", run_id) == (0, status)


async def test_only_a_stream_run_of_ones_own_has_a_standing(api: ApiRig) -> None:
    """Another's is not found, nor one of another mode."""
    run_id, _ = await streaming(api)
    batch = (await api.submit())["run_id"]
    assert_problem(await api.as_("bob").get(f"/v1/runs/{run_id}/stream"), 404, "RUN_NOT_FOUND")
    assert_problem(await api.as_().get(f"/v1/runs/{batch}/stream"), 404, "NOT_FOUND")


async def test_a_stream_run_that_nobody_works_on_is_counted(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """None while its owner's lease is live; one when that was given back and the run goes on waiting, whatever others do."""
    monkeypatch.setattr("services.read_models.MEASURE_SECONDS_MIN", 0.0)

    async def unowned() -> str:
        await api.project("runs")
        page = (await api.as_(None).get("/metrics")).text
        return next(line.split()[1] for line in page.splitlines() if line.startswith("finaz_streams_unowned "))

    await api.submit()
    run_id, _ = await streaming(api)
    started = RunStarted(run_id=run_id, owner="owner", token=1, attempt=1)
    await api.log.append(Append(events=(NewEvent(run_stream(run_id), 2, started, new_event_id()),)))
    assert await unowned() == "0.0"
    released = LeaseReleased(resource=run_id, owner="owner", token=1)
    await api.log.append(Append(events=(NewEvent(lease_stream(run_id), 2, released, new_event_id()),)))
    assert await unowned() == "1.0"
