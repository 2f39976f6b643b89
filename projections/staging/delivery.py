"""Staging deliveries: from artifacts in CAS to rows in ClickHouse, each output under a fresh attempt.

What must stay true: an attempt is made known before its first row is inserted, and is handed back only once ClickHouse holds
exactly the rows that were published; rows leave in inserts of bounded size, small outputs together, big ones in slices. While one
insert is on its way the next slice is read. A crash anywhere leaves attempts that nobody records, whose rows nobody sees.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Final
from uuid import uuid4

import msgspec

from domain.errors import BlobCorruptError, BlobMissingError, NotFoundError
from domain.market.batch_columns import OutputColumns, output_columns, output_schema
from domain.market.errors import SnapshotInvalidError
from projections.runner import Point, nowhere
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import FeatureValues, StagedSlice
from projections.staging.errors import ArtifactUnusableError, StagingUnavailableError
from projections.staging.points import INSERT_AFTER, INSERT_BEFORE
from projections.staging.projection import Delivery

INSERT_ROWS_MAX: Final = 131_072
"""Rows of one insert; beside the artifact, two of them are in memory."""

INSERT_SLICES_MAX: Final = 1000
"""Outputs, or slices of outputs, in one insert."""

GetBlob = Callable[[str], bytes]
"""The verified bytes of an address; raises `BlobMissingError`, `BlobCorruptError`, or an infrastructure error."""

Begin = Callable[[Sequence[Attempt]], None]
"""Makes attempts known. Of which instrument they are is not known yet."""


def nobody() -> None:
    """Nobody waits for a sign of life."""


class Stager:
    """Stages deliveries. Not shared between threads."""

    def __init__(self, values: FeatureValues, get_blob: GetBlob, point: Point = nowhere) -> None:
        self.values = values
        self._get_blob = get_blob
        self._point = point

    def stage(
        self, deliveries: Iterable[Delivery], generation: int, begin: Begin, beat: Callable[[], None] = nobody
    ) -> list[Attempt]:
        """Insert the rows of these outputs, and return the attempts that hold them, for somebody to record.

        `beat` is called between inserts, and may raise to leave. Raises `ArtifactUnusableError` for what cannot be staged,
        `StagingUnavailableError`, and what `begin` and the blob store raise; then some rows may be there, which nobody sees.
        """
        wanted = sorted(deliveries, key=lambda delivery: (delivery.artifact, delivery.position))
        begun = [_fresh(delivery, generation) for delivery in wanted]
        begin(begun)
        staged: list[Attempt] = []
        with ThreadPoolExecutor(1, "finaz-staging-insert") as thread:
            inserting: Future[None] | None = None
            for slices in grouped(self._slices(begun, staged)):
                beat()
                if inserting is not None:
                    inserting.result()
                inserting = thread.submit(self._insert, slices)
            if inserting is not None:
                inserting.result()
        beat()
        self._check_counts(staged)
        return staged

    def slices(self, attempt: Attempt, data: bytes) -> Iterator[OutputColumns]:
        """The rows of an artifact that an attempt is to stage, in slices."""
        return output_columns(data, attempt.output, INSERT_ROWS_MAX)

    def artifact(self, address: str, at: str) -> bytes:
        """The bytes of an artifact. Raises `ArtifactUnusableError` where there are none."""
        try:
            return self._get_blob(address)
        except (BlobMissingError, BlobCorruptError) as error:
            raise _unusable(error, at) from error

    def _insert(self, slices: Sequence[StagedSlice]) -> None:
        self._point(INSERT_BEFORE)
        self.values.insert(slices)
        self._point(INSERT_AFTER)

    def _slices(self, begun: Sequence[Attempt], staged: list[Attempt]) -> Iterator[StagedSlice]:
        """Every row to be inserted, artifact by artifact; `staged` gets each attempt with its instrument."""
        for address, group in groupby(begun, key=lambda attempt: attempt.artifact):
            attempts = list(group)
            data = self.artifact(address, attempts[0].run_id)
            for attempt in attempts:
                try:
                    instrument = output_schema(data, attempt.output).instrument
                    yield from self._of_output(msgspec.structs.replace(attempt, instrument=instrument), data)
                except (SnapshotInvalidError, NotFoundError) as error:
                    raise _unusable(error, attempt.run_id) from error
                staged.append(msgspec.structs.replace(attempt, instrument=instrument))

    def _of_output(self, attempt: Attempt, data: bytes) -> Iterator[StagedSlice]:
        rows = 0
        for columns in self.slices(attempt, data):
            rows += len(columns)
            yield StagedSlice(
                attempt.attempt, attempt.generation, attempt.run_id, attempt.output, attempt.instrument, columns
            )
        if rows != attempt.rows:
            raise ArtifactUnusableError(
                f"the artifact has {rows} rows of output {attempt.output!r}",
                at=attempt.run_id,
                expected=str(attempt.rows),
            )

    def _check_counts(self, staged: Sequence[Attempt]) -> None:
        """An insert that was repeated on its way, or lost, must not be recorded."""
        wanted = {attempt.attempt: attempt.rows for attempt in staged if attempt.rows}
        found = self.values.counts(list(wanted)) if wanted else {}
        if found != wanted:
            raise StagingUnavailableError(
                "ClickHouse holds other rows than were inserted", at="feature_values", expected="each row once"
            )


def _fresh(delivery: Delivery, generation: int) -> Attempt:
    return Attempt(
        attempt=uuid4(),
        generation=generation,
        run_id=delivery.run_id,
        output=delivery.output,
        instrument="",
        artifact=delivery.artifact,
        rows=delivery.rows,
        position=delivery.position,
    )


def _unusable(error: Exception, at: str) -> ArtifactUnusableError:
    return ArtifactUnusableError(f"it cannot be staged: {error}", at=at, expected="the artifact that was published")


def grouped(slices: Iterable[StagedSlice]) -> Iterator[list[StagedSlice]]:
    """The slices in groups, one for each insert: at most `INSERT_ROWS_MAX` rows (or one slice) and `INSERT_SLICES_MAX` slices."""
    group: list[StagedSlice] = []
    rows = 0
    for one in slices:
        if group and (rows + len(one.columns) > INSERT_ROWS_MAX or len(group) == INSERT_SLICES_MAX):
            yield group
            group, rows = [], 0
        group.append(one)
        rows += len(one.columns)
    if group:
        yield group
