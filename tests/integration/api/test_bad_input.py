"""What bad input gets: a typed problem that names the place, and nothing in the log.

No test here writes anything, so they share one API and each asserts that the log is still empty.
"""

import json
from typing import Any

import pytest

from tests.support.api_calls import flow, flow_with_node, post, post_raw, problem, sweep_body
from tests.support.api_rig import ApiRig

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = "run_" + "0" * 64


@pytest.mark.parametrize(
    "key", [None, "", "a\tb", "a\x7fb", "k" * 256, "\u00e9" * 128, "cafe\u0301"], ids=lambda key: repr(key)[:12]
)
async def test_a_key_that_is_none_is_refused(shared_api: ApiRig, key: str | None) -> None:
    """No key, an empty one, a control character, over 255 bytes, not NFC: 400, and nothing is written."""
    headers = {} if key is None else {"idempotency-key": key.encode()}
    refused = await shared_api.as_().post("/v1/runs", json=shared_api.body(), headers=headers)
    assert (refused.status_code, problem(refused)["code"]) == (400, "IDEMPOTENCY_KEY_INVALID")
    assert await shared_api.events_in_log() == 0


async def test_a_key_that_is_no_utf8_is_refused(shared_api: ApiRig) -> None:
    refused = await shared_api.as_().post("/v1/runs", json=shared_api.body(), headers={"idempotency-key": b"\xff\xfe"})
    assert problem(refused)["code"] == "IDEMPOTENCY_KEY_INVALID"


async def test_two_keys_are_refused(shared_api: ApiRig) -> None:
    headers = [("idempotency-key", "a"), ("idempotency-key", "b")]
    refused = await shared_api.as_().post("/v1/runs", json=shared_api.body(), headers=headers)
    assert (refused.status_code, problem(refused)["at"]) == (400, "idempotency-key")


# ------------------------------------------------------------------------------------------------ bad input


def twice(kind: str) -> dict[str, Any]:
    """A schedule that says one thing of one event two times."""
    fault = {"event": "fixture.event.0.2", "kind": kind}
    return {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 7, "faults": [fault, fault]}


CYCLE = flow(
    nodes=[
        {"id": "a", "op": "ema", "inputs": [{"node": "b"}], "parameters": {"length": 3}},
        {"id": "b", "op": "ema", "inputs": [{"node": "a"}], "parameters": {"length": 3}},
    ],
    outputs=[{"name": "x", "node": "a"}],
)


@pytest.mark.parametrize(
    ("changes", "status", "code", "at"),
    [
        ({"priorty": 1}, 422, "BODY_INVALID", "$"),
        ({"mode": None}, 422, "BODY_INVALID", "$"),
        ({"mode": "batch"}, 422, "BODY_INVALID", "$.mode"),
        ({"priority": "1"}, 422, "BODY_INVALID", "$.priority"),
        ({"priority": 1.0}, 422, "BODY_INVALID", "$.priority"),
        ({"priority": True}, 422, "BODY_INVALID", "$.priority"),
        ({"priority": 101}, 422, "BODY_INVALID", "$.priority"),
        ({"priority": 2**53 + 1}, 422, "BODY_INVALID", "$.priority"),
        ({"deadline_seconds": 0}, 422, "BODY_INVALID", "$.deadline_seconds"),
        ({"tags": "one"}, 422, "BODY_INVALID", "$.tags"),
        ({"tags": ["t"] * 33}, 422, "BODY_INVALID", "$.tags"),
        ({"tags": ["ok", "cafe\u0301"]}, 422, "NAME_INVALID", "$.tags[1]"),
        ({"tags": [""]}, 422, "NAME_INVALID", "$.tags[0]"),
        ({"as_of": "2026-01-06T00:00:00"}, 422, "INSTANT_INVALID", "$.as_of"),
        ({"as_of": "2026-02-30T00:00:00Z"}, 422, "INSTANT_INVALID", "$.as_of"),
        ({"as_of": "2026-01-06T00:00:00.0000001Z"}, 422, "INSTANT_INVALID", "$.as_of"),
        ({"as_of": 1767657600}, 422, "BODY_INVALID", "$.as_of"),
        ({"snapshot": "fixture.snapshot.01"}, 422, "BODY_INVALID", "$.snapshot"),
        ({"snapshot": "sha256:" + "0" * 64}, 404, "BLOB_MISSING", "$.snapshot"),
        ({"flow": "sha256:" + "0" * 64}, 404, "BLOB_MISSING", "$.flow"),
        ({"flow": "01_A_feature"}, 422, "BODY_INVALID", "$.flow"),
        ({"flow": flow_with_node(op="emma")}, 422, "OP_UNKNOWN", "$.flow.nodes[0].op"),
        ({"flow": flow_with_node(op_version=2)}, 422, "OP_UNKNOWN", "$.flow.nodes[0].op_version"),
        ({"flow": flow_with_node(parameters={"length": 0})}, 422, "FLOW_INVALID", "$.flow.nodes[0].parameters.length"),
        ({"flow": flow_with_node(parameters={"length": -3})}, 422, "FLOW_INVALID", "$.flow.nodes[0].parameters.length"),
        (
            {"flow": flow_with_node(parameters={"length": 3.0})},
            422,
            "FLOW_INVALID",
            "$.flow.nodes[0].parameters.length",
        ),
        ({"flow": flow_with_node(parameters={"len": 3})}, 422, "FLOW_INVALID", "$.flow.nodes[0].parameters.len"),
        ({"flow": flow_with_node(comment="x")}, 422, "FLOW_INVALID", "$.flow.nodes[0].comment"),
        (
            {"flow": flow_with_node(inputs=[{"column": "volume"}])},
            422,
            "COLUMN_UNKNOWN",
            "$.flow.nodes[0].inputs[0].column",
        ),
        ({"flow": flow(name="cafe\u0301")}, 422, "NAME_INVALID", "$.flow.name"),
        ({"flow": CYCLE}, 422, "FLOW_INVALID", "$.flow.nodes[1].inputs[0]"),
        ({"flow": flow(source={"instruments": ["fixture.fx-9"]})}, 422, "SNAPSHOT_INVALID", "$.snapshot"),
        ({"schedule": ""}, 422, "BODY_INVALID", "$.schedule"),
        ({"mode": "REPLAY", "schedule": "mine"}, 422, "BODY_INVALID", "$.schedule"),
        ({"mode": "REPLAY", "schedule": {"seed": 1}}, 422, "SCHEDULE_INVALID", "$.schedule.faults"),
        ({"mode": "REPLAY", "schedule": twice("GAP")}, 422, "SCHEDULE_INVALID", "$.schedule.faults[1]"),
        ({"mode": "STREAM"}, 422, "BODY_INVALID", "$.topic"),
        ({"mode": "STREAM", "topic": "no topic"}, 422, "BODY_INVALID", "$.topic"),
        ({"topic": "arrivals"}, 422, "BODY_INVALID", "$.topic"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
async def test_a_wrong_body_is_named_with_its_place(
    shared_api: ApiRig, changes: dict[str, Any], status: int, code: str, at: str
) -> None:
    """A clear typed error that names the place and what was expected, and nothing in the log."""
    whole = shared_api.body() | changes
    refused = await post(shared_api, "k", {name: value for name, value in whole.items() if value is not None})
    found = problem(refused)
    assert (refused.status_code, found["code"], found["at"]) == (status, code, at)
    assert found["expected"]
    assert await shared_api.events_in_log() == 0


RAW = '{"mode":"BATCH","snapshot":"%s","as_of":"2026-01-06T00:00:00Z","flow":{},%s}'


@pytest.mark.parametrize(
    "members",
    [
        '"priority":NaN',
        '"priority":Infinity',
        '"priority":-Infinity',
        '"priority":1e400',
        '"tags":["\\u0000"]',
        '"tags":["\\ud800"]',
        '"tags":["\\udc00\\ud800"]',
        '"mode":"BATCH"',
        '"tags":[{"a":1,"a":1}]',
        '"priority":1,',
        '"priority":' + "9" * 4301,
        '"tags":' + "[" * 101 + "]" * 101,
        '"tags":' + "[" * 100_000,
        '"tags":["\x01"]',
        "'priority':1",
    ],
    ids=lambda members: members[:24],
)
async def test_text_without_a_canonical_form_is_refused(shared_api: ApiRig, members: str) -> None:
    """NaN, infinities, overflow, U+0000, lone surrogates, duplicate keys, too deep, too long: 400 JSON_INVALID with a place."""
    refused = await post_raw(shared_api, (RAW % (shared_api.snapshot, members)).encode())
    assert (refused.status_code, problem(refused)["code"]) == (400, "JSON_INVALID")
    assert problem(refused)["at"]
    assert await shared_api.events_in_log() == 0


@pytest.mark.parametrize("text", [b"", b"\xff", b"\xef\xbb\xbf{}", b"{} {}", b'"\xed\xa0\x80"'])
async def test_bytes_that_are_no_json_are_refused(shared_api: ApiRig, text: bytes) -> None:
    assert problem(await post_raw(shared_api, text))["code"] == "JSON_INVALID"


@pytest.mark.parametrize("text", [b"null", b"[]", b"1", b'"x"'])
async def test_json_that_is_no_object_is_refused(shared_api: ApiRig, text: bytes) -> None:
    refused = await post_raw(shared_api, text)
    assert (refused.status_code, problem(refused)["code"]) == (422, "BODY_INVALID")


async def test_a_body_over_the_limit_is_refused(shared_api: ApiRig) -> None:
    refused = await post_raw(shared_api, b'{"x":"' + b"x" * 1024 * 1024 + b'"}')
    assert (refused.status_code, problem(refused)["code"]) == (413, "BODY_TOO_LARGE")


async def test_another_media_type_is_refused(shared_api: ApiRig) -> None:
    headers = {"idempotency-key": "k", "content-type": "text/plain"}
    refused = await shared_api.as_().post("/v1/runs", content=b"{}", headers=headers)
    assert (refused.status_code, problem(refused)["code"]) == (415, "MEDIA_TYPE_UNSUPPORTED")


async def test_a_sweep_of_too_many_runs_is_refused(shared_api: ApiRig) -> None:
    parameters = [{"ema_close": {"length": n}} for n in range(1, 502)]
    refused = await shared_api.as_().post(
        "/v1/sweeps", json=sweep_body(shared_api, parameters=parameters), headers={"idempotency-key": "s"}
    )
    assert (refused.status_code, problem(refused)["code"]) == (422, "BODY_INVALID")
    assert await shared_api.events_in_log() == 0


async def test_a_sweep_with_one_wrong_member_admits_none(shared_api: ApiRig) -> None:
    parameters = [{"ema_close": {"length": 2}}, {"ema_close": {"length": 0}}]
    refused = await shared_api.as_().post(
        "/v1/sweeps", json=sweep_body(shared_api, parameters=parameters), headers={"idempotency-key": "s"}
    )
    assert refused.status_code == 422
    assert "parameters[1]" in problem(refused)["at"]
    assert await shared_api.events_in_log() == 0


@pytest.mark.parametrize("path", ["", "/events", "/results", "/results/ema", "/watch"])
@pytest.mark.parametrize("run_id", [UNKNOWN, "run_1", "run_" + "A" * 64, "x" * 300, "%00", "run_%F0"])
async def test_a_run_that_is_not_there_is_not_found(shared_api: ApiRig, run_id: str, path: str) -> None:
    answer = await shared_api.as_().get(f"/v1/runs/{run_id}{path}")
    assert answer.status_code in (404, 400)
    assert problem(answer)["code"] in ("RUN_NOT_FOUND", "NOT_FOUND", "INPUT_INVALID")


@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("reader", "POST", "/v1/runs", 403),
        ("reader", "POST", "/v1/sweeps", 403),
        ("reader", "POST", f"/v1/runs/{UNKNOWN}/cancel", 403),
        ("reader", "PUT", "/v1/artifacts/sha256:" + "0" * 64, 403),
        ("writer", "GET", "/v1/runs", 403),
        ("writer", "GET", f"/v1/runs/{UNKNOWN}", 403),
        ("writer", "GET", f"/v1/runs/{UNKNOWN}/watch", 403),
        ("writer", "GET", f"/v1/runs/{UNKNOWN}/results/ema", 403),
        ("writer", "GET", "/v1/artifacts/sha256:" + "0" * 64, 403),
        ("ana", "GET", "/v1/projections", 403),
        ("ana", "GET", "/v1/events", 403),
        ("operator", "GET", "/v1/events", 200),
        (None, "GET", "/v1/runs", 401),
        (None, "POST", "/v1/runs", 401),
        (None, "GET", f"/v1/runs/{UNKNOWN}/watch", 401),
        (None, "GET", "/health/live", 200),
        (None, "GET", "/metrics", 200),
        (None, "GET", "/schema/openapi.json", 200),
    ],
)
async def test_each_operation_needs_its_scope(
    shared_api: ApiRig, who: str | None, method: str, path: str, status: int
) -> None:
    answer = await shared_api.as_(who).request(method, path)
    assert answer.status_code == status
    if status in (401, 403):
        assert problem(answer)["code"] == {401: "UNAUTHENTICATED", 403: "FORBIDDEN"}[status]
        assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("query", "at"),
    [
        ("state=DONE", "query.state"),
        ("limit=0", "query.limit"),
        ("limit=201", "query.limit"),
        ("colour=red", "query"),
        ("requested_from=2026-01-05T09:00:00", "query.requested_from"),
        ("tag=cafe%CC%81", "query.tag"),
        ("sweep=1", "query.sweep"),
        ("position=-1", "query.position"),
        ("cursor=%00", "query.cursor"),
    ],
)
async def test_a_wrong_query_is_named(shared_api: ApiRig, query: str, at: str) -> None:
    answer = await shared_api.as_().get(f"/v1/runs?{query}")
    assert 400 <= answer.status_code < 500
    assert problem(answer)["at"] == at


@pytest.mark.parametrize("last", ["-1", "x", "1.0", "9" * 30, ""])
async def test_a_last_event_id_that_is_none_is_refused(shared_api: ApiRig, last: str) -> None:
    refused = await shared_api.as_().get(f"/v1/runs/{UNKNOWN}/watch", headers={"last-event-id": last})
    assert (refused.status_code, problem(refused)["at"]) == (400, "Last-Event-ID")
