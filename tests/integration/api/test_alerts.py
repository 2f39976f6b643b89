"""What asks for an operator, over HTTP: each kind of trouble is seen in the lists and in the metrics, and dealt with once."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.declaring import TEXT_BODY_BYTES_MAX
from deployment.staging_wiring import STAGING
from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import BlobMissingError, StoreUnavailableError
from domain.identity import discrepancy_stream
from domain.runs.messages import RunSpec
from projections.projector import projector
from projections.statements import statements
from projections.status import Projections
from services import read_models
from services.adapters import manager_store
from services.alerts import ALERTS_PAGE_MAX, NOTE_CHARACTERS_MAX, REASON_CHARACTERS_MAX, RUNNERS
from tests.integration.services.test_process_managers import Awkward, Desk, request, until
from tests.integration.services.test_reconciliation import System
from tests.support.api_calls import problem
from tests.support.api_rig import ApiRig
from tests.support.read_models import execute

SOMETHING = "5f0c5a52-0d5e-4c1e-9d0b-2d1f6f3f7a10"  # the same in every process that collects tests
NO_RUN = "run_" + "0" * 64
RUN_ROW_CHANGED = "UPDATE finaz.runs_generations SET state = 'FAILED' WHERE run_id = '{}'"

OPERATIONS = (
    ("GET", "/v1/alerts"),
    ("POST", f"/v1/alerts/RUN_DIFFERS/{NO_RUN}/resolve"),
    ("GET", "/v1/dead-letters"),
    ("POST", f"/v1/dead-letters/reconciler/{SOMETHING}/revive"),
    ("POST", f"/v1/dead-letters/reconciler/{SOMETHING}/discard"),
    ("POST", "/v1/projections/runs/pause"),
    ("POST", "/v1/projections/runs/resume"),
    ("POST", "/v1/projections/reconciler/replay"),
)


@pytest.fixture
def system(api: ApiRig, tmp_path: Path) -> System:
    """What stands behind the API, for damaging it; nothing can be computed again."""
    made = System(api.dsn, api.log, tmp_path / "blobs")  # type: ignore[arg-type]

    def gone(spec: RunSpec) -> Sequence[bytes]:
        raise BlobMissingError("the snapshot is gone", at=spec.snapshot)

    made.recompute = gone
    return made


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the metrics counts."""
    monkeypatch.setattr(read_models, "MEASURE_SECONDS_MIN", 0.0)


def alerted(system: System, number: int, damage: Callable[[str], Any]) -> str:
    """A run that is damaged, and that the reconciler has asked an operator about."""
    run_id = system.succeeded(number)
    system.catch_up()
    damage(run_id)
    assert len(system.reconciliation.check(run_id)) == 1
    system.catch_up()
    return run_id


async def metric(api: ApiRig, line: str) -> float:
    """The value of one line of the metrics, named with its labels."""
    page = (await api.as_(None).get("/metrics")).text
    (found,) = [text for text in page.splitlines() if text.startswith(line + " ")]
    return float(found.rpartition(" ")[2])


async def alerts(api: ApiRig, state: str = "ALERTED") -> list[dict[str, Any]]:
    answer = await api.as_("operator").get("/v1/alerts", params={"state": state})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


# ------------------------------------------------------------------------------------------------ alerts


@pytest.mark.parametrize("kind", ["ARTIFACT_MISSING", "ARTIFACT_CORRUPT", "RUN_DIFFERS"])
async def test_damage_that_cannot_be_repaired_is_seen_and_resolved(api: ApiRig, system: System, kind: str) -> None:
    """In the list and in the metrics until an operator's word settles it, which the log keeps with name and note."""
    damages: dict[str, Callable[[str], Any]] = {
        "ARTIFACT_MISSING": lambda _: system.damaged_blob(None),
        "ARTIFACT_CORRUPT": lambda _: system.damaged_blob(b"other bytes"),
        "RUN_DIFFERS": lambda run_id: system.sql(RUN_ROW_CHANGED.format(run_id)),
    }
    line = f'finaz_discrepancies{{kind="{kind}",state="ALERTED"}}'
    assert (await alerts(api), await metric(api, line)) == ([], 0.0)
    run_id = await asyncio.to_thread(alerted, system, 1, damages[kind])
    (alert,) = await alerts(api)
    assert (alert["kind"], alert["run_id"], alert["state"], alert["times_found"]) == (kind, run_id, "ALERTED", 1)
    assert (alert["source"], alert["subject"]) == ("reconciler", run_id)
    assert alert["outcome"]
    assert await metric(api, line) == 1.0

    path = f"/v1/alerts/{kind}/{run_id}/resolve"
    done = await api.as_("operator").post(path, json={"note": "restored \N{SNOWMAN} from the backup"})
    assert done.status_code == 200, done.text
    again = await api.as_("operator").post(path, json={"note": "me too"})
    assert (again.status_code, problem(again)["code"]) == (404, "ALERT_NOT_FOUND")

    await asyncio.to_thread(system.catch_up)
    assert (await alerts(api), await metric(api, line)) == ([], 0.0)
    (settled,) = await alerts(api, "SETTLED")
    assert (settled["principal"], settled["outcome"]) == ("operator", "restored \N{SNOWMAN} from the backup")
    events = (await api.as_("operator").get("/v1/events", params={"after": done.json()["position"] - 1})).json()
    (resolved,) = events["items"]
    assert (resolved["topic"], resolved["principal"]) == ("discrepancy.alert_resolved.v1", "operator")
    assert resolved["stream"] == discrepancy_stream(kind, run_id)


async def test_an_alert_resolved_too_early_comes_back(api: ApiRig, system: System) -> None:
    """A word does not mend a row: the next look finds it a second time, and says so."""
    run_id = await asyncio.to_thread(alerted, system, 1, lambda run_id: system.sql(RUN_ROW_CHANGED.format(run_id)))
    path = f"/v1/alerts/RUN_DIFFERS/{run_id}/resolve"
    assert (await api.as_("operator").post(path, json={"note": "done, I think"})).status_code == 200
    assert await asyncio.to_thread(system.reconciliation.check, run_id) == (DiscrepancyKind.RUN_DIFFERS,)
    await asyncio.to_thread(system.catch_up)
    (alert,) = await alerts(api)
    assert (alert["run_id"], alert["times_found"]) == (run_id, 2)


async def test_two_operators_at_once_resolve_it_once(api: ApiRig, system: System) -> None:
    """One is told that it is done, each other one that there was nothing left to do; the log has one event."""
    run_id = await asyncio.to_thread(alerted, system, 1, lambda run_id: system.sql(RUN_ROW_CHANGED.format(run_id)))
    path, body = f"/v1/alerts/RUN_DIFFERS/{run_id}/resolve", {"note": "rebuilt"}
    answers = await asyncio.gather(*(api.as_("operator").post(path, json=body) for _ in range(8)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 200
    assert set(statuses[1:]) <= {404, 409}
    told = system.told(DiscrepancyKind.RUN_DIFFERS, run_id)
    assert [text.partition(":")[0] for text in told].count("alert_resolved") == 1


async def test_alerts_come_in_pages(api: ApiRig, system: System) -> None:
    """Newest first, each on one page; a cursor belongs to its state; a page has a limit."""

    def damage(run_id: str) -> None:
        system.sql(RUN_ROW_CHANGED.format(run_id))

    made = [await asyncio.to_thread(alerted, system, number, damage) for number in (1, 2, 3)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    for _ in made:
        page = (await api.as_("operator").get("/v1/alerts", params={"limit": 1, **cursor})).json()
        found += [alert["run_id"] for alert in page["items"]]
        cursor = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
        if len(found) == 1:
            first = cursor
    assert (found, cursor) == (made[::-1], {})
    other = await api.as_("operator").get("/v1/alerts", params={**first, "state": "FOUND"})
    assert (other.status_code, problem(other)["code"]) == (409, "CURSOR_INVALID")
    wrong: tuple[dict[str, Any], ...] = ({"cursor": "!"}, {"limit": ALERTS_PAGE_MAX + 1}, {"state": "OPEN"})
    for parameters in wrong:
        refused = await api.as_("operator").get("/v1/alerts", params=parameters)
        assert (refused.status_code, problem(refused)["code"]) == (400, "INPUT_INVALID"), parameters


# ------------------------------------------------------------------------------------------------ dead letters


async def test_dead_letters_are_seen_revived_and_discarded(
    api: ApiRig, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the list with the reason, and in the metrics; revived it is done, discarded it is over; each once."""
    await asyncio.to_thread(request, system.log)
    manager = Awkward()
    manager.error = StoreUnavailableError("away")
    client = api.as_("operator")
    line = 'finaz_dead_letters{manager="orphan_recovery"}'
    assert await metric(api, line) == 0.0
    with Desk(system.dsn, system.log, manager):
        await asyncio.to_thread(
            until, lambda: len(manager_store.ManagerOperations(system.log.pool).dead_letters()) == 2
        )
        letters = {letter["name"]: letter for letter in (await client.get("/v1/dead-letters")).json()["items"]}
        assert letters["do"]["attempts"] == 1
        assert "STORE_UNAVAILABLE: away" in letters["do"]["reason"]
        assert await metric(api, line) == 2.0
        others = await client.get("/v1/dead-letters", params={"manager": "reconciler"})
        assert others.json() == {"items": []}
        monkeypatch.setattr(manager_store, "DEAD_LETTERS_MAX", 1)
        assert len((await client.get("/v1/dead-letters")).json()["items"]) == 1

        manager.error = None
        path = f"/v1/dead-letters/orphan_recovery/{letters['do']['command_id']}"
        revived = await client.post(f"{path}/revive")
        assert (revived.status_code, revived.json()["state"]) == (200, "pending")
        await asyncio.to_thread(until, lambda: manager.executed.count("do") == 2)
        assert (await client.post(f"{path}/revive")).status_code == 404

        path = f"/v1/dead-letters/orphan_recovery/{letters['later']['command_id']}"
        reason = {"reason": "not needed any more"}
        discarded = await client.post(f"{path}/discard", json=reason)
        assert (discarded.status_code, discarded.json()["state"]) == (200, "discarded")
        for again in (await client.post(f"{path}/discard", json=reason), await client.post(f"{path}/revive")):
            assert (again.status_code, problem(again)["code"]) == (404, "NOT_FOUND")
    assert await metric(api, line) == 0.0
    rows = system.sql("SELECT principal, reason FROM finaz.manager_commands WHERE state = 'discarded'")
    assert rows == [("operator", "not needed any more")]


async def test_an_event_that_could_not_be_reacted_to_is_replayed_not_revived(api: ApiRig, system: System) -> None:
    """The whole way over HTTP: revive refuses, pause, replay, resume; what the event called for is done; discard."""
    await asyncio.to_thread(request, system.log)
    manager = Awkward()
    manager.error_in_react = ValueError("no idea")
    client = api.as_("operator")
    operations = manager_store.ManagerOperations(system.log.pool)
    with Desk(system.dsn, system.log, manager):
        await asyncio.to_thread(until, lambda: len(operations.dead_letters()) == 1)
        (letter,) = (await client.get("/v1/dead-letters")).json()["items"]
        assert letter["name"] == "react"
        path = f"/v1/dead-letters/orphan_recovery/{letter['command_id']}"
        assert (await client.post(f"{path}/revive")).status_code == 404
        refused = await client.post("/v1/projections/orphan_recovery/replay")
        assert (refused.status_code, problem(refused)["code"]) == (409, "REFUSED")
        await client.post("/v1/projections/orphan_recovery/pause", json={"reason": "new code"})
        replayed = await client.post("/v1/projections/orphan_recovery/replay")
        assert (replayed.status_code, replayed.json()["position"]) == (200, 0)
        manager.error_in_react = None
        await client.post("/v1/projections/orphan_recovery/resume")
        await asyncio.to_thread(until, lambda: sorted(manager.executed) == ["do", "later"])
        assert (await client.post(f"{path}/discard", json={"reason": "replayed"})).status_code == 200


# ------------------------------------------------------------------------------------------------ pausing


@pytest.mark.parametrize("name", RUNNERS)
async def test_whatever_has_a_runner_is_paused_and_resumed(api: ApiRig, name: str) -> None:
    """Paused it says why and by whom, in the answer and in the list; resumed it says nothing of it any more."""
    client = api.as_("operator")
    if name in STAGING:  # not there before anybody has staged
        missing = await client.post(f"/v1/projections/{name}/pause", json={"reason": "moving the database"})
        assert problem(missing)["code"] == "PROJECTION_UNKNOWN"
        await asyncio.to_thread(execute, api.dsn, statements("projections.staging", "staging.sql")["register"])
    paused = await client.post(f"/v1/projections/{name}/pause", json={"reason": "moving the database"})
    assert paused.status_code == 200, paused.text
    told = {key: paused.json()[key] for key in ("name", "state", "pause_reason", "paused_by")}
    expected = {"name": name, "state": "paused", "pause_reason": "moving the database", "paused_by": "operator"}
    assert told == expected
    assert paused.json() in (await client.get("/v1/projections")).json()["items"]
    resumed = (await client.post(f"/v1/projections/{name}/resume")).json()
    assert (resumed["state"], resumed["pause_reason"], resumed["paused_by"]) == ("running", None, None)


async def test_a_paused_projection_stays_where_it_is(api: ApiRig, system: System) -> None:
    """What happens meanwhile is applied once it goes on."""

    def reaches(name: str, position: int) -> None:
        until(lambda: Projections(system.log.pool).position(name) == position)

    client = api.as_("operator")
    await client.post("/v1/projections/runs/pause", json={"reason": "a look at its rows"})
    await asyncio.to_thread(request, system.log)
    with projector(system.dsn, "test"):
        await asyncio.to_thread(reaches, "leases", 1)
        paused = {view["name"]: view for view in (await client.get("/v1/projections")).json()["items"]}["runs"]
        assert (paused["health"], paused["position"], paused["lag_events"]) == ("paused", 0, 1)
        await client.post("/v1/projections/runs/resume")
        await asyncio.to_thread(reaches, "runs", 1)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_all_of_it_is_for_operators(shared_api: ApiRig, method: str, path: str) -> None:
    """Without a token 401, without the scope `operate` 403, before anything is looked at."""
    assert (await shared_api.as_(None).request(method, path)).status_code == 401
    for who in ("ana", "reader", "writer"):
        refused = await shared_api.as_(who).request(method, path)
        assert (refused.status_code, problem(refused)["code"]) == (403, "FORBIDDEN")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("subject", [NO_RUN, "res_1"])
async def test_an_alert_of_a_purchase_is_told_what_settles_it(shared_api: ApiRig, subject: str) -> None:
    """Resolving it like one of the reconciler's is 404 with the command that is right, whatever it is said to be about."""
    path = f"/v1/alerts/UNKNOWN_EXPIRED/{subject}/resolve"
    refused = await shared_api.as_("operator").post(path, json={"note": "asked"})
    found = problem(refused)
    assert (refused.status_code, found["code"], found["at"]) == (404, "ALERT_NOT_FOUND", "path.kind")
    assert found["expected"].startswith("finaz purchase settle PURCHASE_ID ")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/v1/alerts/RUN_DIFFERS/{NO_RUN}/resolve", "ALERT_NOT_FOUND"),
        (f"/v1/alerts/NO_KIND/{NO_RUN}/resolve", "ALERT_NOT_FOUND"),
        ("/v1/alerts/RUN_DIFFERS/run_1/resolve", "ALERT_NOT_FOUND"),
        (f"/v1/dead-letters/reconciler/{SOMETHING}/revive", "NOT_FOUND"),
        (f"/v1/dead-letters/reconciler/{SOMETHING}/discard", "NOT_FOUND"),
        (f"/v1/dead-letters/nobody/{SOMETHING}/revive", "NOT_FOUND"),
        ("/v1/dead-letters/reconciler/7/revive", "NOT_FOUND"),
        ("/v1/projections/nothing/pause", "PROJECTION_UNKNOWN"),
        ("/v1/projections/outbox/pause", "PROJECTION_UNKNOWN"),
        ("/v1/projections/lease_guard/resume", "PROJECTION_UNKNOWN"),
        ("/v1/projections/runs/replay", "PROJECTION_UNKNOWN"),
    ],
)
async def test_what_is_not_there_is_not_found(shared_api: ApiRig, path: str, code: str) -> None:
    body = {"note": "gone"} if path.startswith("/v1/alerts") else {"reason": "gone"}
    refused = await shared_api.as_("operator").post(path, json=body)
    assert (refused.status_code, problem(refused)["code"]) == (404, code)


WRONG_BODIES: list[tuple[bytes, int, str]] = [
    (b'{"%s": ""}', 422, "BODY_INVALID"),
    (b'{"%s": " \\n\\u2003"}', 422, "BODY_INVALID"),
    (b'{"%s": 7}', 422, "BODY_INVALID"),
    (b'{"%s": null}', 422, "BODY_INVALID"),
    (b'{"%s": "x", "more": 1}', 422, "BODY_INVALID"),
    (b"{}", 422, "BODY_INVALID"),
    (b"[]", 422, "BODY_INVALID"),
    (b'"%s"', 422, "BODY_INVALID"),
    (b'{"%s": "x', 400, "JSON_INVALID"),
    (b'{"%s": "x", "%s": "y"}', 400, "JSON_INVALID"),
    (b'{"%s": "a\\u0000b"}', 400, "JSON_INVALID"),
    (b'{"%s": "\\ud800"}', 400, "JSON_INVALID"),
    (b'{"%s": "' + b"x" * (max(NOTE_CHARACTERS_MAX, REASON_CHARACTERS_MAX) + 1) + b'"}', 422, "BODY_INVALID"),
    (b'{"%s": "' + b"x" * TEXT_BODY_BYTES_MAX + b'"}', 413, "BODY_TOO_LARGE"),
]


async def test_a_note_that_says_nothing_changes_nothing(api: ApiRig, system: System) -> None:
    """Empty, blank, too long, of another type, with fields that nobody knows, or no JSON: refused, and nothing is written."""
    run_id = await asyncio.to_thread(alerted, system, 1, lambda run_id: system.sql(RUN_ROW_CHANGED.format(run_id)))
    before = await api.events_in_log()
    paths = {
        f"/v1/alerts/RUN_DIFFERS/{run_id}/resolve": b"note",
        f"/v1/dead-letters/reconciler/{SOMETHING}/discard": b"reason",
        "/v1/projections/runs/pause": b"reason",
    }
    headers = {"content-type": "application/json"}
    for body, status, code in WRONG_BODIES:
        for path, field in paths.items():
            refused = await api.as_("operator").post(path, content=body.replace(b"%s", field), headers=headers)
            assert (refused.status_code, problem(refused)["code"]) == (status, code), (path, body[:40])
    assert await api.events_in_log() == before
    assert system.sql("SELECT count(*) FROM finaz.projections WHERE state = 'paused'") == [(0,)]
    assert len(await alerts(api)) == 1
