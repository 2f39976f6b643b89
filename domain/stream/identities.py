"""Which events a partition has seen, bounded: the dedupe of the stream, by identity and never by timestamp.

What must stay true: an identity is forgotten exactly when its event_time is more than the horizon behind the watermark, judged at
each record and not at some sweep, so that no interleaving of partitions and no restart changes what counts as a copy. A copy that
comes later still is late, not new. What is forgotten may lie in memory until its block is, or is written, but is never found. Pure.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from domain.canonical import address
from domain.documents import plain_bytes
from domain.market.contents import content_of, contents_of, is_of
from domain.market.errors import StateInvalidError
from domain.market.event_tables import EventTable
from domain.market.records import MarketEvent
from domain.stream.identity_blocks import Block, Columns, Seen, stretches

LOADS_MAX: Final = 1000
"""Publications whose last index is remembered per partition; copies of older ones are found by their identity."""

BLOCKS: Final = 64
"""Blocks that the horizon is divided into."""

BLOCK_MICROS_MIN: Final = 1_000_000
"""Microseconds of event time that a block has at least."""

_FOREVER: Final = -(2**63)  # an event time before all others


class Identities:
    """The identities of one partition within the horizon (microseconds). Not shared between threads.

    They are kept in blocks of event time, so that a checkpoint writes those blocks anew in which something has changed.
    """

    def __init__(self, horizon_micros: int) -> None:
        self._horizon = horizon_micros
        self._width = max(horizon_micros // BLOCKS, BLOCK_MICROS_MIN)
        self._limit = _FOREVER
        """The event time before which all is forgotten."""
        self._block_of: dict[str, int] = {}
        self._blocks: dict[int, Block] = {}
        self._addresses: dict[int, str] = {}
        self._loads: dict[str, int] = {}

    def __len__(self) -> int:
        """Identities held."""
        self._drop_forgotten()
        return len(self._block_of)

    def find(self, event_id: str, watermark: int) -> Seen | None:
        """What is known of the event at this watermark; None for one that is new or forgotten."""
        limit = self._forget_before(watermark - self._horizon)
        number = self._block_of.get(event_id)
        if number is None:
            return None
        found = self._blocks[number].find(event_id)
        return None if found.event_time < limit else found

    def add(self, event: MarketEvent) -> None:
        """Remember the event at its revision: one that is new, or a higher revision of one that was found."""
        if event.event_time < self._limit:
            return  # forgotten already
        event_id, number = event.event_id, event.event_time // self._width
        block = self._block_at(number)
        seen = Seen(event.instrument, event.event_time, event.revision, content_of(event.values))
        if self._block_of.get(event_id) == number and block.find(event_id).event_time == event.event_time:
            block.revise(event_id, seen)
        else:
            block.append(event_id, seen)
            self._block_of[event_id] = number

    def are_new(self, ids: Sequence[str], loads: tuple[str, list[int]] | None) -> bool:
        """Whether none of the ids is known, nor twice among them, and none of the loads' indices was seen.

        It may say no for want of a closer look; whoever hears that asks for each.
        """
        if not self._block_of.keys().isdisjoint(ids) or len(set(ids)) != len(ids):
            return False
        return loads is None or not self.is_repeated((loads[0], loads[1][0]))

    def repeated(self, ids: Sequence[str]) -> list[int]:
        """Where ids stand that are held, or stand before."""
        first = set(ids).difference(self._block_of)
        rows = []
        for row, event_id in enumerate(ids):
            if event_id in first:
                first.remove(event_id)
            else:
                rows.append(row)
        return rows

    def add_all(
        self, events: EventTable, instruments: list[str], loads: tuple[str, list[int]] | None, watermark: int
    ) -> None:
        """Remember new events, as by a `find` and an `add` of each; `watermark` is the one before the last of them."""
        if loads is not None:
            self.add_load((loads[0], loads[1][-1]))
        contents = contents_of(events.columns, events.values)
        columns = (events.ids, instruments, events.times.tolist(), events.revisions.tolist(), contents)
        self._put_all(columns)
        self._forget_before(watermark - self._horizon)

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
        self._drop_forgotten()
        return self._document([self._blocks[number].document() for number in sorted(self._blocks)])

    def packed_state(self, blocks: dict[str, bytes]) -> dict[str, Any]:
        """The same with the blocks' addresses in their place; those that changed since the last time are put into `blocks`."""
        self._drop_forgotten()
        for number in self._blocks.keys() - self._addresses.keys():
            data = plain_bytes(self._blocks[number].document())
            self._addresses[number] = name = address(data)
            blocks[name] = data
        return self._document([self._addresses[number] for number in sorted(self._blocks)])

    def restore(self, document: Any) -> None:
        """Take over what `state_document` wrote, now or as schema 2. `StateInvalidError` if it is something else."""
        try:
            held = [Block.of(block) for block in document["blocks"]]
            loads = dict(_pairs(document["loads"]))
            if not all(type(name) is str and type(index) is int for name, index in loads.items()):
                raise ValueError
        except (TypeError, KeyError, ValueError, msgspec.ValidationError):
            raise StateInvalidError("no state of identities", at="identities", expected="blocks and loads") from None
        self._limit, self._loads = _FOREVER, loads
        self._block_of, self._blocks, self._addresses = {}, {}, {}
        for block in held:
            self._put_all(block.columns)
        if len(self._block_of) != sum(map(len, held)):
            raise StateInvalidError("an identity twice", at="identities", expected="each event_id once")

    def _put_all(self, columns: Columns) -> None:
        """Put identities that are new into their blocks: neighbours mostly go into the same one."""
        ids, instruments, times, revisions, contents = columns
        for number, start, end in stretches(times, self._width):
            part = slice(start, end)
            self._block_at(number).extend((ids[part], instruments[part], times[part], revisions[part], contents[part]))
            self._block_of.update(zip(ids[part], repeat(number), strict=False))

    def _block_at(self, number: int) -> Block:
        """The block, which is about to change."""
        self._addresses.pop(number, None)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block()
        return block

    def _forget_before(self, limit: int) -> int:
        """Forget what is before the event time; the time before which all is forgotten now."""
        if limit > self._limit:
            first, before = limit // self._width, self._limit // self._width
            self._limit = limit
            if first > before:  # whole blocks may go
                for number in [number for number in self._blocks if number < first]:
                    self._forget(number, self._blocks.pop(number).ids)
                    self._addresses.pop(number, None)
        return self._limit

    def _drop_forgotten(self) -> None:
        """Drop from memory what is forgotten."""
        number = self._limit // self._width
        block = self._blocks.get(number)
        if block is not None and (dropped := block.drop_before(self._limit)):
            self._forget(number, dropped)
            self._addresses.pop(number, None)
            if not len(block):
                del self._blocks[number]

    def _forget(self, number: int, ids: Iterable[str]) -> None:
        for event_id in ids:
            if self._block_of.get(event_id) == number:
                del self._block_of[event_id]

    def _document(self, blocks: list[Any]) -> dict[str, Any]:
        return {"blocks": blocks, "loads": [[load, index] for load, index in self._loads.items()]}


def differs(seen: Seen, event: MarketEvent) -> bool:
    """Whether an event of a known identity and revision says something else; when either arrived does not matter."""
    return not is_of(seen.content, event.values)


def _pairs(value: Any) -> list[list[Any]]:
    if type(value) is not list or not all(type(row) is list and len(row) == 2 for row in value):
        raise ValueError
    return value
