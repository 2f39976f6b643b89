"""Bodies of requests: one typed value per meaning, and every way of being wrong named with its place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, canonical, parse
from domain.errors import FinazError
from services.requests import SWEEP_RUNS_MAX, body_hash_of, body_value, parse_run_body, parse_sweep_body
from tests.support.fixture_market import AS_OF, body, flow

SNAPSHOT = address_of("a snapshot")
PINNED = "sha256:0613083dd77bbe0cb142cfef0e60ca75c19990eb1de14ca74bf22b88e4d45e72"


def sweep(**changes: Any) -> dict[str, Any]:
    return {"mode": "BATCH", "flows": [flow()], "snapshot": SNAPSHOT, "as_of": AS_OF, **changes}


def test_defaults_are_part_of_the_value() -> None:
    """A body that leaves defaults out and one that writes them have one hash; so have two spellings of an instant."""
    written = parse_run_body(body(SNAPSHOT, tags=[], priority=0, deadline_seconds=86_400))
    assert written == parse_run_body(body(SNAPSHOT))
    zone = parse_run_body(body(SNAPSHOT, as_of="2026-01-06T01:00:00.000+01:00"))
    assert address_of(body_value(zone)) == address_of(body_value(written))


def test_a_flow_is_taken_in_its_canonical_form() -> None:
    """Its defaults are written out, and that form means the same body."""
    parsed = parse_run_body(body(SNAPSHOT))
    assert isinstance(parsed.flow, dict)
    assert parsed.flow["nodes"][0]["parameters"] == {"length": 3, "gap": "reject"}
    assert parse_run_body(body(SNAPSHOT, flow=parsed.flow)) == parsed


@given(st.randoms(use_true_random=False))
def test_key_order_and_white_space_do_not_matter(random: Any) -> None:
    """The hash covers the typed body: any order of keys, any white space, any escapes give the same."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(
        shuffled(body(SNAPSHOT, tags=["é"])), indent=random.randrange(5), ensure_ascii=random.random() < 0.5
    )
    again = address_of(body_value(parse_run_body(parse(text))))
    assert again == address_of(body_value(parse_run_body(parse(canonical(body(SNAPSHOT, tags=["é"]))))))


REPLAY = {"mode": "REPLAY"}
FAULTS = {"format": "FINAZ_FAULT_SCHEDULE_V1", "seed": 7, "faults": [{"event": "e", "kind": "GAP"}]}


def test_hashes_of_bodies_do_not_move() -> None:
    """Pinned before REPLAY and STREAM had fields of their own: what a key once meant, it means for ever."""
    assert body_hash_of(parse_run_body(body(SNAPSHOT))) == (
        "sha256:0613083dd77bbe0cb142cfef0e60ca75c19990eb1de14ca74bf22b88e4d45e72"
    )
    stored = body(SNAPSHOT, flow=address_of("a flow"), tags=["é"], priority=3, deadline_seconds=60)
    assert body_hash_of(parse_run_body(stored)) == (
        "sha256:2946cbbae9bbb7a0609da2acc397b2b9a8d596c737bff6405570fb6467cb8b47"
    )
    assert body_hash_of(parse_sweep_body(sweep())) == (
        "sha256:13792c6067ccaf9d1751cdb282465ae92f9e46be1581ffb6c5f85557cddbc494"
    )


def test_a_schedule_is_part_of_a_replay_and_of_nothing_else() -> None:
    """In its canonical form, defaults written out; an address stays one."""
    parsed = parse_run_body(body(SNAPSHOT) | REPLAY | {"schedule": FAULTS})
    assert isinstance(parsed.schedule, dict)
    assert parsed.schedule["faults"] == [{"event": "e", "kind": "GAP", "parameters": {}}]
    assert parse_run_body(body(SNAPSHOT) | REPLAY | {"schedule": parsed.schedule}) == parsed
    assert parse_run_body(body(SNAPSHOT) | REPLAY | {"schedule": SNAPSHOT}).schedule == SNAPSHOT
    assert parse_sweep_body(sweep(**REPLAY, schedule=FAULTS)).schedule == parsed.schedule
    for parse_body, value in ((parse_run_body, body(SNAPSHOT)), (parse_sweep_body, sweep())):
        with pytest.raises(FinazError) as caught:
            parse_body(value | {"schedule": FAULTS})
        assert (caught.value.code, caught.value.at) == ("BODY_INVALID", "$.schedule")


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"extra": 1}, "BODY_INVALID", "$"),
    ({"mode": "FAST"}, "BODY_INVALID", "$.mode"),
    ({"mode": 1}, "BODY_INVALID", "$.mode"),
    ({"priority": 1.0}, "BODY_INVALID", "$.priority"),
    ({"priority": True}, "BODY_INVALID", "$.priority"),
    ({"priority": 101}, "BODY_INVALID", "$.priority"),
    ({"priority": 2**70}, "BODY_INVALID", "$.priority"),
    ({"deadline_seconds": 0}, "BODY_INVALID", "$.deadline_seconds"),
    ({"deadline_seconds": 604_801}, "BODY_INVALID", "$.deadline_seconds"),
    ({"as_of": "2026-01-06T00:00:00"}, "INSTANT_INVALID", "$.as_of"),
    ({"as_of": "yesterday"}, "INSTANT_INVALID", "$.as_of"),
    ({"as_of": 1767657600}, "BODY_INVALID", "$.as_of"),
    ({"snapshot": "sha256:12"}, "BODY_INVALID", "$.snapshot"),
    ({"snapshot": None}, "BODY_INVALID", "$.snapshot"),
    ({"tags": "one"}, "BODY_INVALID", "$.tags"),
    ({"tags": [1]}, "BODY_INVALID", "$.tags[0]"),
    ({"tags": ["ok", "e\u0301"]}, "NAME_INVALID", "$.tags[1]"),
    ({"tags": ["a\n"]}, "NAME_INVALID", "$.tags[0]"),
    ({"tags": [""]}, "NAME_INVALID", "$.tags[0]"),
    ({"tags": ["t"] * 33}, "BODY_INVALID", "$.tags"),
    ({"flow": "01_A_feature"}, "BODY_INVALID", "$.flow"),
    ({"flow": None}, "BODY_INVALID", "$.flow"),
    ({"flow": {}}, "FLOW_INVALID", "$.flow.version"),
    ({"flow": flow(extra=1)}, "FLOW_INVALID", "$.flow.extra"),
    ({"flow": flow(nodes=[{"id": "x", "op": "emma", "inputs": []}])}, "OP_UNKNOWN", "$.flow.nodes[0].op"),
    ({"flow": flow(length=0)}, "FLOW_INVALID", "$.flow.nodes[0].parameters.length"),
    ({"flow": flow(name="e\u0301")}, "NAME_INVALID", "$.flow.name"),
    (REPLAY | {"schedule": "mine"}, "BODY_INVALID", "$.schedule"),
    (REPLAY | {"schedule": 1}, "BODY_INVALID", "$.schedule"),
    (REPLAY | {"schedule": {}}, "SCHEDULE_INVALID", "$.schedule.faults"),
    (REPLAY | {"schedule": FAULTS | {"seed": -1}}, "SCHEDULE_INVALID", "$.schedule.seed"),
]


@pytest.mark.parametrize(("changes", "code", "at"), WRONG)
def test_what_is_wrong_is_named_with_its_place(changes: dict[str, Any], code: str, at: str) -> None:
    """Unknown fields, wrong types, values out of range, names in another spelling, naive instants, unknown ops."""
    with pytest.raises(FinazError) as caught:
        parse_run_body(body(SNAPSHOT) | changes)
    assert (caught.value.code, caught.value.at) == (code, at)
    assert caught.value.status in (400, 422)


@pytest.mark.parametrize("missing", ["mode", "flow", "snapshot", "as_of"])
def test_what_is_missing_is_named(missing: str) -> None:
    """Each field without a default is required."""
    value = body(SNAPSHOT)
    del value[missing]
    with pytest.raises(FinazError, match=missing):
        parse_run_body(value)


@pytest.mark.parametrize("value", [None, [], "x", 1, 1.5, True])
def test_a_body_is_an_object(value: Any) -> None:
    """Anything else is refused at the top."""
    for parse_body in (parse_run_body, parse_sweep_body):
        with pytest.raises(FinazError) as caught:
            parse_body(value)
        assert (caught.value.code, caught.value.at) == ("BODY_INVALID", "$")


def stream(**changes: Any) -> dict[str, Any]:
    return {"mode": "STREAM", "flow": flow(), "topic": "arrivals", **changes}


def test_bodies_keep_the_hash_that_they_had_before_there_were_streams() -> None:
    """What only some modes have is no part of the body of another: a key used long ago still means the same request."""
    before = {
        "as_of": AS_OF,
        "deadline_seconds": 86_400,
        "flow": parse_run_body(body(SNAPSHOT)).flow,
        "mode": "BATCH",
        "priority": 0,
        "snapshot": SNAPSHOT,
        "tags": [],
    }
    parsed = parse_run_body(body(SNAPSHOT))
    assert body_hash_of(parsed) == address_of(body_value(parsed)) == address_of(before) == PINNED


def test_a_stream_may_know_its_source_or_not() -> None:
    """Snapshot and as-of instant together or neither; written defaults are the same body; what differs has another hash."""
    alone = parse_run_body(stream())
    assert (alone.topic, alone.bounded, alone.snapshot) == ("arrivals", True, "")
    assert parse_run_body(stream(bounded=True, continues="", snapshot="")) == alone
    known = parse_run_body(stream(snapshot=SNAPSHOT, as_of=AS_OF))
    others = [
        known,
        parse_run_body(stream(bounded=False)),
        parse_run_body(stream(bounded=False, continues="run_" + "0" * 64)),
    ]
    for one in (alone, *others):
        assert body_hash_of(one) == address_of(body_value(one))
    assert len({body_hash_of(one) for one in (alone, *others)}) == 4


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (stream(topic=""), "$.topic"),
        (stream(topic="."), "$.topic"),
        (stream(topic="t" * 250), "$.topic"),
        (stream(topic="a/b"), "$.topic"),
        (stream(topic="\u00e9"), "$.topic"),
        (stream(topic=None), "$.topic"),
        (stream(snapshot=SNAPSHOT), "$.as_of"),
        (stream(as_of=AS_OF), "$.snapshot"),
        (stream(snapshot="sha256:12", as_of=AS_OF), "$.snapshot"),
        (stream(bounded=1), "$.bounded"),
        (stream(bounded=False, continues="run_1"), "$.continues"),
        (stream(continues="run_" + "0" * 64), "$.bounded"),
        (body(SNAPSHOT, topic="arrivals"), "$.topic"),
        (body(SNAPSHOT, bounded=True), "$.bounded"),
    ],
)
def test_what_is_wrong_with_a_stream_is_named_with_its_place(value: dict[str, Any], at: str) -> None:
    """A topic that no broker can have, half of a source, and members of another mode."""
    with pytest.raises(FinazError) as caught:
        parse_run_body(value)
    assert (caught.value.code, caught.value.at) == ("BODY_INVALID", at)


def test_a_sweep_counts_its_runs() -> None:
    """Flows × instruments × parameters; the limit is reached and not passed."""
    three = [flow(f"x-{n}") for n in range(3)]
    parsed = parse_sweep_body(sweep(flows=three, instruments=["a", "b"], parameters=[{}, {"ema": {"length": 5}}]))
    assert parsed.runs == 12
    lengths = [{"ema": {"length": n + 1}} for n in range(SWEEP_RUNS_MAX)]
    assert parse_sweep_body(sweep(parameters=lengths)).runs == SWEEP_RUNS_MAX
    with pytest.raises(FinazError, match="a sweep of 2000 runs"):
        parse_sweep_body(sweep(parameters=lengths, instruments=["a", "b"]))


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"flows": []}, "$.flows"),
        ({"parameters": []}, "$.parameters"),
        ({"parameters": [{"ema": 3}]}, "$.parameters[0]"),
        ({"instruments": ["ok", "e\u0301"]}, "$.instruments[1]"),
        ({"flows": [flow(), {}]}, "$.flows[1].version"),
    ],
)
def test_what_is_wrong_in_a_sweep_is_named_with_its_place(changes: dict[str, Any], at: str) -> None:
    """As for a run, with the index."""
    with pytest.raises(FinazError) as caught:
        parse_sweep_body(sweep(**changes))
    assert (caught.value.at or "").startswith(at)
