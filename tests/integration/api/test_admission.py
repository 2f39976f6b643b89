"""Submitting over HTTP: the table of admission, row by row."""

import asyncio
import json
from typing import Any

from domain.canonical import address_of
from tests.support.api_calls import post, post_raw, problem, sweep_body
from tests.support.api_rig import ApiRig

# ------------------------------------------------------------------------------------------------ the table


async def test_same_key_and_body_is_the_same_run_and_answer(api: ApiRig) -> None:
    """The second answer equals the first to the byte, but for the header that marks it; nothing more is in the log."""
    first = await post(api, "k", api.body())
    events = await api.events_in_log()
    second = await post(api, "k", api.body())
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.content == second.content
    assert first.headers["location"] == second.headers["location"] == f"/v1/runs/{first.json()['run_id']}"
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert await api.events_in_log() == events


async def test_white_space_key_order_and_defaults_are_not_the_body(api: ApiRig) -> None:
    """Two texts of one typed body are the same body."""
    first = await post(api, "k", api.body())
    spelled = dict(reversed(api.body(priority=0, tags=[], deadline_seconds=86_400).items()))
    second = await post_raw(api, json.dumps(spelled, indent=4).encode(), key="k")
    assert second.content == first.content
    assert second.headers["idempotency-replayed"] == "true"


async def test_same_key_and_other_body_is_refused(api: ApiRig) -> None:
    await post(api, "k", api.body())
    refused = await post(api, "k", api.body(priority=1))
    assert (refused.status_code, problem(refused)["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_another_key_is_a_new_run(api: ApiRig) -> None:
    first, second = await post(api, "k1", api.body()), await post(api, "k2", api.body())
    assert first.json()["run_id"] != second.json()["run_id"]
    assert first.json()["body_hash"] == second.json()["body_hash"]


async def test_a_key_is_one_principals_own(api: ApiRig) -> None:
    """The same key and body of two principals are two runs, and neither sees the other's."""
    ana, bob = await post(api, "k", api.body()), await post(api, "k", api.body(), who="bob")
    assert ana.json()["run_id"] != bob.json()["run_id"]
    assert (await api.as_("bob").get(ana.headers["location"])).status_code == 404


async def test_the_longest_key_is_allowed(api: ApiRig) -> None:
    assert (await post(api, "k" * 255, api.body())).status_code == 202


async def test_a_hundred_posts_of_one_key_are_one_run(api: ApiRig) -> None:
    """However they race, there is one run, and a hundred answers equal to the byte; all but one are marked as replayed."""
    answers = await asyncio.gather(*(post(api, "race", api.body()) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 99
    assert await api.events_in_log() == 2


async def test_a_refused_body_burns_no_key(api: ApiRig) -> None:
    assert (await post(api, "k", api.body(priority=101))).status_code == 422
    assert (await post(api, "k", api.body(snapshot="sha256:" + "0" * 64))).status_code == 404
    admitted = await post(api, "k", api.body())
    assert admitted.status_code == 202
    assert "idempotency-replayed" not in admitted.headers


async def test_an_escaped_backslash_before_u0000_is_plain_text(api: ApiRig) -> None:
    """The six characters of the escape are text like any other, and come back as they were."""
    text = "\\u0000 and \\ud800"
    admitted = await api.submit(tags=[text])
    assert (await api.as_().get(f"/v1/runs/{admitted['run_id']}")).json()["tags"] == [text]


async def test_names_of_any_script_come_back_as_they_were(api: ApiRig) -> None:
    tags = ["caf\u00e9", "日本", "\U0001f600", "a b", "ß"]
    admitted = await api.submit(tags=tags)
    assert (await api.as_().get(f"/v1/runs/{admitted['run_id']}")).json()["tags"] == tags


async def test_a_corrupt_snapshot_is_refused(api: ApiRig, tmp_path: Any) -> None:
    """Bytes that don't hash to the address are never read as a snapshot; no key is burnt."""
    digest = api.snapshot.removeprefix("sha256:")
    stored = tmp_path / "blobs" / digest[:2] / digest[2:4] / digest
    right = stored.read_bytes()
    stored.write_bytes(b"{}")
    refused = await post(api, "k", api.body())
    assert problem(refused)["code"] == "BLOB_CORRUPT"
    stored.write_bytes(right)
    assert (await post(api, "k", api.body())).status_code == 202


async def test_a_stored_flow_is_the_flow(api: ApiRig) -> None:
    """A flow given by the address at which admission stored it makes the same kind of run, with the same flow address."""
    inline = await api.submit()
    address = (await api.as_().get(f"/v1/runs/{inline['run_id']}")).json()["flow"]
    assert address == address_of(json.loads((await api.as_().get(f"/v1/artifacts/{address}")).content))
    stored = await api.submit(flow=address)
    assert (await api.as_().get(f"/v1/runs/{stored['run_id']}")).json()["flow"] == address
    assert stored["body_hash"] == inline["body_hash"]


# ------------------------------------------------------------------------------------------------ sweeps


async def test_a_sweep_is_all_combinations_in_one_append(api: ApiRig) -> None:
    """Flows × instruments × parameters in order, each a run of the sweep; the repeat is the same answer."""
    headers = {"idempotency-key": "s"}
    first = await api.as_().post("/v1/sweeps", json=sweep_body(api), headers=headers)
    events = await api.events_in_log()
    second = await api.as_().post("/v1/sweeps", json=sweep_body(api), headers=headers)
    assert (first.status_code, first.content) == (202, second.content)
    assert second.headers["idempotency-replayed"] == "true"
    assert await api.events_in_log() == events
    admitted = first.json()
    assert len(set(admitted["run_ids"])) == 4
    views = [(await api.as_().get(f"/v1/runs/{run_id}")).json() for run_id in admitted["run_ids"]]
    assert {view["sweep_id"] for view in views} == {admitted["sweep_id"]}
    assert len({view["flow"] for view in views}) == 4


async def test_a_sweep_and_a_run_may_have_one_key(api: ApiRig) -> None:
    """A key's scope holds the operation."""
    await post(api, "k", api.body())
    assert (
        await api.as_().post("/v1/sweeps", json=sweep_body(api), headers={"idempotency-key": "k"})
    ).status_code == 202
