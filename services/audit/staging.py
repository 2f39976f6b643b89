"""Is what is staged in ClickHouse what was published? Attempts by their table, then every staged row against its artifact.

What must stay true: attempts are those of the audit's snapshot; a publication that an operator has staging pass over need not be
staged, and may have been since, by a repair. ClickHouse is not part of the snapshot: where its rows differ and the attempt has been
superseded since, they were right to go, and that is no difference. Holds the deliveries of one part, and the artifacts of what is
compared together.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from domain.errors import (
    BlobCorruptError,
    BlobMissingError,
    InfrastructureError,
    InputError,
    NotFoundError,
    RunFailedError,
)
from domain.events import Recorded
from projections.staging.attempts import Attempt, attempt_of
from projections.staging.clickhouse import FeatureValues
from projections.staging.comparison import Comparisons, difference
from projections.staging.projection import NAME, Delivery, StagingKey, apply, key_of
from projections.statements import statements
from services.audit.audit import Snapshot
from services.audit.findings import AuditedModel, FindingKind, Findings
from services.audit.streams import Part
from services.ports import BlobStore

_VISIBLE: Final = statements("projections.staging", "staging.sql")["visible"]
_ALL: Final = {"limit": 2**62, "run_id": None, "output": None, "instrument": None, "principal": None}


class StagingCheck:
    """`services.audit.audit.FurtherCheck` of staging. `still_visible` asks the database as it is now."""

    name = NAME

    def __init__(
        self, part: Part, values: FeatureValues, blobs: BlobStore, still_visible: Callable[[Sequence[UUID]], bool]
    ) -> None:
        self._part = part
        self._values = values
        self._blobs = blobs
        self._still_visible = still_visible
        self._expected: dict[StagingKey, Delivery] = {}
        self._audited = AuditedModel(name=NAME, position=0, rows_expected=0, rows_served=0)

    def event(self, recorded: Recorded) -> None:
        """The next event of the log."""
        key = key_of(recorded.event)
        if key is not None and self._part.has(key[0]) and key not in self._expected:
            self._expected[key] = apply(None, recorded)

    def check(self, snapshot: Snapshot, findings: Findings, alive: Callable[[], None]) -> None:
        """Compare attempts and rows, as of the position that staging has reached."""
        position = snapshot.positions().get(NAME)
        if position is None:
            return  # nobody has ever staged
        expected = {key: delivery for key, delivery in self._expected.items() if delivery.position <= position}
        skipped = snapshot.skips().get(NAME, frozenset())
        wanted, served = sum(delivery.position not in skipped for delivery in expected.values()), 0
        comparisons = Comparisons(self._values)
        for attempt in (attempt_of(row) for page in snapshot.pages(_VISIBLE, _ALL) for row in page):
            if self._part.has(attempt.run_id):
                alive()
                served += 1
                self._add(attempt, expected.pop(attempt.key, None), comparisons, findings)
                if comparisons.is_full:
                    self._compare(comparisons, findings)
        self._compare(comparisons, findings)
        for (run_id, output), delivery in expected.items():
            if delivery.position in skipped:
                continue
            findings.add(FindingKind.ROW_MISSING, f"{NAME} {run_id} {output}", f"{delivery.rows} rows staged", "none")
        self._audited = AuditedModel(name=NAME, position=position, rows_expected=wanted, rows_served=served)
        self._expected.clear()

    def audited(self) -> AuditedModel:
        """How many outputs were to be staged, and how many are."""
        return self._audited

    def _add(self, attempt: Attempt, delivery: Delivery | None, comparisons: Comparisons, findings: Findings) -> None:
        """Compare an attempt with what was published; where those agree, its rows are to be compared."""
        subject = f"{NAME} {attempt.run_id} {attempt.output}"
        if delivery is None:
            findings.add(FindingKind.ROW_EXTRA, subject, "no such publication", f"an attempt at {attempt.artifact}")
        elif delivery != attempt.delivery:
            findings.add(FindingKind.ROW_DIFFERENT, subject, str(delivery), str(attempt.delivery))
        elif comparisons.takes(attempt):
            with suppress(BlobMissingError, BlobCorruptError):  # the look at the blobs names it
                comparisons.add(attempt, self._blobs.get(attempt.artifact))
        else:
            self._look(attempt, findings)

    def _compare(self, comparisons: Comparisons, findings: Findings) -> None:
        for attempt in comparisons.unequal():
            self._look(attempt, findings)

    def _look(self, attempt: Attempt, findings: Findings) -> None:
        """Name what is wrong with the rows of an attempt, if something is."""
        kind, found = FindingKind.ROW_DIFFERENT, None
        try:
            found = difference(self._values, attempt, self._blobs.get(attempt.artifact))
        except (BlobMissingError, BlobCorruptError):
            return  # the look at the blobs names it
        except InfrastructureError:
            raise
        except (RunFailedError, InputError, NotFoundError) as error:
            kind, found = FindingKind.ROW_UNREADABLE, str(error)
        if found is not None and self._still_visible([attempt.attempt]):
            subject = f"{NAME} {attempt.run_id} {attempt.output}"
            findings.add(kind, subject, f"the rows of {attempt.artifact}", found)
