"""Read models as pure folds: which row an event touches, and what that row is afterwards.

What must stay true: a row is a function of the events of its key, in order, and of nothing else; so any cut of the log into
batches gives the same rows, and so does a fold from nothing. `fold` never half-applies an event: it stops before the first one
that its model refuses, and says which. Pure: a crash leaves nothing.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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

    Where one event touches several rows, `parts` cuts it into events that touch one row each; they are applied all or none.
    """

    name: str
    categories: tuple[str, ...]
    key_of: Callable[[Event], K | None]
    apply: Callable[[R | None, Recorded], R]
    version: int = 1
    parts: Callable[[Event], Iterable[Event]] | None = None

    def each(self, item: Recorded) -> Iterator[tuple[K, Recorded]]:
        """The rows that an event touches, each with the event, or the part of it, that is about that row."""
        for event in (item.event,) if self.parts is None else self.parts(item.event):
            key = self.key_of(event)
            if key is not None:
                yield key, item if event is item.event else _with_event(item, event)


@dataclass(frozen=True)
class Batch(Generic[K]):
    """A cut of the log for one model: its events in order, with their keys. After it everything up to `up_to` is done with.

    An event in parts stands there once per part, always whole.

    With a `failure`, `up_to` is the position before the event that failed.
    """

    events: Sequence[tuple[K, Recorded]]
    up_to: int
    failure: Failure | None = None

    @property
    def keys(self) -> list[K]:
        """The rows that it touches, each once, in the order of their first events."""
        return list(dict.fromkeys(key for key, _ in self.events))

    @property
    def divisible(self) -> bool:
        """Whether it has more than one event of the log."""
        return self.events[0][1].position != self.events[-1][1].position

    def halved(self) -> "Batch[K]":
        """About its first half, for one that is divisible: one event or more, and not all."""
        half = len(self.events) // 2
        while half and self.events[half - 1][1].position == self.events[half][1].position:
            half -= 1
        if not half:  # the first event has most of the parts
            half = next(n for n, (_, item) in enumerate(self.events) if item.position != self.events[0][1].position)
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
            if model.parts is not None:
                events += list(model.each(item))
                continue
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
    if model.parts is not None:
        return _fold_parts(model, rows, batch)
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
        for key, part in model.each(item):
            rows[key] = model.apply(rows.get(key), part)
    return rows


def _fold_parts(model: ReadModel[K, R], rows: Mapping[K, R], batch: Batch[K]) -> Folded[K, R]:
    """As `fold`, for events in parts: what the parts of an event changed is taken back if one of them is refused."""
    changed: dict[K, R] = {}
    for _, parts in groupby(batch.events, key=lambda event: event[1].position):
        mine: dict[K, R] = {}
        for key, item in parts:
            try:
                row = mine[key] if key in mine else changed[key] if key in changed else rows.get(key)
                mine[key] = model.apply(row, item)
            except Exception as error:
                return Folded(changed, *_stopped_at(item, error))
        changed.update(mine)
    return Folded(changed, batch.up_to, batch.failure)


def _with_event(item: Recorded, event: Event) -> Recorded:
    return Recorded(
        position=item.position,
        stream=item.stream,
        version=item.version,
        event_id=item.event_id,
        recorded_at=item.recorded_at,
        event=event,
        metadata=item.metadata,
    )


def _stopped_at(item: Recorded, error: Exception) -> tuple[int, Failure]:
    return item.position - 1, failure_of(item.position, item.stream, item.event.topic, error)
