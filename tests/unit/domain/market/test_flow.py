"""FlowSpec: what is refused and where, one address per meaning, members of a sweep."""

from typing import Any

import pytest

from domain.canonical import canonical, parse
from domain.errors import FinazError, NameInvalidError
from domain.market import flow as flows
from domain.market.errors import FlowInvalidError, UnknownOpError
from domain.market.flow import flow_address, flow_body, instantiate, owners, parse_flow
from domain.market.ops import LENGTH_MAX


def good() -> dict[str, Any]:
    """Two nodes, one behind the other, over one instrument."""
    return {
        "version": 1,
        "name": "made",
        "source": {"instruments": ["A"]},
        "clock": {"kind": "event"},
        "nodes": [
            {"id": "smooth", "op": "ema", "inputs": [{"node": "change"}], "parameters": {"length": 3}},
            {"id": "change", "op": "returns", "inputs": [{"column": "close"}]},
        ],
        "outputs": [{"name": "out", "node": "smooth"}],
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good flow with one place changed; `...` takes the member away."""
    body = good()
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = body
    for step in parents:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return body


BAD: list[tuple[str, Any, str]] = [
    ("version", 2, "$.version"),
    ("version", 1.0, "$.version"),
    ("version", True, "$.version"),
    ("version", ..., "$.version"),
    ("name", 3, "$.name"),
    ("surplus", 1, "$.surplus"),
    ("source", [], "$.source"),
    ("source.instruments", [], "$.source.instruments"),
    ("source.instruments", ["A", "A"], "$.source.instruments[1]"),
    ("source.instruments", ["A", "B"], "$.nodes[1].inputs[0].instrument"),
    ("source.instruments", "A", "$.source.instruments"),
    ("source.instruments", [7], "$.source.instruments[0]"),
    ("source.other", 1, "$.source.other"),
    ("clock.kind", "daily", "$.clock.kind"),
    ("clock.length_seconds", 60, "$.clock.length_seconds"),
    ("clock", {"kind": "interval"}, "$.clock.length_seconds"),
    ("clock", {"kind": "interval", "length_seconds": 0}, "$.clock.length_seconds"),
    ("clock", {"kind": "interval", "length_seconds": -60}, "$.clock.length_seconds"),
    ("clock", {"kind": "interval", "length_seconds": 60.0}, "$.clock.length_seconds"),
    ("clock", {"kind": "interval", "length_seconds": 60, "empty_cells_max": -1}, "$.clock.empty_cells_max"),
    ("nodes", [], "$.nodes"),
    ("nodes", {}, "$.nodes"),
    ("nodes.0", 5, "$.nodes[0]"),
    ("nodes.1.id", "smooth", "$.nodes[1].id"),
    ("nodes.0.color", "red", "$.nodes[0].color"),
    ("nodes.0.inputs", [], "$.nodes[0].inputs"),
    ("nodes.0.inputs", [{"node": "change"}, {"node": "change"}], "$.nodes[0].inputs"),
    ("nodes.0.inputs", [{"node": "nowhere"}], "$.nodes[0].inputs[0]"),
    ("nodes.0.inputs", [{"node": "change", "column": "close"}], "$.nodes[0].inputs[0].column"),
    ("nodes.0.inputs", ["close"], "$.nodes[0].inputs[0]"),
    ("nodes.1.inputs", [{"column": "event_time"}], "$.nodes[1].inputs[0].column"),
    ("nodes.1.inputs", [{"column": "close", "instrument": "B"}], "$.nodes[1].inputs[0].instrument"),
    ("nodes.0.parameters", {}, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", 0, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", -3, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", 3.0, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", "3", "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", None, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", LENGTH_MAX + 1, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.length", 2**64, "$.nodes[0].parameters.length"),
    ("nodes.0.parameters.gap", "bridge", "$.nodes[0].parameters.gap"),
    ("nodes.0.parameters.speed", 1, "$.nodes[0].parameters.speed"),
    ("nodes.1.parameters", {"kind": "cubic"}, "$.nodes[1].parameters.kind"),
    ("outputs", [], "$.outputs"),
    ("outputs.0.node", "nowhere", "$.outputs[0].node"),
    ("outputs", [{"name": "out", "node": "smooth"}, {"name": "out", "node": "change"}], "$.outputs[1].name"),
]


@pytest.mark.parametrize(("path", "value", "at"), BAD)
def test_what_is_wrong_is_refused_with_its_place(path: str, value: Any, at: str) -> None:
    """Every kind of mistake gives FLOW_INVALID at the member that is wrong."""
    parse_flow(good())
    with pytest.raises(FlowInvalidError) as caught:
        parse_flow(changed(path, value))
    assert caught.value.at == at
    assert caught.value.expected


@pytest.mark.parametrize("value", [None, [], "flow", 1, True])
def test_a_flow_is_an_object(value: Any) -> None:
    """Anything else is refused at the root."""
    with pytest.raises(FlowInvalidError) as caught:
        parse_flow(value)
    assert caught.value.at == "$"


@pytest.mark.parametrize(
    ("path", "value", "at"),
    [
        ("nodes.0.op", "emma", "$.nodes[0].op"),
        ("nodes.0.op_version", 2, "$.nodes[0].op_version"),
        ("nodes.0.op_version", 99, "$.nodes[0].op_version"),
    ],
)
def test_an_unknown_op_has_a_code_of_its_own(path: str, value: Any, at: str) -> None:
    """OP_UNKNOWN, with the place and the ops that there are."""
    with pytest.raises(UnknownOpError) as caught:
        parse_flow(changed(path, value))
    assert caught.value.code == "OP_UNKNOWN"
    assert caught.value.at == at


@pytest.mark.parametrize(
    "path",
    ["name", "source.instruments.0", "nodes.0.id", "nodes.1.inputs.0.column", "outputs.0.name", "outputs.0.node"],
)
@pytest.mark.parametrize("name", ["cafe\u0301", "", "a\x00b", "tab\t", "x" * 256])
def test_names_are_nfc_or_refused(path: str, name: str) -> None:
    """Two Unicode spellings never become two flows; nor do empty, long or unprintable names get in."""
    with pytest.raises(FinazError) as caught:
        parse_flow(changed(path, name))
    assert isinstance(caught.value, NameInvalidError)
    assert (caught.value.at or "").startswith("$.")


def test_a_cycle_is_named_whole() -> None:
    """So that the author sees which nodes wait for each other, also where only one waits for itself."""
    body = changed("nodes.1.inputs", [{"node": "smooth"}])
    with pytest.raises(FlowInvalidError, match="smooth -> change -> smooth"):
        parse_flow(body)
    with pytest.raises(FlowInvalidError, match="change -> change"):
        parse_flow(changed("nodes.1.inputs", [{"node": "change"}]))


def test_a_long_chain_is_read_without_recursion() -> None:
    """As many nodes as a flow may have, each behind the other, in the worst order."""
    body = good()
    count = flows.NODES_MAX
    body["nodes"] = [
        {"id": f"n{index}", "op": "sma", "inputs": [{"node": f"n{index + 1}"}], "parameters": {"length": 1}}
        for index in range(count - 1)
    ] + [{"id": f"n{count - 1}", "op": "sma", "inputs": [{"column": "close"}], "parameters": {"length": 1}}]
    body["outputs"] = [{"name": "out", "node": "n0"}]
    assert next(iter(owners(parse_flow(body)))) == f"n{count - 1}"
    body["nodes"].append(body["nodes"][0] | {"id": "one more"})
    with pytest.raises(FlowInvalidError):
        parse_flow(body)


def two_instruments() -> dict[str, Any]:
    """A node on each of two instruments."""
    body = good()
    body["source"]["instruments"] = ["A", "B"]
    body["nodes"] = [
        {"id": name, "op": "sma", "inputs": [{"column": "close", "instrument": name}], "parameters": {"length": 2}}
        for name in ("A", "B")
    ]
    body["outputs"] = [{"name": name, "node": name} for name in ("A", "B")]
    return body


def test_a_join_is_refused() -> None:
    """A node whose inputs belong to two instruments, directly or through other nodes."""
    body = two_instruments()
    assert owners(parse_flow(body)) == {"A": "A", "B": "B"}
    body["nodes"].append(
        {"id": "both", "op": "vwap", "inputs": [{"node": "A"}, {"node": "B"}], "parameters": {"length": 2}}
    )
    with pytest.raises(FlowInvalidError, match="joins A, B"):
        parse_flow(body)


def test_an_instrument_that_nothing_reads_is_refused() -> None:
    """It would tick for nobody."""
    body = two_instruments()
    body["source"]["instruments"].append("C")
    with pytest.raises(FlowInvalidError) as caught:
        parse_flow(body)
    assert caught.value.at == "$.source.instruments"


def test_defaults_written_out_or_left_out_are_one_flow() -> None:
    """Equal meaning, equal address: versions, parameters and the only instrument may be said or not."""
    said = good()
    said["nodes"][0]["op_version"] = 1
    said["nodes"][0]["parameters"]["gap"] = "reject"
    said["nodes"][1]["parameters"] = {"length": 1, "kind": "simple", "gap": "reject"}
    said["nodes"][1]["inputs"][0]["instrument"] = "A"
    assert flow_address(parse_flow(said)) == flow_address(parse_flow(good()))


def test_the_canonical_body_is_a_fixed_point() -> None:
    """Reading the body of a flow gives the flow."""
    for body in (good(), two_instruments(), changed("clock", {"kind": "interval", "length_seconds": 60})):
        spec = parse_flow(body)
        assert parse_flow(parse(canonical(flow_body(spec)))) == spec


def test_instantiate_changes_instrument_and_parameters_only() -> None:
    """A member of a sweep is the flow with that instrument and those parameters, as if written so."""
    body = good()
    body["source"]["instruments"] = ["B"]
    body["nodes"][0]["parameters"]["length"] = 5
    assert instantiate(parse_flow(good()), "B", {"smooth": {"length": 5}}) == parse_flow(body)
    assert instantiate(parse_flow(good())) == parse_flow(good())


@pytest.mark.parametrize(
    ("instrument", "parameters", "at"),
    [
        (None, {"nowhere": {}}, "parameters.nowhere"),
        (None, {"smooth": 5}, "parameters.smooth"),
        (None, {"smooth": {"length": 0}}, "$.nodes[0].parameters.length"),
        (None, {"smooth": {"width": 1}}, "$.nodes[0].parameters.width"),
    ],
)
def test_instantiate_refuses_with_the_place(instrument: str | None, parameters: Any, at: str) -> None:
    """Unknown nodes and parameters, and values out of range."""
    with pytest.raises(FlowInvalidError) as caught:
        instantiate(parse_flow(good()), instrument, parameters)
    assert caught.value.at == at


def test_instantiate_refuses_an_instrument_for_a_flow_of_several() -> None:
    """It could not say which to replace."""
    with pytest.raises(FlowInvalidError):
        instantiate(parse_flow(two_instruments()), "C")
    with pytest.raises(NameInvalidError):
        instantiate(parse_flow(good()), "cafe\u0301")
