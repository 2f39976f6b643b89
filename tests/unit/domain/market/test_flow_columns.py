"""Columns that a flow reads and its source lacks: refused by name, whatever the op, wherever the input stands."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.market.errors import ColumnUnknownError
from domain.market.flow import flow_body, parse_flow
from domain.market.flow_columns import COLUMNS_SAID_MAX, check_columns, columns_read
from domain.market.ops import OPS, IntegerParameter, Op
from domain.market.pipeline import check_inputs, plan_flow
from domain.market.snapshot import make_manifest

HELD = ("close", "high", "low", "volume")
EVERY_INPUT = [
    pytest.param(op, number, id=f"{op.name}-{op.version}-{op.inputs[number]}")
    for op in OPS.values()
    for number in range(len(op.inputs))
]


def node(node_id: str, op: Op, inputs: list[dict[str, str]]) -> dict[str, Any]:
    """A node of that op with the least parameters that it takes."""
    needed = {
        name: parameter.least
        for name, parameter in op.parameters.items()
        if isinstance(parameter, IntegerParameter) and parameter.default is None
    }
    return {"id": node_id, "op": op.name, "op_version": op.version, "inputs": inputs, "parameters": needed}


def flow_of(nodes: list[dict[str, Any]], output: str) -> Any:
    """A valid flow of one instrument with these nodes."""
    return parse_flow(
        {
            "version": 1,
            "name": "f",
            "source": {"instruments": ["A"]},
            "clock": {"kind": "event"},
            "nodes": nodes,
            "outputs": [{"name": "out", "node": output}],
        }
    )


@pytest.mark.parametrize(("op", "number"), EVERY_INPUT)
def test_every_input_of_every_op_is_looked_at(op: Op, number: int) -> None:
    """Its node, its place and the columns there are stand in the refusal; execution refuses with the same words."""
    inputs = [{"column": "close"} for _ in op.inputs]
    check_columns(flow_of([node("n", op, inputs)], "n"), "s", HELD)
    inputs[number] = {"column": "absent"}
    flow = flow_of([node("n", op, inputs)], "n")
    with pytest.raises(ColumnUnknownError, match="'n' reads the column 'absent'") as admitted:
        check_columns(flow, "s", HELD, at="$.flow")
    assert admitted.value.at == f"$.flow.nodes[0].inputs[{number}].column"
    assert admitted.value.expected == "one of close, high, low, volume"
    with pytest.raises(ColumnUnknownError) as executed:
        check_inputs(plan_flow(flow), make_manifest("s", "", HELD, ("A",), ()))
    assert executed.value.detail == admitted.value.detail


@given(
    st.lists(st.sampled_from([*HELD, "absent", "other"]), min_size=1, max_size=6),
    st.lists(st.sampled_from(HELD), unique=True),
)
def test_the_first_column_that_is_not_there_is_named_and_no_other(read: list[str], held: list[str]) -> None:
    """Over any flow and source: refused exactly if some node's column is missing, also of a node that no output needs."""
    ema = OPS["ema", 1]
    nodes = [node(f"n{index}", ema, [{"column": column}]) for index, column in enumerate(read)]
    flow = flow_of([*nodes, node("last", ema, [{"node": "n0"}])], "last")
    assert [column for column, _, _ in columns_read(flow)] == read
    lacking = [index for index, column in enumerate(read) if column not in held]
    if not lacking:
        check_columns(flow, "s", held)
        return
    with pytest.raises(ColumnUnknownError) as caught:
        check_columns(flow, "s", held)
    assert caught.value.at == f"$.nodes[{lacking[0]}].inputs[0].column"
    place = flow_body(flow)["nodes"][lacking[0]]["inputs"][0]
    assert place == {"column": read[lacking[0]]}
    assert repr(place["column"]) in caught.value.detail
    assert caught.value.expected


def test_a_source_of_many_columns_is_not_listed_whole() -> None:
    """At most `COLUMNS_SAID_MAX` names, and a mark that there are more; as many as that are all said."""
    flow = flow_of([node("n", OPS["ema", 1], [{"column": "absent"}])], "n")
    for count, more in ((COLUMNS_SAID_MAX, False), (COLUMNS_SAID_MAX + 1, True)):
        with pytest.raises(ColumnUnknownError) as caught:
            check_columns(flow, "s", [f"c{number:02}" for number in range(count)])
        expected = caught.value.expected or ""
        assert (expected.count("c"), expected.endswith(", …")) == (COLUMNS_SAID_MAX, more)
