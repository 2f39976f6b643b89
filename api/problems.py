"""Problem documents (RFC 9457): every error of this system as one JSON form with a stable `code`.

What must stay true: a typed error keeps its code, place and expectation all the way to the client; an error that nobody foresaw
says `DEFECT` and nothing else, its traceback goes to the log. Building a document changes nothing, so a crash leaves nothing.
"""

import json
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar.exceptions import HTTPException

from api.answers import Answer
from domain.errors import (
    FinazError,
    InputError,
    MediaTypeUnsupportedError,
    MethodNotAllowedError,
    NotAcceptableError,
    NotFoundError,
    UnauthenticatedError,
)

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"

RETRY_AFTER_SECONDS: Final = 1
"""What a 503 tells its caller to wait before trying again."""

DETAIL_CHARACTERS_MAX: Final = 2000
"""Characters of `detail`: whatever a caller sent, the answer about it stays small."""

_RESERVED: Final = frozenset({"type", "title", "status", "detail", "instance", "code", "at", "expected", "request_id"})
_STANDARD: Final[dict[int, type[FinazError]]] = {
    404: NotFoundError,
    405: MethodNotAllowedError,
    406: NotAcceptableError,
    415: MediaTypeUnsupportedError,
}


def document_of(error: FinazError, request_id: str) -> dict[str, Any]:
    """The members of the problem document. The `context` of the error stands beside them under its own names."""
    document: dict[str, Any] = {
        "type": f"urn:finaz:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": error.detail[:DETAIL_CHARACTERS_MAX],
        "request_id": request_id,
    }
    if error.at is not None:
        document["at"] = error.at[:DETAIL_CHARACTERS_MAX]
    if error.expected is not None:
        document["expected"] = error.expected[:DETAIL_CHARACTERS_MAX]
    for name, value in error.context.items():
        if name not in _RESERVED:
            document[name] = msgspec.to_builtins(value, enc_hook=str)
    return document


def problem_of(error: FinazError, request_id: str) -> Answer:
    """The answer that an error is."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, UnauthenticatedError):
        headers = ((b"www-authenticate", b'Bearer realm="finaz"'),)
    elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = ((b"retry-after", str(RETRY_AFTER_SECONDS).encode()),)
    elif error.status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT):
        headers = ((b"connection", b"close"),)  # the rest of the body is not worth reading
    elif "allow" in error.context:
        headers = ((b"allow", str(error.context["allow"]).encode()),)
    # Not the canonical encoder: the sentence about a lone surrogate may quote one, and must still be sendable.
    text = json.dumps(document_of(error, request_id), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return Answer(error.status, text.encode("utf-8", "replace"), PROBLEM_MEDIA_TYPE, headers)


def defect() -> FinazError:
    """What a client learns about an error that nobody foresaw."""
    return FinazError("an unexpected error on our side; the log has it under this request_id")


def typed(error: Exception) -> FinazError | None:
    """The typed error that an exception is or stands for; None for a defect."""
    if isinstance(error, FinazError):
        return error
    if isinstance(error, HTTPException) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _standard(error)
    return None


def _standard(error: HTTPException) -> FinazError:
    """An error of the web framework (no such path, no such method) in our form."""
    made = _STANDARD.get(error.status_code, InputError)
    if made is MethodNotAllowedError:
        allow = (error.headers or {}).get("allow", "")
        return made("the resource has no such method", at="method", expected=f"one of {allow}", allow=allow)
    if made is NotFoundError:
        return made("there is nothing at this path", at="path", expected="a path of /schema/openapi.json")
    return made(error.detail, at="request")
