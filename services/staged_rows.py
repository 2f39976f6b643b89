"""Reconciliation of staged rows: does ClickHouse show, of each output that a run published, exactly the rows of its artifact?

It looks where ClickHouse is (the embedded engine has one owner), and records what it finds as every reconciliation does. Repairs
put a fresh attempt, made from CAS, in the place of the damaged one, and are looked at again before they count.

What must stay true: a projection that has not come so far is behind, which is no discrepancy; an artifact that is missing or
corrupt is the other reconciler's affair, and nothing is said of rows that cannot be compared. A crash between a finding and its
repair leaves it FOUND; the next look goes on from there.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import BlobCorruptError, BlobMissingError
from domain.events import Recorded
from domain.identity import run_stream
from domain.runs.messages import ResultPublished
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import FeatureValues
from projections.staging.comparison import difference
from projections.staging.postgres import StagedAttempts, StagingRepairs
from projections.staging.projection import Delivery, StagingKey, apply
from services.ports import BlobStore, EventLog
from services.reconciliation import Finding, settle

STAGED_AGAIN: Final = "staged again from the artifact"

OUTPUTS_MAX: Final = 1000
"""Attempts of one run that are looked at; a run has as many outputs as its flow."""

KINDS: Final = (DiscrepancyKind.STAGING_DIFFERS,)


class Parts(msgspec.Struct, frozen=True):
    """The parts of staging that a look needs."""

    values: FeatureValues
    attempts: StagedAttempts
    repairs: StagingRepairs


class _Wrong(msgspec.Struct, frozen=True):
    """An output whose rows are not as they should be: what should be there, what readers see, and what is wrong with it."""

    wanted: Delivery | None
    found: Attempt | None
    sentence: str


class StagedRowsReconciliation:
    """Checks the staged rows of runs, one run at a time."""

    def __init__(self, log: EventLog, blobs: BlobStore, parts: Parts) -> None:
        self._log = log
        self._blobs = blobs
        self._parts = parts

    def check(self, run_id: str) -> tuple[DiscrepancyKind, ...]:
        """Look at one run, record and repair what disagrees; the kinds that were found. Raises infrastructure errors only."""
        try:
            return settle(self._log, run_id, KINDS, lambda history: self._findings(run_id, history))
        except (BlobMissingError, BlobCorruptError):
            return ()  # nothing can be said before the artifact is repaired

    def is_behind(self, run_id: str) -> bool:
        """Whether the projection has not come to the run's publication yet."""
        stream = run_stream(run_id)
        published = _published(self._log.read_streams_blocking([stream]).streams[stream])
        return bool(published) and self._parts.attempts.position() < published[-1].position

    def _findings(self, run_id: str, history: Sequence[Recorded]) -> Iterator[Finding]:
        published = _published(history)
        if not published or self._parts.attempts.position() < published[-1].position:
            return
        wrong = self._wrong(run_id, published)
        if wrong:
            yield Finding(
                kind=DiscrepancyKind.STAGING_DIFFERS,
                expected="; ".join(f"{_name(one)}: {_rows(one.wanted)}" for one in wrong),
                actual="; ".join(f"{_name(one)}: {one.sentence}" for one in wrong),
                repair=lambda: self._repaired(run_id, published, wrong),
                advice="the rows cannot be made again from the artifact: look at what ClickHouse says, then rebuild `staging`",
            )

    def _wrong(self, run_id: str, published: Sequence[Recorded]) -> list[_Wrong]:
        wanted = {delivery.key: delivery for delivery in (apply(None, recorded) for recorded in published)}
        found = {attempt.key: attempt for attempt in self._parts.attempts.visible(OUTPUTS_MAX, run_id=run_id)}
        judged = [self._judged(key, wanted.get(key), found.get(key)) for key in sorted({*wanted, *found})]
        return [one for one in judged if one is not None]

    def _judged(self, key: StagingKey, wanted: Delivery | None, found: Attempt | None) -> _Wrong | None:
        if wanted is None:
            return _Wrong(None, found, "rows of an output that was not published")
        if found is None:
            return _Wrong(wanted, None, "not staged")
        if found.delivery != wanted:
            return _Wrong(wanted, found, f"{found.rows} rows of {found.artifact}, published at {found.position}")
        sentence = difference(self._parts.values, found, self._blobs.get(wanted.artifact))
        if sentence is None or not self._parts.attempts.are_visible([found.attempt]):
            return None  # equal, or replaced while it was looked at
        return _Wrong(wanted, found, sentence)

    def _repaired(self, run_id: str, published: Sequence[Recorded], wrong: Sequence[_Wrong]) -> str | None:
        generation = self._parts.attempts.generation()
        for one in wrong:
            if one.wanted is not None:
                self._parts.repairs.restage(one.wanted, generation, one.found)
            elif one.found is not None:
                self._parts.repairs.withdraw(one.found)
        return None if self._wrong(run_id, published) else STAGED_AGAIN


def _published(history: Sequence[Recorded]) -> list[Recorded]:
    return [recorded for recorded in history if isinstance(recorded.event, ResultPublished)]


def _name(wrong: _Wrong) -> str:
    known = wrong.wanted or wrong.found
    return known.output if known else ""


def _rows(wanted: Delivery | None) -> str:
    return "no rows" if wanted is None else f"{wanted.rows} rows of {wanted.artifact}"
