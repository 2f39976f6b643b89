"""Where results come from, over HTTP: contracts, replays and parity say what was done, to whom it concerns."""

from typing import Any

import pytest

from domain.canonical import address, address_of, parse
from services.code_version import code_version
from tests.integration.api.test_results import GOLDEN, executed
from tests.support.api_calls import problem
from tests.support.api_rig import FIXTURES, ApiRig

FAULTS: dict[str, Any] = parse((FIXTURES / "schedules" / "fixture.faults.01.json").read_bytes())
GAP = {"event": "fixture.event.0.2", "kind": "GAP", "parameters": {}}
ONE_GONE = {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 1, "faults": [GAP]}


async def asked(api: ApiRig, path: str, who: str = "ana", **query: str) -> dict[str, Any]:
    answer = await api.as_(who).get(path, params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_a_result_carries_its_contract(api: ApiRig) -> None:
    """Flow, code, op versions, inputs, seed and schedule, of a BATCH and of a REPLAY run; the artifact has none of it."""
    batch, replay = await executed(api), await executed(api, mode="REPLAY", schedule=FAULTS)
    contract = await asked(api, f"/v1/runs/{batch}/contract")
    assert contract["mode"] == "BATCH"
    assert contract["ops"] == [{"node": "ema_close", "op": "ema", "version": 1}]
    assert contract["code"] == code_version()
    assert (contract["inputs"], contract["snapshot"]) == ([api.snapshot], api.snapshot)
    assert [contract[name] for name in ("seed", "schedule", "topic", "continues")] == [None, "", "", ""]
    of_replay = await asked(api, f"/v1/runs/{replay}/contract")
    assert (of_replay["seed"], of_replay["schedule"]) == (7, address_of(FAULTS))
    assert of_replay["inputs"][:2] == [api.snapshot, of_replay["schedule"]]
    assert of_replay["flow"] == contract["flow"]
    results = [(await asked(api, f"/v1/runs/{run}/results"))["items"][0] for run in (batch, replay)]
    assert results[0]["artifact"] == results[1]["artifact"]
    assert {result["code"] for result in results} == {code_version()}


async def test_a_replay_shows_its_faults_and_where_its_log_is(api: ApiRig) -> None:
    """23 arrivals, 7 faults; the log is an artifact that hashes to its name."""
    run_id = await executed(api, mode="REPLAY", schedule=FAULTS)
    replay = await asked(api, f"/v1/runs/{run_id}/replay")
    assert (replay["arrivals"], replay["faults"], len(replay["applied"])) == (23, 7, 7)
    assert (replay["partitions"], replay["seed"]) == ([6, 0, 0, 17], 7)
    assert sum(replay["treatments"].values()) == 23
    log = (await api.as_().get(f"/v1/artifacts/{replay['log']}")).content
    assert address(log) == replay["log"]
    assert len(log.splitlines()) == 24
    report = parse((await api.as_().get(f"/v1/artifacts/{replay['report']}")).content)
    assert report["applied"] == replay["applied"]


async def test_parity_of_equal_and_of_different_runs(api: ApiRig) -> None:
    """Equal to the bit; or the first tick where they part, and what is missing, extra and mismatched."""
    batch = await executed(api)
    equal = await executed(api, mode="REPLAY", schedule=FAULTS)
    other = await executed(api, mode="REPLAY", schedule=ONE_GONE)
    same = await asked(api, "/v1/parity", reference=batch, other=equal)
    assert same["equal"]
    assert [side["outputs"][0]["values_hash"] for side in (same["reference"], same["other"])] == [GOLDEN, GOLDEN]
    assert (same["reference"]["counts"], same["other"]["counts"]["consumed"]) == ({}, 6)
    assert same["outputs"][0]["first"] is None
    parted = await asked(api, "/v1/parity", reference=batch, other=other)
    assert not parted["equal"]
    (output,) = parted["outputs"]
    assert (output["missing"], output["extra"], output["mismatched"]) == (1, 0, 3)
    assert (output["first"]["kind"], output["first"]["event_id"]) == ("missing", "fixture.event.0.2")
    assert (output["reference_rows"], output["other_rows"]) == (6, 5)


async def test_outputs_that_only_one_has_are_named(api: ApiRig) -> None:
    """Two flows can be compared by what they share; what they don't share makes them unequal."""
    flow = parse((FIXTURES / "flows" / "01_A_feature.json").read_bytes())
    one, two = (
        await executed(api),
        await executed(api, flow=flow | {"outputs": [{"name": "other", "node": "ema_close"}]}),
    )
    parity = await asked(api, "/v1/parity", reference=one, other=two)
    assert (parity["equal"], parity["outputs"]) == (False, [])
    assert (parity["only_in_reference"], parity["only_in_other"]) == (["ema"], ["other"])


async def test_what_is_not_there_yet_or_not_yours(api: ApiRig) -> None:
    """A run without results is 409, another's is 404, a BATCH run is no replay; the operator sees all."""
    queued = (await api.submit())["run_id"]
    for path in (f"/v1/runs/{queued}/contract", f"/v1/runs/{queued}/replay"):
        refused = await api.as_().get(path)
        assert (refused.status_code, problem(refused)["code"]) == (409, "RUN_NOT_READY")
        assert "QUEUED" in problem(refused)["detail"]
    done = queued  # a worker takes the oldest first
    await executed(api)
    found = await api.as_().get(f"/v1/runs/{done}/replay")
    assert (found.status_code, problem(found)["code"]) == (404, "NOT_FOUND")
    for path in (f"/v1/runs/{done}/contract", f"/v1/runs/{done}/replay"):
        assert (await api.as_("bob").get(path)).status_code == 404
    assert (await asked(api, f"/v1/runs/{done}/contract", who="operator"))["run_id"] == done


@pytest.mark.parametrize("query", [{}, {"reference": "run_" + "0" * 64}, {"reference": "x", "other": "y"}])
async def test_parity_needs_two_runs(api: ApiRig, query: dict[str, str]) -> None:
    """One that is missing or no run's id is refused by name."""
    refused = await api.as_().get("/v1/parity", params=query)
    assert refused.status_code == 400
    assert problem(refused)["at"].startswith("query.")
