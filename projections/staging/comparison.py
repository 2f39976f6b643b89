"""Comparing staged rows with the artifact that they were made from, row by row, in bounded memory.

What must stay true: equal means that every row is there once, with its instant, its id and its value to the bit, NULL where the
artifact has null, under the right run, output and instrument, and that there is no further row. Nothing is written.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from domain.errors import NotFoundError
from domain.market.batch_columns import SLICE_ROWS, OutputColumns, first_difference, output_columns, output_schema
from domain.market.errors import SnapshotInvalidError
from projections.staging.arrow import NO_ROWS
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import START, FeatureValues, StagedColumns

TOGETHER_ATTEMPTS_MAX: Final = 500
"""Attempts that are compared together."""

TOGETHER_ROWS_MAX: Final = SLICE_ROWS
"""Rows of attempts after which no more are taken together; one that has more is compared alone, slice by slice."""

TOGETHER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of artifacts after which no more are taken together."""


def difference(values: FeatureValues, attempt: Attempt, data: bytes, slice_rows: int = SLICE_ROWS) -> str | None:
    """What is wrong with the rows of an attempt, in a sentence; None if they are those of the artifact's bytes.

    Raises `StagingUnavailableError`, and `SnapshotInvalidError` or `NotFoundError` for bytes that hold no such output.
    """
    instrument = output_schema(data, attempt.output).instrument
    if attempt.instrument != instrument:
        return f"staged as instrument {attempt.instrument!r} instead of {instrument!r}"
    foreign = values.foreign_rows(attempt.attempt, attempt.run_id, attempt.output, instrument, attempt.generation)
    if foreign:
        return f"{foreign} rows say another run, output, instrument or generation"
    row, place = 0, START
    for columns in output_columns(data, attempt.output, slice_rows):
        page = values.page([attempt.attempt], attempt.generation, place, len(columns))
        found = _difference(columns, page)
        if found is not None:
            at, sentence = found
            return f"row {row + at}: {sentence}"
        row, place = row + len(columns), page.last
    further = values.counts([attempt.attempt]).get(attempt.attempt, 0) - row
    return f"{further} rows more than the artifact has" if further else None


class Comparisons:
    """Attempts that are compared together, while there is room: two statements for all of them, instead of three for each."""

    def __init__(self, values: FeatureValues) -> None:
        self._values = values
        self._held: list[tuple[Attempt, OutputColumns | None]] = []
        self._rows = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether they should be compared before another is added."""
        return (
            len(self._held) >= TOGETHER_ATTEMPTS_MAX
            or self._rows >= TOGETHER_ROWS_MAX
            or self._bytes >= TOGETHER_BYTES_MAX
        )

    def takes(self, attempt: Attempt) -> bool:
        """Whether its rows are few enough; else `difference` is for it, alone."""
        return attempt.rows <= TOGETHER_ROWS_MAX

    def add(self, attempt: Attempt, data: bytes) -> None:
        """Have the rows of an attempt compared with those in an artifact's bytes."""
        columns = _small(attempt, data)
        if columns is not None:
            self._rows += len(columns)
            self._bytes += len(data)
        self._held.append((attempt, columns))

    def unequal(self) -> list[Attempt]:
        """Those whose rows are not known to be the artifacts': `difference` says of each what is wrong, if something is."""
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        small = [(attempt, columns) for attempt, columns in held if columns is not None]
        labels = self._values.labels([attempt.attempt for attempt, _ in small]) if small else {}
        fit = [
            (attempt, columns)
            for attempt, columns in small
            if labels.get(attempt.attempt, (0, [])) == (len(columns), [_label(attempt)][: len(columns)])
        ]
        equal = {attempt.attempt for attempt in self._equal(fit)}
        return [attempt for attempt, _ in held if attempt.attempt not in equal]

    def _equal(self, fit: Sequence[tuple[Attempt, OutputColumns]]) -> Iterator[Attempt]:
        """Those whose rows are the same; of each the number is right."""
        total = sum(len(columns) for _, columns in fit)
        if total:
            rows, not_numbers = self._values.rows_of([attempt.attempt for attempt, _ in fit], total + 1)
            if not_numbers or len(rows) != total:
                return
        start = 0
        for attempt, columns in fit:
            part = slice(start, start + len(columns))
            start = part.stop
            if not len(columns) or _same(columns, rows, part):
                yield attempt


def _small(attempt: Attempt, data: bytes) -> OutputColumns | None:
    """The rows of an attempt in an artifact, if they are few, can be read, and are of the attempt's instrument."""
    try:
        if output_schema(data, attempt.output).instrument != attempt.instrument:
            return None
        slices = list(output_columns(data, attempt.output, TOGETHER_ROWS_MAX))
    except (SnapshotInvalidError, NotFoundError):
        return None
    if not slices:
        return NO_ROWS
    return slices[0] if len(slices) == 1 else None


def _same(columns: OutputColumns, rows: OutputColumns, part: slice) -> bool:
    there = (rows.event_times[part], rows.event_ids.rows(part), rows.values[part])
    return first_difference(columns, *there) is None


def _label(attempt: Attempt) -> tuple[str, str, str, int]:
    return (attempt.run_id, attempt.output, attempt.instrument, attempt.generation)


def _difference(columns: OutputColumns, page: StagedColumns) -> tuple[int, str] | None:
    """The first row of a slice that differs, and how."""
    at = first_difference(columns, page.event_times, page.event_ids, page.values)
    if at is not None:
        return at, f"{_row(page, at)} instead of {_row(columns, at)}"
    if page.not_numbers:
        return 0, f"{page.not_numbers} values from here on are NaN instead of null"
    return None


def _row(columns: OutputColumns | StagedColumns, at: int) -> str:
    if at >= len(columns):
        return "no row"
    (event_id,) = columns.event_ids.rows(slice(at, at + 1)).strings("backslashreplace")
    return f"({int(columns.event_times[at])} us, {event_id!r}, {float(columns.values[at])!r})"
