"""Runs that exist: who sees them, listing, cancelling, history."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx

from domain.canonical import address, canonical
from domain.events import Event
from domain.identity import run_stream
from domain.market.faults import FORMAT
from domain.runs.messages import RunError, RunFailed, RunStarted
from services.ports import Append, NewEvent
from tests.support.api_calls import problem, sweep_body
from tests.support.api_rig import ApiRig

UNKNOWN = "run_" + "0" * 64


async def happen(api: ApiRig, run_id: str, *events: Event, version: int = 2) -> None:
    """Let events happen to a run as a worker would."""
    news = tuple(NewEvent(run_stream(run_id), version + n, event, uuid4()) for n, event in enumerate(events))
    await api.log.append(Append(events=news))


async def started(api: ApiRig, run_id: str) -> None:
    await happen(api, run_id, RunStarted(run_id=run_id, owner="w", token=1, attempt=1))


async def listed(api: ApiRig, who: str = "ana", **query: Any) -> dict[str, Any]:
    answer = await api.as_(who).get("/v1/runs", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def ids(page: dict[str, Any]) -> list[str]:
    return [item["run_id"] for item in page["items"]]


async def test_a_run_shows_everything_that_was_asked_for(api: ApiRig) -> None:
    """What was submitted stands in the run as it was, from the moment of the answer."""
    admitted = await api.submit(tags=["a", "b"], priority=7, as_of="2026-01-06T01:00:00+01:00")
    view = (await api.as_().get(f"/v1/runs/{admitted['run_id']}")).json()
    assert view["state"] == "QUEUED"
    assert (view["principal"], view["mode"], view["priority"]) == ("ana", "BATCH", 7)
    assert (view["tags"], view["snapshot"], view["as_of"]) == (["a", "b"], api.snapshot, "2026-01-06T00:00:00Z")
    assert (view["position"], view["run_revision"], view["attempts"]) == (admitted["position"], 0, 0)


async def test_a_run_shows_what_its_records_come_from(api: ApiRig) -> None:
    """The topic of a STREAM run, whether it ends by itself, the faults of a REPLAY run; in a list as where it is looked at."""
    faults = {"format": FORMAT, "seed": 7, "faults": []}
    wanted = [
        (await api.submit(), (None, None, None, None)),
        (await api.submit(mode="STREAM", topic="prices", bounded=False), ("prices", False, None, None)),
        (await api.submit(mode="STREAM", topic="prices"), ("prices", True, None, None)),
        (await api.submit(mode="REPLAY", schedule=faults), (None, None, None, address(canonical(faults)))),
    ]
    await api.project()
    in_list = {item["run_id"]: item for item in (await listed(api))["items"]}
    for admitted, shown in wanted:
        view = (await api.as_().get(f"/v1/runs/{admitted['run_id']}")).json()
        assert tuple(view[field] for field in ("topic", "bounded", "continues", "schedule")) == shown
        assert in_list[admitted["run_id"]] == view


async def test_a_principal_reaches_its_own_runs_only(api: ApiRig) -> None:
    """Another's run is as if it weren't there, for reading, watching and cancelling; to one that operates it is there."""
    run_id = (await api.submit())["run_id"]
    await api.project()
    for path in ("", "/events", "/results", "/watch"):
        answer = await api.as_("bob").get(f"/v1/runs/{run_id}{path}")
        assert (answer.status_code, problem(answer)["code"]) == (404, "RUN_NOT_FOUND")
    refused = await api.as_("bob").post(f"/v1/runs/{run_id}/cancel")
    assert (refused.status_code, problem(refused)["code"]) == (404, "RUN_NOT_FOUND")
    assert ids(await listed(api, "bob")) == []
    assert ids(await listed(api, "operator")) == ids(await listed(api)) == [run_id]
    assert (await api.as_("operator").get(f"/v1/runs/{run_id}")).status_code == 200
    assert (await api.as_("operator").post(f"/v1/runs/{run_id}/cancel")).json()["state"] == "CANCELLED"


# ------------------------------------------------------------------------------------------------ cancel


async def test_a_queued_run_is_cancelled_at_once_and_only_once(api: ApiRig) -> None:
    run_id = (await api.submit())["run_id"]
    first = await api.as_().post(f"/v1/runs/{run_id}/cancel")
    assert (first.status_code, first.json()["state"]) == (202, "CANCELLED")
    second = await api.as_().post(f"/v1/runs/{run_id}/cancel")
    assert (second.status_code, problem(second)["code"], problem(second)["state"]) == (
        409,
        "RUN_FINISHED",
        "CANCELLED",
    )


async def test_cancelling_a_running_run_twice_is_asking_once(api: ApiRig) -> None:
    run_id = (await api.submit())["run_id"]
    await started(api, run_id)
    first = await api.as_().post(f"/v1/runs/{run_id}/cancel")
    assert (first.json()["state"], first.json()["cancellation_requested"]) == ("RUNNING", True)
    events = await api.events_in_log()
    assert (await api.as_().post(f"/v1/runs/{run_id}/cancel")).status_code == 202
    assert await api.events_in_log() == events


async def test_the_history_is_every_event_with_its_place(api: ApiRig) -> None:
    """In the order of the log, each with version, time, why and for whom."""
    run_id = (await api.submit())["run_id"]
    await started(api, run_id)
    await api.as_().post(f"/v1/runs/{run_id}/cancel")
    items = (await api.as_().get(f"/v1/runs/{run_id}/events")).json()["items"]
    assert [item["topic"] for item in items] == [
        "run.requested.v1",
        "run.started.v1",
        "run.cancellation_requested.v1",
    ]
    assert [item["version"] for item in items] == [1, 2, 3]
    assert [item["position"] for item in items] == sorted(item["position"] for item in items)
    assert items[0]["principal"] == items[2]["principal"] == "ana"
    assert items[0]["correlation_id"] == run_id
    assert items[2]["causation_id"] == items[1]["event_id"]
    assert items[1]["event"]["token"] == 1


# ------------------------------------------------------------------------------------------------ list


async def test_pages_are_whole_and_stable_while_runs_arrive(api: ApiRig) -> None:
    """Walking by cursor shows each run once, newest first, though others arrive and change meanwhile."""
    made = [(await api.submit())["run_id"] for _ in range(7)]
    await api.project()
    page = await listed(api, limit=3)
    walked = ids(page)
    while page["next_cursor"] is not None:
        await started(api, (await api.submit())["run_id"])
        await api.project()
        page = await listed(api, limit=3, cursor=page["next_cursor"])
        walked += ids(page)
    assert walked == made[::-1]


async def test_filters_mean_what_they_say(api: ApiRig) -> None:
    """Any of the states, all of the tags, one mode, one sweep, a half-open span of time."""
    plain = (await api.submit(tags=["x"]))["run_id"]
    both = (await api.submit(tags=["x", "y"]))["run_id"]
    failed = (await api.submit(tags=["y"]))["run_id"]
    await happen(api, failed, RunFailed(run_id=failed, error=RunError(code="C", message="m")))
    sweep = (await api.as_().post("/v1/sweeps", json=sweep_body(api), headers={"idempotency-key": "s"})).json()
    await api.project()
    assert ids(await listed(api, tag="x")) == [both, plain]
    assert ids(await listed(api, tag=["x", "y"])) == [both]
    assert ids(await listed(api, state="FAILED")) == [failed]
    assert len(ids(await listed(api, state=["FAILED", "QUEUED"]))) == 7
    assert ids(await listed(api, sweep=sweep["sweep_id"])) == sweep["run_ids"][::-1]
    assert len(ids(await listed(api, mode="BATCH"))) == 7
    assert ids(await listed(api, mode="STREAM")) == []
    at = (await api.as_().get(f"/v1/runs/{both}")).json()["requested_at"]
    assert plain in ids(await listed(api, requested_to=at))
    assert both not in ids(await listed(api, requested_to=at))
    assert both in ids(await listed(api, requested_from=at))
    assert plain not in ids(await listed(api, requested_from=at))


async def test_a_listed_run_is_the_run(api: ApiRig) -> None:
    """What the list shows of a run is what folding its events gives, to the byte."""
    run_id = (await api.submit(tags=["t"], priority=-3))["run_id"]
    await started(api, run_id)
    await happen(api, run_id, RunFailed(run_id=run_id, error=RunError(code="C", message="m"), token=1), version=3)
    await api.project()
    (item,) = (await listed(api))["items"]
    assert item == (await api.as_().get(f"/v1/runs/{run_id}")).json()


async def test_a_list_waits_for_my_own_write(api: ApiRig) -> None:
    """With the position of a submission the list holds it, though the read model comes later than the request."""
    admitted = await api.submit()
    waiting = asyncio.create_task(listed(api, position=admitted["position"], timeout_seconds=20))
    await asyncio.sleep(0)
    await api.project()
    page = await waiting
    assert ids(page) == [admitted["run_id"]]
    assert page["position"] >= admitted["position"]


async def test_a_list_waits_no_longer_than_asked(api: ApiRig) -> None:
    admitted = await api.submit()
    late = await api.as_().get("/v1/runs", params={"position": admitted["position"], "timeout_seconds": 0})
    assert (late.status_code, problem(late)["code"]) == (409, "WAIT_TIMEOUT")


async def test_a_cursor_of_another_query_is_refused(api: ApiRig) -> None:
    for _ in range(2):
        await api.submit()
    await api.project()
    cursor = (await listed(api, limit=1))["next_cursor"]
    refused = await api.as_().get("/v1/runs", params={"cursor": cursor, "state": "QUEUED"})
    assert problem(refused)["code"] == "CURSOR_INVALID"


# ------------------------------------------------------------------------------------------------ the log


async def test_an_operator_reads_the_whole_log_page_by_page(api: ApiRig) -> None:
    for _ in range(3):
        await api.submit()
    found: list[int] = []
    cursor: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.as_("operator").get("/v1/events", params=query)).json()
        found += [item["position"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == list(range(1, 7))
    claims = await api.as_("operator").get("/v1/events", params={"topic": "admission.key_claimed.v1", "after": 2})
    assert [item["topic"] for item in claims.json()["items"]] == ["admission.key_claimed.v1"] * 2


async def test_an_operator_sees_the_projections(api: ApiRig) -> None:
    await api.submit()
    items = {item["name"]: item for item in (await api.as_("operator").get("/v1/projections")).json()["items"]}
    assert {"runs", "publications", "leases", "outbox", "lease_guard"} <= items.keys()
    assert items["runs"]["lag_events"] == 2
    assert items["outbox"]["lag_events"] == 0


async def test_a_method_that_is_not_there_names_those_that_are(api: ApiRig) -> None:
    answer: httpx.Response = await api.as_().delete("/v1/runs")
    assert (answer.status_code, problem(answer)["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert {"GET", "POST"} <= set(answer.headers["allow"].split(", "))
