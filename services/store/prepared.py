"""An append made ready for the append function: encoded, checked, its inline changes computed, by the caller's own thread.

What must stay true: what cannot be stored is refused here, with a typed error and before anything is queued, so that one caller's
bad text never spoils the group it would have shared; `writes` and `read` name everything that the verdict depends on. Pure.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from domain.errors import CanonicalError, InputError, VersionConflictError
from domain.events import Event, Metadata, encode
from projections.inline import Inline
from services.ports import Append, Fence, Guard, Tracking

APPEND_EVENTS_MAX: Final = 10_000
"""Events of one append."""

APPEND_BYTES_MAX: Final = 64 * 1024 * 1024
"""Characters of all documents of one append."""

ITEM_SEPARATOR: Final = "\x1f"
NO_ITEM: Final = "\x1e"
"""How lists of texts travel: joined by a control character that canonical JSON never contains, and one that stands for null."""

_FENCE: Final = 1
_VACANT: Final = 2
_MICROSECOND: Final = timedelta(microseconds=1)

EventRow: TypeAlias = tuple[str, int, str, str, str]
"""stream, version, event id in hexadecimal, topic, document"""
LeaseRow: TypeAlias = tuple[int, str, str, int, int | None, bool]
"""index of the event, resource, owner, token, TTL in microseconds or None, released"""
OutboxRow: TypeAlias = tuple[int, str, str, str, int, str | None, int | None]
"""index of the event, kind, key, state, delay in microseconds, lane, priority"""


class Prepared:
    """One append, ready to be put into the function's arrays."""

    __slots__ = (
        "append_id",
        "causation",
        "correlation",
        "events",
        "guard_kind",
        "guard_owner",
        "guard_resource",
        "guard_token",
        "leases",
        "outbox",
        "principal",
        "read",
        "size",
        "tracking",
        "writes",
    )

    def __init__(
        self,
        events: list[EventRow],
        guard: Guard | None,
        tracking: Tracking | None,
        metadata: Metadata,
        append_id: str | None,
    ) -> None:
        self.events = events
        self.leases: list[LeaseRow] = []
        self.outbox: list[OutboxRow] = []
        self.tracking = tracking
        self.append_id = append_id
        self.causation = metadata.causation_id.hex if metadata.causation_id is not None else None
        self.correlation = metadata.correlation_id
        self.principal = metadata.principal
        self.guard_kind = 0
        self.guard_resource: str | None = None
        self.guard_owner: str | None = None
        self.guard_token: int | None = None
        self.read: tuple[str, str] | None = None
        self.size = 0
        self.writes: set[str | tuple[str, str]] = set()
        if guard is not None:
            self.guard_kind = _FENCE if type(guard) is Fence else _VACANT
            self.guard_resource = guard.resource
            self.guard_token = guard.token
            self.guard_owner = guard.owner if type(guard) is Fence else None
            self.read = ("lease", guard.resource)
        if tracking is not None:
            self.writes.add(("tracking", tracking.name))
        self._check()

    def add_inline(self, events: Sequence[Event], inline: Inline) -> None:
        """Compute the inline rows of the events; the last change of each lease wins, an expiry not restated is kept."""
        leases: dict[str, LeaseRow] = {}
        for index, event in enumerate(events):
            lease = inline.guard(event)
            if lease is not None:
                ttl = None if lease.ttl_seconds is None else timedelta(seconds=lease.ttl_seconds) // _MICROSECOND
                if ttl is None and lease.resource in leases:
                    ttl = leases[lease.resource][4]
                leases[lease.resource] = (index, lease.resource, lease.owner, lease.token, ttl, lease.released)
            outbox = inline.outbox(event)
            if outbox is not None:
                delay = timedelta(seconds=outbox.delay_seconds) // _MICROSECOND if outbox.delay_seconds else 0
                self.outbox.append(
                    (index, outbox.kind, outbox.key, outbox.state.value, delay, outbox.lane, outbox.priority)
                )
        for row in leases.values():
            self.writes.add(("lease", row[1]))
            _check_text(row[1], "lease resource")
            _check_text(row[2], "lease owner")
            self.leases.append(row)
        for item in self.outbox:
            for text in (item[1], item[2], item[5]):
                if text is not None:
                    _check_text(text, "outbox item")

    def _check(self) -> None:
        """Texts that PostgreSQL cannot hold or the function's lists cannot carry; sizes; versions in order within the append."""
        if len(self.events) > APPEND_EVENTS_MAX:
            raise InputError(f"{len(self.events)} events in one append", expected=f"at most {APPEND_EVENTS_MAX}")
        versions: dict[str, int] = {}
        for stream, version, _, topic, state in self.events:
            known = versions.get(stream)
            if known is None:
                _check_text(stream, "stream")
                self.writes.add(stream)
            elif version != known + 1:
                raise VersionConflictError(
                    f"version {version} follows version {known} in one append",
                    at=stream,
                    expected=f"version {known + 1}",
                )
            versions[stream] = version
            _check_text(topic, "topic")
            _check_text(state, stream)
            self.size += len(state)
        if self.size > APPEND_BYTES_MAX:
            raise InputError(f"documents of {self.size} characters", expected=f"at most {APPEND_BYTES_MAX}")
        if self.correlation is not None:
            _check_text(self.correlation, "correlation_id")
        if self.principal is not None:
            _check_text(self.principal, "principal")
        if self.guard_resource is not None:
            _check_text(self.guard_resource, "guard resource")
        if self.guard_owner is not None:
            _check_text(self.guard_owner, "guard owner")
        if self.tracking is not None:
            _check_text(self.tracking.name, "tracking name")


def prepare(append: Append, inline: Inline, append_id: str | None) -> Prepared:
    """The append, encoded and checked. Raises `CanonicalError`, `InputError`, `VersionConflictError` (versions in disorder)."""
    rows: list[EventRow] = []
    events: list[Event] = []
    for new in append.events:
        if new.version < 1:
            raise VersionConflictError(f"version {new.version}", at=new.stream, expected="versions from 1")
        rows.append((new.stream, new.version, new.event_id.hex, new.event.topic, encode(new.event).decode("utf-8")))
        events.append(new.event)
    prepared = Prepared(rows, append.guard, append.tracking, append.metadata, append_id)
    prepared.add_inline(events, inline)
    return prepared


def _check_text(text: str, at: str) -> None:
    if text and text.isascii() and text.isprintable():
        return
    if not text:
        raise InputError("an empty text cannot be stored", at=at, expected="at least one character")
    if "\x00" in text or ITEM_SEPARATOR in text or text == NO_ITEM:
        raise CanonicalError("a control character cannot be stored", at=at, expected="text without U+0000 and U+001F")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise CanonicalError("lone surrogate in text", at=at, expected="valid Unicode text") from None
