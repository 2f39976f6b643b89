"""Downloads of staged values: Arrow's stream format, and CSV, written page by page.

What must stay true: both hold the columns `event_time` (UTC, microseconds), `event_id`, `run_id`, `output`, `instrument` and
`value` (binary64, null where there is none), in clock order; no more than one page is in memory. Nothing is written to disk.
"""

from io import BytesIO
from typing import Any

import pyarrow as pa

from domain.errors import InputError
from domain.market.text_columns import float_texts, instant_texts, join_rows, texts_of
from projections.staging.clickhouse import StagedColumns
from services.staging import MEDIA_TYPES, Tables

_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us", "UTC")),
        ("event_id", pa.string()),
        ("run_id", pa.string()),
        ("output", pa.string()),
        ("instrument", pa.string()),
        ("value", pa.float64()),
    ]
)


def staged_tables(form: str) -> Tables:
    """What writes a form of `MEDIA_TYPES`. Raises `InputError` for another."""
    if form == "arrow":
        return _Arrow()
    if form == "csv":
        return _Csv()
    raise InputError(f"no format {form[:40]!r}", at="format", expected=", ".join(MEDIA_TYPES))


class _Arrow:
    """An Arrow stream: the schema first, a record batch for each page."""

    def __init__(self) -> None:
        self._sink = BytesIO()
        self._writer: Any = pa.ipc.new_stream(self._sink, _SCHEMA)

    def head(self) -> bytes:
        return self._taken()

    def page(self, columns: StagedColumns) -> bytes:
        self._writer.write_table(columns.table.cast(_SCHEMA))
        return self._taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


class _Csv:
    """RFC 4180 with a header; texts are always quoted, since they may hold anything printable; null is an empty cell."""

    def head(self) -> bytes:
        return ",".join(_SCHEMA.names).encode() + b"\r\n"

    def page(self, columns: StagedColumns) -> bytes:
        texts = [
            _quoted(one) for one in (columns.event_ids.strings(), columns.run_ids, columns.outputs, columns.instruments)
        ]
        before = [b',"', b'","', b'","', b'","']
        rows = join_rows(
            [
                (b"", instant_texts(columns.event_times)),
                *((fixed, texts_of(column)) for fixed, column in zip(before, texts, strict=True)),
                (b'",', float_texts(columns.values)),
            ],
            b"\r\n",
        )
        return rows.replace(b'",null\r\n', b'",\r\n')

    def end(self) -> bytes:
        return b""


def _quoted(strings: list[str]) -> list[str]:
    return [string.replace('"', '""') for string in strings]
