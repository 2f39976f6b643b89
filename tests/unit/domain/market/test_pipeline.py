"""The batch pipeline: the golden, as-of selection, borders, what is refused, and the artifact."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.fixture_files import fixture_path
from domain.canonical import address, address_of, canonical, parse
from domain.errors import NotFoundError
from domain.instants import parse_instant, to_micros
from domain.market import feature_batch, pipeline
from domain.market.errors import ColumnUnknownError, InstrumentUnknownError, RunTooLargeError, SnapshotInvalidError
from domain.market.feature_batch import parse_feature_batch
from domain.market.flow import FlowSpec, flow_address, parse_flow
from domain.market.pipeline import execute, execute_events
from domain.market.records import MarketEvent, parse_event
from domain.market.snapshot import build_snapshot, encode_manifest, make_manifest, manifest_body, parse_manifest
from tests.support.market_strategies import START, flow

GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"
LATER = to_micros(parse_instant("2030-01-01T00:00:00Z"))


def fixture(name: str) -> bytes:
    """The bytes of a fixture."""
    return fixture_path(name).read_bytes()


def event(
    number: int, close: float | None, *, revision: int = 0, available: int = 0, instrument: str = "A"
) -> MarketEvent:
    """The event of minute `number`, available so many seconds later."""
    time = START + number * 60_000_000
    return MarketEvent(
        event_id=f"e{number}",
        instrument=instrument,
        event_time=time,
        available_at=time + available * 1_000_000,
        revision=revision,
        values={"close": close},
    )


def test_the_fixture_reaches_the_golden() -> None:
    """The stored flow over the stored snapshot, whose manifest names the stored chunk, has the golden values and hash."""
    manifest = parse_manifest(fixture("snapshots/fixture.snapshot.01.manifest.json"))
    chunk = fixture("snapshots/fixture.snapshot.01.jsonl")
    assert [ref.address for ref in manifest.chunks] == [address(chunk)]
    spec = parse_flow(parse(fixture("flows/01_A_feature.json")))
    batch = execute(spec, manifest, [chunk], LATER)
    (output,) = batch.schema
    assert batch.values(output.name) == [None, None, 2.0, 3.0, 4.0, 5.0]
    assert batch.values_hash(output.name) == GOLDEN == address_of(batch.values(output.name))
    assert batch.rows(output.name) == 6
    assert batch.flow == flow_address(spec)


def test_the_fixture_snapshot_is_what_the_specification_says() -> None:
    """Eighteen events of three instruments, a minute apart, available 250 ms later, closes N+1, 10(N+1), 21+N."""
    lines = fixture("snapshots/fixture.snapshot.01.jsonl").splitlines()
    found = {made.event_id: made for made in map(parse_event, lines)}
    assert len(found) == len(lines) == 18
    for i, close in enumerate((lambda n: n + 1, lambda n: 10 * (n + 1), lambda n: 21 + n)):
        for n in range(6):
            made = found[f"fixture.event.{i}.{n}"]
            time = to_micros(parse_instant("2026-01-05T09:00:00Z")) + n * 60_000_000
            assert (made.instrument, made.event_time, made.available_at, made.revision) == (
                f"fixture.fx-{i}",
                time,
                time + 250_000,
                0,
            )
            assert made.values == {"close": float(close(n))}


def test_addresses_of_the_fixture_never_change(golden: Callable[[str, object], None]) -> None:
    """The flow, the snapshot and the artifact: another address would make yesterday's runs other runs."""
    manifest_bytes = fixture("snapshots/fixture.snapshot.01.manifest.json")
    spec = parse_flow(parse(fixture("flows/01_A_feature.json")))
    batch = execute(spec, parse_manifest(manifest_bytes), [fixture("snapshots/fixture.snapshot.01.jsonl")], LATER)
    found = {"flow": flow_address(spec), "snapshot": address(manifest_bytes), "artifact": address(batch.encode())}
    golden("fixture_addresses.json", found)


def test_a_node_behind_another_sees_its_nulls_as_gaps() -> None:
    """Returns begin with a null, so a mean behind them begins one tick later; a gap starts both over."""
    body = flow("returns", length=1)
    body["nodes"].append({"id": "mean", "op": "sma", "inputs": [{"node": "n0"}], "parameters": {"length": 2}})
    body["outputs"] = [{"name": "mean", "node": "mean"}, {"name": "change", "node": "n0"}]
    closes = [1.0, 2.0, 4.0, None, 1.0, 3.0, 3.0]
    manifest, chunks = build_snapshot([event(n, close) for n, close in enumerate(closes)], name="s")
    batch = execute(parse_flow(body), manifest, chunks, LATER)
    assert batch.values("change") == [None, 1.0, 1.0, None, None, 2.0, 0.0]
    assert batch.values("mean") == [None, None, 1.0, None, None, None, 1.0]


@pytest.mark.parametrize("name", ["01_A_feature", "ema_adjusted_close"])
def test_stored_flows_are_valid_and_carry_their_name(name: str) -> None:
    """A flow file is called as its flow is."""
    assert parse_flow(parse(fixture(f"flows/{name}.json"))).name == name


def run(events: list[MarketEvent], as_of: int = LATER, chunk_events: int = 3, **changes: Any) -> list[float | None]:
    """The values of a mean of one: the closes that took part."""
    manifest, chunks = build_snapshot(events, name="s", chunk_events=chunk_events)
    return execute(parse_flow(flow("sma", length=1, **changes)), manifest, chunks, as_of).values("out0")


def test_the_highest_revision_available_takes_part() -> None:
    """Per event and as of an instant, also where revisions fall into different chunks; the instant itself counts."""
    events = [
        event(0, 1.0),
        event(1, 2.0),
        event(1, 3.0, revision=1, available=120),
        event(1, 4.0, revision=2, available=600),
    ]
    for chunk_events in (1, 2, 3, 4):
        assert run(events, chunk_events=chunk_events) == [1.0, 4.0]
        assert run(events, START + 180_000_000, chunk_events) == [1.0, 3.0]
        assert run(events, START + 179_999_999, chunk_events) == [1.0, 2.0]
        assert run(events, START, chunk_events) == [1.0]
        assert run(events, START - 1, chunk_events) == []


def test_a_null_is_a_tick_with_a_gap_and_no_event_is_no_tick() -> None:
    """Nothing is invented for an event that never arrived."""
    assert run([event(0, 1.0), event(1, None), event(5, 2.0)]) == [1.0, None, 2.0]


def test_an_empty_snapshot_gives_an_empty_batch() -> None:
    """No events of the instrument as of the instant: no ticks, and an artifact all the same."""
    manifest, chunks = build_snapshot([event(0, 1.0)], name="s")
    batch = execute(parse_flow(flow()), manifest, chunks, START - 1)
    assert batch.values("out0") == []
    assert batch.values_hash("out0") == address_of([])
    assert parse(batch.encode())["ticks"] == []
    assert parse_feature_batch(batch.encode()).encode() == batch.encode()


def test_the_artifact_is_canonical_and_reads_back() -> None:
    """Flow, schema and ticks in clock order over two instruments; each tick carries its own instrument's outputs only."""
    events = [event(n, float(n + 1)) for n in range(4)]
    events += [msgspec.structs.replace(event(n, 10.0 * (n + 1), instrument="B"), event_id=f"d{n}") for n in range(4)]
    manifest, chunks = build_snapshot(events, name="s")
    batch = execute(parse_flow(flow(instruments=("A", "B"), length=2)), manifest, chunks, LATER)
    document = parse(batch.encode())
    assert canonical(document) == batch.encode()
    assert document.keys() == {"flow", "schema", "ticks"}
    assert [tick["event_id"] for tick in document["ticks"]] == ["d0", "e0", "d1", "e1", "d2", "e2", "d3", "e3"]
    assert [list(tick["values"]) for tick in document["ticks"]][:2] == [["out1"], ["out0"]]
    again = parse_feature_batch(batch.encode())
    assert again.encode() == batch.encode()
    assert again.values_hash("out1") == batch.values_hash("out1")
    with pytest.raises(NotFoundError):
        batch.values("nothing")


NO_VALUES = (
    b'{"flow":"","schema":{"format":"FEATURE_BATCH_V1","outputs":[{"instrument":"A","name":"x","type":"float64"}]},'
    b'"ticks":[{"event_id":"e","event_time":"2026-01-05T09:00:00Z","values":{}}]}'
)


NO_INSTANT = NO_VALUES.replace(b"2026-01-05T09:00:00Z", b"2026-01-05 09:00").replace(b"{}", b'{"x":1.0}')
OTHER_OUTPUT = NO_VALUES.replace(b"{}", b'{"y":1.0}')
TEXT_VALUE = NO_VALUES.replace(b"{}", b'{"x":"1.0"}')


@given(
    values=st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
    ids=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
)
def test_what_is_read_is_what_was_written(values: list[float | None], ids: str) -> None:
    """Every binary64, subnormal, huge or -0.0, and every id come back to the bit."""
    events = [msgspec.structs.replace(event(n, value), event_id=f"{ids}{n}") for n, value in enumerate(values)]
    spec = parse_flow(flow(length=1))
    batch = execute_events(spec, events)
    again = parse_feature_batch(batch.encode())
    assert again.encode() == batch.encode()
    assert [repr(value) for value in again.values("out0")] == [repr(value) for value in batch.values("out0")]


OTHER_FORMAT = b'{"flow":"","schema":{"format":"OTHER","outputs":[]},"ticks":[]}'


@pytest.mark.parametrize("data", [b"{}", b"[]", b"x", NO_VALUES, NO_INSTANT, OTHER_OUTPUT, TEXT_VALUE, OTHER_FORMAT])
def test_what_is_no_artifact_is_refused(data: bytes) -> None:
    """Typed, whatever the bytes."""
    with pytest.raises(SnapshotInvalidError):
        parse_feature_batch(data)


def test_borders_stand_between_stages_and_can_end_the_run() -> None:
    """Once per chunk, then clock, then each lane; what a border raises comes out unchanged."""
    manifest, chunks = build_snapshot([event(n, 1.0) for n in range(4)], name="s", chunk_events=2)
    passed: list[str] = []
    execute(parse_flow(flow()), manifest, chunks, LATER, passed.append)
    assert passed == ["snapshot", "snapshot", "clock", "lane"]

    class LeaveError(Exception):
        """What the border raises."""

    def leave(stage: str) -> None:
        raise LeaveError(stage)

    with pytest.raises(LeaveError, match="snapshot"):
        execute(parse_flow(flow()), manifest, chunks, LATER, leave)


def test_what_the_snapshot_lacks_is_named() -> None:
    """An instrument or a column that isn't there ends the run; it is not taken for silence."""
    manifest, chunks = build_snapshot([event(0, 1.0)], name="s")
    with pytest.raises(InstrumentUnknownError, match="'B'"):
        execute(parse_flow(flow(instruments=("B",))), manifest, chunks, LATER)
    with pytest.raises(ColumnUnknownError, match="'open'"):
        execute(parse_flow(flow(columns=("open",))), manifest, chunks, LATER)


def test_an_event_id_with_two_times_is_refused() -> None:
    """A snapshot not made by an import may contradict itself: that ends the run."""
    first, second = event(0, 1.0), msgspec.structs.replace(event(1, 2.0), event_id="e0")
    with pytest.raises(SnapshotInvalidError):
        build_snapshot([first, second], name="s")
    (one, (left,)), (two, (right,)) = build_snapshot([first], name="s"), build_snapshot([second], name="s")
    manifest = make_manifest("s", "", ["close"], ["A"], [*one.chunks, *two.chunks])
    with pytest.raises(SnapshotInvalidError, match="two times"):
        execute(parse_flow(flow()), manifest, [left, right], LATER)


def test_the_limit_of_events_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than a run may hold is a typed error."""
    monkeypatch.setattr(pipeline, "EVENTS_MAX", 2)
    assert run([event(n, 1.0) for n in range(2)]) == [1.0, 1.0]
    with pytest.raises(RunTooLargeError):
        run([event(n, 1.0) for n in range(3)])


def test_build_snapshot_refuses_an_event_twice() -> None:
    """The same id and revision, whatever the values."""
    with pytest.raises(SnapshotInvalidError, match="stands twice"):
        build_snapshot([event(0, 1.0), event(0, 2.0)], name="s")
    with pytest.raises(SnapshotInvalidError, match="contradicts"):
        build_snapshot([event(0, 1.0), event(0, 2.0, revision=1, instrument="B")], name="s")


def manifest_with(**changes: Any) -> bytes:
    """A good manifest's document with members changed."""
    manifest, _ = build_snapshot([event(n, 1.0) for n in range(4)], name="s", chunk_events=2)
    return canonical({key: value for key, value in (manifest_body(manifest) | changes).items() if value is not ...})


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "FINAZ_SNAPSHOT_V9"},
        {"format": ...},
        {"rows": 5},
        {"rows": 4.0},
        {"columns": ["close", "close"]},
        {"columns": ["revision"]},
        {"columns": "close"},
        {"instruments": ["B", "A"]},
        {"instruments": [1]},
        {"surplus": 1},
        {"attribution": None},
        {"attribution": "x" * 20_000},
        {"chunks": [{}]},
        {"chunks": None},
        {"first_event_time": "2026-01-05T09:00:01Z"},
        {"last_event_time": ...},
        {"first_event_time": "yesterday"},
    ],
)
def test_a_manifest_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    """Format, counts, order and times are checked; nothing unknown is let in."""
    parse_manifest(manifest_with())
    with pytest.raises(SnapshotInvalidError) as caught:
        parse_manifest(manifest_with(**changes))
    assert caught.value.at


def test_chunks_stand_in_order_and_may_share_an_instant() -> None:
    """A chunk may begin at the very instant at which the one before ended; not earlier, and it ends no earlier than it begins."""
    made = [event(0, 1.0), *(msgspec.structs.replace(event(1, 1.0), event_id=f"x{n}") for n in range(3))]
    good = manifest_body(build_snapshot(made, name="s", chunk_events=2)[0])
    first, second = good["chunks"]
    assert first["last_event_time"] == second["first_event_time"] == second["last_event_time"]
    assert len(parse_manifest(canonical(good)).chunks) == 2
    backwards = {**first, "first_event_time": first["last_event_time"], "last_event_time": first["first_event_time"]}
    for chunks, at in (([second, first], "$.chunks[1]"), ([backwards, second], "$.chunks[0]")):
        times = {
            "first_event_time": chunks[0]["first_event_time"],
            "last_event_time": chunks[-1]["last_event_time"],
        }
        with pytest.raises(SnapshotInvalidError, match="out of order") as caught:
            parse_manifest(canonical(good | {"chunks": chunks} | times))
        assert caught.value.at == at


@pytest.mark.parametrize("data", [b"", b"{", b"[1,2]", b"null", b'{"a":1,"a":1}', b"\xff"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    """Also what is no JSON at all."""
    with pytest.raises(SnapshotInvalidError):
        parse_manifest(data)


def test_chunks_of_a_manifest_stand_in_order() -> None:
    """A later chunk never begins before an earlier one ends."""
    manifest, _ = build_snapshot([event(n, 1.0) for n in range(4)], name="s", chunk_events=2)
    body = manifest_body(manifest)
    body["chunks"].reverse()
    with pytest.raises(SnapshotInvalidError):
        parse_manifest(canonical(body))
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_a_long_result_is_encoded_in_slices_with_a_sign_of_progress_before_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes and the hash do not depend on the slices; a worker's heartbeat sees that there is progress, and may leave."""
    batch = execute_events(flow_of_closes(), [close_event(n) for n in range(100)])
    whole, hashed = batch.encode(), batch.values_hash("sma")
    monkeypatch.setattr(feature_batch, "SLICE_ROWS", 30)
    calls: list[None] = []
    assert batch.encode(lambda: calls.append(None)) == whole
    assert batch.values_hash("sma", lambda: calls.append(None)) == hashed
    assert len(calls) == 8

    def leave() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        batch.encode(leave)


def test_a_result_has_a_largest_number_of_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before it is encoded, by the name of the limit; the last accepted is accepted."""
    manifest, blobs = build_snapshot([close_event(n) for n in range(10)], name="ten")
    monkeypatch.setattr(pipeline, "RESULT_TICKS_MAX", 10)
    assert len(execute(flow_of_closes(), manifest, blobs, 10**15).lanes[0]) == 10
    monkeypatch.setattr(pipeline, "RESULT_TICKS_MAX", 9)
    with pytest.raises(RunTooLargeError) as refused:
        execute(flow_of_closes(), manifest, blobs, 10**15)
    assert refused.value.at == "i"


def flow_of_closes() -> FlowSpec:
    """An SMA of length 1 of one instrument's close."""
    return parse_flow(
        {
            "version": 1,
            "name": "closes",
            "source": {"instruments": ["i"]},
            "clock": {"kind": "event"},
            "nodes": [{"id": "n", "op": "sma", "inputs": [{"column": "close"}], "parameters": {"length": 1}}],
            "outputs": [{"name": "sma", "node": "n"}],
        }
    )


def close_event(number: int) -> MarketEvent:
    """One event a second."""
    return MarketEvent(
        event_id=f"e{number}",
        instrument="i",
        event_time=number * 1_000_000,
        available_at=0,
        revision=0,
        values={"close": float(number)},
    )
