"""The hash chain over the log: what is hashed, to the byte.

    digest(row) = sha256(text), the text in UTF-8 being
        position|version|micros|event_id|causation_id|stream|topic|correlation_id|principal|state

where `micros` is `recorded_at` in microseconds since the UTC epoch, ids are lower-case hyphenated UUIDs (an absent causation_id
is empty), and the five texts each stand as `length:text`, the length in bytes of UTF-8; an absent text is `:` alone. Lengths make
the text unambiguous, whatever the texts contain.

    chain(n) = sha256(chain(n - 1) + digest(row n)), chain(0) = 32 zero bytes

What must stay true: the append function computes the same in SQL (a test compares); a row changed, removed, added or moved
changes every chain value from there on. Whoever may write to the database can compute a new chain: it proves something only
against a chain value kept elsewhere.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from domain.instants import to_micros

GENESIS: Final = bytes(32)
"""The chain value before the first event."""


class ChainedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of an event's row that are hashed: all but the chain itself. `state` is the stored document, as text."""

    position: int
    stream: str
    version: int
    event_id: UUID
    topic: str
    state: str
    recorded_at: datetime
    causation_id: UUID | None = None
    correlation_id: str | None = None
    principal: str | None = None


def digest(row: ChainedRow) -> bytes:
    """The 32 bytes that stand for a row in the chain."""
    texts = (row.stream, row.topic, row.correlation_id, row.principal, row.state)
    head = f"{row.position}|{row.version}|{to_micros(row.recorded_at)}|{row.event_id}|{row.causation_id or ''}"
    return sha256("|".join((head, *map(_measured, texts))).encode("utf-8")).digest()


def link(previous: bytes, row: ChainedRow) -> bytes:
    """The chain value of a row, given that of the position before."""
    return sha256(previous + digest(row)).digest()


def chain(rows: Iterable[ChainedRow], previous: bytes = GENESIS) -> bytes:
    """The chain value after all the rows, in order of position."""
    for row in rows:
        previous = link(previous, row)
    return previous


def _measured(text: str | None) -> str:
    return ":" if text is None else f"{len(text.encode('utf-8'))}:{text}"


def link_of_columns(
    previous: bytes,
    position: int,
    version: int,
    micros: int,
    event_id: str,
    causation_id: str | None,
    stream: str,
    topic: str,
    correlation_id: str | None,
    principal: str | None,
    state: str,
) -> bytes:
    """`link` for who has the columns as the database writes them (ids as text, `recorded_at` as `micros`); three times as fast."""
    columns = (position, version, micros, event_id, causation_id, stream, topic, correlation_id, principal, state)
    return links(previous, ((*columns, b""),))[0]


def links(previous: bytes, rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """For each row, its link to the chain value that is stored with the row before (`previous`: with the one before the first).

    A row has the ten columns of `link_of_columns`, then its stored chain value, and whatever else. Where nothing was touched, the
    links are the stored values.

    Nearly all texts are ASCII, whose length in bytes is theirs in characters: written on that assumption, and again if it fails.
    """
    found = []
    for row in rows:
        position, version, micros, event_id, causation_id, stream, topic, correlation_id, principal, state, stored = (
            row[:11]
        )
        head = f"{position}|{version}|{micros}|{event_id}|{causation_id or ''}"
        correlation = ":" if correlation_id is None else f"{len(correlation_id)}:{correlation_id}"
        who = ":" if principal is None else f"{len(principal)}:{principal}"
        text = f"{head}|{len(stream)}:{stream}|{len(topic)}:{topic}|{correlation}|{who}|{len(state)}:{state}"
        if not text.isascii():
            text = "|".join((head, *map(_measured, (stream, topic, correlation_id, principal, state))))
        found.append(sha256(previous + sha256(text.encode("utf-8")).digest()).digest())
        previous = stored
    return found
