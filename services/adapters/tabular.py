"""Tables in files: CSV (plain or gz), Parquet and JSON Lines, read in batches with pyarrow.

What must stay true: rows come in the file's order, each batch with the number of its first row; memory is a few blocks, whatever
the file's size; a file that ends too early, is not UTF-8, or has a row of another width is refused with the row, never read in part
as if it were whole. Nothing is written here.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from domain.market.errors import ImportInvalidError
from services.adapters.json_lines import read_json_lines
from services.import_options import ImportOptions

BLOCK_BYTES: Final = 512 * 1024
"""Bytes of text read at a time; no row may be longer."""

PARQUET_ROWS: Final = 65_536
"""Rows of a Parquet file read at a time."""

Kind = Literal["csv", "parquet", "jsonl"]

_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
_CELL: Final = re.compile(r"In CSV column #(\d+): Row #(\d+): .*invalid UTF8")


@dataclass(frozen=True)
class RawBatch:
    """Some rows as a source of that kind has them: the number of the first, and its columns. `done` bytes have been read."""

    kind: Kind
    first_row: int
    table: pa.RecordBatch
    done: int


@contextmanager
def open_table(path: Path, options: ImportOptions) -> Iterator[Iterator[RawBatch]]:
    """The file's batches, as long as the context is open.

    Raises `ImportInvalidError` for a file that cannot be opened, is of no known format, or (while iterating) is broken.
    """
    with _File(path) as file:
        yield _in_our_words(_batches(file, options), path)


class _File:
    """A file that is read from its start, perhaps more than once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw: Any = None
        self.head = b""
        self.size = 0

    def __enter__(self) -> "_File":
        self.head = self.open().read(4)
        self.size = self._raw.size()
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def open(self) -> Any:
        """Its bytes from the start, as they are."""
        if self._raw is not None:
            self._raw.close()
        try:
            self._raw = pa.OSFile(str(self.path))
        except OSError as error:
            detail = str(error).splitlines()[0][:300]
            raise ImportInvalidError(detail, at=self.path.name, expected="a file that can be read") from None
        return self._raw

    def plain(self) -> Any:
        """Its bytes from the start, unpacked if they are gz."""
        raw = self.open()
        return pa.CompressedInputStream(raw, "gzip") if self.head[:2] == _GZIP else raw

    def done(self) -> int:
        """How many of its bytes have been read."""
        return self.size if self._raw.closed else int(self._raw.tell())


def format_of(path: Path, head: bytes, options: ImportOptions) -> Kind:
    """`csv`, `parquet` or `jsonl`: as told, or by the first bytes and the name."""
    if options.format != "auto":
        return options.format
    name = path.name.lower().removesuffix(".gz")
    if head == _PARQUET:
        return "parquet"
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    if name.endswith((".csv", ".txt", ".tsv")):
        return "csv"
    raise ImportInvalidError("the format cannot be told from the name", at=path.name, expected="a format to be given")


def _batches(file: _File, options: ImportOptions) -> Iterator[RawBatch]:
    kind = format_of(file.path, file.head, options)
    if kind == "parquet":
        yield from _read_parquet(file)
    elif kind == "csv":
        yield from _read_csv(file, options)
    else:
        for first, table in read_json_lines(file.plain(), BLOCK_BYTES, options):
            yield RawBatch("jsonl", first, table, file.done())


def _in_our_words(batches: Iterator[RawBatch], path: Path) -> Iterator[RawBatch]:
    """The same batches; the readers' own errors become ours."""
    try:
        yield from batches
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = (str(error) or type(error).__name__).splitlines()[0][:300]
        if "Truncated compressed stream" in detail:
            detail = "the gz ends too early"
        raise ImportInvalidError(detail, at=path.name, expected="a whole and well-formed file") from None


def _read_csv(file: _File, options: ImportOptions) -> Iterator[RawBatch]:
    """All cells as text: what they mean is decided later, by one rule. The header is row 1."""
    wrong: list[Any] = []
    names: list[str] = []

    def set_aside(row: Any) -> str:
        wrong.append(row)
        return "error"

    parsing = arrow_csv.ParseOptions(
        delimiter=options.delimiter, newlines_in_values=True, invalid_row_handler=set_aside
    )
    reading = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    first = 2
    try:
        with arrow_csv.open_csv(file.plain(), reading, parsing) as reader:
            names = reader.schema.names
        _check_header(names)
        text = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
        with arrow_csv.open_csv(file.plain(), reading, parsing, text) as reader:
            for batch in reader:
                yield RawBatch("csv", first, batch, file.done())
                first += batch.num_rows
    except pa.ArrowInvalid as error:
        if wrong:
            row = wrong[0]
            expected = f"{row.expected_columns}, as in the header"
            raise ImportInvalidError(f"{row.actual_columns} cells", at=f"row {row.number}", expected=expected) from None
        cell = _CELL.match(str(error))
        if cell is None:
            raise
        column, number = names[int(cell[1])], cell[2]
        raise ImportInvalidError("not UTF-8", at=f"row {number}, column {column}", expected="UTF-8 text") from None


def _check_header(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ImportInvalidError("two columns of one name", at=f"row 1, column {name}", expected="each name once")


def _read_parquet(file: _File) -> Iterator[RawBatch]:
    with parquet.ParquetFile(file.open()) as table:
        _check_header(table.schema_arrow.names)
        first, total = 1, max(table.metadata.num_rows, 1)
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, use_threads=False):
            yield RawBatch("parquet", first, batch, file.size * (first + batch.num_rows - 1) // total)
            first += batch.num_rows
