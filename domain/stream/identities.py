"""Which events a partition has seen, bounded: the dedupe of the stream, by identity and never by timestamp.

What must stay true: an identity is forgotten exactly when its event_time is more than the horizon behind the watermark, judged at
each record and not at some sweep, so that no interleaving of partitions and no restart changes what counts as a copy. A copy that
comes later still is late, not new. Pure.
"""

import hashlib
import heapq
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domain.canonical import address
from domain.documents import plain_bytes
from domain.market.errors import StateInvalidError
from domain.market.records import MarketEvent

LOADS_MAX: Final = 1000
"""Publications whose last index is remembered per partition; copies of older ones are found by their identity."""

BLOCKS: Final = 64
"""Blocks that the horizon is divided into."""

BLOCK_MICROS_MIN: Final = 1_000_000
"""Microseconds of event time that a block has at least."""

CONTENT_BYTES: Final = 12
"""Bytes of the digest of a content: a million million copies would have to be forged to meet another's."""


class Seen(msgspec.Struct, array_like=True, gc=False):
    """What is known of an event: its instrument and time, which never change, and its highest revision with its content.

    The content is the values themselves until it is asked for: most events are seen once.
    """

    instrument: str
    event_time: int
    revision: int
    content: str | dict[str, float | None]

    def settled(self) -> str:
        """The content as it stands in a state."""
        if not isinstance(self.content, str):
            self.content = _content_of(self.content)
        return self.content


class Identities:
    """The identities of one partition within the horizon (microseconds). Not shared between threads.

    They are kept in blocks of event time, so that a checkpoint writes those blocks anew in which something has changed.
    """

    def __init__(self, horizon_micros: int) -> None:
        self._horizon = horizon_micros
        self._width = max(horizon_micros // BLOCKS, BLOCK_MICROS_MIN)
        self._seen: dict[str, Seen] = {}
        self._by_time: list[tuple[int, str]] = []
        self._blocks: dict[int, dict[str, Seen]] = {}
        self._addresses: dict[int, str] = {}
        self._loads: dict[str, int] = {}

    def __len__(self) -> int:
        """Identities held."""
        return len(self._seen)

    def find(self, event_id: str, watermark: int) -> Seen | None:
        """What is known of the event at this watermark; None for one that is new or forgotten."""
        by_time, limit = self._by_time, watermark - self._horizon
        while by_time and by_time[0][0] < limit:
            self._forget(*heapq.heappop(by_time))
        return self._seen.get(event_id)

    def add(self, event: MarketEvent) -> None:
        """Remember the event at its revision."""
        event_id, time = event.event_id, event.event_time
        if event_id not in self._seen:
            heapq.heappush(self._by_time, (time, event_id))
        self._put(event_id, Seen(event.instrument, time, event.revision, event.values))

    def are_new(self, events: Sequence[MarketEvent], loads: tuple[str, list[int]] | None) -> bool:
        """Whether none of the events is known, nor twice among them, and none of the loads' indices was seen."""
        ids = [event.event_id for event in events]
        if not self._seen.keys().isdisjoint(ids) or len(set(ids)) != len(ids):
            return False
        return loads is None or not self.is_repeated((loads[0], loads[1][0]))

    def add_all(self, events: Sequence[MarketEvent], loads: tuple[str, list[int]] | None, watermark: int) -> None:
        """Remember new events, as by a `find` and an `add` of each; `watermark` is the one before the last of them."""
        if loads is not None:
            self.add_load((loads[0], loads[1][-1]))
        by_time, put = self._by_time, self._put
        for event in events:
            event_id, time = event.event_id, event.event_time
            heapq.heappush(by_time, (time, event_id))
            put(event_id, Seen(event.instrument, time, event.revision, event.values))
        self.find("", watermark)

    def is_repeated(self, load: tuple[str, int]) -> bool:
        """Whether (load id, index) was seen before: within a partition, a load's indices only grow."""
        return load[1] <= self._loads.get(load[0], -1)

    def add_load(self, load: tuple[str, int]) -> None:
        """Remember the load's last index; the load longest unheard of goes when there are too many."""
        last = max(load[1], self._loads.pop(load[0], -1))
        self._loads[load[0]] = last
        if len(self._loads) > LOADS_MAX:
            del self._loads[next(iter(self._loads))]

    def state_document(self) -> dict[str, Any]:
        """All of it as JSON: blocks by time, identities in each by (time, id), loads the longest unheard of first."""
        return self._document([self._rows_of(block) for block in sorted(self._blocks)])

    def packed_state(self, blocks: dict[str, bytes]) -> dict[str, Any]:
        """The same with the blocks' addresses in their place; those that changed since the last time are put into `blocks`."""
        for block in self._blocks.keys() - self._addresses.keys():
            data = plain_bytes(self._rows_of(block))
            self._addresses[block] = name = address(data)
            blocks[name] = data
        return self._document([self._addresses[block] for block in sorted(self._blocks)])

    def restore(self, document: Any) -> None:
        """Take over what `state_document` wrote. `StateInvalidError` if it is something else."""
        try:
            rows = [row for block in document["blocks"] for row in _rows(block, 5)]
            seen = {row[0]: msgspec.convert(row[1:], Seen, strict=True) for row in rows}
            loads = dict(_rows(document["loads"], 2))
            if len(seen) != len(rows) or not all(type(known.content) is str for known in seen.values()):
                raise ValueError
            if not all(type(name) is str for name in (*seen, *loads)):
                raise ValueError
            if not all(type(index) is int for index in loads.values()):
                raise ValueError
        except (TypeError, KeyError, ValueError, msgspec.ValidationError):
            raise StateInvalidError("no state of identities", at="identities", expected="blocks and loads") from None
        self._loads = loads
        self._seen, self._blocks, self._addresses = {}, {}, {}
        for event_id, known in seen.items():
            self._put(event_id, known)
        self._by_time = sorted((known.event_time, event_id) for event_id, known in seen.items())

    def _put(self, event_id: str, known: Seen) -> None:
        block = known.event_time // self._width
        members = self._blocks.get(block)
        if members is None:
            members = self._blocks[block] = {}
        members[event_id] = self._seen[event_id] = known
        if block in self._addresses:
            del self._addresses[block]

    def _forget(self, time: int, event_id: str) -> None:
        block = time // self._width
        del self._seen[event_id]
        members = self._blocks[block]
        del members[event_id]
        if not members:
            del self._blocks[block]
        self._addresses.pop(block, None)

    def _rows_of(self, block: int) -> list[list[Any]]:
        members = self._blocks[block]
        ordered = sorted((known.event_time, event_id) for event_id, known in members.items())
        return [
            [event_id, (known := members[event_id]).instrument, time, known.revision, known.settled()]
            for time, event_id in ordered
        ]

    def _document(self, blocks: list[Any]) -> dict[str, Any]:
        return {"blocks": blocks, "loads": [[load, index] for load, index in self._loads.items()]}


def differs(seen: Seen, event: MarketEvent) -> bool:
    """Whether an event of a known identity and revision says something else; when either arrived does not matter."""
    known = seen.content
    if isinstance(known, str):
        return _content_of(event.values) != known
    return known.keys() != event.values.keys() or repr(known) != repr(event.values)


def _content_of(values: dict[str, float | None]) -> str:
    """A digest of what copies must share beside their identity: the value columns, which stand sorted, each to the bit."""
    return hashlib.blake2b(repr(values).encode("utf-8"), digest_size=CONTENT_BYTES).hexdigest()


def _rows(value: Any, width: int) -> list[list[Any]]:
    if type(value) is not list or not all(type(row) is list and len(row) == width for row in value):
        raise ValueError
    return value
