"""Calls of the API that tests make again and again."""

from copy import deepcopy
from typing import Any

import httpx

from tests.support.api_rig import FLOW, ApiRig


async def post(api: ApiRig, key: str | None, body: Any, who: str = "ana") -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return await api.as_(who).post("/v1/runs", json=body, headers=headers)


async def post_raw(api: ApiRig, text: bytes, key: str = "raw") -> httpx.Response:
    headers = {"idempotency-key": key, "content-type": "application/json"}
    return await api.as_().post("/v1/runs", content=text, headers=headers)


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == answer.status_code
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def sweep_body(api: ApiRig, **changes: Any) -> dict[str, Any]:
    """A body of `POST /v1/sweeps` of four runs, with changes."""
    body = {name: value for name, value in api.body().items() if name != "flow"}
    combinations = {
        "flows": [FLOW],
        "instruments": ["fixture.fx-0", "fixture.fx-1"],
        "parameters": [{"ema_close": {"length": 2}}, {"ema_close": {"length": 3}}],
    }
    return body | combinations | changes


def flow(**changes: Any) -> dict[str, Any]:
    """The fixture flow with changes."""
    return deepcopy(FLOW) | changes


def flow_with_node(**changes: Any) -> dict[str, Any]:
    """The fixture flow with changes to its only node."""
    return flow(nodes=[deepcopy(FLOW["nodes"][0]) | changes])
