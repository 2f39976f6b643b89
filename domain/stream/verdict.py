"""The verdict on a stream run: is it what a batch over the accepted events gives, and is that what a batch over the source gives?

| verdict | meaning |
| --- | --- |
| EQUAL_TO_BATCH_GOLDEN | the run's values are those of BATCH over its source |
| DIFFERS_BY_INPUT | they are those of BATCH over what it accepted, which is not the source: identities say why |
| EQUAL_TO_ACCEPTED | they are those of BATCH over what it accepted; its source is not known |
| DIVERGED | they are not even those: a bug |

What must stay true: equal is equal to the byte; a run that differs by its input names at least one identity that is lost, late,
revised or extra, since a batch is a function of its events. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from domain.instants import format_micros
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec
from domain.market.lanes import lanes_of
from domain.market.parity import OutputParity, compared
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent

IDENTITIES_MAX: Final = 1000
"""Identities of each kind that a verdict names; it counts all of them."""


class VerdictKind(Enum):
    """How a stream's values stand to the batch's."""

    EQUAL_TO_BATCH_GOLDEN = "EQUAL_TO_BATCH_GOLDEN"
    DIFFERS_BY_INPUT = "DIFFERS_BY_INPUT"
    EQUAL_TO_ACCEPTED = "EQUAL_TO_ACCEPTED"
    DIVERGED = "DIVERGED"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """An event that makes a difference. `revision` is the source's, of an extra one the stream's; `event_time` is RFC 3339."""

    event_id: str
    instrument: str
    event_time: str
    revision: int


class Identities(msgspec.Struct, frozen=True, kw_only=True):
    """So many, and the first of them in clock order."""

    count: int
    first: tuple[Identity, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, the values' hashes by output, and the identities in which accepted events and source differ.

    `lost`: the source's, and never accepted, nor late. `late`: came too late. `revised`: accepted with another revision or other
    values than the source's. `extra`: accepted, and not the source's. `diverged` compares with BATCH over the accepted events.
    """

    kind: VerdictKind
    accepted: int
    source: int | None
    values_hashes: dict[str, str]
    lost: Identities
    late: Identities
    revised: Identities
    extra: Identities
    diverged: tuple[OutputParity, ...] = ()


def verdict(
    flow: FlowSpec,
    accepted: Iterable[MarketEvent],
    stream: FeatureBatch,
    source: Iterable[MarketEvent] | None,
    late: Iterable[tuple[str, int]] = (),
) -> Verdict:
    """Judge a stream's batch.

    `accepted` are the events it accepted, revisions included; `source` those of its source that were available, revisions
    included, or None if it isn't known; `late` are (event_id, revision) of the records that came too late.
    """
    taken = _highest(flow, accepted)
    expected = execute_events(flow, taken.values())
    known = None if source is None else _highest(flow, source)
    differing = _differing(taken, known or {}, late) if known is not None else _NONE
    kind = _kind(flow, stream, expected, known)
    return Verdict(
        kind=kind,
        accepted=len(taken),
        source=None if known is None else len(known),
        values_hashes={described.name: stream.values_hash(described.name) for described in stream.schema},
        diverged=compared(expected, stream) if kind is VerdictKind.DIVERGED else (),
        **differing,
    )


def _kind(
    flow: FlowSpec, stream: FeatureBatch, expected: FeatureBatch, source: Mapping[str, MarketEvent] | None
) -> VerdictKind:
    encoded = stream.encode()
    if encoded != expected.encode():
        return VerdictKind.DIVERGED
    if source is None:
        return VerdictKind.EQUAL_TO_ACCEPTED
    equal = encoded == execute_events(flow, source.values()).encode()
    return VerdictKind.EQUAL_TO_BATCH_GOLDEN if equal else VerdictKind.DIFFERS_BY_INPUT


def _highest(flow: FlowSpec, events: Iterable[MarketEvent]) -> dict[str, MarketEvent]:
    """The highest revision of each event that the flow has an output of; of equal ones the first."""
    selected = {plan.instrument for plan in lanes_of(flow)}
    highest: dict[str, MarketEvent] = {}
    for event in events:
        held = highest.get(event.event_id)
        if event.instrument in selected and (held is None or event.revision > held.revision):
            highest[event.event_id] = event
    return highest


def _differing(
    taken: Mapping[str, MarketEvent], source: Mapping[str, MarketEvent], late: Iterable[tuple[str, int]]
) -> dict[str, Identities]:
    came_late: dict[str, int] = {}
    for event_id, revision in late:
        came_late[event_id] = max(revision, came_late.get(event_id, revision))
    found: dict[str, list[MarketEvent]] = {name: [] for name in _NONE}
    for event_id, event in source.items():
        held = taken.get(event_id)
        if held is not None and _same(held, event):
            continue
        if came_late.get(event_id, -1) >= event.revision and (held is None or held.revision < event.revision):
            found["late"].append(event)
        else:
            found["lost" if held is None else "revised"].append(event)
    found["extra"] = [event for event_id, event in taken.items() if event_id not in source]
    return {name: _identities(events) for name, events in found.items()}


def _same(one: MarketEvent, other: MarketEvent) -> bool:
    """Whether the two give the same ticks; when they became available does not matter."""
    return (one.instrument, one.event_time, _present(one)) == (other.instrument, other.event_time, _present(other))


def _present(event: MarketEvent) -> dict[str, str]:
    """The values that are there; to the bit."""
    return {column: repr(value) for column, value in event.values.items() if value is not None}


def _identities(events: Sequence[MarketEvent]) -> Identities:
    ordered = sorted(events, key=lambda event: (event.event_time, event.event_id.encode("utf-8")))
    first = tuple(
        Identity(
            event_id=event.event_id,
            instrument=event.instrument,
            event_time=format_micros(event.event_time),
            revision=event.revision,
        )
        for event in ordered[:IDENTITIES_MAX]
    )
    return Identities(count=len(events), first=first)


_NOBODY: Final = Identities(count=0, first=())
_NONE: Final = {"lost": _NOBODY, "late": _NOBODY, "revised": _NOBODY, "extra": _NOBODY}
