"""JSON schemas of the bodies that submit runs, for the OpenAPI document, with examples; put the address of a stored snapshot.

The services read bodies by code of their own, which also checks what a schema can't say (NFC, references between nodes, cycles).
What must stay true: whatever these schemas refuse, the services refuse; a test holds ops, parameters and limits to the registry.
"""

from typing import Any, Final

ADDRESS_PATTERN: Final = "^sha256:[0-9a-f]{64}$"

INSTANT: Final[dict[str, Any]] = {
    "type": "string",
    "format": "date-time",
    "description": "RFC 3339 with a zone, to the microsecond.",
}
NAME: Final[dict[str, Any]] = {"$ref": "#/components/schemas/Name"}
ADDRESS: Final[dict[str, Any]] = {"type": "string", "pattern": ADDRESS_PATTERN}


def _object(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _integer(minimum: int, maximum: int, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, **more}


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "length": _integer(1, 1_000_000),
        "gap": {"type": "string", "enum": ["reject"]},
        "kind": {"type": "string", "enum": ["simple", "log"], "description": "Of returns."},
        "ddof": _integer(0, 1, description="Of zscore."),
    },
    "additionalProperties": False,
    "description": "The op's parameters; docs/flows.md says which op has which.",
}
OPS: Final = ("atr", "ema", "returns", "rsi", "sma", "vwap", "wma", "zscore")
_NODE: Final = _object(
    ("id", "op", "inputs"),
    id=NAME,
    op={"type": "string", "enum": list(OPS)},
    op_version=_integer(1, 1, default=1),
    inputs=_list({"anyOf": [_object(("node",), node=NAME), _object(("column",), column=NAME, instrument=NAME)]}, 1, 3),
    parameters=_PARAMETERS,
)
FLOW: Final[dict[str, Any]] = _object(
    ("version", "name", "source", "clock", "nodes", "outputs"),
    version={"type": "integer", "const": 1},
    name=NAME,
    source=_object(("instruments",), instruments={**_list(NAME, 1, 1024), "uniqueItems": True}),
    clock={
        "anyOf": [
            _object(("kind",), kind={"type": "string", "const": "event"}),
            _object(
                ("kind", "length_seconds"),
                kind={"type": "string", "const": "interval"},
                length_seconds=_integer(1, 366 * 86_400),
                empty_cells_max=_integer(0, 1_000_000, default=1000),
            ),
        ]
    },
    nodes=_list(_NODE, 1, 256),
    outputs=_list(_object(("name", "node"), name=NAME, node=NAME), 1, 256),
)
_FLOW_OR_ADDRESS: Final[dict[str, Any]] = {
    "anyOf": [ADDRESS, {"$ref": "#/components/schemas/Flow"}],
    "description": "A flow, or the address of one stored as an artifact.",
}
_REQUEST: Final[dict[str, dict[str, Any]]] = {
    "mode": {"type": "string", "enum": ["BATCH"]},
    "snapshot": {**ADDRESS, "description": "The address of a snapshot's manifest, stored as an artifact."},
    "as_of": INSTANT,
    "tags": _list(NAME, 0, 32),
    "priority": _integer(-100, 100, default=0),
    "deadline_seconds": _integer(1, 604_800, default=86_400),
}
_BATCH_BODY: Final = _object(("mode", "flow", "snapshot", "as_of"), flow=_FLOW_OR_ADDRESS, **_REQUEST)
SCHEDULE: Final[dict[str, Any]] = _object(
    ("format", "seed", "faults"),
    format={"type": "string", "const": "FINAZ_FAULT_SCHEDULE_V1"},
    seed=_integer(0, 2**63 - 1),
    faults=_list(
        _object(
            ("event", "kind"),
            event=NAME,
            kind={
                "type": "string",
                "enum": ["GAP", "DELAY", "REVISION", "DUPLICATE", "BURST", "PAUSE", "SOURCE_FAILURE"],
            },
            parameters=_object(
                (),
                seconds=_integer(0, 31_536_000, description="Of DELAY and REVISION."),
                values={"type": "object", "description": "Of REVISION: the value columns that change."},
                copies=_integer(2, 1000, description="Of BURST."),
                milliseconds=_integer(0, 86_400_000, description="Of PAUSE and SOURCE_FAILURE."),
            ),
        ),
        0,
        1_000_000,
    ),
)
_SCHEDULE_OR_ADDRESS: Final[dict[str, Any]] = {
    "anyOf": [ADDRESS, {"type": "string", "const": ""}, {"$ref": "#/components/schemas/FaultSchedule"}],
    "description": "Faults to replay the snapshot with, or the address of a stored schedule. Without it there are none.",
}
_REPLAY: Final[dict[str, Any]] = {"mode": {"type": "string", "enum": ["REPLAY"]}, "schedule": _SCHEDULE_OR_ADDRESS}
_REPLAY_BODY: Final = _object(("mode", "flow", "snapshot", "as_of"), flow=_FLOW_OR_ADDRESS, **(_REQUEST | _REPLAY))
_STREAM_BODY: Final = {
    **_object(
        ("mode", "flow", "topic"),
        flow=_FLOW_OR_ADDRESS,
        **_REQUEST
        | {
            "mode": {"type": "string", "enum": ["STREAM"]},
            "snapshot": {
                "anyOf": [ADDRESS, {"type": "string", "const": ""}],
                "description": "What the source published, if that is known: then parity with it is judged.",
            },
            "topic": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$", "description": "The topic to read."},
            "bounded": {
                "type": "boolean",
                "default": True,
                "description": "Whether the run ends at the high-water marks that are captured when it opens the topic.",
            },
            "continues": {
                "type": "string",
                "pattern": "^(run_[0-9a-f]{64})?$",
                "description": "A BATCH run of the same flow that has SUCCEEDED, behind which the stream goes on.",
            },
        },
    ),
    "description": "`snapshot` and `as_of` go together: both, or neither.",
}
RUN_BODY_SCHEMA: Final[dict[str, Any]] = {"anyOf": [_BATCH_BODY, _REPLAY_BODY, _STREAM_BODY]}


def _sweep(request: dict[str, dict[str, Any]]) -> dict[str, Any]:
    parameters = {"type": "object", "propertyNames": NAME, "additionalProperties": _PARAMETERS}
    return _object(
        ("mode", "flows", "snapshot", "as_of"),
        flows=_list(_FLOW_OR_ADDRESS, 1, 1000),
        instruments=_list(NAME, 0, 1000),
        parameters=_list({**parameters, "description": "By node id."}, 1, 1000),
        **request,
    )


SWEEP_BODY_SCHEMA: Final[dict[str, Any]] = {"anyOf": [_sweep(_REQUEST), _sweep(_REQUEST | _REPLAY)]}

_EXAMPLE_FLOW: Final[dict[str, Any]] = {
    "version": 1,
    "name": "01_A_feature",
    "source": {"instruments": ["fixture.fx-0"]},
    "clock": {"kind": "event"},
    "nodes": [{"id": "ema", "op": "ema", "inputs": [{"column": "close"}], "parameters": {"length": 3}}],
    "outputs": [{"name": "ema", "node": "ema"}],
}
_EXAMPLE_REQUEST: Final[dict[str, Any]] = {
    "mode": "BATCH",
    "snapshot": "sha256:" + "0" * 64,
    "as_of": "2026-01-06T00:00:00Z",
    "tags": ["example"],
}
RUN_BODY_EXAMPLE: Final[dict[str, Any]] = {"flow": _EXAMPLE_FLOW, **_EXAMPLE_REQUEST}
SWEEP_BODY_EXAMPLE: Final[dict[str, Any]] = {
    "flows": [_EXAMPLE_FLOW],
    "instruments": ["fixture.fx-0", "fixture.fx-1"],
    "parameters": [{"ema": {"length": 3}}, {"ema": {"length": 5}}],
    **_EXAMPLE_REQUEST,
}
