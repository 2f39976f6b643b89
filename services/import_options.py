"""What an import of market events is told: where the fields are, and what their texts mean.

A source is a table: CSV (plain or gz), Parquet or JSON Lines. Its columns are named by the source; the options say which of them
is what. Rows are counted as a person would find them: in CSV the header is row 1; in Parquet and JSON Lines the first is row 1.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

DELAY_MILLIS_MAX: Final = 366 * 86_400_000
"""Milliseconds that an event may be declared to become available after its time."""

UNITS: Final[Mapping[str, int]] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
"""Nanoseconds of one step of an integer time, by unit."""

Format = Literal["auto", "csv", "parquet", "jsonl"]


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read one file.

    `name` and `attribution` go into the manifest. `instrument`, `event_time`, `event_id`, `available_at`, `revision` name source
    columns; None means the column of the field's own name, if the source has one. Without one, `instrument_constant` is every
    row's instrument, `event_id` is made from instrument and time (`AAPL@2000-03-01T00:00:00Z`), `available_at` is the event's
    time plus `delay_millis`, and `revision` is 0; `event_time` must be there. `values` maps value columns to source columns;
    None takes every column left over, under its own name.

    `zone` is the IANA zone of times that have none (dates are midnights); without it such times are refused. `time_unit` is the
    unit of integer times, counted from the epoch. `missing` are the cells of a CSV that mean null, besides NaN and infinities.
    """

    name: str
    attribution: str = ""
    format: Format = "auto"
    instrument: str | None = None
    instrument_constant: str | None = None
    event_time: str | None = None
    event_id: str | None = None
    available_at: str | None = None
    revision: str | None = None
    values: dict[str, str] | None = None
    delay_millis: int = 0
    zone: str | None = None
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    delimiter: str = ","
    missing: tuple[str, ...] = ("", "null")


class ImportProgress(msgspec.Struct, frozen=True):
    """How far an import is: `reading` counts bytes of the file, `writing` counts events. `rows` are those read or written."""

    stage: Literal["reading", "writing"]
    rows: int
    done: int
    total: int


Progress = Callable[[ImportProgress], None]
