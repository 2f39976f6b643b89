"""What is remembered of flows is what would be worked out, and the spliced body hash is the address of the body."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, parse
from domain.errors import FinazError
from domain.market.flow import flow_address, flow_body, parse_flow
from services import known_flows
from services.known_flows import KNOWN_FLOW_BYTES_MAX, known_flow
from services.requests import body_hash_of, body_value, parse_run_body

names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


@st.composite
def flows(draw: st.DrawFn) -> dict[str, Any]:
    """A valid flow of one chain of nodes, its members in any order and defaults given or not."""
    ids = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    nodes = []
    for index, node_id in enumerate(ids):
        inputs = [{"column": "close"} if index == 0 else {"node": ids[index - 1]}]
        node = {"id": node_id, "op": "ema", "inputs": inputs, "parameters": {"length": draw(st.integers(1, 9))}}
        nodes.append(node | draw(st.sampled_from([{}, {"op_version": 1}])))
    flow = {
        "version": 1,
        "name": draw(names),
        "source": {"instruments": [draw(names)]},
        "clock": draw(st.sampled_from([{"kind": "event"}, {"kind": "interval", "length_seconds": 60}])),
        "nodes": nodes,
        "outputs": [{"name": "out", "node": ids[-1]}],
    }
    return dict(draw(st.permutations(list(flow.items()))))


@given(flows())
def test_a_known_flow_is_the_flow(value: dict[str, Any]) -> None:
    """Seen for the first time or again, it is what reading the flow gives."""
    for _ in range(2):
        known = known_flow(value)
        spec = parse_flow(value)
        assert (known.spec, known.body, known.address) == (spec, flow_body(spec), flow_address(spec))
        assert parse(known.text) == known.body


@given(
    flow=flows() | st.just("sha256:" + "0" * 64),
    tags=st.lists(names, max_size=3),
    priority=st.integers(-100, 100),
    deadline=st.integers(1, 604_800),
    micros=st.integers(0, 999_999),
)
def test_the_body_hash_is_the_address_of_the_body(
    flow: Any, tags: list[str], priority: int, deadline: int, micros: int
) -> None:
    """Spliced from what is known of the flow, it equals the address of the whole typed body."""
    body = parse_run_body(
        {
            "mode": "BATCH",
            "flow": flow,
            "snapshot": "sha256:" + "a" * 64,
            "as_of": f"2026-01-06T00:00:00.{micros:06}Z",
            "tags": tags,
            "priority": priority,
            "deadline_seconds": deadline,
        }
    )
    assert body_hash_of(body) == address_of(body_value(body))


def test_an_integer_and_its_float_are_not_one_flow() -> None:
    """`length: 3.0` is refused although `length: 3` is known."""
    flow = {
        "version": 1,
        "name": "f",
        "source": {"instruments": ["i"]},
        "clock": {"kind": "event"},
        "nodes": [{"id": "n", "op": "ema", "inputs": [{"column": "close"}], "parameters": {"length": 3}}],
        "outputs": [{"name": "o", "node": "n"}],
    }
    known_flow(flow)
    for wrong in (3.0, True, 2**70, "3"):
        nodes = [flow["nodes"][0] | {"parameters": {"length": wrong}}]  # type: ignore[index]
        for _ in range(2):
            with pytest.raises(FinazError):
                known_flow(flow | {"nodes": nodes})


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by size: a flow beyond it is worked out every time."""
    worked_out = []

    def counted(value: Any, real: Any = known_flows._worked_out) -> Any:
        worked_out.append(value)
        return real(value)

    monkeypatch.setattr(known_flows, "_worked_out", counted)
    node = {"id": "n", "op": "ema", "inputs": [{"column": "close"}], "parameters": {"length": 3}}
    outputs = [{"name": f"{index:0100}", "node": "n"} for index in range(KNOWN_FLOW_BYTES_MAX // 100)]
    large = {
        "version": 1,
        "name": "large",
        "source": {"instruments": ["i"]},
        "clock": {"kind": "event"},
        "nodes": [node],
        "outputs": outputs[:200],
    }
    small = large | {"name": "small", "outputs": outputs[:1]}
    for value in (large, large, small, small):
        known_flow(value)
    assert [value["name"] for value in worked_out] == ["large", "large", "small"]
    assert known_flows._remembered.cache_parameters()["maxsize"] == known_flows.KNOWN_FLOWS_MAX
