"""Records of a topic as the stream worker sees them, and what stands in their headers.

An in-band announcement is a tombstone with a kind in its headers. What must stay true: reading a record never raises; what cannot
be read says why (`UnreadableError.detail`), and the caller sets it aside. Pure.
"""

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from domain.errors import FinazError, InstantInvalidError, NameInvalidError
from domain.identity import NAME_BYTES_MAX
from domain.instants import parse_instant, to_micros
from domain.market.arrivals import partition_of
from domain.market.record_reader import quick_event
from domain.market.records import MarketEvent, fast_checked_name, parse_event

HEADER_KIND: Final = "kind"
HEADER_LOAD: Final = "load_id"
HEADER_INDEX: Final = "index"
HEADER_MILLISECONDS: Final = "milliseconds"
HEADER_INSTANT: Final = "instant"
"""Names of headers; values are UTF-8 text. `instant` is RFC 3339: where a watermark rises to, or a gap's deadline."""

INDEX_MAX: Final = 2**63 - 1

INDEX_DIGITS_MAX: Final = 19
"""Digits of the largest index; a text that is longer is never made a number, for Python refuses to from some length on."""

KEYS_MAX: Final = 65_536
"""Keys whose partitions are remembered."""


class Announcement(Enum):
    """What a source may announce in-band. The first two come from replays and move nothing."""

    PAUSE = "PAUSE"
    SOURCE_FAILURE = "SOURCE_FAILURE"
    IDLE_CONFIRMED = "IDLE_CONFIRMED"
    END_OF_BOUNDED_SOURCE = "END_OF_BOUNDED_SOURCE"
    GAP_OPEN = "GAP_OPEN"
    GAP_CLOSED = "GAP_CLOSED"


class UnreadableError(FinazError):
    """The record's key, value or headers are not what a market record has; it is set aside, never an end."""

    code = "RECORD_UNREADABLE"


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record as the broker gave it. `headers` has the last value of each name."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = {}

    @property
    def instrument(self) -> str | None:
        """The key as an instrument's name, or None if it is no text."""
        try:
            return None if self.key is None else self.key.decode("utf-8")
        except UnicodeDecodeError:
            return None

    @property
    def load(self) -> tuple[str, int] | None:
        """(load id, index) of the publication, if the headers have both. One that is no name, or no index, says nothing."""
        load = named(self.headers.get(HEADER_LOAD))
        index = index_of(self.headers.get(HEADER_INDEX))
        return None if load is None or index is None else (load, index)

    @property
    def announcement(self) -> Announcement | None:
        """The announcement that a tombstone makes, if it makes one that is known."""
        kind = self.headers.get(HEADER_KIND, b"").decode("utf-8", "replace")
        return Announcement(kind) if self.value is None and kind in Announcement.__members__ else None

    @property
    def instant(self) -> int | None:
        """The instant in the headers, in microseconds, if there is one that can be read."""
        try:
            return to_micros(parse_instant(self.headers[HEADER_INSTANT].decode("utf-8")))
        except (KeyError, UnicodeDecodeError, InstantInvalidError):
            return None


def named(text: bytes | None) -> str | None:
    """A header or key as a name that a state can hold; None if it is none. Different names never become one."""
    return None if text is None or len(text) > NAME_BYTES_MAX else _named(text)


@lru_cache(maxsize=KEYS_MAX)
def _named(text: bytes) -> str | None:
    try:
        return fast_checked_name(text.decode("utf-8"), at="header")
    except (UnicodeDecodeError, NameInvalidError):
        return None


def index_of(text: bytes | None) -> int | None:
    """The index that a header has; None if it has none."""
    if text is None or not text.isdigit() or len(text) > INDEX_DIGITS_MAX:
        return None
    index = int(text)
    return index if index <= INDEX_MAX else None


home: Final = lru_cache(maxsize=KEYS_MAX)(partition_of)
"""The partition of a key, remembered: it is asked for with every record."""


def readable_event(record: StreamRecord, partitions: int, beyond_micros: int) -> MarketEvent:
    """The event of a record that has a value. Raises `UnreadableError` saying what is wrong with it.

    Wrong is: a value that is no market record, another instrument than the key's, a record outside its key's partition, and an
    event_time more than `beyond_micros` after available_at.
    """
    assert record.value is not None
    event = quick_event(record.value) or _slowly(record)
    if record.key != event.instrument.encode("utf-8"):
        raise UnreadableError("key and value name different instruments", at=_place(record))
    if home(record.key, partitions) != record.partition:
        raise UnreadableError("the record is outside its key's partition", at=_place(record))
    if event.event_time > event.available_at + beyond_micros:
        raise UnreadableError("the event is later than it can have been available", at=_place(record))
    return event


def _slowly(record: StreamRecord) -> MarketEvent:
    assert record.value is not None
    try:
        return parse_event(record.value, at=_place(record))
    except FinazError as error:
        raise UnreadableError(str(error), at=_place(record)) from None


def _place(record: StreamRecord) -> str:
    return f"partition {record.partition}, offset {record.offset}"
