"""A block of identities: those whose event_time lies in one stretch, by column.

What must stay true: what is found of an identity is what was put in last; written out, a block is a function of what it holds,
whatever the order in which that came: identities stand by (time, id). Pure.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import lt
from typing import Any, Final

import msgspec

_V2_MEMBERS: Final = 5


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What is known of an event: its instrument and time, which never change, and its highest revision with its content."""

    instrument: str
    event_time: int
    revision: int
    content: str


Columns = tuple[list[str], list[str], list[int], list[int], list[str]]
"""Ids, instruments, times, revisions, contents."""


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    contents: list[str]
    ids: list[str]
    instruments: list[str]
    revisions: list[int]
    times: list[int]


class Block:
    """Identities in the order in which they came. Its rows are found through an index that is made when it is first asked for."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._instruments: list[str] = []
        self._times: list[int] = []
        self._revisions: list[int] = []
        self._contents: list[str] = []
        self._row_of: dict[str, int] = {}
        self._indexed = 0

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, event_id: str) -> Seen:
        """What is known of an event that the block has."""
        row = self._row(event_id)
        return Seen(self._instruments[row], self._times[row], self._revisions[row], self._contents[row])

    def append(self, event_id: str, seen: Seen) -> None:
        """Put in one that is new."""
        self.extend(([event_id], [seen.instrument], [seen.event_time], [seen.revision], [seen.content]))

    def extend(self, columns: Columns) -> None:
        """Put in some that are new."""
        ids, instruments, times, revisions, contents = columns
        self.ids.extend(ids)
        self._instruments.extend(instruments)
        self._times.extend(times)
        self._revisions.extend(revisions)
        self._contents.extend(contents)

    def revise(self, event_id: str, seen: Seen) -> None:
        """Another revision of one that the block has."""
        row = self._row(event_id)
        self._revisions[row], self._contents[row] = seen.revision, seen.content

    def drop_before(self, time: int) -> set[str]:
        """Drop what is before a time; the ids that the block has no more."""
        if not self.ids or min(self._times) >= time:
            return set()
        kept = [row for row, at in enumerate(self._times) if at >= time]
        before = set(self.ids)
        self._keep(kept)
        return before.difference(self.ids)

    def document(self) -> Any:
        """The block as JSON."""
        if not all(map(lt, self._times, islice(self._times, 1, None))):
            self._keep(sorted(range(len(self.ids)), key=lambda row: (self._times[row], self.ids[row])))
        return {
            "contents": self._contents,
            "ids": self.ids,
            "instruments": self._instruments,
            "revisions": self._revisions,
            "times": self._times,
        }

    @classmethod
    def of(cls, document: Any) -> "Block":
        """The block that was written out, now or as schema 2, whose rows stood one by one. Raises `ValueError` or `TypeError`."""
        block = cls()
        if type(document) is list:
            if not all(type(row) is list and len(row) == _V2_MEMBERS for row in document):
                raise ValueError
            names = ("ids", "instruments", "times", "revisions", "contents")
            rows = zip(*document, strict=True) if document else [()] * _V2_MEMBERS
            document = dict(zip(names, map(list, rows), strict=True))
        read = msgspec.convert(document, _Document, strict=True)
        found = (read.ids, read.instruments, read.times, read.revisions, read.contents)
        if any(len(column) != len(read.ids) for column in found):
            raise ValueError
        block.extend(found)
        return block

    @property
    def columns(self) -> Columns:
        """All of it."""
        return self.ids, self._instruments, self._times, self._revisions, self._contents

    def _row(self, event_id: str) -> int:
        if self._indexed < len(self.ids):
            self._row_of.update(zip(self.ids[self._indexed :], range(self._indexed, len(self.ids)), strict=True))
            self._indexed = len(self.ids)
        return self._row_of[event_id]

    def _keep(self, rows: Sequence[int]) -> None:
        """Have just these rows, in this order."""
        for name in ("ids", "_instruments", "_times", "_revisions", "_contents"):
            column = getattr(self, name)
            setattr(self, name, [column[row] for row in rows])
        self._row_of, self._indexed = {}, 0


def stretches(times: Sequence[int], width: int) -> Iterator[tuple[int, int, int]]:
    """The times as neighbours that lie in one stretch of `width`: its number, and from where to where they stand."""
    start = 0
    while start < len(times):
        number, end = times[start] // width, start + 1
        least, most = number * width, (number + 1) * width
        while end < len(times) and least <= times[end] < most:
            end += 1
        yield number, start, end
        start = end
