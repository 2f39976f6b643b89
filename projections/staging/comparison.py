"""Comparing staged rows with the artifact that they were made from, row by row, in bounded memory.

What must stay true: equal means that every row is there once, with its instant, its id and its value to the bit, NULL where the
artifact has null, under the right run, output and instrument, and that there is no further row. Nothing is written.
"""

from domain.market.batch_columns import SLICE_ROWS, OutputColumns, first_difference, output_columns, output_schema
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import START, FeatureValues, StagedColumns


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
    (event_id,) = columns.event_ids.rows(slice(at, at + 1)).strings()
    return f"({int(columns.event_times[at])} us, {event_id!r}, {float(columns.values[at])!r})"
