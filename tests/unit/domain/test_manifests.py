"""Manifests and segments: what they say, and that what does not fit is refused by name."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address, address_of, canonical, parse
from domain.checkpoints import segments as segments_module
from domain.checkpoints.manifest import (
    Manifest,
    Plan,
    SinkRef,
    build_manifest,
    check_manifest,
    check_plan,
    encode_checkpoint,
    hash_of,
    parse_checkpoint,
)
from domain.checkpoints.messages import CheckpointCommitted
from domain.checkpoints.segments import (
    SEGMENT_FORMAT,
    Segment,
    accepted_of_segments,
    encode_segment,
    lanes_of_segments,
    parse_segment,
    segments_of,
)
from domain.market.lanes import LaneValues
from domain.stream.errors import CheckpointInvalidError, PartitionsChangedError
from domain.stream.worker_core import STATE_SCHEMA, StreamLimits
from tests.support.market_strategies import events

RUN = "run_" + "b" * 64
PLAN = Plan(flow="sha256:" + "1" * 64, limits=StreamLimits(), partitions=2, source="market")


def manifest(**changes: Any) -> Manifest:
    """Some checkpoint's manifest."""
    body: dict[str, Any] = {
        "run_id": RUN,
        "epoch": 3,
        "token": 2,
        "plan": PLAN,
        "state": "sha256:" + "2" * 64,
        "state_schema": STATE_SCHEMA,
        "sink": SinkRef(head="sha256:" + "3" * 64, segments=2, ticks=7, accepted=9),
        "next_offsets": {"0": 10, "1": 4},
        "start_offsets": {"0": 0, "1": 1},
        "marks": {"0": 10, "1": 9},
        "counts": {"consumed": 13},
        "watermarks": (5, -(2**62)),
        "side_inputs": (),
    }
    return build_manifest(**body | changes)


def committed(of: Manifest, **changes: Any) -> CheckpointCommitted:
    """The event that points at it."""
    fields: dict[str, Any] = {
        "run_id": of.run_id,
        "epoch": of.epoch,
        "token": of.token,
        "manifest": address(encode_checkpoint(of)),
        "manifest_hash": of.manifest_hash,
        "next_offsets": of.next_offsets,
    }
    return CheckpointCommitted(**fields | changes)


def test_a_manifest_carries_the_hash_of_its_body_without_the_hash() -> None:
    """And is read back as it was."""
    made = manifest()
    body = parse(encode_checkpoint(made))
    assert body.pop("manifest_hash") == address_of(body) == hash_of(made)
    assert parse_checkpoint(encode_checkpoint(made), "here") == made
    assert body["rng"] is None
    check_manifest(made, committed(made))


@pytest.mark.parametrize("member", [name for name in Manifest.__struct_fields__ if name not in ("format", "rng")])
def test_a_manifest_with_one_member_changed_is_refused(member: str) -> None:
    """By its hash, whatever member it is, and the place is named."""
    document = parse(encode_checkpoint(manifest()))
    others: dict[str, Any] = {
        "plan": document["plan"] | {"source": "other"},
        "sink": document["sink"] | {"ticks": 8},
        "watermarks": [5, 6],
        "side_inputs": ["x"],
        "marks": None,
    }
    before = document[member]
    if member in others:
        document[member] = others[member]
    elif isinstance(before, dict):
        document[member] = {name: value + 1 for name, value in before.items()}
    else:
        document[member] = before + 1 if isinstance(before, int) else before + "x"
    with pytest.raises(CheckpointInvalidError) as refused:
        parse_checkpoint(canonical(document), "here")
    assert refused.value.at == "here, manifest_hash"


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", b'{"format":"FINAZ_CHECKPOINT_V1"}', b"\xff", b'{"a":1,"a":1}'])
def test_what_is_no_manifest_is_refused(bad: bytes) -> None:
    """Typed, with its address."""
    with pytest.raises(CheckpointInvalidError) as refused:
        parse_checkpoint(bad, "here")
    assert refused.value.at == "here"


@pytest.mark.parametrize("member", ["manifest_hash", "run_id", "epoch", "token", "next_offsets"])
def test_a_manifest_that_is_not_the_committed_one_is_refused_by_member(member: str) -> None:
    """A manifest may be whole and still be another run's, another epoch's, another owner's."""
    made = manifest()
    other: Any = {"epoch": 4, "token": 3, "next_offsets": {"0": 11, "1": 4}}.get(member, "other")
    with pytest.raises(CheckpointInvalidError) as refused:
        check_manifest(made, committed(made, **{member: other}))
    assert str(refused.value.at).endswith(member)


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"flow": "sha256:" + "9" * 64}, "flow"),
        ({"limits": StreamLimits(lateness_micros=1)}, "limits"),
        ({"source": "other"}, "source"),
    ],
)
def test_another_plan_is_refused_by_the_member_that_differs(changes: dict[str, Any], at: str) -> None:
    """A state of other limits or another flow means something else, even where it could be read."""
    with pytest.raises(CheckpointInvalidError) as refused:
        check_plan(manifest(), msgspec.structs.replace(PLAN, **changes))
    assert str(refused.value.at).endswith(at)
    check_plan(manifest(), PLAN)


def test_another_number_of_partitions_and_another_schema_have_errors_of_their_own() -> None:
    """PARTITIONS_CHANGED stops the worker with a runbook; a state of another schema is never guessed at."""
    with pytest.raises(PartitionsChangedError):
        check_plan(manifest(), msgspec.structs.replace(PLAN, partitions=3))
    with pytest.raises(CheckpointInvalidError) as refused:
        check_plan(manifest(state_schema="FINAZ_STREAM_STATE_V1"), PLAN)
    assert str(refused.value.at).endswith("state_schema")


# ------------------------------------------------------------------------------------------------ segments

VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def lanes(draw: st.DrawFn) -> dict[str, tuple[LaneValues, ...]]:
    """What a core released, by instrument and part."""
    released = {}
    for instrument in draw(st.lists(st.sampled_from("ABC"), unique=True)):
        parts = []
        for size in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)):
            columns = {
                name: np.array(draw(st.lists(VALUES, min_size=size, max_size=size)), dtype=np.float64)
                for name in ("x", "y")
            }
            times = np.array(draw(st.lists(st.integers(-(2**62), 2**62), min_size=size, max_size=size)), dtype=np.int64)
            parts.append(LaneValues(instrument, times, [f"{instrument}{n}" for n in range(size)], columns))
        released[instrument] = tuple(parts)
    return released


def flat(released: dict[str, tuple[LaneValues, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    """The ticks of each instrument that has any."""
    rows = {
        instrument: [
            row
            for part in parts
            for row in zip(
                part.event_times.tolist(), part.event_ids, *(repr_of(part.outputs[name]) for name in "xy"), strict=True
            )
        ]
        for instrument, parts in released.items()
    }
    return {instrument: ticks for instrument, ticks in rows.items() if ticks}


def repr_of(column: Any) -> list[str]:
    """Values to the bit; NaN is null."""
    return [repr(value) for value in column.tolist()]


@given(st.lists(st.tuples(lanes(), events(revisions_max=1, size_max=8)), max_size=4), st.integers(1, 9))
def test_segments_hold_what_was_put_into_them_in_order_and_within_their_limit(
    cuts: list[tuple[Any, Any]], rows_max: int
) -> None:
    """However the cuts and the limit divide it: ticks to the bit and accepted events, walked back from the head."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(segments_module, "SEGMENT_ROWS_MAX", rows_max)
    blobs: dict[str, bytes] = {}
    head = None
    for ticks, accepted in cuts:
        for segment in segments_of(ticks, accepted):
            assert sum(segment.rows) <= rows_max
            data = encode_segment(segment, head)
            assert canonical(parse(data)) == data
            head = address(data)
            blobs[head] = data
    monkeypatch.undo()
    walked: list[Segment] = []
    while head is not None:
        walked.insert(0, parse_segment(blobs[head], head))
        head = walked[0].previous
    expected: dict[str, list[Any]] = {}
    for ticks, _ in cuts:
        for instrument, rows in flat(ticks).items():
            expected.setdefault(instrument, []).extend(rows)
    assert flat({name: (lane,) for name, lane in lanes_of_segments(walked).items()}) == expected
    given_events = [event for _, accepted in cuts for event in accepted]
    found = list(accepted_of_segments(walked))
    for instrument in "AB":
        assert [e for e in found if e.instrument == instrument] == [
            e for e in given_events if e.instrument == instrument
        ]


@pytest.mark.parametrize("bad", ["", "{}", '{"accepted":{},"format":"X","previous":null,"ticks":{}}'])
def test_what_is_no_segment_is_refused(bad: str) -> None:
    """Another format, another form, columns of different lengths."""
    ticks = '{"A":{"ids":["a"],"outputs":{},"times":[]}}'
    ragged = f'{{"accepted":{{}},"format":"{SEGMENT_FORMAT}","previous":null,"ticks":{ticks}}}'
    for data in (bad, ragged):
        with pytest.raises(CheckpointInvalidError) as refused:
            parse_segment(data.encode(), "here")
        assert refused.value.at == "here"
