"""FlowSpec: what a run computes, as a value with an address.

A flow names its instruments, a clock, nodes (ops over columns or other nodes) and outputs. What must stay true: equal meaning,
equal address: the canonical body has every default written out and names an instrument only where there are several; whatever
is not understood is refused with the place, nothing is ignored. The order of nodes and outputs is the author's, and part of it.

Every node belongs to one instrument, that of its columns, and ticks on that instrument's events only. Nodes that join
instruments are refused in version 1 (`docs/flows.md` says how they would come in).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.canonical import address_of
from domain.market.errors import FlowInvalidError, UnknownOpError
from domain.market.fields import Reader
from domain.market.ops import LATEST, OPS, IntegerParameter, Op, Parameter
from domain.market.records import FIELDS

FLOW_VERSION: Final = 1

INSTRUMENTS_MAX: Final = 1024
NODES_MAX: Final = 256
OUTPUTS_MAX: Final = 256
"""Limits of one flow: instruments, nodes, outputs."""

CELL_SECONDS_MAX: Final = 366 * 86_400
"""Seconds of the longest cell of an interval clock."""

EMPTY_CELLS_MAX: Final = 1_000_000
"""The most that a flow may set as its limit of consecutive empty cells."""

EMPTY_CELLS_DEFAULT: Final = 1000
"""Consecutive empty cells allowed where the flow says nothing."""


class EventClock(msgspec.Struct, frozen=True):
    """A tick per event."""


class IntervalClock(msgspec.Struct, frozen=True, kw_only=True):
    """A tick per half-open cell of `length_seconds`, anchored at the UTC epoch; at most `empty_cells_max` empties in a row."""

    length_seconds: int
    empty_cells_max: int = EMPTY_CELLS_DEFAULT


class ColumnInput(msgspec.Struct, frozen=True, kw_only=True):
    """A value column of the source; `instrument` is None where the flow has but one."""

    column: str
    instrument: str | None = None


class NodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """The results of another node."""

    node: str


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One op at work; all its parameters, defaults included."""

    id: str
    op: str
    op_version: int
    inputs: tuple[ColumnInput | NodeInput, ...]
    parameters: dict[str, Parameter]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A node's results under a name of their own: what the run publishes."""

    name: str
    node: str


class FlowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A valid flow. Made by `parse_flow` only."""

    version: int
    name: str
    instruments: tuple[str, ...]
    clock: EventClock | IntervalClock
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]


def parse_flow(value: Any) -> FlowSpec:
    """Read a flow from JSON (as `domain.canonical.parse` gives it).

    Raises `FlowInvalidError` with the place for unknown or missing fields, wrong types and parameters, duplicate ids, dangling
    references, joins and cycles; `UnknownOpError` for an op or a version of one; `NameInvalidError` for a name that isn't NFC.
    """
    top = Reader(value, "$", ("version", "name", "source", "clock", "nodes", "outputs"))
    top.integer("version", FLOW_VERSION, FLOW_VERSION)
    name = top.name("name")
    source = Reader(top.member("source"), "$.source", ("instruments",))
    instruments = tuple(
        source.checked_name(item, at) for item, at in source.items("instruments", least=1, most=INSTRUMENTS_MAX)
    )
    _unique(instruments, "$.source.instruments")
    clock = _clock(top.member("clock"))
    nodes = tuple(_node(item, at, instruments) for item, at in top.items("nodes", least=1, most=NODES_MAX))
    _unique([node.id for node in nodes], "$.nodes", ".id")
    outputs = tuple(_output(item, at) for item, at in top.items("outputs", least=1, most=OUTPUTS_MAX))
    _unique([output.name for output in outputs], "$.outputs", ".name")
    flow = FlowSpec(version=FLOW_VERSION, name=name, instruments=instruments, clock=clock, nodes=nodes, outputs=outputs)
    unread = set(instruments).difference(owners(flow).values())
    if unread:
        raise FlowInvalidError(
            f"no node reads {min(unread)!r}", at="$.source.instruments", expected="only those that are read"
        )
    return flow


def flow_body(flow: FlowSpec) -> dict[str, Any]:
    """The canonical body: JSON with every default written out. `parse_flow(flow_body(flow)) == flow`."""
    clock: dict[str, Any] = {"kind": "event"}
    if isinstance(flow.clock, IntervalClock):
        clock = {"kind": "interval", **msgspec.structs.asdict(flow.clock)}
    nodes = [
        {
            "id": node.id,
            "inputs": [_input_body(entry) for entry in node.inputs],
            "op": node.op,
            "op_version": node.op_version,
            "parameters": dict(node.parameters),
        }
        for node in flow.nodes
    ]
    return {
        "clock": clock,
        "name": flow.name,
        "nodes": nodes,
        "outputs": [{"name": output.name, "node": output.node} for output in flow.outputs],
        "source": {"instruments": list(flow.instruments)},
        "version": flow.version,
    }


def flow_address(flow: FlowSpec) -> str:
    """The content address of the canonical body."""
    return address_of(flow_body(flow))


def instantiate(
    flow: FlowSpec, instrument: str | None = None, parameters: Mapping[str, Mapping[str, Any]] | None = None
) -> FlowSpec:
    """The flow for another instrument and with other parameters (`{node id: {parameter: value}}`): a member of a sweep.

    The name stays. Raises as `parse_flow` does, and `FlowInvalidError` for a node or parameter that isn't there, or where an
    instrument is given to a flow that has several.
    """
    body = flow_body(flow)
    if instrument is not None:
        if len(flow.instruments) != 1:
            raise FlowInvalidError("the flow has several instruments", at="instrument", expected="a flow of one")
        body["source"]["instruments"] = [instrument]
    nodes = {node["id"]: node for node in body["nodes"]}
    for node_id, changes in (parameters or {}).items():
        if node_id not in nodes:
            raise FlowInvalidError(
                f"no node {node_id[:64]!r}", at=f"parameters.{node_id[:64]}", expected=_one_of(nodes)
            )
        if not isinstance(changes, Mapping):
            raise FlowInvalidError("no object", at=f"parameters.{node_id}", expected="an object of parameters")
        nodes[node_id]["parameters"].update(changes)
    return parse_flow(body)


def op_of(node: Node) -> Op:
    """The registered op of a valid node."""
    return OPS[node.op, node.op_version]


def owners(flow: FlowSpec) -> dict[str, str]:
    """The instrument of each node, by id, in an order in which every node stands behind those that it reads.

    Raises `FlowInvalidError` for a dangling reference, a cycle (named whole) and a node that joins instruments.
    """
    places = {node.id: index for index, node in enumerate(flow.nodes)}
    found: dict[str, str] = {}
    for root in flow.nodes:
        path = [root.id]
        while path:  # depth first, without recursion
            index = places[path[-1]]
            node = flow.nodes[index]
            waiting = None
            for number, entry in enumerate(node.inputs):
                if isinstance(entry, NodeInput) and entry.node not in found:
                    waiting = _next(entry.node, path, places, f"$.nodes[{index}].inputs[{number}]")
                    break
            if waiting is not None:
                path.append(waiting)
                continue
            if node.id not in found:
                found[node.id] = _owner(node, found, flow.instruments, f"$.nodes[{index}].inputs")
            path.pop()
    for index, output in enumerate(flow.outputs):
        if output.node not in places:
            raise FlowInvalidError(f"no node {output.node!r}", at=f"$.outputs[{index}].node", expected=_one_of(places))
    return found


def _next(node_id: str, path: list[str], places: dict[str, int], at: str) -> str:
    if node_id not in places:
        raise FlowInvalidError(f"no node {node_id!r}", at=at, expected=_one_of(places))
    if node_id in path:
        cycle = " -> ".join([*path[path.index(node_id) :], node_id])
        raise FlowInvalidError(f"a cycle: {cycle}", at=at, expected="nodes that read earlier results only")
    return node_id


def _owner(node: Node, found: dict[str, str], instruments: tuple[str, ...], at: str) -> str:
    names = {
        found[entry.node] if isinstance(entry, NodeInput) else entry.instrument or instruments[0]
        for entry in node.inputs
    }
    if len(names) > 1:
        raise FlowInvalidError(f"the node joins {', '.join(sorted(names))}", at=at, expected="inputs of one instrument")
    return names.pop()


def _clock(value: Any) -> EventClock | IntervalClock:
    kind = Reader(value, "$.clock", None).choice("kind", ("event", "interval"))
    if kind == "event":
        Reader(value, "$.clock", ("kind",))
        return EventClock()
    reader = Reader(value, "$.clock", ("kind", "length_seconds"), ("empty_cells_max",))
    return IntervalClock(
        length_seconds=reader.integer("length_seconds", 1, CELL_SECONDS_MAX),
        empty_cells_max=reader.integer("empty_cells_max", 0, EMPTY_CELLS_MAX, default=EMPTY_CELLS_DEFAULT),
    )


def _node(value: Any, at: str, instruments: tuple[str, ...]) -> Node:
    reader = Reader(value, at, ("id", "op", "inputs"), ("op_version", "parameters"))
    node_id = reader.name("id")
    name = reader.text("op")
    if name not in LATEST:
        raise UnknownOpError(f"no op {name[:64]!r}", at=f"{at}.op", expected=_one_of(LATEST))
    version = reader.integer("op_version", 1, None, default=LATEST[name])
    op = OPS.get((name, version))
    if op is None:
        versions = [str(known) for op_name, known in OPS if op_name == name]
        raise UnknownOpError(f"no version {version} of {name}", at=f"{at}.op_version", expected=_one_of(versions))
    inputs = tuple(_input(item, place, instruments) for item, place in reader.items("inputs", least=0, most=None))
    if len(inputs) != len(op.inputs):
        expected = f"{len(op.inputs)}: {', '.join(op.inputs)}"
        raise FlowInvalidError(f"{len(inputs)} inputs", at=f"{at}.inputs", expected=expected)
    parameters = _parameters(reader.member("parameters", {}), f"{at}.parameters", op)
    return Node(id=node_id, op=name, op_version=version, inputs=inputs, parameters=parameters)


def _parameters(value: Any, at: str, op: Op) -> dict[str, Parameter]:
    needed = [name for name, spec in op.parameters.items() if spec.default is None]
    reader = Reader(value, at, needed, [name for name in op.parameters if name not in needed])
    read: dict[str, Parameter] = {}
    for name, spec in op.parameters.items():
        if isinstance(spec, IntegerParameter):
            read[name] = reader.integer(name, spec.least, spec.most, default=spec.default)
        else:
            read[name] = reader.choice(name, spec.choices, default=spec.default)
    return read


def _input(value: Any, at: str, instruments: tuple[str, ...]) -> ColumnInput | NodeInput:
    if isinstance(value, dict) and "node" in value:
        return NodeInput(node=Reader(value, at, ("node",)).name("node"))
    several = len(instruments) > 1
    reader = Reader(value, at, ("column", "instrument") if several else ("column",), () if several else ("instrument",))
    column = reader.name("column")
    if column in FIELDS:
        raise FlowInvalidError(f"{column} is no value column", at=f"{at}.column", expected="a value column")
    instrument = reader.name("instrument") if "instrument" in value else instruments[0]
    if instrument not in instruments:
        raise FlowInvalidError("not an instrument of the source", at=f"{at}.instrument", expected=_one_of(instruments))
    return ColumnInput(column=column, instrument=instrument if several else None)


def _input_body(entry: ColumnInput | NodeInput) -> dict[str, str]:
    if isinstance(entry, NodeInput):
        return {"node": entry.node}
    return {"column": entry.column} | ({"instrument": entry.instrument} if entry.instrument is not None else {})


def _output(value: Any, at: str) -> Output:
    reader = Reader(value, at, ("name", "node"))
    return Output(name=reader.name("name"), node=reader.name("node"))


def _unique(names: list[str] | tuple[str, ...], at: str, field: str = "") -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise FlowInvalidError(f"{name!r} stands twice", at=f"{at}[{index}]{field}", expected="each name once")
        seen.add(name)


def _one_of(names: Any) -> str:
    listed = sorted(names)
    return "one of " + ", ".join(listed[:16]) + (", …" if len(listed) > 16 else "")
