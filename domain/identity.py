"""How every id is derived, and what a name made by a user must look like.

What must stay true: ids that come from a request are functions of the request, so the same request made twice, by anybody, at
any time, on any machine, means the same thing; two spellings of one name never become two names (NFC or refused).
"""

import hashlib
import re
import unicodedata
from typing import Final
from uuid import UUID, uuid5

from domain.errors import IdempotencyKeyInvalidError, NameInvalidError

KEY_BYTES_MAX: Final = 255
"""Bytes of UTF-8 that an idempotency key may have."""

NAME_BYTES_MAX: Final = 255
"""Bytes of UTF-8 that any other name made by a user may have."""

RUN_ID = re.compile(r"run_[0-9a-f]{64}\Z")
JOB_ID = re.compile(r"job_[0-9a-f]{32}\Z")
_REACTIONS: Final = UUID("6f0f4f4e-8f5e-5d0c-9a7e-3f1c5b8a2d10")


def checked_name(name: str, *, at: str) -> str:
    """The name itself, if it is one: 1 to `NAME_BYTES_MAX` bytes, NFC, no control characters. Else `NameInvalidError`."""
    problem = _problem_of(name, NAME_BYTES_MAX)
    if problem:
        raise NameInvalidError(
            f"{name[:64]!r} {problem}", at=at, expected=f"1 to {NAME_BYTES_MAX} bytes, NFC, printable"
        )
    return name


def checked_key(key: str | None) -> str:
    """The idempotency key itself, if it is one. Else `IdempotencyKeyInvalidError` (missing, empty, long, control characters)."""
    if key is None:
        raise IdempotencyKeyInvalidError("the idempotency key is missing", at="Idempotency-Key", expected="a key")
    problem = _problem_of(key, KEY_BYTES_MAX)
    if problem:
        raise IdempotencyKeyInvalidError(
            f"the idempotency key {problem}",
            at="Idempotency-Key",
            expected=f"1 to {KEY_BYTES_MAX} bytes, NFC, no controls",
        )
    return key


def checked_principal(principal: str) -> str:
    """The principal itself, if it can stand in an admission scope. Else `IdempotencyKeyInvalidError` (section 2 of the spec)."""
    problem = _problem_of(principal, NAME_BYTES_MAX)
    if problem:
        raise IdempotencyKeyInvalidError(f"the principal {problem}", at="principal", expected="a printable NFC name")
    return principal


def run_id_of(principal: str, operation: str, key: str, body_hash: str) -> str:
    """`run_` and the SHA-256 of `principal \\0 operation \\0 key \\0 body_hash`: the same request is the same run."""
    return "run_" + _sha256(principal, operation, key, body_hash)


def sweep_id_of(principal: str, operation: str, key: str, body_hash: str) -> str:
    """`sweep_` and the same hash, of the sweep's body."""
    return "sweep_" + _sha256(principal, operation, key, body_hash)


def admission_stream(principal: str, operation: str, key: str) -> str:
    """The stream that claims one idempotency key in its scope `principal \\0 operation \\0 key`."""
    return "admission/" + _sha256(principal, operation, key)


def run_stream(run_id: str) -> str:
    """The stream of a run's own events."""
    return "run/" + run_id


def lease_stream(resource: str) -> str:
    """The stream of the leases of one resource; for a run, the resource is its run_id."""
    return "lease/" + resource


def checkpoint_stream(run_id: str) -> str:
    """The stream of a run's checkpoints."""
    return "checkpoint/" + run_id


def journal_stream(run_id: str) -> str:
    """The stream of what became of a STREAM run's records."""
    return "journal/" + run_id


def discrepancy_stream(kind: str, subject: str) -> str:
    """The stream of what the reconciler found about one subject, of one kind."""
    return f"discrepancy/{kind}/{subject}"


def job_stream(job_id: str) -> str:
    """The stream of a job's own events."""
    return "job/" + job_id


def job_slot_stream(kind: str, target: str) -> str:
    """The stream of the slot in which at most one job of the kind lives for the target."""
    return f"job_slot/{kind}/{target}"


def derived_key(*parts: str) -> str:
    """A key made from parts, for the members of a sweep: hexadecimal, so that it is always a valid key."""
    return _sha256(*parts)


def reaction_id(cause: UUID, manager: str, index: int) -> UUID:
    """The event id of the `index`-th event that `manager` appends in reaction to `cause`: replaying it stores nothing twice."""
    return uuid5(_REACTIONS, f"{cause}\0{manager}\0{index}")


def _sha256(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def _problem_of(name: str, bytes_max: int) -> str | None:
    if not name:
        return "is empty"
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "has a lone surrogate"
    if size > bytes_max:
        return f"has {size} bytes"
    if name.isascii() and name.isprintable():
        return None
    if any(unicodedata.category(c) == "Cc" for c in name):
        return "has a control character"
    if not unicodedata.is_normalized("NFC", name):
        return "is not in Unicode normal form C"
    return None
