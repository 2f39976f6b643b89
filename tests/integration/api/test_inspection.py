"""Looking at the log over HTTP: pages, states, causes, search, export, and following it live."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from api.inspection import EXPORTS_MAX
from deployment.inspection_client import InspectionClient
from deployment.problems import ProblemError
from domain.log_errors import ExportInvalidError
from services.log_export import read_export
from tests.support.api_rig import ApiRig
from tests.support.read_models import execute


async def test_a_run_is_looked_at_from_every_side(api: ApiRig) -> None:
    """Streams, one stream either way, its state as of each version, what changed, what it belongs to, and the whole as a file."""
    run_id = (await api.submit())["run_id"]
    operator = api.as_("operator")
    stream = f"run/{run_id}"

    async def get(path: str, **params: Any) -> Any:
        answer = await operator.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    listed = await get("/v1/streams", limit=1)
    more = await get("/v1/streams", limit=1, cursor=listed["next_cursor"])
    assert {listed["items"][0]["stream"].split("/")[0], more["items"][0]["stream"].split("/")[0]} == {
        "admission",
        "run",
    }
    assert (await get("/v1/streams", prefix="run/"))["items"][0]["stream"] == stream
    (event,) = (await get("/v1/streams/events", stream=stream))["items"]
    assert (event["version"], event["topic"], event["principal"]) == (1, "run.requested.v1", "ana")
    assert (await get("/v1/streams/events", stream=stream, order="desc", cursor=2))["items"] == [event]
    state = await get("/v1/streams/state", stream=stream)
    assert (state["version"], state["state"]["state"]) == (1, "QUEUED")
    assert await get("/v1/streams/state", stream=stream, at=event["recorded_at"]) == state
    changed = await get("/v1/streams/difference", stream=stream, **{"from": 0, "to": 1})
    assert {"path": "$.state", "before": "ABSENT", "after": "QUEUED", "present": "both"} in changed["differences"]
    found = await get("/v1/events/search", topic="run.requested.v1", principal="ana", order="desc")
    assert event in found["items"]
    assert (await get(f"/v1/events/{event['event_id']}/causes"))["items"] == [event]
    assert (await get(f"/v1/events/{event['event_id']}/effects"))["items"] == [event]
    exported = await operator.get("/v1/events/export")
    head, lines = read_export([line + b"\n" for line in exported.content.splitlines()])
    assert [line.position for line in lines] == list(range(1, head.events + 1))
    one = (await operator.get("/v1/events/export", params={"stream": stream})).content.splitlines()
    assert [json.loads(line)["event"] for line in one[1:]] == [event["event"]]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/streams/events", 400, "INPUT_INVALID"),
        ("/v1/streams/events?stream=run/nobody", 404, "STREAM_NOT_FOUND"),
        ("/v1/streams/state?stream=other/x", 404, "AGGREGATE_UNKNOWN"),
        ("/v1/streams/state?stream=run/nobody", 404, "STREAM_NOT_FOUND"),
        ("/v1/streams/difference?stream=run/x&from=1", 400, "INPUT_INVALID"),
        ("/v1/streams?cursor=AAAA", 409, "CURSOR_INVALID"),
        ("/v1/events/00000000-0000-0000-0000-000000000000/causes", 404, "EVENT_NOT_FOUND"),
        ("/v1/events/zero/effects", 404, "EVENT_NOT_FOUND"),
        ("/v1/events/search?limit=1001", 400, "INPUT_INVALID"),
        ("/v1/events/export?stream=run/nobody", 404, "STREAM_NOT_FOUND"),
    ],
)
async def test_what_is_not_there_or_not_right_is_said(shared_api: ApiRig, path: str, status: int, code: str) -> None:
    """Each refusal is a problem document with its code."""
    answer = await shared_api.as_("operator").get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_only_operators_look(api: ApiRig) -> None:
    """The log is everybody's business data: looking at it needs the scope operate."""
    for path in ("/v1/streams", "/v1/events/search", "/v1/events/export", "/v1/events/follow"):
        assert (await api.as_("ana").get(path)).status_code == 403


async def _messages(answer: Any, count: int) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    event_id = 0
    async for line in answer.aiter_lines():
        if line.startswith("id: "):
            event_id = int(line[4:])
        if line.startswith("data: "):
            found.append((event_id, json.loads(line[6:])))
            if len(found) == count:
                return found
    return found


async def test_the_log_is_followed_live(api: ApiRig) -> None:
    """What is there behind the place, then what comes, each once and in order; after a break it goes on behind the last."""
    await api.submit()
    mark = await api.events_in_log()
    async with api.as_("operator").stream("GET", "/v1/events/follow", params={"after": 0}) as answer:
        first = await _messages(answer, mark)
        assert [position for position, _ in first] == list(range(1, mark + 1))
    async with api.as_("operator").stream("GET", "/v1/events/follow", headers={"last-event-id": str(mark)}) as answer:
        reading = asyncio.create_task(_messages(answer, 2))
        await api.submit()
        assert [position for position, _ in await asyncio.wait_for(reading, 20)] == [mark + 1, mark + 2]


async def test_followers_choose(api: ApiRig) -> None:
    """By topic and stream: nothing else is sent."""
    params: dict[str, str | int] = {"topic": "run.requested.v1", "prefix": "run/", "after": 0}
    async with api.as_("operator").stream("GET", "/v1/events/follow", params=params) as answer:
        run_id = (await api.submit())["run_id"]
        ((_, event),) = await asyncio.wait_for(_messages(answer, 1), 20)
        assert event["stream"] == f"run/{run_id}"


async def test_places_are_limited_and_given_back(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One follower too many is refused; when one leaves there is a place again."""
    monkeypatch.setattr("api.follow.FOLLOWERS_MAX", 1)
    async with api.as_("operator").stream("GET", "/v1/events/follow", params={"after": 0}):
        refused = await api.as_("operator").get("/v1/events/follow")
        assert refused.json()["code"] == "OVERLOADED"

    async def free() -> None:
        while True:
            async with api.as_("operator").stream("GET", "/v1/events/follow", params={"after": 0}) as again:
                if again.status_code == 200:
                    return

    await asyncio.wait_for(free(), 20)


async def test_exports_at_once_are_limited(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More exports than `EXPORTS_MAX` are refused; each gives its place and its connection back."""
    monkeypatch.setattr("api.inspection.EXPORTS_MAX", 0)
    assert (await api.as_("operator").get("/v1/events/export")).json()["code"] == "OVERLOADED"
    monkeypatch.setattr("api.inspection.EXPORTS_MAX", EXPORTS_MAX)
    for _ in range(EXPORTS_MAX + 2):
        assert (await api.as_("operator").get("/v1/events/export")).status_code == 200


@pytest.mark.parametrize("damage", [2, 4])
async def test_an_export_that_breaks_says_why(api: ApiRig, damage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines before a damaged row arrive, then its position as a problem; such a file is not taken in."""
    monkeypatch.setattr("api.inspection.EXPORT_LINES", 2)
    for _ in range(3):
        await api.submit()
    execute(api.dsn, "ALTER TABLE finaz.events DISABLE TRIGGER events_append_only")
    execute(api.dsn, "UPDATE finaz.events SET principal = 'mallory' WHERE position = %s", damage)
    got: list[bytes] = []

    def fetch() -> None:
        with InspectionClient(api.url, api.tokens["operator"]) as client:
            got.extend(client.export(None, 1, None))

    with pytest.raises(ProblemError) as error:
        await asyncio.to_thread(fetch)
    assert (error.value.problem["code"], error.value.problem["position"]) == ("LOG_DAMAGED", damage)
    assert [json.loads(line)["position"] for line in got[1:]] == list(range(1, damage))
    whole = (await api.as_("operator").get("/v1/events/export")).content.splitlines(keepends=True)
    with pytest.raises(ExportInvalidError):
        list(read_export(whole)[1])


async def test_an_event_of_another_version_is_shown_wherever_events_are(api: ApiRig) -> None:
    """Whatever lists events shows one that this version cannot decode, as it is stored: it is what stopped a projection."""
    await api.submit()
    execute(
        api.dsn,
        "INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, state, chain) "
        "SELECT max(position) + 1, 1, now(), gen_random_uuid(), 'run/later', 'run.invented_later.v9', '{\"a\":1}', max(chain) "
        "FROM finaz.events",
    )
    for path in ("/v1/events", "/v1/events/search", "/v1/streams/events?stream=run/later"):
        last = (await api.as_("operator").get(path)).json()["items"][-1]
        assert (last["topic"], last["event"]) == ("run.invented_later.v9", {"a": 1}), path


async def test_a_stream_of_any_name_can_be_asked_for(api: ApiRig) -> None:
    """Names with slashes, spaces and foreign letters are names."""
    for name in ("discrepancy/RUN_DIFFERS/run x", "lease/čeněk"):
        answer = await api.as_("operator").get(f"/v1/streams/events?stream={quote(name)}")
        assert answer.json()["code"] == "STREAM_NOT_FOUND"
