"""Problem documents: every error of the system leaves in one form, and a defect says nothing of the inside."""

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

import api.schemas  # noqa: F401  (imports what defines errors)
from api.answers import Answer
from api.operations import problem_answer
from api.problems import PROBLEM_MEDIA_TYPE, RETRY_AFTER_SECONDS, problem_of, typed
from domain.errors import FinazError, StoreUnavailableError, UnauthenticatedError


def kinds(base: type[FinazError] = FinazError) -> list[type[FinazError]]:
    """All errors of the domain: the same list whatever else has been imported (others have constructors of their own)."""
    below = [kind for sub in base.__subclasses__() for kind in kinds(sub)]
    return [kind for kind in (base, *below) if kind.__module__.startswith("domain.")]


def read(answer: Answer) -> dict[str, Any]:
    assert answer.media_type == PROBLEM_MEDIA_TYPE
    document: dict[str, Any] = json.loads(answer.body)
    assert document["status"] == answer.status
    return document


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_keeps_its_code_place_and_expectation(kind: type[FinazError]) -> None:
    """The document has the error's own code and status, and says where and what would be right."""
    answer = problem_of(kind("a sentence", at="$.flow", expected="another", found=3), "req-1")
    document = read(answer)
    assert document["code"] == kind.code
    assert document["type"].endswith(kind.code)
    assert (document["detail"], document["at"], document["expected"]) == ("a sentence", "$.flow", "another")
    assert (document["found"], document["request_id"], answer.status) == (3, "req-1", kind.status)


@given(detail=st.text(st.characters()), at=st.text(st.characters()) | st.none(), more=st.text(st.characters()))
def test_any_sentence_can_be_sent(detail: str, at: str | None, more: str) -> None:
    """Whatever a caller's text was (lone surrogates, U+0000), the document about it is valid UTF-8 JSON and bounded."""
    answer = problem_of(FinazError(detail, at=at, quoted=more), "r")
    assert json.loads(answer.body.decode("utf-8"))["code"] == "DEFECT"


def test_a_long_sentence_is_cut() -> None:
    assert len(problem_of(FinazError("x" * 10**6), "r").body) < 5000


def test_context_of_any_type_can_be_sent() -> None:
    class Colour(Enum):
        RED = "red"

    answer = problem_of(FinazError("s", at_instant=datetime(2026, 1, 5, tzinfo=UTC), colour=Colour.RED, kind=int), "r")
    assert json.loads(answer.body)["colour"] == "red"


def test_context_never_overwrites_the_document() -> None:
    assert read(problem_of(FinazError("s", status=200, title="fine"), "r"))["status"] == 500


def test_headers_tell_the_client_what_to_do() -> None:
    assert dict(problem_of(UnauthenticatedError("s"), "r").headers)[b"www-authenticate"].startswith(b"Bearer")
    assert dict(problem_of(StoreUnavailableError("s"), "r").headers) == {
        b"retry-after": str(RETRY_AFTER_SECONDS).encode()
    }


def test_a_defect_tells_nothing() -> None:
    """An exception that nobody foresaw is 500 DEFECT; neither its text nor its type leaves."""
    answer = problem_answer(ValueError("password=hunter2"), "req-9")
    document = read(answer)
    assert (document["code"], document["request_id"]) == ("DEFECT", "req-9")
    assert b"hunter2" not in answer.body
    assert b"ValueError" not in answer.body


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundException(), 404, "NOT_FOUND"),
        (MethodNotAllowedException(headers={"allow": "GET"}), 405, "METHOD_NOT_ALLOWED"),
        (HTTPException(status_code=400), 400, "INPUT_INVALID"),
        (HTTPException(status_code=500), 500, "DEFECT"),
    ],
)
def test_what_the_framework_refuses_is_a_problem_too(error: Exception, status: int, code: str) -> None:
    answer = problem_answer(error, "r")
    assert (answer.status, read(answer)["code"]) == (status, code)


def test_a_refused_method_names_the_allowed_ones() -> None:
    found = typed(MethodNotAllowedException(headers={"allow": "GET, POST"}))
    assert found is not None
    assert (b"allow", b"GET, POST") in problem_of(found, "r").headers
