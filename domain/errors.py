"""Every error of the system, each with its code.

A code is part of the interface and frozen for ever: it stands in problem documents, in events and in logs exactly so. The base
class decides two things that callers rely on: whose fault it was (`fault`), which tells a worker whether to end the run or to
try again, and the HTTP status that fits (`status`). The message says what is wrong; `at` where; `expected` what would be right.
"""

from enum import Enum
from typing import Any, ClassVar


class Fault(Enum):
    """Whose fault an error is; it decides what a worker does with the run that met it."""

    INPUT = "input"
    """The request or the data is wrong: trying again changes nothing, the run ends FAILED at once."""
    REFUSED = "refused"
    """Right in itself, but not in the present state (held, finished, overtaken): the caller decides."""
    INFRASTRUCTURE = "infrastructure"
    """A part we depend on is away or slow: trying again later may help."""
    DEFECT = "defect"
    """A bug of ours: stop and say so."""


class FinazError(Exception):
    """Base of all errors of this system.

    `detail` is a sentence for a person; `at` the place (a JSON path, a row and column, a stream); `expected` what would have
    been right; `context` further typed attributes that a machine may want (they appear in the problem document).
    """

    code: ClassVar[str] = "DEFECT"
    fault: ClassVar[Fault] = Fault.DEFECT
    status: ClassVar[int] = 500

    def __init__(self, detail: str, *, at: str | None = None, expected: str | None = None, **context: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.at = at
        self.expected = expected
        self.context = context

    def __str__(self) -> str:
        place = f" at {self.at}" if self.at else ""
        wanted = f" (expected {self.expected})" if self.expected else ""
        return f"{self.code}{place}: {self.detail}{wanted}"


# ------------------------------------------------------------------------------------------------ input


class InputError(FinazError):
    """The caller's request or data is wrong; nothing was written."""

    code = "INPUT_INVALID"
    fault = Fault.INPUT
    status = 400


class CanonicalError(InputError):
    """A value or text has no canonical form (NaN, duplicate keys, U+0000, lone surrogates, …)."""

    code = "JSON_INVALID"


class BodyInvalidError(InputError):
    """A request body or document does not have the fields and types that it must have."""

    code = "BODY_INVALID"
    status = 422


class BodyTooLargeError(InputError):
    """A request body is larger than the limit."""

    code = "BODY_TOO_LARGE"
    status = 413


class BodyTimeoutError(InputError):
    """A request body did not arrive whole within the time allowed."""

    code = "BODY_TIMEOUT"
    status = 408


class MediaTypeUnsupportedError(InputError):
    """A request body is of another media type or content encoding than the operation reads."""

    code = "MEDIA_TYPE_UNSUPPORTED"
    status = 415


class NotAcceptableError(InputError):
    """None of the media types that the caller accepts can be given."""

    code = "NOT_ACCEPTABLE"
    status = 406


class MethodNotAllowedError(InputError):
    """The resource exists but has no such method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class ArtifactMismatchError(InputError):
    """The bytes sent do not hash to the address that they were sent to."""

    code = "ARTIFACT_MISMATCH"
    status = 409


class NameInvalidError(InputError):
    """A name made by a user is empty, too long, not NFC, or has control characters."""

    code = "NAME_INVALID"
    status = 422


class InstantInvalidError(InputError):
    """A point in time has no zone, is no RFC 3339 text, or is finer than a microsecond."""

    code = "INSTANT_INVALID"
    status = 422


class IdempotencyKeyInvalidError(InputError):
    """The idempotency key is missing, empty, too long, or has control characters."""

    code = "IDEMPOTENCY_KEY_INVALID"


class ModeUnavailableError(InputError):
    """The run's mode is known but cannot be executed by this version."""

    code = "MODE_UNAVAILABLE"
    status = 422


class CursorInvalidError(InputError):
    """A cursor is damaged, or was given out for another query."""

    code = "CURSOR_INVALID"
    status = 409


class BlobMissingError(InputError):
    """No blob is stored under the address."""

    code = "BLOB_MISSING"
    status = 404


class BlobCorruptError(InputError):
    """The bytes stored under an address do not hash to it."""

    code = "BLOB_CORRUPT"
    status = 500


# ------------------------------------------------------------------------------------------------ who asks


class UnauthenticatedError(FinazError):
    """No bearer token, or one that is unknown or has expired."""

    code = "UNAUTHENTICATED"
    fault = Fault.INPUT
    status = 401


class ForbiddenError(FinazError):
    """The token's principal lacks the scope that this needs."""

    code = "FORBIDDEN"
    fault = Fault.INPUT
    status = 403


class NotFoundError(FinazError):
    """There is no such thing, or it is not the caller's."""

    code = "NOT_FOUND"
    fault = Fault.INPUT
    status = 404


class AlertNotFoundError(NotFoundError):
    """There is no open alert of this kind about this subject."""

    code = "ALERT_NOT_FOUND"


class RunNotFoundError(NotFoundError):
    """There is no run of this id, or it belongs to another principal."""

    code = "RUN_NOT_FOUND"


class ProjectionUnknownError(NotFoundError):
    """There is no projection of this name."""

    code = "PROJECTION_UNKNOWN"


# ------------------------------------------------------------------------------------------------ refused by the state


class RefusedError(FinazError):
    """Right in itself, refused by the present state; nothing was written."""

    code = "REFUSED"
    fault = Fault.REFUSED
    status = 409


class IdempotencyKeyReusedError(RefusedError):
    """The idempotency key was used before with another body."""

    code = "IDEMPOTENCY_KEY_REUSED"


class IllegalTransitionError(RefusedError):
    """The aggregate's transition table has no row for this event in this state."""

    code = "ILLEGAL_TRANSITION"


class RunFinishedError(RefusedError):
    """The run has ended; what was asked needs one that hasn't."""

    code = "RUN_FINISHED"


class RunNotReadyError(RefusedError):
    """The run has no result yet."""

    code = "RUN_NOT_READY"


class RunCancelledError(RefusedError):
    """The run was cancelled while it was being executed; nothing was published."""

    code = "RUN_CANCELLED"


class LeaseHeldError(RefusedError):
    """The lease is live and another owner holds it."""

    code = "LEASE_HELD"


class StaleFenceError(RefusedError):
    """The caller is no longer the owner, its token is old, or its lease has run out; nothing was written."""

    code = "STALE_FENCE"


class RebuildRunningError(RefusedError):
    """A rebuild of this projection is running already."""

    code = "REBUILD_RUNNING"


class ProjectionStoppedError(RefusedError):
    """The projection stands at an event that it cannot apply; `context` says which and why."""

    code = "PROJECTION_STOPPED"


class VersionConflictError(RefusedError):
    """The stream has moved on since it was read; read it again and decide again."""

    code = "VERSION_CONFLICT"


class PositionConflictError(RefusedError):
    """A tracking position would go back or repeat; another instance has processed this already."""

    code = "POSITION_CONFLICT"


# ------------------------------------------------------------------------------------------------ how a run can fail


class RunFailedError(FinazError):
    """A run ends FAILED at once, with this code: a fault of its input."""

    code = "RUN_FAILED"
    fault = Fault.INPUT
    status = 422


class DeadlineExceededError(RunFailedError):
    """The run's deadline has passed."""

    code = "DEADLINE_EXCEEDED"


class AttemptsExhaustedError(RunFailedError):
    """The run failed for reasons of infrastructure, or its worker died, as often as is allowed."""

    code = "ATTEMPTS_EXHAUSTED"


# ------------------------------------------------------------------------------------------------ infrastructure and defects


class InfrastructureError(FinazError):
    """A part that we depend on is away or did not answer in time; trying again may help."""

    code = "INFRASTRUCTURE_UNAVAILABLE"
    fault = Fault.INFRASTRUCTURE
    status = 503


class StoreUnavailableError(InfrastructureError):
    """The event store cannot be reached."""

    code = "STORE_UNAVAILABLE"


class OverloadedError(InfrastructureError):
    """A bounded queue of this process is full; try again shortly."""

    code = "OVERLOADED"


class WaitTimeoutError(InfrastructureError):
    """A position was not reached within the time allowed."""

    code = "WAIT_TIMEOUT"
    status = 409


class UnknownTopicError(FinazError):
    """An event's topic is not registered in this version of the code."""

    code = "UNKNOWN_TOPIC"


class UndecodableEventError(FinazError):
    """A stored event does not have the form that its topic demands."""

    code = "UNDECODABLE_EVENT"


class RowsRefusedError(FinazError):
    """A read model's storage cannot hold a row that the fold made: some value is beyond what its column takes."""

    code = "ROWS_REFUSED"


class SettingsError(FinazError):
    """A setting in the environment is unknown or wrong."""

    code = "SETTINGS_INVALID"
    fault = Fault.INPUT
