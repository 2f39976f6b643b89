"""Importing random tables: the same snapshot as made directly, whatever the format, the order and the size of runs."""

import csv
import gzip
import io
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.instants import format_instant, from_micros
from domain.market.records import MarketEvent, encode_event
from domain.market.snapshot import build_snapshot, encode_manifest
from services.adapters import spill, tabular
from services.import_options import ImportOptions
from services.snapshot_import import import_snapshot
from tests.support.market_strategies import ANY_VALUES, NAMES, events
from tests.support.memory_blobs import MemoryBlobs

COLUMNS = ("close", "Adj Close")


def as_csv(made: list[MarketEvent]) -> bytes:
    """A CSV with a header; null is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["event_id", "instrument", "event_time", "available_at", "revision", *COLUMNS])
    for event in made:
        times = [format_instant(from_micros(event.event_time)), format_instant(from_micros(event.available_at))]
        cells = ["" if event.values[name] is None else repr(event.values[name]) for name in COLUMNS]
        writer.writerow([event.event_id, event.instrument, *times, event.revision, *cells])
    return text.getvalue().encode("utf-8")


def as_json_lines(made: list[MarketEvent]) -> bytes:
    """One canonical line per event."""
    return b"".join(encode_event(event) + b"\n" for event in made)


def as_parquet(made: list[MarketEvent]) -> bytes:
    """Instants as timestamps, values as doubles with NaN for null."""
    table = pa.table(
        {
            "event_id": pa.array([event.event_id for event in made], type=pa.string()),
            "instrument": pa.array([event.instrument for event in made], type=pa.string()).dictionary_encode(),
            "event_time": pa.array([event.event_time for event in made], type=pa.timestamp("us", tz="UTC")),
            "available_at": pa.array(
                [event.available_at for event in made], type=pa.timestamp("us", tz="Europe/Madrid")
            ),
            "revision": pa.array([event.revision for event in made], type=pa.int16()),
            **{
                name: pa.array(
                    [math.nan if (x := event.values[name]) is None else x for event in made], type=pa.float64()
                )
                for name in COLUMNS
            },
        }
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


FORMATS = {
    "a.csv": as_csv,
    "a.csv.gz": lambda made: gzip.compress(as_csv(made)),
    "a.jsonl": as_json_lines,
    "a.jsonl.gz": lambda made: gzip.compress(as_json_lines(made)),
    "a.parquet": as_parquet,
}


@given(data=st.data())
@settings(max_examples=25)
def test_every_format_in_any_order_gives_the_snapshot_made_directly(data: st.DataObject) -> None:
    """Blob for blob, manifest included; with runs of a few rows, merged in several passes, too."""
    instruments = data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    made = data.draw(
        events(instruments=instruments, columns=COLUMNS, values=ANY_VALUES, revisions_max=2).filter(lambda them: them)
    )
    manifest, chunks = build_snapshot(made, name="s", attribution="nobody")
    shuffled = data.draw(st.permutations(made))
    run_bytes = data.draw(st.sampled_from([1, 500, spill.RUN_BYTES]))
    block_bytes = data.draw(st.sampled_from([2000, tabular.BLOCK_BYTES]))
    for name, write in FORMATS.items():
        blobs = MemoryBlobs()
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            limits = {"run_bytes": run_bytes, "merge_bytes": 2000, "merge_runs_max": 3}
            patch.setattr(spill.SortedSpill.__init__, "__kwdefaults__", limits)
            patch.setattr(tabular, "BLOCK_BYTES", block_bytes)
            path = Path(folder) / name
            path.write_bytes(write(shuffled))
            options = ImportOptions(name="s", attribution="nobody")
            address = import_snapshot(path, blobs, options, temporary=Path(folder))
            assert [left.name for left in Path(folder).iterdir()] == [name]
        assert blobs.get(address) == encode_manifest(manifest), name
        assert list(blobs.blobs.values()) == [*chunks, encode_manifest(manifest)]


NUMBERS = st.sampled_from(
    [
        "1",
        "1.0",
        "-0",
        "+1.5",
        ".5",
        "5.",
        "1e3",
        "9007199254740993",
        "1e400",
        "-1e400",
        "NaN",
        "nan",
        "inf",
        "-Infinity",
        "",
        "null",
    ]
) | st.floats().map(repr)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_cells_of_a_csv_mean_what_python_reads(cells: list[str]) -> None:
    """A decimal number is its nearest binary64; NaN, infinities, overflow and empty cells are null."""
    rows = "".join(f"A,2026-01-05T09:00:{index:02}Z,{cell}\n" for index, cell in enumerate(cells))
    blobs = MemoryBlobs()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text("instrument,event_time,close\n" + rows)
        import_snapshot(path, blobs, ImportOptions(name="s"))
    found: list[Any] = [json.loads(line)["close"] for line in next(iter(blobs.blobs.values())).splitlines()]
    expected = [float(cell) if cell not in ("", "null") else math.nan for cell in cells]
    assert list(map(repr, found)) == [repr(x + 0.0) if math.isfinite(x) else "None" for x in expected]
