"""The audit: one reading of the log as of one position, and everything that is derived from it compared with what is there.

Each pass reads every event of one snapshot of the database and holds the states and rows of one part of all names; the hash chain
is followed in the first. What must stay true: the audit writes nothing, takes no lock and finds nothing in a healthy system,
whatever is appended meanwhile; what it could not look at is said. What grows with the log is the number of passes
(`STREAMS_OF_A_PASS_MAX` streams each) and not the memory. A crash leaves nothing: it is begun again.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain as chain_of
from operator import attrgetter
from typing import Any, Final, Protocol

from domain.discrepancies.aggregate import WRITTEN_OFF, Discrepancy
from domain.errors import FinazError
from domain.events import Recorded
from domain.folds import category_of, fold_of, key_of
from projections.registry import OPTIONAL, PROJECTIONS
from services.audit.blobs import NAMING, BlobsCheck
from services.audit.chain import ChainCheck
from services.audit.findings import (
    FORMAT,
    AuditedModel,
    AuditedSeals,
    AuditReport,
    Finding,
    FindingKind,
    Findings,
)
from services.audit.rows import Comparable, RowsCheck
from services.audit.streams import Part, StreamsCheck, recorded_of
from services.audit.words import cannot_exclude, vouches
from services.ports import BlobStore
from services.seals import Seal, SealProblem

STREAMS_OF_A_PASS_MAX: Final = 200_000
"""Streams whose states, rows and addresses one pass holds: a few hundred megabytes."""

COLLECT_OBJECTS: Final = 100_000
"""New objects after which the garbage collector looks at them, while an audit is made."""

_POSITION: Final = attrgetter("position")

OnProgress = Callable[[int, int], None]
"""Called with (done, total) after every page of events or of rows; whatever it raises ends the audit."""


class Snapshot(Protocol):
    """What the audit reads (`services.store.log_snapshot.LogSnapshot`)."""

    def head(self) -> tuple[int, bytes, datetime]: ...

    def streams(self) -> int: ...

    def positions(self) -> dict[str, int]: ...

    def code_versions(self) -> dict[str, int]: ...

    def skips(self) -> dict[str, frozenset[int]]: ...

    def event_pages(self, after: int, up_to: int) -> Iterator[Sequence[Any]]: ...

    def category(self, name: str) -> Iterator[Any]: ...

    def snapshots(self) -> Iterator[Any]: ...

    def pages(self, statement: str, arguments: Any = None) -> Iterator[Sequence[Any]]: ...


class FurtherCheck(Protocol):
    """Something else that is derived from events, and kept where this module does not reach."""

    @property
    def name(self) -> str: ...

    def event(self, recorded: Recorded) -> None:
        """The next event of the log."""
        ...

    def check(self, snapshot: Snapshot, findings: Findings, alive: Callable[[], None]) -> None:
        """Compare, after the last event of the part; call `alive` now and then, and let pass what it raises."""
        ...

    def audited(self) -> AuditedModel:
        """What was compared, of this part."""
        ...


@dataclass(frozen=True)
class AuditParts:
    """What an audit is made of. Without `blobs` or `seals` those are not looked at, and the report says so.

    `memories` are what process managers remember; one that never ran has none. `further` makes the further checks of one part,
    before its first event.
    """

    blobs: BlobStore | None
    seals: Callable[[], Iterator[Seal | SealProblem]] | None
    projections: Sequence[Comparable] = tuple(PROJECTIONS.values())
    memories: Sequence[Comparable] = ()
    further: Callable[[Part, Snapshot], Sequence[FurtherCheck]] = lambda part, snapshot: ()
    streams_max: int = STREAMS_OF_A_PASS_MAX


def audit(snapshot: Snapshot, parts: AuditParts, on_progress: OnProgress = lambda done, total: None) -> AuditReport:
    """Look at everything. Raises what reading raises, and what `on_progress` raises."""
    with _collecting_seldom():
        return _Audit(snapshot, parts, on_progress).run()


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """What an audit holds has no cycles. To look for some among all of it, again and again, would take a tenth of its time."""
    first, second, third = gc.get_threshold()
    gc.set_threshold(COLLECT_OBJECTS, second, third)
    try:
        yield
    finally:
        gc.set_threshold(first, second, third)


@dataclass
class _Tally:
    """What all passes together have looked at."""

    events: int = 0
    streams: int = 0
    blobs: int = 0
    blobs_named: set[str] = field(default_factory=set)
    models: dict[str, AuditedModel] = field(default_factory=dict)
    written_off: list[Finding] = field(default_factory=list)
    unfolded: set[str] = field(default_factory=set)


class _Audit:
    def __init__(self, snapshot: Snapshot, parts: AuditParts, on_progress: OnProgress) -> None:
        self._snapshot = snapshot
        self._parts = parts
        self._on_progress = on_progress
        self._findings = Findings()
        self._tally = _Tally()
        self._not_checked: list[str] = []
        # Which seals there are is looked at before the snapshot is taken by its first statement: none of them can be younger.
        self._seals = iter(()) if parts.seals is None else parts.seals()
        self._position, self._chain, self._at = snapshot.head()
        self._passes = max(1, -(-snapshot.streams() // parts.streams_max))
        self._total = self._passes * max(1, self._position)
        self._models = self._comparable()
        self._skips = snapshot.skips()
        self._kept_elsewhere = set(OPTIONAL) & set(snapshot.positions())

    def run(self) -> AuditReport:
        if self._parts.seals is None:
            self._not_checked.append("seals: no seals and no key to verify them with were given")
        chain = ChainCheck(self._findings, self._seals)
        accepted = self._written_off()
        for index in range(self._passes):
            self._pass(Part(index, self._passes), chain if index == 0 else None, accepted)
        self._on_progress(self._total, self._total)
        return self._report(chain)

    # ---------------------------------------------------------------- one pass

    def _pass(self, part: Part, chain: ChainCheck | None, accepted: frozenset[str]) -> None:
        streams = StreamsCheck(self._findings, part)
        rows = [RowsCheck(self._findings, part, projection, position) for projection, position in self._models]
        blobs = self._blobs(accepted)
        further = self._parts.further(part, self._snapshot)
        feed = _Feed(part, streams, rows, blobs, further, self._skips, self._findings if part.index == 0 else None)
        done = part.index * max(1, self._position)
        for page in self._snapshot.event_pages(0, self._position):
            if chain is not None:
                chain.rows(page)
                self._tally.events += len(page)
            feed.rows(page)
            done += len(page)
            self._on_progress(done, self._total)
        if chain is not None:
            chain.end()
        self._compare(streams, rows, blobs, further, done)

    def _compare(
        self,
        streams: StreamsCheck,
        rows: Sequence[RowsCheck],
        blobs: BlobsCheck | None,
        further: Sequence[FurtherCheck],
        done: int,
    ) -> None:
        tally = self._tally
        tally.streams += streams.streams
        tally.unfolded |= streams.unfolded
        for model in rows:
            for page in self._snapshot.pages(model.statement):
                model.compare(page)
                self._on_progress(done, self._total)
            model.end()
            tally.models[model.name] = _added(tally.models.get(model.name), model.audited())
            self._on_progress(done, self._total)
        for check in further:
            check.check(self._snapshot, self._findings, lambda: self._on_progress(done, self._total))
            tally.models[check.name] = _added(tally.models.get(check.name), check.audited())
        if blobs is not None:
            for _ in blobs.check():
                self._on_progress(done, self._total)
            tally.blobs += blobs.checked
            tally.written_off += blobs.written_off.listed

    def _blobs(self, accepted: frozenset[str]) -> BlobsCheck | None:
        store = self._parts.blobs
        return None if store is None else BlobsCheck(self._findings, store, accepted, self._tally.blobs_named)

    # ---------------------------------------------------------------- before the first pass

    def _comparable(self) -> list[tuple[Comparable, int]]:
        """The read models to compare, each with the position of its served copy, or of the log where it is inline."""
        positions, versions = self._snapshot.positions(), self._snapshot.code_versions()
        found: list[tuple[Comparable, int]] = []
        kept = [memory for memory in self._parts.memories if memory.model.name in positions]
        for projection in (*self._parts.projections, *kept):
            name = projection.model.name
            if projection.inline:
                found.append((projection, self._position))
            elif name not in positions:
                self._not_checked.append(f"{name}: no copy of it is served")
            elif versions.get(name, 1) != projection.model.version:
                self._not_checked.append(f"{name}: its copy was made by version {versions[name]} of its code")
            else:
                found.append((projection, positions[name]))
                if positions[name] > self._position:
                    self._findings.add(
                        FindingKind.PROJECTION_AHEAD, name, f"at most position {self._position}", str(positions[name])
                    )
        return found

    def _written_off(self) -> frozenset[str]:
        """Runs whose lost artifact an operator has written off."""
        if self._parts.blobs is None:
            self._not_checked.append("blobs: no store was given")
        states: dict[str, Any] = {}
        for row in self._snapshot.category("discrepancy"):
            try:
                recorded = recorded_of(row)
                fold = fold_of(recorded.stream)
                before = states.get(recorded.stream) or fold.initial(key_of(recorded.stream))
                states[recorded.stream] = fold.evolve(before, recorded)
            except FinazError:
                continue  # the first pass names it
        accepted = [s for s in states.values() if isinstance(s, Discrepancy) and s.accepted and s.kind in WRITTEN_OFF]
        return frozenset(discrepancy.subject for discrepancy in accepted)

    # ---------------------------------------------------------------- after the last

    def _report(self, chain: ChainCheck) -> AuditReport:
        tally, findings = self._tally, self._findings
        if self._parts.seals is not None and self._position and not chain.seals:
            self._not_checked.append("seals: there are none that can be read")
        not_checked = [
            *self._not_checked,
            *(
                f"{name}: nothing was given to look at it with"
                for name in sorted(self._kept_elsewhere - set(tally.models))
            ),
            *(f"streams of {name}: nothing folds them" for name in sorted(tally.unfolded)),
        ]
        audited = AuditedSeals(
            checked=self._parts.seals is not None,
            seals=chain.seals,
            last_position=chain.last_position,
            vouched_seal=chain.vouched.name if chain.vouched else None,
            vouched_position=chain.vouched.position if chain.vouched else 0,
            vouched_at=chain.vouched.sealed_at if chain.vouched else None,
        )
        return AuditReport(
            format=FORMAT,
            audited_at=self._at,
            position=self._position,
            chain_head=self._chain.hex(),
            events=tally.events,
            streams=tally.streams,
            passes=self._passes,
            read_models=tuple(tally.models.values()),
            blobs_checked=tally.blobs,
            seals=audited,
            differences=findings.differences,
            counts={
                kind.value: count for kind, count in sorted(findings.counts.items(), key=lambda item: item[0].value)
            },
            findings=tuple(findings.listed),
            written_off=tuple(tally.written_off),
            not_checked=tuple(not_checked),
            vouches=vouches(audited, self._position),
            cannot_exclude=cannot_exclude(audited, self._position),
        )


class _Feed:
    """Hands the events to the checks of one pass, decoded once. `findings` is None where another pass names what can't be read."""

    def __init__(
        self,
        part: Part,
        streams: StreamsCheck,
        rows: Sequence[RowsCheck],
        blobs: BlobsCheck | None,
        further: Sequence[FurtherCheck],
        skips: dict[str, frozenset[int]],
        findings: Findings | None,
    ) -> None:
        self._part = part
        self._streams = streams
        self._models = [(model, skips.get(model.name, frozenset())) for model in rows]
        self._blobs = blobs
        self._further = further
        self._findings = findings

    def rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """The next rows of the log."""
        try:
            events = [recorded_of(row) for row in rows]
        except Exception:  # one of them cannot be read: each by itself, so that the right one is named
            for row in rows:
                self._row(row)
        else:
            self._events(events)

    def _row(self, row: Sequence[Any]) -> None:
        try:
            recorded = recorded_of(row)
        except Exception as error:  # whatever decoding or an upcaster raises is about this event
            self._unreadable(row, error)
        else:
            self._events([recorded])

    def _events(self, events: Sequence[Recorded]) -> None:
        """Events in order of position, to each check in turn: no check looks at what another has seen."""
        part = self._part
        mine = events if part.count == 1 else [recorded for recorded in events if part.has(recorded.stream)]
        named = self._streams.events(mine, NAMING)
        if self._blobs is not None:
            for recorded, state in named:
                self._blobs.event(recorded, state)
        by_category: dict[str, list[Recorded]] = {}
        for recorded in events:
            by_category.setdefault(category_of(recorded.stream), []).append(recorded)
        for model, skipped in self._models:
            model.events(_of_categories(by_category, model, skipped))
        for check in self._further:
            for recorded in events:
                check.event(recorded)

    def _unreadable(self, row: Sequence[Any], error: Exception) -> None:
        position, version, stream, topic = row[0], row[1], row[5], row[6]
        self._streams.unreadable(stream, version, position)
        if self._findings is not None:
            self._findings.add(
                FindingKind.EVENT_UNREADABLE,
                stream,
                f"an event {topic}",
                str(error),
                position=position,
                version=version,
            )


def _of_categories(
    by_category: Mapping[str, list[Recorded]], model: RowsCheck, skipped: frozenset[int]
) -> Sequence[Recorded]:
    """The events of a model's categories, in order of position, as far as it has come and without those it was to pass over."""
    lists = [by_category[category] for category in model.categories if category in by_category]
    if not lists:
        return ()
    events = lists[0] if len(lists) == 1 else sorted(chain_of(*lists), key=_POSITION)
    if not skipped and events[-1].position <= model.position:
        return events
    return [one for one in events if one.position <= model.position and one.position not in skipped]


def _added(before: AuditedModel | None, part: AuditedModel) -> AuditedModel:
    if before is None:
        return part
    return AuditedModel(
        name=part.name,
        position=part.position,
        rows_expected=before.rows_expected + part.rows_expected,
        rows_served=before.rows_served + part.rows_served,
    )
