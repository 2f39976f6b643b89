"""What REPLAY runs compute: BATCH's bytes where the faults change nothing, and a record of every fault that was applied."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployment.fixture_files import fixture_path
from domain.canonical import address, canonical, parse
from domain.errors import BlobMissingError, InfrastructureError
from domain.instants import parse_instant, to_micros
from domain.market import arrivals as arrivals_module
from domain.market.arrivals import arrival_document, arrival_log
from domain.market.chunks import encoded_events, events_of, rows_of
from domain.market.errors import ColumnUnknownError, RunTooLargeError, ScheduleInvalidError
from domain.market.faults import NO_FAULTS, schedule_address, schedule_body
from domain.market.flow import flow_body, parse_flow
from domain.market.records import encode_event
from domain.runs.aggregate import RunState
from domain.runs.messages import Mode, RunSpec
from domain.stream.replayed import parse_report
from services import replay_execution
from services.admission import Admissions
from services.batch_execution import FlowComputation
from services.batch_parts import Computed
from services.cas import DirectoryBlobStore
from services.faultpoints import POINTS, armed
from services.replay_execution import WORK_PER_RECORD
from services.requests import parse_run_body
from tests.support.fixture_market import AS_OF, GOLDEN, body, events, flow, store_snapshot
from tests.support.memory_log import MemoryLog
from tests.support.memory_queue import MemoryQueue
from tests.support.worker_rig import Rig

SCHEDULE = fixture_path("schedules/fixture.faults.01.json").read_bytes()


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "cas")


def spec(blobs: DirectoryBlobStore, snapshot: str, schedule: str = "", **changes: Any) -> RunSpec:
    stored = blobs.put(canonical(flow_body(parse_flow(changes.pop("flow", flow())))))
    fields: dict[str, Any] = {
        "mode": Mode.REPLAY,
        "flow": stored,
        "flow_name": "01_A_feature",
        "snapshot": snapshot,
        "as_of": parse_instant(AS_OF),
        "deadline_seconds": 60,
        "schedule": schedule,
    }
    return RunSpec(**fields | changes)


async def computed(blobs: DirectoryBlobStore, wanted: RunSpec, inline_rows_max: int = 10**6) -> Computed:
    prepared = await FlowComputation(blobs, 10**7, inline_rows_max).prepare(wanted, lambda: None)
    return prepared.compute(lambda stage: None, lambda: None)


@pytest.mark.parametrize("inline_rows_max", [0, 10**6])
@pytest.mark.parametrize("scheduled", [False, True])
async def test_a_replay_of_the_fixture_gives_the_bytes_of_the_batch(
    blobs: DirectoryBlobStore, scheduled: bool, inline_rows_max: int
) -> None:
    """With the seven faults and without any: the very artifact of the BATCH run, and the golden."""
    snapshot = store_snapshot(blobs)
    schedule = blobs.put(SCHEDULE) if scheduled else ""
    batch = await computed(blobs, spec(blobs, snapshot, mode=Mode.BATCH))
    replay = await computed(blobs, spec(blobs, snapshot, schedule), inline_rows_max)
    assert replay.artifact == batch.artifact
    assert replay.outputs == batch.outputs
    assert replay.outputs[0].values_hash == GOLDEN
    assert batch.inputs == ()


async def test_every_fault_is_recorded_with_what_it_did(blobs: DirectoryBlobStore) -> None:
    """Schedule, log and report are documents of the result: the log's address is its hash, the report adds up."""
    snapshot = store_snapshot(blobs)
    replay = await computed(blobs, spec(blobs, snapshot, blobs.put(SCHEDULE)))
    schedule, lines, report_bytes = replay.inputs
    report = parse_report(report_bytes)
    assert report is not None
    assert parse(schedule) == parse(SCHEDULE)
    assert address(lines) == report.log_hash
    assert address(schedule) == report.schedule
    assert (report.snapshot, report.seed, report.as_of, report.arrivals) == (snapshot, 7, AS_OF, 23)
    assert len(lines.splitlines()) == 1 + 23
    assert report.partitions == (6, 0, 0, 17)
    assert report.treatments == {
        "consumed": 6,
        "duplicates_skipped": 1,
        "filtered": 15,
        "late": 0,
        "omitted": 1,
        "revised": 0,
    } | {name: 0 for name in report.treatments if name not in ("consumed", "duplicates_skipped", "filtered", "omitted")}
    assert [(a["event"], a["kind"], len(a["records"]), a["removed"]) for a in report.applied] == [
        ("fixture.event.0.2", "DUPLICATE", 1, 0),
        ("fixture.event.0.3", "DELAY", 1, 0),
        ("fixture.event.1.1", "GAP", 0, 1),
        ("fixture.event.2.2", "REVISION", 1, 0),
        ("fixture.event.0.4", "PAUSE", 1, 0),
        ("fixture.event.2.4", "BURST", 2, 0),
        ("fixture.event.1.4", "SOURCE_FAILURE", 1, 0),
    ]


async def test_no_schedule_is_the_one_without_faults(blobs: DirectoryBlobStore) -> None:
    """It is recorded too, so that every replay says what it was made of."""
    replay = await computed(blobs, spec(blobs, store_snapshot(blobs)))
    assert replay.inputs[0] == canonical(schedule_body(NO_FAULTS))
    report = parse_report(replay.inputs[2])
    assert report is not None
    assert (report.schedule, report.arrivals, report.applied) == (schedule_address(NO_FAULTS), 18, ())


async def test_a_fault_that_takes_an_event_away_changes_the_values(blobs: DirectoryBlobStore) -> None:
    """The values are those of the stream over what arrived: five closes give three averages."""
    gone = {"event": "fixture.event.0.2", "kind": "GAP", "parameters": {}}
    schedule = blobs.put(canonical({"faults": [gone], "format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 1}))
    replay = await computed(blobs, spec(blobs, store_snapshot(blobs), schedule))
    assert parse(replay.artifact)["ticks"][2]["values"] == {"ema": (1.0 + 2.0 + 4.0) / 3}
    assert replay.outputs[0].rows == 5


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"format": "FINAZ_FAULT_SCHEDULE_V2", "faults": [], "seed": 1}, ScheduleInvalidError),
        (
            {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 1, "faults": [{"event": "nobody", "kind": "GAP"}]},
            ScheduleInvalidError,
        ),
        (None, BlobMissingError),
    ],
)
async def test_what_cannot_be_replayed_is_the_inputs_fault(
    blobs: DirectoryBlobStore, document: Any, code: type[Exception]
) -> None:
    """No schedule, one of another version, or one that names an event which isn't there."""
    schedule = "sha256:" + "0" * 64 if document is None else blobs.put(canonical(document))
    with pytest.raises(code):
        await computed(blobs, spec(blobs, store_snapshot(blobs), schedule))


async def test_it_fails_closed_where_the_batch_does(blobs: DirectoryBlobStore) -> None:
    """A column that the snapshot lacks."""
    lacking = flow(nodes=[{"id": "ema", "op": "ema", "inputs": [{"column": "volume"}], "parameters": {"length": 3}}])
    with pytest.raises(ColumnUnknownError):
        await computed(blobs, spec(blobs, store_snapshot(blobs), flow=lacking))


async def test_what_is_too_large_is_refused(blobs: DirectoryBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the snapshot, arrivals of the log, bytes of the log: each limit is reached, and one less is not enough."""
    wanted = spec(blobs, store_snapshot(blobs), blobs.put(SCHEDULE))
    lines = (await computed(blobs, wanted)).inputs[1]
    for module, name, least in (
        (replay_execution, "ARRIVALS_MAX", 18),
        (arrivals_module, "ARRIVALS_MAX", 23),
        (replay_execution, "LOG_BYTES_MAX", len(lines)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, least)
            await computed(blobs, wanted)
            patched.setattr(module, name, least - 1)
            with pytest.raises(RunTooLargeError):
                await computed(blobs, wanted)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", [n for n in sorted(POINTS) if n.split(".")[0] in ("append", "cas_write", "publish")])
async def test_an_error_at_any_effect_leads_to_the_same_end(tmp_path: Path, name: str, times: int) -> None:
    """Four documents are stored before the publication: whichever write fails, or its answer is lost, there is one result."""
    log = MemoryLog()
    rig = Rig(log, MemoryQueue(log), tmp_path / "cas")
    admissions, left = Admissions(log, rig.blobs), times
    wanted = parse_run_body(body(store_snapshot(rig.blobs), mode="REPLAY", schedule=parse(SCHEDULE)))

    def fail(passed: str) -> None:
        nonlocal left
        if passed == name and left:
            left -= 1
            raise InfrastructureError(f"planted at {name}")

    run_id = (await admissions.submit_run("ana", "key", wanted)).run_id
    with armed(fail):
        rig.computation = FlowComputation(rig.blobs, 10**6, 10**6)  # type: ignore[assignment]
        for number in range(6):
            await rig.worker(f"worker-{number}").run_once()
            log.advance(60.0)
    assert left == 0
    run = await rig.run(run_id)
    assert (run.state, [result.values_hash for result in run.results]) == (RunState.SUCCEEDED, [GOLDEN])
    assert all(rig.blobs.get(address) for address in run.results[0].inputs)


async def test_a_replay_weighs_more_than_a_batch(blobs: DirectoryBlobStore) -> None:
    """So that a long one goes to a thread instead of holding up all other runs."""
    snapshot = store_snapshot(blobs)
    computation = FlowComputation(blobs, 10**7, 10**6)
    assert await computation.rows(spec(blobs, snapshot, mode=Mode.BATCH)) == 18
    assert await computation.rows(spec(blobs, snapshot)) == 18 * WORK_PER_RECORD


def test_rows_are_the_events_that_they_were() -> None:
    """`events_of` is the way back from `rows_of`; a missing value stays one."""
    made = events()
    assert list(events_of(rows_of(made, ("close",)), ("close",))) == made
    assert [event.values for event in events_of(rows_of(made[:1], ("close", "open")), ("close", "open"))] == [
        {"close": 1.0, "open": None}
    ]
    assert [event.values for event in events_of(rows_of(made[:1], ()), ())] == [{}]


def test_encoded_rows_are_their_events_bytes() -> None:
    """By column, as one by one: the same bytes, so the same log."""
    made = [*events(), msgspec.structs.replace(events()[0], event_id='"q"', instrument="größe", values={"close": None})]
    rows = rows_of(made, ("close", "open"))
    assert encoded_events(rows) == [encode_event(event) for event in events_of(rows, ("close", "open"))]
    assert encoded_events(rows_of([], ("close",))) == []


def test_making_a_log_shows_signs_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of its stages, so that a long replay keeps its lease and can be left at any of them."""
    monkeypatch.setattr(arrivals_module, "PROGRESS_RECORDS", 1)
    told: list[int] = []
    as_of = to_micros(parse_instant(AS_OF))
    arrival_log(events(), as_of, NO_FAULTS, "sha256:" + "5" * 64, lambda: told.append(1))
    assert len(told) == 18 + 19


def test_lines_of_a_log_are_canonical() -> None:
    """Whatever stands in names: written directly, the bytes are those of the canonical document."""
    from domain.market.arrivals import log_lines

    made = [
        event.__class__(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "instrument": name})
        for event, name in zip(events(), ('quo"te', "back\\slash", "größe/𝄞", "tab", "\x7f"), strict=False)
    ]
    log = arrival_log(made, to_micros(parse_instant(AS_OF)), NO_FAULTS, "sha256:" + "5" * 64)
    lines = list(log_lines(log.arrivals, to_micros(parse_instant(AS_OF)), NO_FAULTS, "sha256:" + "5" * 64))
    assert lines[1:] == [canonical(arrival_document(arrival)) + b"\n" for arrival in log.arrivals]
