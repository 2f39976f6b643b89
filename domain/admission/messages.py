"""Command and event of an admission: the claim of one idempotency key in one scope."""

from typing import ClassVar

import msgspec

from domain.events import Event, registered


class ClaimKey(msgspec.Struct, frozen=True, kw_only=True):
    """Claim the key for one body; `subject_ids` are what the claim admits (one run, or a sweep's runs)."""

    principal: str
    operation: str
    key: str
    body_hash: str
    subject_ids: tuple[str, ...]


@registered
class KeyClaimed(Event, frozen=True, kw_only=True):
    """The key means this body, for ever."""

    topic: ClassVar[str] = "admission.key_claimed.v1"
    principal: str
    operation: str
    key: str
    body_hash: str
    subject_ids: tuple[str, ...]
