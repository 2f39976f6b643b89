"""Jobs and commands to projections, over HTTP: asked for, watched, confirmed, cancelled, each with the operator's name."""

import asyncio
from typing import Any

import httpx
import pytest

from projections.registry import PROCESS_MANAGERS
from services.job_runner import JobRunner, living_in
from tests.support.api_calls import problem as problem_of
from tests.support.api_rig import ApiRig
from tests.support.read_models import bring_forward, execute

NO_JOB = "job_" + "0" * 32
OPERATIONS = (
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", f"/v1/jobs/{NO_JOB}"),
    ("GET", f"/v1/jobs/{NO_JOB}/events"),
    ("POST", f"/v1/jobs/{NO_JOB}/confirm"),
    ("POST", f"/v1/jobs/{NO_JOB}/cancel"),
    ("POST", "/v1/projections/runs/stop-at"),
    ("POST", "/v1/projections/runs/skip"),
    ("GET", "/v1/projections/runs/log"),
    ("POST", "/v1/dead-letters/reconciler/revive"),
)
BAD_REQUESTS: tuple[tuple[Any, int, str], ...] = (
    ({"kind": "baking", "target": "runs"}, 400, "JOB_KIND_UNKNOWN"),
    ({"kind": "rebuild", "target": "nothing"}, 404, "PROJECTION_UNKNOWN"),
    ({"kind": "rebuild", "target": "runs", "document": {"switch": "maybe"}}, 422, "BODY_INVALID"),
    ({"kind": "rebuild", "target": "runs", "document": {"surprise": 1}}, 422, "BODY_INVALID"),
    ({"kind": "rebuild", "target": "runs", "surprise": 1}, 422, "BODY_INVALID"),
    ({"kind": "rebuild", "target": 1}, 422, "BODY_INVALID"),
    ({"kind": "rebuild"}, 422, "BODY_INVALID"),
)
BAD_COMMANDS: tuple[Any, ...] = (
    {},
    {"position": 1},
    {"position": "1", "reason": "x"},
    {"position": 0, "reason": "x"},
    {"position": 1, "reason": " "},
)
POISON = """
    INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain)
    VALUES (%s, 1, clock_timestamp(), gen_random_uuid(), 'lease/x', 'exploded.v1', '{}', 'x')
"""


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer of this status."""
    assert answer.status_code == status, answer.text
    return problem_of(answer)


async def executed(api: ApiRig) -> None:
    """Have the oldest job executed to an end of its attempt."""
    runner = JobRunner(api.parts.log, api.parts.jobs._kinds, "test", living_in(api.parts.log.pool))  # type: ignore[attr-defined]
    await asyncio.to_thread(runner.run_once)


async def test_only_operators_may(api: ApiRig) -> None:
    """Everything here needs the scope `operate`."""
    for method, path in OPERATIONS:
        answer = await api.as_("ana").request(method, path, json={} if method == "POST" else None)
        assert problem(answer, 403)["code"] == "FORBIDDEN"


async def test_a_rebuild_is_asked_for_confirmed_and_shown(api: ApiRig) -> None:
    """202 with the job; a second one refused by the first one's id; AWAITING with its report; confirmed; SUCCEEDED; listed."""
    operator = api.as_("operator")
    body = {"kind": "rebuild", "target": "runs", "document": {"switch": "on_confirmation"}}
    answer = await operator.post("/v1/jobs", json=body)
    assert answer.status_code == 202
    job: dict[str, Any] = answer.json()
    assert (job["state"], job["principal"], job["document"]["action"]) == ("QUEUED", "operator", "rebuild")
    refused = problem(await operator.post("/v1/jobs", json=body), 409)
    assert (refused["code"], refused["job_id"]) == ("JOB_RUNNING", job["job_id"])
    place = f"/v1/jobs/{job['job_id']}"
    await executed(api)
    waiting = (await operator.get(place)).json()
    assert (waiting["state"], waiting["summary"]["different"]) == ("AWAITING", 0)
    report = await operator.get(f"/v1/artifacts/{waiting['report']}")
    assert report.json()["difference"]["missing"] == 0
    assert (await operator.post(f"{place}/confirm")).json()["confirmed_by"] == "operator"
    await executed(api)
    done = (await operator.get(place)).json()
    assert (done["state"], done["result"]["generation"], done["left_seconds"]) == ("SUCCEEDED", 2, None)
    topics = [event["topic"] for event in (await operator.get(f"{place}/events")).json()["items"]]
    assert topics[0] == "job.requested.v1"
    assert "job.confirmed.v1" in topics
    assert problem(await operator.post(f"{place}/cancel"), 409)["code"] == "JOB_FINISHED"
    await asyncio.to_thread(bring_forward, api.dsn, "jobs")
    listed = (await operator.get("/v1/jobs", params={"state": "SUCCEEDED", "kind": "rebuild"})).json()
    assert [item["job_id"] for item in listed["items"]] == [job["job_id"]]
    log = (await operator.get("/v1/projections/runs/log")).json()
    assert [(entry["action"], entry["principal"]) for entry in log["items"]] == [("rebuild", "operator")]


async def test_a_job_is_cancelled_by_name(api: ApiRig) -> None:
    """Never started, it is CANCELLED at once."""
    operator = api.as_("operator")
    job = (await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "outbox"})).json()
    cancelled = (await operator.post(f"/v1/jobs/{job['job_id']}/cancel")).json()
    assert (cancelled["state"], cancelled["cancelled_by"]) == ("CANCELLED", "operator")
    assert problem(await operator.post(f"/v1/jobs/{job['job_id']}/confirm"), 409)["code"] == "JOB_FINISHED"


async def test_a_bad_request_is_refused_by_name(api: ApiRig, subtests: pytest.Subtests) -> None:
    """Nothing is appended."""
    before = api.parts.log.high_water_mark()
    for body, status, code in BAD_REQUESTS:
        with subtests.test(body=body):
            assert problem(await api.as_("operator").post("/v1/jobs", json=body), status)["code"] == code
    assert api.parts.log.high_water_mark() == before


async def test_jobs_that_are_not_there(api: ApiRig) -> None:
    """404, whatever the id looks like."""
    for job_id in (NO_JOB, "job_1", "x"):
        assert problem(await api.as_("operator").get(f"/v1/jobs/{job_id}"), 404)["code"] == "JOB_NOT_FOUND"


async def test_a_projection_stops_where_it_is_told_to(api: ApiRig) -> None:
    """It applies everything up to the position, pauses there, goes on when resumed; a position it has passed is refused."""
    operator = api.as_("operator")
    await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "runs"})
    mark = api.parts.log.high_water_mark()
    body = {"position": mark, "reason": "to look at what follows"}
    told = (await operator.post("/v1/projections/jobs/stop-at", json=body)).json()
    assert (told["stop_at"], told["state"]) == (mark, "running")
    await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "outbox"})
    await asyncio.to_thread(bring_forward, api.dsn, "jobs")
    paused = await view(api, "jobs")
    assert (paused["position"], paused["state"], paused["stop_at"]) == (mark, "paused", None)
    assert (paused["paused_by"], paused["pause_reason"]) == ("operator", "to look at what follows")
    assert problem(await operator.post("/v1/projections/jobs/stop-at", json=body), 409)["code"] == "POSITION_PASSED"
    await operator.post("/v1/projections/jobs/resume")
    await asyncio.to_thread(bring_forward, api.dsn, "jobs")
    assert (await view(api, "jobs"))["position"] == api.parts.log.high_water_mark()
    log = (await operator.get("/v1/projections/jobs/log")).json()["items"]
    assert [entry["action"] for entry in log] == ["resume", "stop-at"]


async def test_exactly_the_event_at_which_it_stopped_is_skipped(api: ApiRig) -> None:
    """Its position, no other; recorded with name and reason; a rebuild passes over it too."""
    operator = api.as_("operator")
    place = api.parts.log.high_water_mark() + 1
    await asyncio.to_thread(execute, api.dsn, POISON, place)
    body = {"position": place, "reason": "written by a program that was never released"}
    assert problem(await operator.post("/v1/projections/leases/skip", json=body), 409)["code"] == "NOT_STOPPED_THERE"
    await asyncio.to_thread(bring_forward, api.dsn, "leases")
    failure = (await view(api, "leases"))["failure"]
    assert (failure["category"], failure["code"], failure["position"]) == ("unknown topic", "UNKNOWN_TOPIC", place)
    assert (failure["stream"], failure["topic"]) == ("lease/x", "exploded.v1")
    other = {**body, "position": place + 1}
    assert problem(await operator.post("/v1/projections/leases/skip", json=other), 409)["code"] == "NOT_STOPPED_THERE"
    going_on = (await operator.post("/v1/projections/leases/skip", json=body)).json()
    assert (going_on["state"], going_on["skipped"], going_on["failure"]) == ("running", 1, None)
    await asyncio.to_thread(bring_forward, api.dsn, "leases")
    assert (await view(api, "leases"))["position"] == place
    log = (await operator.get("/v1/projections/leases/log")).json()
    assert [entry["action"] for entry in log["items"]] == ["skip", "stopped"]
    assert [(one["position"], one["principal"], one["code"]) for one in log["skipped"]] == [
        (place, "operator", "UNKNOWN_TOPIC")
    ]
    job = (await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "leases"})).json()
    await executed(api)
    assert (await operator.get(f"/v1/jobs/{job['job_id']}")).json()["state"] == "SUCCEEDED"
    nothing = await operator.post("/v1/projections/nothing/skip", json=body)
    assert problem(nothing, 404)["code"] == "PROJECTION_UNKNOWN"


async def test_a_rebuild_of_an_inline_projection_passes_over_what_nobody_can_read(api: ApiRig) -> None:
    """Only an event of its category that cannot be decoded; afterwards the rebuild, which had named it, succeeds."""
    operator = api.as_("operator")
    await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "runs"})
    place = api.parts.log.high_water_mark() + 1
    await asyncio.to_thread(execute, api.dsn, POISON, place)
    body = {"position": place, "reason": "never released"}
    for name, position in (("outbox", place), ("lease_guard", place - 1), ("lease_guard", place + 1)):
        answer = await operator.post(f"/v1/projections/{name}/skip", json={**body, "position": position})
        assert problem(answer, 409)["code"] == "NOT_STOPPED_THERE"
    skipped = await operator.post("/v1/projections/lease_guard/skip", json=body)
    assert (skipped.status_code, skipped.json()["skipped"]) == (200, 1)
    job = (await operator.post("/v1/jobs", json={"kind": "rebuild", "target": "lease_guard"})).json()
    await executed(api)
    await executed(api)
    assert (await operator.get(f"/v1/jobs/{job['job_id']}")).json()["state"] == "SUCCEEDED"
    log = (await operator.get("/v1/projections/lease_guard/log")).json()
    assert [entry["action"] for entry in log["items"]] == ["rebuild", "skip"]


async def test_a_command_without_place_or_reason_is_refused(api: ApiRig) -> None:
    """422, and nothing is logged."""
    for body in BAD_COMMANDS:
        for command in ("stop-at", "skip"):
            assert problem(await api.as_("operator").post(f"/v1/projections/runs/{command}", json=body), 422)
    assert (await api.as_("operator").get("/v1/projections/runs/log")).json()["items"] == []


async def test_the_log_of_a_projection_is_paged(api: ApiRig) -> None:
    """Newest first; the cursor goes on where the page ended."""
    operator = api.as_("operator")
    for number in range(3):
        await operator.post("/v1/projections/runs/pause", json={"reason": f"reason {number}"})
        await operator.post("/v1/projections/runs/resume")
    first = (await operator.get("/v1/projections/runs/log", params={"limit": 4})).json()
    rest = (await operator.get("/v1/projections/runs/log", params={"limit": 4, "cursor": first["next_cursor"]})).json()
    actions = [entry["action"] for entry in [*first["items"], *rest["items"]]]
    assert actions == ["resume", "pause"] * 3
    assert rest["next_cursor"] is None


async def test_dead_letters_are_shown_whole_and_revived_all_at_once(api: ApiRig) -> None:
    """Document, error and attempts; those that are events stay dead."""
    operator = api.as_("operator")
    for number, name in enumerate(("recover", "recover", "react")):
        await asyncio.to_thread(
            execute,
            api.dsn,
            "INSERT INTO finaz.manager_commands (manager, command_id, key, name, document, deadline, state, due_at, caused_by,"
            " attempts, reason) VALUES ('reconciler', %s::uuid, 'k', %s, '{\"n\": 1}', false, 'dead', now(), gen_random_uuid(), 5,"
            " 'no')",
            f"00000000-0000-4000-8000-00000000000{number}",
            name,
        )
    whole = (await operator.get("/v1/dead-letters/reconciler/00000000-0000-4000-8000-000000000000")).json()
    assert (whole["document"], whole["attempts"], whole["reason"]) == ({"n": 1}, 5, "no")
    missing = await operator.get("/v1/dead-letters/reconciler/00000000-0000-4000-8000-000000000009")
    assert problem(missing, 404)["code"] == "NOT_FOUND"
    assert (await operator.post("/v1/dead-letters/reconciler/revive")).json() == {"manager": "reconciler", "revived": 2}
    left = (await operator.get("/v1/dead-letters")).json()["items"]
    assert [letter["name"] for letter in left] == ["react"]
    assert "reconciler" in PROCESS_MANAGERS


async def view(api: ApiRig, name: str) -> dict[str, Any]:
    """One projection as the API shows it."""
    items: list[dict[str, Any]] = (await api.as_("operator").get("/v1/projections")).json()["items"]
    return next(item for item in items if item["name"] == name)
