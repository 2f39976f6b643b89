"""Reconciliation of one run: does everything that is served about it say what its events say, and do its artifacts hash right?

Looks at four pairs: artifacts against their addresses, the `runs` row, the `publications` rows and the outbox row against the
fold of the run's stream. Repairs what can be repaired from events and CAS; the rest becomes an alert.

What must stay true: finding, repairing and alerting are events under ids derived from their place, so looking twice records once;
a read model that has not come so far is behind, which is no discrepancy; the events win, always. A crash between a finding and
its repair leaves it FOUND; the next look goes on from there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

import msgspec

from domain.canonical import address
from domain.discrepancies.aggregate import Discrepancy, DiscrepancyCommand, DiscrepancyState, decide, evolve
from domain.discrepancies.messages import DiscrepancyKind, RaiseAlert, RecordDiscrepancy, RecordRepair
from domain.errors import BlobCorruptError, BlobMissingError, Fault, FinazError, VersionConflictError
from domain.events import Metadata, Recorded
from domain.identity import discrepancy_stream, run_stream
from domain.runs.messages import ResultPublished, RunRequested, RunSpec
from projections.folding import fold_all
from projections.outbox.projection import KIND_RUN, OutboxRow
from projections.outbox.projection import MODEL as OUTBOX
from projections.publications import projection as publications
from projections.runs import projection as runs
from services import effects
from services.ports import Append, BlobStore, EventLog, NewEvent
from services.recomputation import LABEL as RECOMPUTED

EQUAL_AGAIN: Final = "found equal again"
ROW_REWRITTEN: Final = "the row was written again from the run's events"

KINDS: Final = tuple(kind for kind in DiscrepancyKind if kind is not DiscrepancyKind.STAGING_DIFFERS)
"""What is looked at here; staged rows are looked at where ClickHouse is (`services.staged_rows`)."""

_IDS: Final = UUID("0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11")


class Served(Protocol):
    """What is served about runs. Blocks."""

    def position(self, projection: str) -> int:
        """How far the projection has come."""
        ...

    def run(self, run_id: str) -> Any:
        """The run's row as it is served, or None."""
        ...

    def publications(self, run_id: str) -> Mapping[Any, Any]:
        """The run's publication rows, by key."""
        ...

    def outbox(self, run_id: str) -> OutboxRow | None:
        """The run's outbox row, or None."""
        ...

    def rewrite_outbox(self, seen: OutboxRow | None, right: OutboxRow) -> bool:
        """Make the row `right`, if it is still as it was `seen`. Whether it was."""
        ...


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Two things that disagree, and how to put that right: `repair` returns by what means, or None if it cannot."""

    kind: DiscrepancyKind
    expected: str
    actual: str
    repair: Callable[[], str | None]
    advice: str


Recompute = Callable[[str, RunSpec], Sequence[bytes]]
"""Makes again what a run stored."""


class Reconciliation:
    """Checks runs, one at a time."""

    def __init__(self, log: EventLog, blobs: BlobStore, served: Served, recompute: Recompute) -> None:
        self._log = log
        self._blobs = blobs
        self._served = served
        self._recompute = recompute

    def check(self, run_id: str) -> tuple[DiscrepancyKind, ...]:
        """Look at one run, record and repair what disagrees; the kinds that were found. Raises infrastructure errors only."""
        return settle(self._log, run_id, KINDS, lambda history: self._findings(run_id, history))

    # ---------------------------------------------------------------- what can disagree

    def _findings(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        yield from self._artifacts(run_id, history)
        last = history[-1].position
        if self._served.position(runs.NAME) >= last:
            yield from self._run_row(run_id, history)
        if self._served.position(publications.NAME) >= last:
            yield from self._publication_rows(run_id, history)
        yield from self._outbox_row(run_id, history)

    def _artifacts(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        """What the run stored: its artifacts, and the documents that it was computed from but for its snapshot."""
        spec = next(r.event.spec for r in history if isinstance(r.event, RunRequested))
        results = [r.event.result for r in history if isinstance(r.event, ResultPublished)]
        documents = [name for result in results for name in result.inputs if name != spec.snapshot]
        broken: dict[str, bool] = {}
        for name in dict.fromkeys([*documents, *(result.artifact for result in results)]):
            try:
                self._blobs.get(name)
            except (BlobMissingError, BlobCorruptError) as error:
                broken[name] = isinstance(error, BlobMissingError)
        for name, missing in broken.items():
            yield Finding(
                kind=DiscrepancyKind.ARTIFACT_MISSING if missing else DiscrepancyKind.ARTIFACT_CORRUPT,
                expected=name,
                actual="no blob" if missing else "bytes that hash to another address",
                repair=lambda: self._remade(broken, run_id, spec),
                advice="the artifact cannot be computed again: restore it, or what it is computed from, from a backup",
            )

    def _remade(self, addresses: Collection[str], run_id: str, spec: RunSpec) -> str | None:
        """Compute these again; only the very same bytes count."""
        try:
            made = {address(data): data for data in self._recompute(run_id, spec)}
        except FinazError as error:
            if error.fault is Fault.INFRASTRUCTURE:
                raise
            return None
        for name in addresses:
            if name in made:
                effects.store_blob(self._blobs, made[name])
        return RECOMPUTED if made.keys() >= set(addresses) else None

    def _run_row(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        expected = runs.row_of(fold_all(runs.MODEL, history)[run_id])
        actual = self._served.run(run_id)
        if actual != expected and not _is_ahead(actual, history):
            yield _differs(DiscrepancyKind.RUN_DIFFERS, expected, actual, runs.NAME)

    def _publication_rows(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        expected = {key: row for key, row in fold_all(publications.MODEL, history).items() if key[0] == run_id}
        actual = self._served.publications(run_id)
        if actual != expected and not any(_is_ahead(row, history) for row in actual.values()):
            yield _differs(
                DiscrepancyKind.PUBLICATION_DIFFERS, [*expected.values()], [*actual.values()], publications.NAME
            )

    def _outbox_row(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        expected = fold_all(OUTBOX, history)[(KIND_RUN, run_id)]
        actual = self._served.outbox(run_id)
        if actual != expected and not _is_ahead(actual, history):
            yield Finding(
                kind=DiscrepancyKind.OUTBOX_DIFFERS,
                expected=_text(expected),
                actual=_text(actual),
                repair=lambda: self._rewritten(actual, expected),
                advice="",
            )

    def _rewritten(self, seen: OutboxRow | None, right: OutboxRow) -> str:
        if not self._served.rewrite_outbox(seen, right):
            raise VersionConflictError("the outbox row moved on while it was looked at", at=right.key)
        return ROW_REWRITTEN


def settle(
    log: EventLog,
    run_id: str,
    looked_at: Iterable[DiscrepancyKind],
    find: Callable[[Sequence[Recorded]], Iterable[Finding]],
) -> tuple[DiscrepancyKind, ...]:
    """Look at a run for these kinds of discrepancy: record and repair what `find` finds in view of the run's history.

    What was open and is not found any more is recorded as equal again. Raises what `find` and the log raise.
    """
    run, kinds = run_stream(run_id), {kind: discrepancy_stream(kind.value, run_id) for kind in looked_at}
    read = log.read_streams_blocking([run, *kinds.values()])
    history = read.streams[run]
    if not history:
        return ()
    findings = {finding.kind: finding for finding in find(history)}
    for kind, stream in kinds.items():
        record = _Record(log, run_id, stream, read.streams[stream], history[-1].event_id)
        if kind in findings:
            _settle_one(record, findings[kind])
        elif record.is_open or record.is_accepted:
            record.add(RecordRepair(repair=EQUAL_AGAIN))
    return tuple(findings)


def _settle_one(record: "_Record", finding: Finding) -> None:
    record.add(
        RecordDiscrepancy(kind=finding.kind, subject=record.subject, expected=finding.expected, actual=finding.actual)
    )
    if not record.is_open:
        return  # just as an operator has written it off
    repaired = finding.repair()
    record.add(RaiseAlert(reason=finding.advice) if repaired is None else RecordRepair(repair=repaired))


class _Record:
    """The stream of one (kind, run): what was recorded, and what is added to it."""

    def __init__(self, log: EventLog, subject: str, stream: str, events: Sequence[Recorded], cause: UUID) -> None:
        self.subject = subject
        self._log = log
        self._stream = stream
        self._version = len(events)
        self._cause = cause
        self._state = Discrepancy()
        for recorded in events:
            self._state = evolve(self._state, recorded.event)

    @property
    def is_open(self) -> bool:
        """Whether it was found and not settled."""
        return self._state.state in (DiscrepancyState.FOUND, DiscrepancyState.ALERTED)

    @property
    def is_accepted(self) -> bool:
        """Whether an operator has written it off as it was, and it has not been equal since."""
        return self._state.accepted

    def add(self, command: DiscrepancyCommand) -> None:
        """Append what the command decides, if anything."""
        for event in decide(self._state, command):
            self._version += 1
            event_id = uuid5(_IDS, f"{self._stream}\0{self._version}\0{event.topic}")
            new = NewEvent(self._stream, self._version, event, event_id)
            metadata = Metadata(causation_id=self._cause, correlation_id=self.subject)
            effects.append_blocking(self._log, Append(events=(new,), metadata=metadata))
            self._state = evolve(self._state, event)


def _is_ahead(row: Any, history: Sequence[Recorded]) -> bool:
    """Whether the row has seen events that came after the history was read: then it is not the row that is wrong."""
    return row is not None and row.position > history[-1].position


def _differs(kind: DiscrepancyKind, expected: Any, actual: Any, projection: str) -> Finding:
    return Finding(
        kind=kind,
        expected=_text(expected),
        actual=_text(actual),
        repair=lambda: None,
        advice=f"the read model {projection!r} was changed by something other than events: rebuild it",
    )


def _text(value: Any) -> str:
    return "no row" if value is None else msgspec.json.encode(value).decode()
