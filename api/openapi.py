"""The OpenAPI 3.1 document, read off the operations.

What must stay true: it is complete (every route, every status) and true (what it calls valid is accepted, what it calls invalid is
refused); schemathesis checks both. A pure function of the operations, so every process serves the same bytes.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from api.operations import AnswerSpec, Operation
from api.parameters import Parameter
from api.problems import PROBLEM_MEDIA_TYPE
from api.schemas import Problem, components, reference

DESCRIPTION: Final = """\
Runs of a market-data engine: ask for a computation, watch it, read its result. Every answer has an `X-Request-Id`; every error is
an RFC 9457 problem document with a stable `code`. JSON leaves in canonical form; integers of any size are exact."""

ANY_PROBLEM: Final = (400, 500, 503)
"""Every operation can answer these: a parameter that isn't one, a defect of ours, a part that is away."""

_REQUEST_ID: Final = {"description": "The request's id, as it stands in logs and events.", "schema": {"type": "string"}}
_PROBLEM_HEADERS: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "required": True}},
    503: {"Retry-After": {"schema": {"type": "integer"}}},
}


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """The document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "finaz", "version": version, "description": DESCRIPTION, "license": _LICENSE},
        "paths": paths,
        "components": {"schemas": components(), "securitySchemes": {"bearer": _BEARER}},
    }


_LICENSE: Final = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "Scopes: `runs:write` to submit and cancel, `runs:read` to read one's own; `purchases:write` and `purchases:read` likewise;"
        " `operate` to reach everybody's."
    ),
}


def _operation(operation: Operation) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if operation.description:
        entry["description"] = operation.description
    if operation.parameters:
        entry["parameters"] = [_parameter(p) for p in operation.parameters]
    if operation.body is not None:
        media: dict[str, Any] = {"schema": operation.body.schema}
        if operation.body.example is not None:
            media["example"] = operation.body.example
        entry["requestBody"] = {"required": True, "content": {operation.body.media_type: media}}
    if operation.scope is not None:
        entry["security"] = [{"bearer": [operation.scope.value]}]
    return entry


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema
    entry: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place.value,
        "description": parameter.description,
        "required": parameter.required,
        "schema": schema,
    }
    if parameter.repeated:
        entry["schema"] = {"type": "array", "items": schema, "maxItems": parameter.repeated_max}
        entry |= {"style": "form", "explode": True}
    if parameter.example is not None:
        entry["example"] = parameter.example
    return entry


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {str(answer.status): _response(answer) for answer in operation.answers}
    statuses = {*ANY_PROBLEM, *operation.problems}
    if operation.scope is not None:
        statuses |= {401, 403}
    if operation.body is not None:
        statuses |= {408, 413, 415}
    for status in sorted(statuses):
        responses.setdefault(
            str(status),
            {
                "description": HTTPStatus(status).phrase,
                "content": {PROBLEM_MEDIA_TYPE: {"schema": reference(Problem)}},
                "headers": {"X-Request-Id": _REQUEST_ID, **_PROBLEM_HEADERS.get(status, {})},
            },
        )
    return responses


def _response(answer: AnswerSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "description": answer.description,
        "headers": {"X-Request-Id": _REQUEST_ID, **answer.headers},
    }
    if answer.content:
        entry["content"] = {media_type: {"schema": schema} for media_type, schema in answer.content.items()}
    return entry
