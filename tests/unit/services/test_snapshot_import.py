"""Importing files: mapping, zones, derived fields, and everything that is refused, with its row and column."""

import decimal
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from deployment.fixture_files import fixture_path
from domain.errors import BlobCorruptError, BlobMissingError, FinazError, InfrastructureError, NameInvalidError
from domain.market.errors import ImportInvalidError, SnapshotInvalidError
from domain.market.flow import parse_flow
from domain.market.pipeline import execute
from domain.market.snapshot import Manifest, parse_manifest
from services.adapters import sorted_events, spill, tabular, tabular_cells
from services.adapters.sorted_events import chunk_rows
from services.cas import DirectoryBlobStore
from services.import_options import ImportOptions, ImportProgress
from services.snapshot_import import import_snapshot
from tests.support.market_strategies import flow
from tests.support.memory_blobs import MemoryBlobs

LATER = 2**60


class Importer:
    """Imports texts as files; remembers what was stored last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.blobs = MemoryBlobs()

    def __call__(self, content: str | bytes, name: str = "a.csv", **options: Any) -> Manifest:
        path = self.folder / name
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return self.file(path, **options)

    def file(self, path: Path, **options: Any) -> Manifest:
        """Import an existing file."""
        self.blobs = MemoryBlobs()
        address = import_snapshot(path, self.blobs, ImportOptions(**{"name": "s", **options}), temporary=self.temporary)
        assert list(self.temporary.iterdir()) == []
        return parse_manifest(self.blobs.get(address))

    def table(self, columns: dict[str, Any], **options: Any) -> Manifest:
        """Import a Parquet file of those columns."""
        path = self.folder / "a.parquet"
        parquet.write_table(pa.table(columns), path)
        return self.file(path, **options)

    def rows(self) -> list[dict[str, Any]]:
        """All events stored."""
        chunks = list(self.blobs.blobs.values())[:-1]
        return [json.loads(line) for chunk in chunks for line in chunk.splitlines()]

    def refuses(self, content: str | bytes, at: str, name: str = "a.csv", **options: Any) -> ImportInvalidError:
        """The import is refused at that place; no manifest was stored and no temporary file is left."""
        with pytest.raises(ImportInvalidError) as caught:
            self(content, name, **options)
        assert caught.value.at == at, str(caught.value)
        assert not any(b"FINAZ_SNAPSHOT_V1" in blob for blob in self.blobs.blobs.values())
        assert list(self.temporary.iterdir()) == []
        return caught.value


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    """An importer with folders of its own."""
    return Importer(tmp_path)


HEADER = "instrument,event_time,close\n"
GOOD = HEADER + "A,2026-01-05T09:00:00Z,1.5\n"


def test_the_real_file_is_imported_by_mapping_its_columns(importer: Importer) -> None:
    """The five tickers: naive dates in a declared zone, renamed columns, ids made from instrument and date."""
    manifest = importer.file(
        fixture_path("real/stocks.csv.gz"),
        instrument="Ticker",
        event_time="Date",
        values={"close": "Close", "adj_close": "Adj Close", "volume": "Volume"},
        zone="UTC",
        delay_millis=86_400_000,
        attribution="bokeh_sampledata 2026.1",
    )
    assert manifest.rows == 12_154
    assert manifest.instruments == ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    assert manifest.columns == ("adj_close", "close", "volume")
    assert importer.rows()[0] == {
        "adj_close": 4.186662803811,
        "available_at": "2000-03-02T00:00:00Z",
        "close": 130.31,
        "event_id": "AAPL@2000-03-01T00:00:00Z",
        "event_time": "2000-03-01T00:00:00Z",
        "instrument": "AAPL",
        "revision": 0,
        "volume": 9616100.0,
    }


def test_the_fixture_snapshot_imports_to_itself(importer: Importer) -> None:
    """The readable form is the chunk: importing it gives the stored manifest."""
    stored = parse_manifest(fixture_path("snapshots/fixture.snapshot.01.manifest.json").read_bytes())
    path = fixture_path("snapshots/fixture.snapshot.01.jsonl")
    assert importer.file(path, name=stored.name, attribution=stored.attribution) == stored


@pytest.mark.parametrize(
    ("cell", "zone", "instant"),
    [
        ("2026-01-05", "UTC", "2026-01-05T00:00:00Z"),
        ("2026-01-05", "Europe/Madrid", "2026-01-04T23:00:00Z"),
        ("2026-07-05 09:30", "Europe/Madrid", "2026-07-05T07:30:00Z"),
        ("2026-01-05T09:00:00.5", "America/New_York", "2026-01-05T14:00:00.5Z"),
        ("2026-01-05T09:00:00+02:00", None, "2026-01-05T07:00:00Z"),
        ("2026-01-05T09:00:00+02:00", "America/New_York", "2026-01-05T07:00:00Z"),
    ],
)
def test_times_are_read_in_their_zone(importer: Importer, cell: str, zone: str | None, instant: str) -> None:
    """A cell's own zone goes before the declared one."""
    importer(HEADER + f"A,{cell},1\n", zone=zone)
    assert importer.rows()[0]["event_time"] == instant


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_integer_times_have_a_declared_unit(importer: Importer, unit: str) -> None:
    """Also nanoseconds beyond 2^53, exactly; in CSV, JSON Lines and Parquet."""
    steps = 1_767_603_600 * {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit] + (123_000 if unit == "ns" else 0)
    importer(HEADER + f"A,{steps},1\n", time_unit=unit)
    expected = importer.rows()
    assert expected[0]["event_time"] == "2026-01-05T09:00:00" + (".000123Z" if unit == "ns" else "Z")
    importer(f'{{"instrument":"A","event_time":{steps},"close":1}}\n', "a.jsonl", time_unit=unit)
    assert importer.rows() == expected
    importer.table({"instrument": ["A"], "event_time": [steps], "close": [1]}, time_unit=unit)
    assert importer.rows() == expected


def test_fields_that_a_source_lacks_are_made_up_as_declared(importer: Importer) -> None:
    """A constant instrument, a delay, revision 0, an id from instrument and time."""
    importer("time,close\n2026-01-05T09:00:00Z,1\n", event_time="time", instrument_constant="X", delay_millis=250)
    assert importer.rows() == [
        {
            "available_at": "2026-01-05T09:00:00.25Z",
            "close": 1.0,
            "event_id": "X@2026-01-05T09:00:00Z",
            "event_time": "2026-01-05T09:00:00Z",
            "instrument": "X",
            "revision": 0,
        }
    ]


@pytest.mark.parametrize(
    ("content", "at"),
    [
        (GOOD + "A,2026-01-05T09:01:00Z,abc\n", "row 3, column close"),
        (GOOD + "A,2026-01-05T09:01:00Z,true\n", "row 3, column close"),
        (GOOD + "A,2026-01-05T09:01:00Z,1_000\n", "row 3, column close"),
        (GOOD + "A,2026-01-05T09:01:00Z,0x10\n", "row 3, column close"),
        (GOOD + 'A,2026-01-05T09:01:00Z,"1,5"\n', "row 3, column close"),
        (GOOD + "A,2026-01-05T09:01:00Z,٣\n", "row 3, column close"),
        (GOOD + "A,2026-13-05T09:01:00Z,1\n", "row 3, column event_time"),
        (GOOD + "A,yesterday,1\n", "row 3, column event_time"),
        (GOOD + "A,,1\n", "row 3, column event_time"),
        (GOOD + "A,2026-01-05T09:01:00,1\n", "row 3, column event_time"),
        (GOOD + "A,2026-01-05,1\n", "row 3, column event_time"),
        (GOOD + "A,1767603600,1\n", "row 3, column event_time"),
        (GOOD + "A,2026-01-05T09:00:00.0000001Z,1\n", "row 3, column event_time"),
        (GOOD + ",2026-01-05T09:01:00Z,1\n", "row 3, column instrument"),
        (GOOD + "cafe\u0301,2026-01-05T09:01:00Z,1\n", "row 3, column instrument"),
        (GOOD + "A\x01,2026-01-05T09:01:00Z,1\n", "row 3, column instrument"),
        (GOOD + "a" * 256 + ",2026-01-05T09:01:00Z,1\n", "row 3, column instrument"),
        (GOOD + "A,x,x\nA,2026-01-05T09:01:00Z,y\n", "row 3, column event_time"),
        (GOOD + "A,2026-01-05T09:01:00Z,y\nA,x,1\n", "row 3, column close"),
        (GOOD + "A,2026-01-05T09:01:00Z\n", "row 3"),
        (GOOD + "A,2026-01-05T09:01:00Z,1,2\n", "row 3"),
        (GOOD + "A,2026-01-05T09:00:00Z,1.5\n", "row 3, column event_id"),
        (HEADER, "a.csv"),
        ("", "a.csv"),
        ("instrument,close\nA,1\n", "the header"),
        ("event_time,close\n2026-01-05T09:00:00Z,1\n", "the header"),
        ("instrument,event_time,close,close\n", "row 1, column close"),
        (GOOD.encode() + b"A\xff,2026-01-05T09:01:00Z,1\n", "row 3, column instrument"),
        (GOOD + 'A,"2026-01-05T09:01:00Z,1\n', "row 3"),
        (GOOD + 'A,2026-01-05T09:01:00Z,"1\n', "row 3, column close"),
    ],
)
def test_the_first_bad_cell_is_named(importer: Importer, content: str | bytes, at: str) -> None:
    """Row (the header is row 1) and column of the first bad cell, whatever is wrong; nothing visible written."""
    importer.refuses(content, at)


def test_the_row_is_right_far_into_the_file(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across many blocks of reading."""
    monkeypatch.setattr(tabular, "BLOCK_BYTES", 1000)
    rows = [f"A,2026-01-05T09:{index // 60:02}:{index % 60:02}Z,{index}\n" for index in range(3000)]
    rows[2500] = "A,2026-01-05T10:00:00Z,1.2.3\n"
    importer.refuses(HEADER + "".join(rows), "row 2502, column close")
    lines = [
        f'{{"instrument":"A","event_time":"2026-01-05T09:00:00.{index:06}Z","close":{index}}}\n'
        for index in range(3000)
    ]
    lines[2500] = lines[2500].replace('"close":', '"close":false,"x":')
    importer.refuses("".join(lines), "row 2501, column close", "a.jsonl")


LINE = '{"instrument":"A","event_time":"2026-01-05T09:00:00Z","close":1}\n'


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ('{"instrument":"A","event_time":"2026-01-05T09:01:00Z","close":"1"}', "row 2, column close"),
        ('{"instrument":"A","event_time":"2026-01-05T09:01:00Z","close":true}', "row 2, column close"),
        ('{"instrument":"A","event_time":"2026-01-05T09:01:00Z","close":[1]}', "row 2, column close"),
        ('{"instrument":"A","event_time":"2026-01-05T09:01:00Z","close":1,"close":2}', "row 2"),
        ('{"instrument":"A","event_time":"2026-01-05T09:01:00","close":1}', "row 2, column event_time"),
        ('{"instrument":"A","event_time":null,"close":1}', "row 2, column event_time"),
        ('{"instrument":"A","event_time":1.5,"close":1}', "row 2, column event_time"),
        ('{"instrument":7,"event_time":"2026-01-05T09:01:00Z","close":1}', "row 2, column instrument"),
        ('{"instrument":"A\\u0000","event_time":"2026-01-05T09:01:00Z","close":1}', "row 2, column instrument"),
        ('{"event_time":"2026-01-05T09:01:00Z","close":1}', "row 2, column instrument"),
        ('{"instrument":"A"', "row 2, column 18"),
        ("[]", "row 2"),
        ("", "row 2, column 1"),
    ],
)
def test_a_bad_line_is_named(importer: Importer, line: str, at: str) -> None:
    """JSON Lines: the line and the member."""
    importer.refuses(LINE + line + "\n" + LINE.replace("09:00", "10:00"), at, "a.jsonl")


def test_json_lines_may_be_ragged(importer: Importer) -> None:
    """A member that a line lacks is null there, also where it turns up first in a later block."""
    importer(LINE + LINE.replace("09:00", "09:01").replace("close", "open"), "a.jsonl")
    assert [(row["close"], row["open"]) for row in importer.rows()] == [(1.0, None), (None, 1.0)]


@pytest.mark.parametrize(
    ("raw", "value"),
    [("9007199254740993", 9007199254740992.0), ("NaN", None), ("1e400", None), ("-Infinity", None), ("9" * 500, None)],
)
def test_json_numbers_follow_the_one_rule(importer: Importer, raw: str, value: float | None) -> None:
    """Rounded once to binary64; not finite or too large is null."""
    importer(LINE.replace("1}", raw + "}"), "a.jsonl")
    assert importer.rows()[0]["close"] == value


@pytest.mark.parametrize(
    ("kind", "cells", "value"),
    [
        (pa.int64(), [9007199254740993], 9007199254740992.0),
        (pa.uint64(), [2**64 - 1], 18446744073709551616.0),
        (pa.float32(), [0.1], 0.10000000149011612),
        (pa.decimal128(20, 3), [decimal.Decimal("12345678901234567.891")], 12345678901234567.891),
        (pa.float64(), [float("inf")], None),
        (pa.float64(), [None], None),
        (pa.null(), [None], None),
        (pa.string(), [None], None),
    ],
)
def test_parquet_values_become_binary64_once(
    importer: Importer, kind: Any, cells: list[Any], value: float | None
) -> None:
    """Whatever the column's type, to the nearest binary64; missing is null."""
    importer.table({"instrument": ["A"], "event_time": ["2026-01-05T09:00:00Z"], "close": pa.array(cells, type=kind)})
    assert importer.rows()[0]["close"] == value


@pytest.mark.parametrize(
    ("columns", "at"),
    [
        ({"close": ["1.5", "2"]}, "row 1, column close"),
        ({"close": pa.array([None, True])}, "row 2, column close"),
        ({"event_time": pa.array([0, 1], type=pa.timestamp("s"))}, "row 1, column event_time"),
        ({"event_time": pa.array([0, 1], type=pa.timestamp("ns", tz="UTC"))}, "row 2, column event_time"),
        ({"event_time": pa.array([0, 2**62], type=pa.timestamp("ms", tz="UTC"))}, "row 2, column event_time"),
        ({"event_time": [1.5, 2.5]}, "row 1, column event_time"),
        ({"instrument": pa.array(["A", None])}, "row 2, column instrument"),
        ({"instrument": pa.array([1.5, 2.5])}, "row 1, column instrument"),
        ({"revision": pa.array([0, -1])}, "row 2, column revision"),
        ({"revision": pa.array([0.0, 1.0])}, "row 1, column revision"),
        ({"revision": pa.array([0, 2**63], type=pa.uint64())}, "row 2, column revision"),
    ],
)
def test_a_bad_parquet_cell_is_named(importer: Importer, columns: dict[str, Any], at: str) -> None:
    """Rows count from 1; types that cannot be what they should are refused at their first cell."""
    times = ["2026-01-05T09:00:00Z", "2026-01-05T09:01:00Z"]
    path = importer.folder / "bad.parquet"
    parquet.write_table(pa.table({"instrument": ["A", "A"], "event_time": times, "close": [1.0, 2.0], **columns}), path)
    importer.refuses(path.read_bytes(), at, "a.parquet")


def test_a_broken_parquet_file_is_refused(importer: Importer) -> None:
    """Cut short, or no Parquet at all."""
    path = importer.folder / "good.parquet"
    parquet.write_table(pa.table({"instrument": ["A"], "event_time": ["2026-01-05T09:00:00Z"], "close": [1.0]}), path)
    importer.refuses(path.read_bytes()[:-20], "a.parquet", "a.parquet")
    importer.refuses("no", "a.parquet", "a.parquet", format="parquet")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("lost", [1, 8, 100, 1000])
def test_a_truncated_gz_is_refused(importer: Importer, name: str, lost: int) -> None:
    """However little is missing, the file is not taken for whole."""
    if "csv" in name:
        text = HEADER + "".join(f"A,2026-01-05T09:00:00.{i:06}Z,{i * 7919 % 1000}\n" for i in range(5000))
    else:
        text = "".join(LINE.replace("00Z", f"00.{i:06}Z").replace(":1}", f":{i * 7919 % 1000}}}") for i in range(5000))
    whole = gzip.compress(text.encode())
    assert importer(whole, name).rows == 5000
    error = importer.refuses(whole[:-lost], name, name)
    assert "ends too early" in error.detail


def test_gz_is_known_by_its_bytes(importer: Importer) -> None:
    """Not by the name alone."""
    assert importer(gzip.compress(GOOD.encode()), "a.csv").rows == 1
    assert importer(GOOD, "a.csv.gz").rows == 1


def test_revisions_are_kept_and_contradictions_refused(importer: Importer) -> None:
    """One event in several revisions is fine; twice the same, or another instrument or time, is not."""
    header = "event_id,instrument,event_time,revision,close\n"
    first = "e1,A,2026-01-05T09:00:00Z,0,1\n"
    assert importer(header + "e1,A,2026-01-05T09:00:00Z,1,2\n" + first).rows == 2
    assert [row["revision"] for row in importer.rows()] == [0, 1]
    importer.refuses(header + first + first, "row 3, column event_id")
    importer.refuses(header + first + "e2,A,2026-01-05T09:00:00Z,0,1\n" + first, "row 4, column event_id")
    error = importer.refuses(header + first + "e1,B,2026-01-05T09:00:00Z,1,1\n", "row 3, column event_id")
    assert "row 2" in error.detail
    error = importer.refuses(header + first + "e1,A,2026-01-05T09:00:01Z,1,1\n", "row 3, column event_id")
    assert "row 2" in error.detail


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"zone": "../etc/passwd"}, "zone"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "::"}, "delimiter"),
        ({"delay_millis": -1}, "delay_millis"),
        ({"instrument": "Ticker"}, "the header"),
        ({"event_id": "id"}, "the header"),
        ({"values": {"open": "Open"}}, "the header"),
        ({"values": {"revision": "close"}}, "the header"),
    ],
)
def test_wrong_options_are_refused(importer: Importer, options: dict[str, Any], at: str) -> None:
    """Each with what was expected."""
    assert importer.refuses(GOOD, at, **options).expected


def test_names_in_options_are_names(importer: Importer) -> None:
    """NFC or refused; an attribution has a limit."""
    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    wrong: list[dict[str, Any]] = [
        {"name": "cafe\u0301"},
        {"name": ""},
        {"instrument_constant": "\x00"},
        {"values": {"": "close"}},
    ]
    for options in wrong:
        with pytest.raises(NameInvalidError):
            importer.file(path, **options)
    with pytest.raises(SnapshotInvalidError):
        importer(GOOD, attribution="x" * 20_000)


def test_an_hour_that_happens_twice_or_never_is_refused(importer: Importer) -> None:
    """In a zone with daylight saving, a naive reading may mean two instants, or none."""
    for reading in ("2026-10-25 02:30:00", "2026-03-29 02:30:00"):
        rows = GOOD + f"A,{reading},1\n"
        importer.refuses(rows, "row 3, column event_time", zone="Europe/Madrid")


def test_zones_do_not_depend_on_which_library_has_them(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arrow finds no zones, or has them wrong (after 2037), Python's give the instants: the same on every machine."""
    rows = "".join(
        f"A,{year}-{month:02}-15 12:00:00,1\n" for year in (1950, 1999, 2026, 2040) for month in range(1, 13)
    )
    expected = importer(HEADER + rows, zone="Europe/Madrid")
    assert [row["event_time"] for row in importer.rows()][-6] == "2040-07-15T10:00:00Z"

    def nowhere(*_: Any) -> Any:
        raise pa.ArrowInvalid("Cannot locate timezone")

    monkeypatch.setattr(tabular_cells.compute, "assume_timezone", nowhere)
    assert importer(HEADER + rows, zone="Europe/Madrid") == expected


def test_a_file_that_is_not_there_is_refused(importer: Importer) -> None:
    """Missing, a folder, or of a kind that cannot be told."""
    for path in (importer.folder / "nothing.csv", importer.folder):
        with pytest.raises(ImportInvalidError):
            importer.file(path)
    importer.refuses(GOOD, "a.dat", "a.dat")
    assert importer(GOOD, "b.dat", format="csv").rows == 1


def test_progress_tells_how_far_the_import_is(importer: Importer) -> None:
    """Reading counts the file's bytes to its end, writing the events."""
    told: list[ImportProgress] = []
    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    import_snapshot(path, MemoryBlobs(), ImportOptions(name="s"), told.append)
    assert [(one.stage, one.rows, one.done, one.total) for one in told] == [
        ("reading", 1, len(GOOD), len(GOOD)),
        ("writing", 1, 1, 1),
    ]


def test_a_watcher_may_end_the_import(importer: Importer) -> None:
    """What progress raises comes out; nothing visible was written, no temporary file is left."""

    class StoppedError(Exception):
        """Somebody pressed Ctrl-C."""

    def stop(progress: ImportProgress) -> None:
        if progress.stage == "writing":
            raise StoppedError

    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    with pytest.raises(StoppedError):
        import_snapshot(path, importer.blobs, ImportOptions(name="s"), stop, temporary=importer.temporary)
    assert list(importer.temporary.iterdir()) == []
    assert not any(b"FINAZ_SNAPSHOT_V1" in blob for blob in importer.blobs.blobs.values())


def test_a_store_that_fails_leaves_no_temporary_file(importer: Importer) -> None:
    """The fault comes out as it is."""

    class FullError(FinazError):
        """No space left."""

        code = "TEST_FULL"

    class FullStore(MemoryBlobs):
        def put(self, data: bytes) -> str:
            raise FullError("no space left")

    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    with pytest.raises(FullError):
        import_snapshot(path, FullStore(), ImportOptions(name="s"), temporary=importer.temporary)
    assert list(importer.temporary.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_written_is_a_fault_of_the_machine(
    importer: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing from the start, or gone half-way: typed, so that a caller may try again."""
    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    with pytest.raises(InfrastructureError):
        import_snapshot(path, importer.blobs, ImportOptions(name="s"), temporary=importer.folder / "nowhere")
    limits = {"run_bytes": 1, "merge_bytes": 3000, "merge_runs_max": 3}
    monkeypatch.setattr(spill.SortedSpill.__init__, "__kwdefaults__", limits)
    monkeypatch.setattr(tabular, "BLOCK_BYTES", 400)
    path.write_text(HEADER + "".join(f"A,2026-01-05T09:00:{i:02}Z,{i}\n" for i in range(60)))

    def take_away(progress: ImportProgress) -> None:
        shutil.rmtree(importer.temporary, ignore_errors=True)

    with pytest.raises(InfrastructureError):
        import_snapshot(path, importer.blobs, ImportOptions(name="s"), take_away, temporary=importer.temporary)


def test_a_file_that_changes_while_it_is_read_is_refused(importer: Importer) -> None:
    """Appended to, cut or replaced in the meantime: half of one file and half of another is no snapshot."""
    path = importer.folder / "a.csv"

    def append() -> None:
        with path.open("a") as file:
            file.write("A,2026-01-05T10:00:00Z,1\n")

    def replace() -> None:
        other = importer.folder / "b.csv"
        other.write_text(GOOD)
        other.rename(path)

    for change in (append, lambda: path.write_text(HEADER), replace):
        path.write_text(GOOD)
        done = False

        def change_once(progress: ImportProgress, change: Any = change) -> None:
            nonlocal done
            if not done:
                done = True
                change()

        with pytest.raises(ImportInvalidError, match="changed while"):
            import_snapshot(path, importer.blobs, ImportOptions(name="s"), change_once, temporary=importer.temporary)


def test_a_chunk_that_is_lost_or_damaged_is_refused(importer: Importer) -> None:
    """A run over it ends with a typed error naming the address; nothing is computed again in silence."""
    store = DirectoryBlobStore(importer.folder / "store")
    path = importer.folder / "a.csv"
    path.write_text(GOOD)
    manifest = parse_manifest(store.get(import_snapshot(path, store, ImportOptions(name="s"))))
    (chunk,) = manifest.chunks
    (file,) = (found for found in importer.folder.rglob(chunk.address.removeprefix("sha256:")) if found.is_file())
    spec = parse_flow(flow())
    execute(spec, manifest, map(store.get, [chunk.address]), LATER)
    file.write_bytes(file.read_bytes().replace(b"1.5", b"1.6"))
    with pytest.raises(BlobCorruptError, match=chunk.address):
        execute(spec, manifest, map(store.get, [chunk.address]), LATER)
    file.unlink()
    with pytest.raises(BlobMissingError, match=chunk.address):
        execute(spec, manifest, map(store.get, [chunk.address]), LATER)


def test_wide_events_give_smaller_chunks(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of a chunk, in events and in bytes, are both reached."""
    assert chunk_rows(1) == 65_536
    assert 1000 < chunk_rows(256) < 10_000
    rows = "".join(f"A,2026-01-05T09:00:{index:02}Z,{index}\n" for index in range(10))
    monkeypatch.setattr(sorted_events, "CHUNK_EVENTS_MAX", 4)
    assert [chunk.rows for chunk in importer(HEADER + rows).chunks] == [4, 4, 2]
    monkeypatch.setattr(sorted_events, "CHUNK_EVENTS_MAX", 100)
    monkeypatch.setattr(sorted_events, "CHUNK_BYTES_MAX", 700)
    whole = importer(HEADER + rows)
    assert whole.rows == 10
    assert max(map(len, list(importer.blobs.blobs.values())[:-1])) <= 700


def test_too_many_instruments_are_refused(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a manifest is reached while reading."""
    monkeypatch.setattr(sorted_events, "INSTRUMENTS_MAX", 2)
    rows = "".join(f"I{index},2026-01-05T09:00:00Z,1\n" for index in range(3))
    importer.refuses(HEADER + rows, "the source")


def test_a_line_longer_than_a_block_is_refused(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has a bound even if the file has no line ends."""
    monkeypatch.setattr(tabular, "BLOCK_BYTES", 1000)
    importer.refuses(LINE[:-2] + " " * 5000 + "}\n", "the source", "a.jsonl")
    with pytest.raises(ImportInvalidError):
        importer(GOOD + "A,2026-01-05T09:01:00Z," + "1" * 5000 + "\n")


def test_runs_are_spilled_and_merged_within_their_limits(importer: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs of few rows and three merged at a time, the snapshot is the same."""
    rows = [f"A,2026-01-05T09:{i // 60:02}:{i % 60:02}Z,{i}\n" for i in range(500)]
    expected = importer(HEADER + "".join(rows))
    monkeypatch.setattr(tabular, "BLOCK_BYTES", 400)
    limits = {"run_bytes": 1000, "merge_bytes": 3000, "merge_runs_max": 3}
    monkeypatch.setattr(spill.SortedSpill.__init__, "__kwdefaults__", limits)
    assert importer(HEADER + "".join(reversed(rows))) == expected
