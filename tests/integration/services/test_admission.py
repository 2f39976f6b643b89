"""Admission, on the real log and the one in memory: one key, one body, one run, whoever asks how often at once."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from domain.canonical import address_of, canonical
from domain.errors import FinazError, IdempotencyKeyReusedError, ModeUnavailableError, StoreUnavailableError
from domain.identity import admission_stream, run_id_of, run_stream
from domain.market.errors import ColumnUnknownError, ScheduleInvalidError
from domain.market.flow import flow_body, parse_flow
from domain.runs.aggregate import RunState
from domain.runs.messages import RunRequested
from services import faultpoints, schedules
from services.admission import SWEEPS_RUN, Admissions, SubmittedRun, SubmittedSweep
from services.cas import DirectoryBlobStore
from services.faultpoints import armed
from services.ports import Append
from services.requests import RunBody, SweepBody, body_value, parse_run_body, parse_sweep_body
from services.runs import Runs
from tests.support.fixture_market import AS_OF, body, flow, store_snapshot
from tests.support.logs import LogUnderTest, log_under_test

under_test = pytest.fixture(params=["memory", "postgres"])(log_under_test)


def fault_of(event: str, kind: str = "GAP", **parameters: Any) -> dict[str, Any]:
    """A schedule with one fault."""
    fault = {"event": event, "kind": kind, "parameters": parameters}
    return {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 7, "faults": [fault]}


@dataclass
class Office:
    """Admissions with a stored snapshot."""

    log: Any
    blobs: DirectoryBlobStore
    admissions: Admissions
    snapshot: str

    def run(self, **changes: Any) -> RunBody:
        return parse_run_body(body(self.snapshot, **changes))

    def sweep(self, **changes: Any) -> SweepBody:
        wanted = {"mode": "BATCH", "flows": [flow()], "snapshot": self.snapshot, "as_of": AS_OF}
        return parse_sweep_body(wanted | changes)

    async def events(self) -> int:
        return int(await asyncio.to_thread(self.log.high_water_mark))


@pytest.fixture
def office(under_test: LogUnderTest, tmp_path: Path) -> Office:
    blobs = DirectoryBlobStore(tmp_path / "cas")
    return Office(under_test.log, blobs, Admissions(under_test.log, blobs), store_snapshot(blobs))


async def test_a_run_is_admitted(office: Office) -> None:
    """Two events in one append: the key is claimed and the run is requested; its id is a function of the request."""
    submitted = await office.admissions.submit_run("ana", "key", office.run(tags=["a"], priority=3))
    view = await Runs(office.log).get(submitted.run_id, "ana")
    assert (view.state, view.tags, view.priority, view.flow_name) == (RunState.QUEUED, ("a",), 3, "01_A_feature")
    assert submitted.run_id == run_id_of("ana", "runs.create", "key", submitted.body_hash)
    assert (submitted.position, submitted.replayed) == (view.position, False)
    assert await office.events() == 2
    assert office.blobs.has(view.flow)


async def test_the_same_request_again_is_the_same_answer(office: Office) -> None:
    """But for the mark that it was replayed; nothing is appended."""
    first = await office.admissions.submit_run("ana", "key", office.run())
    await office.admissions.submit_run("ana", "other key", office.run())
    again = await office.admissions.submit_run("ana", "key", office.run(priority=0))
    assert (again.run_id, again.position, again.body_hash) == (first.run_id, first.position, first.body_hash)
    assert again.replayed
    assert await office.events() == 4


async def test_a_stored_flow_and_the_same_flow_inline_are_one_body(office: Office) -> None:
    """The hash covers what the flow is, not how it was given."""
    first = await office.admissions.submit_run("ana", "key", office.run())
    address = (await Runs(office.log).get(first.run_id, "ana")).flow
    again = await office.admissions.submit_run("ana", "key", office.run(flow=address))
    assert (again.run_id, again.replayed) == (first.run_id, True)


async def test_the_key_with_another_body_is_refused(office: Office) -> None:
    """409 `IDEMPOTENCY_KEY_REUSED`, and the first run is untouched."""
    await office.admissions.submit_run("ana", "key", office.run())
    for other in (office.run(priority=1), office.run(tags=["x"]), office.run(flow=flow(length=4))):
        with pytest.raises(IdempotencyKeyReusedError):
            await office.admissions.submit_run("ana", "key", other)
    assert await office.events() == 2


async def test_keys_are_scoped_by_principal(office: Office) -> None:
    """Another key, or another principal's same key, is a new run."""
    submitted = [
        await office.admissions.submit_run(principal, key, office.run())
        for principal, key in (("ana", "key"), ("ana", "key2"), ("bob", "key"))
    ]
    assert len({s.run_id for s in submitted}) == 3
    assert not any(s.replayed for s in submitted)


@pytest.mark.parametrize("count", [100])
async def test_a_hundred_posts_of_one_key_at_once_are_one_run(office: Office, count: int) -> None:
    """One run and a hundred equal answers: who loses the race answers as who won it."""
    posts = (office.admissions.submit_run("ana", "key", office.run()) for _ in range(count))
    answers = await asyncio.gather(*posts)
    assert len({(a.run_id, a.position, a.body_hash) for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1
    assert await office.events() == 2


async def test_posts_of_one_key_with_two_bodies_at_once_have_one_winner(office: Office) -> None:
    """All answers are of the body that won; the other's are refused."""
    bodies = [office.run(priority=n % 2) for n in range(40)]
    answers = await asyncio.gather(
        *(office.admissions.submit_run("ana", "key", wanted) for wanted in bodies), return_exceptions=True
    )
    admitted = {a.run_id for a in answers if not isinstance(a, BaseException)}
    refused = [a for a in answers if isinstance(a, BaseException)]
    assert len(admitted) == 1
    assert len(refused) == 20
    assert all(isinstance(error, IdempotencyKeyReusedError) for error in refused)


@pytest.mark.parametrize("key", [None, "", "a\x00b", "a\nb", "k" * 256, "\u00e9" * 128, "e\u0301"])
async def test_a_bad_key_is_refused(office: Office, key: str | None) -> None:
    """`IDEMPOTENCY_KEY_INVALID` for none, empty, control characters, over 255 bytes, or not NFC."""
    with pytest.raises(FinazError) as caught:
        await office.admissions.submit_run("ana", key, office.run())
    assert (caught.value.code, caught.value.status) == ("IDEMPOTENCY_KEY_INVALID", 400)
    with pytest.raises(FinazError) as caught:
        await office.admissions.submit_run("a\x00na", "key", office.run())
    assert caught.value.code == "IDEMPOTENCY_KEY_INVALID"


async def test_the_longest_key_is_accepted(office: Office) -> None:
    """255 bytes."""
    for key in ("k" * 255, "\u00e9" * 127):
        assert not (await office.admissions.submit_run("ana", key, office.run())).replayed


async def test_what_is_refused_burns_no_key(office: Office) -> None:
    """After any refusal the same key admits the right body, as a first use."""
    refused: list[tuple[RunBody, str, str]] = [
        (office.run(mode="REPLAY", schedule=address_of("nothing")), "BLOB_MISSING", "$.schedule"),
        (office.run(mode="REPLAY", schedule=office.snapshot), "SCHEDULE_INVALID", "$.schedule"),
        (office.run(mode="REPLAY", schedule=fault_of("nobody")), "SCHEDULE_INVALID", "$.schedule.faults[0].event"),
        (office.run(snapshot=address_of("nothing")), "BLOB_MISSING", "$.snapshot"),
        (office.run(flow=address_of("nothing")), "BLOB_MISSING", "$.flow"),
        (office.run(flow=office.snapshot), "FLOW_INVALID", "$.flow"),
        (office.run(flow=flow("nobody")), "SNAPSHOT_INVALID", "$.snapshot"),
    ]
    for wrong, code, at in refused:
        with pytest.raises(FinazError) as caught:
            await office.admissions.submit_run("ana", "key", wrong)
        assert (caught.value.code, (caught.value.at or "")[: len(at)]) == (code, at)
    assert await office.events() == 0
    assert not (await office.admissions.submit_run("ana", "key", office.run())).replayed


@pytest.mark.parametrize(
    "changes", [{}, {"mode": "REPLAY"}, {"mode": "STREAM", "topic": "arrivals"}], ids=["batch", "replay", "stream"]
)
async def test_a_column_that_the_snapshot_lacks_is_refused(office: Office, changes: dict[str, Any]) -> None:
    """In every mode, for a flow given, a stored one and one of a sweep: node, place and columns are named, no key is burnt."""
    node = {"id": "fast", "op": "ema", "inputs": [{"column": "volume"}], "parameters": {"length": 3}}
    lacking = flow(nodes=[*flow()["nodes"], node])
    stored = office.blobs.put(canonical(flow_body(parse_flow(lacking))))
    asked: list[Coroutine[Any, Any, SubmittedRun | SubmittedSweep]] = [
        office.admissions.submit_run("ana", "key", office.run(**changes, flow=wanted)) for wanted in (lacking, stored)
    ]
    places = ["$.flow", "$.flow"]
    if changes.get("mode") != "STREAM":
        sweep = office.sweep(**changes, flows=[flow(), lacking], parameters=[{}, {"ema": {"length": 2}}])
        asked.append(office.admissions.submit_sweep("ana", "key", sweep))
        places.append("$.flows[1]")
    for submitting, place in zip(asked, places, strict=True):
        with pytest.raises(ColumnUnknownError, match="'fast' reads the column 'volume'") as caught:
            await submitting
        error = caught.value
        assert (error.status, error.at, error.expected) == (422, f"{place}.nodes[1].inputs[0].column", "one of close")
    assert await office.events() == 0
    assert not (await office.admissions.submit_run("ana", "key", office.run(**changes))).replayed


async def test_columns_of_a_topic_are_not_known_before_it_is_read(office: Office) -> None:
    """A stream without a snapshot is admitted with any column: records say what they have, one by one, and absent is a GAP."""
    node = {"id": "ema", "op": "ema", "inputs": [{"column": "volume"}], "parameters": {"length": 3}}
    wanted = {"mode": "STREAM", "topic": "arrivals", "flow": flow(nodes=[node])}
    assert (await office.admissions.submit_run("ana", "key", parse_run_body(wanted))).run_id


async def test_a_schedule_given_and_the_same_one_stored_are_one_body(office: Office) -> None:
    """However it is spelt; it is in CAS, and the run says where."""
    given = fault_of("fixture.event.0.2")
    first = await office.admissions.submit_run("ana", "key", office.run(mode="REPLAY", schedule=given))
    stored = office.blobs.put(json.dumps(given, indent=2).encode())
    again = await office.admissions.submit_run("ana", "key", office.run(mode="REPLAY", schedule=stored))
    assert (again.run_id, again.replayed) == (first.run_id, True)
    events = await Runs(office.log).history(first.run_id, "ana")
    assert isinstance(events[0].event, RunRequested)
    schedule = events[0].event.spec.schedule
    assert schedule == address_of(given)
    assert office.blobs.has(schedule)


async def test_no_schedule_and_an_empty_one_are_one_body(office: Office) -> None:
    """And no schedule is not the same as one without faults but with a seed."""
    first = await office.admissions.submit_run("ana", "key", office.run(mode="REPLAY"))
    again = await office.admissions.submit_run("ana", "key", office.run(mode="REPLAY", schedule=""))
    assert again.replayed
    empty = {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 7, "faults": []}
    other = await office.admissions.submit_run("ana", "other", office.run(mode="REPLAY", schedule=empty))
    assert other.body_hash != first.body_hash


async def test_a_large_snapshot_is_not_read_to_check_a_schedule(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the limit admission looks whether the events are there; beyond it the run itself will say so."""
    wrong = office.run(mode="REPLAY", schedule=fault_of("nobody"))
    monkeypatch.setattr(schedules, "CHECKED_ROWS_MAX", 18)
    with pytest.raises(ScheduleInvalidError):
        await office.admissions.submit_run("ana", "key", wrong)
    monkeypatch.setattr(schedules, "CHECKED_ROWS_MAX", 17)
    assert not (await office.admissions.submit_run("ana", "key", wrong)).replayed


async def test_a_fault_of_an_event_that_was_not_available_is_refused(office: Office) -> None:
    """It is in the snapshot, but not as of the run's instant."""
    early = office.run(mode="REPLAY", as_of="2026-01-05T09:03:00Z", schedule=fault_of("fixture.event.0.3"))
    with pytest.raises(ScheduleInvalidError):
        await office.admissions.submit_run("ana", "key", early)


async def test_runs_of_a_replay_sweep_share_their_schedule(office: Office) -> None:
    """Each as if it had been posted by itself; a stream cannot be swept."""
    given = fault_of("fixture.event.0.2")
    sweep = office.sweep(mode="REPLAY", schedule=given, instruments=["fixture.fx-0", "fixture.fx-1"])
    submitted = await office.admissions.submit_sweep("ana", "key", sweep)
    for run_id in submitted.run_ids:
        event = (await Runs(office.log).history(run_id, "ana"))[0].event
        assert isinstance(event, RunRequested)
        assert event.spec.schedule == address_of(given)
    with pytest.raises(ModeUnavailableError):
        await office.admissions.submit_sweep("ana", "stream", office.sweep(mode="STREAM"))


async def test_a_corrupt_snapshot_is_refused(office: Office) -> None:
    """And a snapshot that was repaired is accepted: faults are not remembered."""
    (path,) = (p for p in office.blobs._folder.rglob(office.snapshot.removeprefix("sha256:")))
    good = path.read_bytes()
    path.write_bytes(good + b" ")
    with pytest.raises(FinazError) as caught:
        await office.admissions.submit_run("ana", "key", office.run())
    assert caught.value.code == "BLOB_CORRUPT"
    path.write_bytes(good)
    assert not (await office.admissions.submit_run("ana", "key", office.run())).replayed


async def test_an_answer_that_was_lost_is_given_again(office: Office) -> None:
    """The connection broke after the commit: the client asks again and gets the run that was admitted."""

    def lose(name: str) -> None:
        if name == faultpoints.APPEND_AFTER:
            raise StoreUnavailableError("the answer was lost")

    with armed(lose), pytest.raises(StoreUnavailableError):
        await office.admissions.submit_run("ana", "key", office.run())
    again = await office.admissions.submit_run("ana", "key", office.run())
    assert again.replayed
    assert again.position == 2


# ------------------------------------------------------------------------------------------------ sweeps


async def test_a_sweep_admits_every_combination(office: Office) -> None:
    """Flows × instruments × parameters, in order, each run under its derived key, all in one append."""
    lengths = [{"ema": {"length": n}} for n in (2, 3)]
    sweep = office.sweep(instruments=["fixture.fx-0", "fixture.fx-2"], parameters=lengths, tags=["s"])
    submitted = await office.admissions.submit_sweep("ana", "key", sweep)
    runs = [await Runs(office.log).get(run_id, "ana") for run_id in submitted.run_ids]
    assert len(set(submitted.run_ids)) == 4
    assert {run.sweep_id for run in runs} == {submitted.sweep_id}
    flows = [await office.admissions._catalogue.flow(run.flow) for run in runs]
    assert [(f.spec.instruments[0], f.spec.nodes[0].parameters["length"]) for f in flows] == [
        ("fixture.fx-0", 2),
        ("fixture.fx-0", 3),
        ("fixture.fx-2", 2),
        ("fixture.fx-2", 3),
    ]
    assert all(office.blobs.has(run.flow) for run in runs)
    assert await office.events() == 9
    assert submitted.position == 9


async def test_a_sweep_again_is_the_same_answer(office: Office) -> None:
    """Also at once, many times; another body under the key is refused; a run's key of the same text is another operation."""
    sweep = office.sweep(parameters=[{"ema": {"length": n}} for n in range(1, 21)])
    answers = await asyncio.gather(*(office.admissions.submit_sweep("ana", "key", sweep) for _ in range(20)))
    assert len({(a.sweep_id, a.run_ids, a.position) for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1
    with pytest.raises(IdempotencyKeyReusedError):
        await office.admissions.submit_sweep("ana", "key", office.sweep())
    assert not (await office.admissions.submit_run("ana", "key", office.run())).replayed


async def test_a_run_of_a_sweep_is_a_run_of_its_own_body(office: Office) -> None:
    """Its request says what the same body, posted alone, would say: the body hash is that of a run's body."""
    submitted = await office.admissions.submit_sweep("ana", "key", office.sweep())
    (run_id,) = submitted.run_ids
    read = await office.log.read_streams([run_stream(run_id)])
    requested = read.streams[run_stream(run_id)][0].event
    assert isinstance(requested, RunRequested)
    assert requested.body_hash == address_of(body_value(office.run()))
    everything = await asyncio.to_thread(office.log.read_log, 0, 100)
    derived = [e.event for e in everything if e.event.topic == "admission.key_claimed.v1"][1]
    assert (derived.operation, derived.subject_ids) == (SWEEPS_RUN, (run_id,))
    assert everything[1].stream == admission_stream("ana", SWEEPS_RUN, derived.key)


async def test_a_sweep_with_one_bad_member_admits_nothing(office: Office) -> None:
    """An instrument or a parameter that is wrong for one run refuses the sweep, with the place, and burns no key."""
    wrong: list[dict[str, Any]] = [
        {"instruments": ["fixture.fx-0", "nobody"]},
        {"parameters": [{}, {"ema": {"length": 0}}]},
        {"parameters": [{"sma": {"length": 3}}]},
    ]
    for changes in wrong:
        with pytest.raises(FinazError) as caught:
            await office.admissions.submit_sweep("ana", "key", office.sweep(**changes))
        assert caught.value.status in (400, 422)
    assert await office.events() == 0
    assert not (await office.admissions.submit_sweep("ana", "key", office.sweep())).replayed


async def test_the_largest_sweep_is_one_append(office: Office) -> None:
    """A thousand runs, all or none."""
    parameters = [{"ema": {"length": n}} for n in range(1, 1001)]
    submitted = await office.admissions.submit_sweep("ana", "key", office.sweep(parameters=parameters))
    assert len(set(submitted.run_ids)) == 1000
    assert await office.events() == 2001


async def test_claim_and_request_are_one_append(office: Office) -> None:
    """Every append that admission makes holds the claim and all that it admits."""
    appends: list[Append] = []
    append = office.log.append

    async def watched(wanted: Append) -> Any:
        appends.append(wanted)
        return await append(wanted)

    office.log.append = watched
    await office.admissions.submit_run("ana", "key", office.run())
    assert [[new.event.topic for new in a.events] for a in appends] == [
        ["admission.key_claimed.v1", "run.requested.v1"]
    ]
