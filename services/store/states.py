"""States of long streams, from a snapshot and what came after it.

A service says how a stream is folded (`Fold`) and thereby that it may be read from a snapshot. What must stay true: a snapshot is a
cache and never truth: deleting all of them changes no answer; one of another schema of the fold, or one that cannot be read, is
passed over and the stream is replayed from nothing. Taking one happens after reading and its failure is no failure of the reading.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from domain.canonical import canonical, parse
from domain.errors import FinazError
from domain.events import Recorded
from projections.statements import statements
from services.store.connections import Pool, Row
from services.store.mapper import SNAPSHOT_TOPIC_PREFIX, recorded

SNAPSHOT_EVENTS: Final = 200
"""Events read after a snapshot (or from nothing) from which on a new snapshot is taken, unless the fold says otherwise."""

_SQL: Final = statements("services.store", "statements.sql")
_log: Final = logging.getLogger("finaz.store")

S = TypeVar("S")


class Fold(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """How a stream becomes a state, and a state a document.

    `name` is permanent; raise `schema` whenever documents of older snapshots must not be read any more: when the document's form or
    the meaning of `evolve` changes. `to_document` gives a canonical JSON value, `from_document` takes one back.
    """

    name: str
    schema: int
    initial: Callable[[str], S]
    evolve: Callable[[S, Recorded], S]
    to_document: Callable[[S], Any]
    from_document: Callable[[Any], S]
    snapshot_events: int = SNAPSHOT_EVENTS

    @property
    def topic(self) -> str:
        return f"{SNAPSHOT_TOPIC_PREFIX}{self.name}.v{self.schema}"


class StateRead(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The state after version `version` (0: an empty stream) and the database's clock then; `from_version` is the snapshot's."""

    state: S
    version: int
    now: datetime
    from_version: int = 0


class States:
    """Reads states and takes snapshots."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def read(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """The state of the stream, in one round trip; takes a snapshot where many events had to be read."""
        rows = self._pool.rows(_SQL["read_state"], {"stream": stream, "topic": fold.topic})
        taken_version, taken_state = rows[0][1], rows[0][2]
        state, from_version = fold.initial(stream), 0
        if taken_version is not None:
            try:
                state, from_version = fold.from_document(parse(taken_state)), taken_version
            except (FinazError, msgspec.ValidationError, LookupError, TypeError, ValueError) as error:
                _log.warning("the snapshot %s of %s cannot be read and is dropped: %s", fold.topic, stream, error)
                self.drop(stream, fold)
                return self.read(stream, fold)
        read = self._fold(fold, state, from_version, rows)
        if read.version - from_version >= fold.snapshot_events:
            self._take(stream, fold, read)
        return read

    def take(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """Take a snapshot of the stream as it is now, whatever its length."""
        read = self.read(stream, fold)
        if read.version > read.from_version:
            self._take(stream, fold, read)
        return read

    def drop(self, stream: str, fold: Fold[S], before_version: int = 2**62) -> None:
        """Forget the fold's snapshots of the stream, of any schema, below a version."""
        pattern = f"{SNAPSHOT_TOPIC_PREFIX}{fold.name}.v%"
        self._pool.rows(_SQL["drop_snapshots_before"], {"stream": stream, "version": before_version, "name": pattern})

    def _fold(self, fold: Fold[S], state: S, version: int, rows: list[Row]) -> StateRead[S]:
        from_version = version
        for row in rows:
            if row[3] is not None:
                event = recorded(row[3:])
                state, version = fold.evolve(state, event), event.version
        return StateRead(state=state, version=version, now=rows[0][0].astimezone(UTC), from_version=from_version)

    def _take(self, stream: str, fold: Fold[S], read: StateRead[S]) -> None:
        try:
            document = canonical(fold.to_document(read.state)).decode("utf-8")
            self._pool.rows(
                _SQL["take_snapshot"],
                {"stream": stream, "version": read.version, "topic": fold.topic, "state": document},
            )
            self.drop(stream, fold, read.version)
        except FinazError as error:
            _log.warning("no snapshot of %s was taken: %s", stream, error)
