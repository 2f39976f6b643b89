"""Errors as problem documents (RFC 9457), on this side of the API: what it answered, what a command found not to hold.

What must stay true: whatever ends a command has a code, a place if there is one, and one sentence.
"""

from http import HTTPStatus
from typing import Any

import msgspec

from domain.errors import FinazError, InfrastructureError, InputError, RefusedError


class ProblemError(Exception):
    """A problem document that came from a server, kept as it came (`problem`)."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(sentence(problem))
        self.problem = problem


class NotHeldError(ProblemError):
    """What was asked does not hold, though nothing went wrong (a run that FAILED, a check that fails)."""

    def __init__(self, code: str, detail: str, *, at: str | None = None, expected: str | None = None) -> None:
        super().__init__(problem_document(code, detail, at=at, expected=expected))


class UsageInvalidError(InputError):
    """A command was called wrongly: an unknown command or option, a missing argument, a value that isn't allowed."""

    code = "USAGE_INVALID"


class FileUnavailableError(InputError):
    """A file named on the command line cannot be read or written."""

    code = "FILE_UNAVAILABLE"


class NotReadyError(InfrastructureError):
    """The API answers, and says that it is not ready for work."""

    code = "NOT_READY"


class RebuildCancelledError(RefusedError):
    """A rebuild was cancelled; the old rows are served on."""

    code = "REBUILD_CANCELLED"


def problem_document(code: str, detail: str, *, status: int | None = None, **members: Any) -> dict[str, Any]:
    """A problem document; members that are None are left out."""
    title = HTTPStatus(status).phrase if status else code
    document = {"type": f"urn:finaz:problem:{code}", "title": title, "code": code, "detail": detail, "status": status}
    return {name: value for name, value in {**document, **members}.items() if value is not None}


def problem_of(error: BaseException) -> dict[str, Any]:
    """The problem document of any error; one that nobody foresaw is a `DEFECT`."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, FinazError):
        members = {**_plain(error.context), "at": error.at, "expected": error.expected}
        return problem_document(error.code, error.detail, status=error.status, **members)
    if isinstance(error, OSError) and error.strerror:
        place = None if error.filename is None else str(error.filename)
        return problem_document(FileUnavailableError.code, error.strerror, at=place)
    return problem_document("DEFECT", f"{type(error).__name__}: {error}")


def sentence(problem: dict[str, Any]) -> str:
    """A problem document as one sentence: code, place, what is wrong, what was expected."""
    place = f" at {problem['at']}" if problem.get("at") else ""
    wanted = f" (expected {problem['expected']})" if problem.get("expected") else ""
    text = f"{problem.get('code', 'UNKNOWN')}{place}: {problem.get('detail') or problem.get('title', '')}{wanted}"
    return " ".join(text.split())


def _plain(context: dict[str, Any]) -> dict[str, Any]:
    """Attributes of an error as JSON, as the API shows them: what has no form in JSON is shown as text."""
    reserved = {"code", "detail", "status", "type", "title"}
    return {name: msgspec.to_builtins(value, enc_hook=str) for name, value in context.items() if name not in reserved}
