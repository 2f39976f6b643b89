"""Read models as pure folds: which row an event touches, and what that row is afterwards.

What must stay true: a row is a function of the events of its key, in order, and of nothing else; so any cut of the log into
batches gives the same rows, and so does a fold from nothing. `fold` never half-applies an event: it stops before the first one
that its model refuses, and says which. Pure: a crash leaves nothing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from domain.events import Event, Recorded
from projections.log import Failure, StoredEvent, decoded, failure_of

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


@dataclass(frozen=True)
class ReadModel(Generic[K, R]):
    """One projection, without its storage.

    `name` is frozen for ever. `categories` are the stream categories (`run` of `run/…`) that it reads; an event there that
    cannot be decoded stops it. `key_of` gives the key of the one row that an event touches, None for none. `apply` gives that
    row after the event; it raises for an event that cannot follow. `version` is raised whenever `apply` comes to mean something
    else: a copy that another version made is not gone on with, it is rebuilt.
    """

    name: str
    categories: tuple[str, ...]
    key_of: Callable[[Event], K | None]
    apply: Callable[[R | None, Recorded], R]
    version: int = 1


@dataclass(frozen=True)
class Batch(Generic[K]):
    """A cut of the log for one model: its events in order, with their keys. After it everything up to `up_to` is done with.

    With a `failure`, `up_to` is the position before the event that failed.
    """

    events: Sequence[tuple[K, Recorded]]
    up_to: int
    failure: Failure | None = None

    @property
    def keys(self) -> list[K]:
        """The rows that it touches, each once, in the order of their first events."""
        return list(dict.fromkeys(key for key, _ in self.events))

    def halved(self) -> "Batch[K]":
        """Its first half (at least two events make a half of one or more)."""
        half = len(self.events) // 2
        return Batch(self.events[:half], self.events[half][1].position - 1)

    def refused(self, error: Exception) -> "Batch[K]":
        """Nothing but the failure of its first event."""
        return Batch((), *_stopped_at(self.events[0][1], error))


@dataclass(frozen=True)
class Folded(Generic[K, R]):
    """The rows that changed, and how far that took the projection."""

    rows: Mapping[K, R]
    up_to: int
    failure: Failure | None


def batch_of(model: ReadModel[K, Any], stored: Sequence[StoredEvent], up_to: int) -> Batch[K]:
    """The batch that a read of the log up to `up_to` makes for the model; it ends before what cannot be decoded."""
    recorded, failure = decoded(stored)
    events: list[tuple[K, Recorded]] = []
    for item in recorded:
        try:
            key = model.key_of(item.event)
        except Exception as error:  # a bug of the model, met at this event
            return Batch(events, *_stopped_at(item, error))
        if key is not None:
            events.append((key, item))
    return Batch(events, up_to if failure is None else failure.position - 1, failure)


def fold(model: ReadModel[K, R], rows: Mapping[K, R], batch: Batch[K]) -> Folded[K, R]:
    """The rows after the batch, given those that its keys have now."""
    changed: dict[K, R] = {}
    apply = model.apply
    for key, item in batch.events:
        try:
            changed[key] = apply(changed[key] if key in changed else rows.get(key), item)
        except Exception as error:  # a refusal, or a bug: either way this event stops the projection
            return Folded(changed, *_stopped_at(item, error))
    return Folded(changed, batch.up_to, batch.failure)


def fold_all(model: ReadModel[K, R], events: Sequence[Recorded]) -> dict[K, R]:
    """The rows of a whole history; raises what the model raises. For tests and audits."""
    rows: dict[K, R] = {}
    for item in events:
        key = model.key_of(item.event)
        if key is not None:
            rows[key] = model.apply(rows.get(key), item)
    return rows


def _stopped_at(item: Recorded, error: Exception) -> tuple[int, Failure]:
    return item.position - 1, failure_of(item.position, item.stream, item.event.topic, error)
