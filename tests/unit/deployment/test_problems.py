"""Errors as problem documents on the command line: what an error carries is shown as data, never as Python writes it."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from api.problems import document_of
from deployment.problems import problem_of
from domain.errors import RunFailedError
from domain.runs.aggregate import RunState
from domain.runs.messages import RunError

FAULT = RunError(code="DEADLINE_EXCEEDED", message="too late", attempt=1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (FAULT, {"code": "DEADLINE_EXCEEDED", "message": "too late", "attempt": 1, "at": None}),
        ((FAULT.code, 2), ["DEADLINE_EXCEEDED", 2]),
        (RunState.FAILED, "FAILED"),
        ({"partition": 3}, {"partition": 3}),
        (Path("/tmp/x"), "/tmp/x"),
        (Decimal("1.5"), "1.5"),
        (2**70, 2**70),
        (None, None),
    ],
)
def test_what_an_error_carries_is_shown_as_data(value: Any, shown: Any) -> None:
    """Structures as objects, enumerations by value, other things as text; over HTTP the same stands there."""
    error = RunFailedError("it failed", at="run", error=value)
    for document in (problem_of(error), document_of(error, "request")):
        assert json.loads(json.dumps(document)).get("error") == shown
