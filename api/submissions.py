"""Submissions under an idempotency key: how they are declared, whose key it is, and what their answers have in common.

What must stay true: a submission is answered the same way however often it is made; only the header `Idempotency-Replayed` differs.
A key that is no key is refused as such, before the body is read.
"""

from typing import Any, Final

from api.answers import Headers
from api.operations import Call
from api.parameters import Parameter, Place
from domain.errors import IdempotencyKeyInvalidError
from domain.identity import KEY_BYTES_MAX, checked_key

SUBMITTED_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "Location": {"schema": {"type": "string"}, "description": "Where it is.", "required": True},
    "Idempotency-Replayed": {
        "schema": {"type": "string", "enum": ["true"]},
        "description": "Present if the key had admitted this body before; status and body are those of the first answer.",
    },
}

_REPLAYED: Final = (b"idempotency-replayed", b"true")


def idempotency_key(example: str) -> Parameter:
    """The header that names a submission; `submission_key` reads it."""
    return Parameter(
        name="Idempotency-Key",
        place=Place.HEADER,
        description="Names this submission among the principal's own. Printable, NFC, 1 to 255 bytes of UTF-8.",
        schema={"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$"},
        read=lambda text, at: text,
        required=True,
        example=example,
    )


def submission_key(call: Call) -> str:
    """The key that the call was made under. Raises `IdempotencyKeyInvalidError`."""
    return checked_key(call.text_header(b"idempotency-key", IdempotencyKeyInvalidError))


def submitted(location: str, *, replayed: bool) -> Headers:
    """The headers of an answer to a submission."""
    where = (b"location", location.encode())
    return (where, _REPLAYED) if replayed else (where,)
