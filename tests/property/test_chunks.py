"""Chunks, numbers and instants as text: the compiled writers and readers against the plain ones."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical
from domain.errors import InstantInvalidError
from domain.instants import format_instant, from_micros, parse_instant, to_micros
from domain.market.chunks import EventColumns, encode_columns, read_chunk
from domain.market.errors import RecordInvalidError, SnapshotInvalidError, ValueUnreadableError
from domain.market.instant_reader import OK, TOO_FINE, parse_instants
from domain.market.records import MarketEvent, encode_event, parse_event
from domain.market.snapshot import ChunkRef, Manifest, build_snapshot, chunk_ref, encode_manifest, parse_manifest
from domain.market.text_columns import EARLIEST, LATEST, float_texts, instant_texts, integer_texts, texts_of
from tests.support.market_strategies import ANY_VALUES, NAMES, events

MICROS = st.integers(EARLIEST, LATEST) | st.sampled_from([EARLIEST, LATEST, 0, -1, 951_782_400_000_000])
DECIMALS = st.builds(lambda digits, scale: digits / 10**scale, st.integers(-(10**17), 10**17), st.integers(0, 22))
BITS = st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("d", raw)[0]).filter(math.isfinite)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | DECIMALS | BITS | st.integers(-(2**60), 2**60).map(float)


@given(st.lists(FLOATS | st.none(), max_size=50))
def test_floats_are_written_as_canonical_json_writes_them(values: list[float | None]) -> None:
    """Byte for byte, null included."""
    assert float_texts(np.array(values, dtype=np.float64)).strings() == [canonical(value).decode() for value in values]


@given(st.lists(MICROS, max_size=50), st.integers(0, 7))
def test_instants_are_written_and_read_as_the_plain_functions_do(micros: list[int], zeros: int) -> None:
    """Over ten thousand years, to the microsecond, whatever the trailing zeros."""
    rounded = [max(EARLIEST, value // 10**zeros * 10**zeros) for value in micros]
    texts = instant_texts(np.array(rounded, dtype=np.int64))
    assert texts.strings() == [format_instant(from_micros(value)) for value in rounded]
    read, said = parse_instants(texts, strict=True)
    assert read.tolist() == rounded
    assert (said == OK).all()


INSTANT_TEXTS = st.from_regex(
    r"\d{4}-[01]\d-[0123]\d[Tt ]?([012]\d:[0-6]\d(:[0-6]\d(\.\d{0,10})?)?)?(Z|z|[+-][012]\d:[0-6]\d)?", fullmatch=True
)


@given(st.lists(INSTANT_TEXTS, min_size=1, max_size=20))
def test_the_compiled_reader_takes_what_the_plain_one_takes(texts: list[str]) -> None:
    """In strict mode the two agree on every text: which are instants, and which."""
    read, said = parse_instants(texts_of([text if text.isascii() else "x" for text in texts]), strict=True)
    for text, micros, verdict in zip(texts, read.tolist(), said.tolist(), strict=True):
        try:
            expected = to_micros(parse_instant(text))
        except (InstantInvalidError, ValueError):
            assert verdict != OK
        else:
            assert (verdict, micros) == (OK, expected)


def test_finer_than_a_microsecond_is_said() -> None:
    """Digits beyond the sixth may be zeros, nothing else."""
    texts = texts_of(["2026-01-05T09:00:00.1234560Z", "2026-01-05T09:00:00.1234561Z"])
    assert parse_instants(texts, strict=True)[1].tolist() == [OK, TOO_FINE]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=30))
def test_integers_are_written_as_digits(values: list[int]) -> None:
    """To the largest of 64 bits."""
    assert integer_texts(np.array(values, dtype=np.int64)).strings() == [str(value) for value in values]


def columns_of(made: list[MarketEvent], names: list[str]) -> EventColumns:
    """Events as the importer holds them."""
    return EventColumns(
        event_ids=texts_of([event.event_id for event in made]),
        instruments=texts_of([event.instrument for event in made]),
        event_times=np.array([event.event_time for event in made], dtype=np.int64),
        available_at=np.array([event.available_at for event in made], dtype=np.int64),
        revisions=np.array([event.revision for event in made], dtype=np.int64),
        values={name: np.array([event.values[name] for event in made], dtype=np.float64) for name in names},
    )


@given(st.data())
def test_a_chunk_written_by_column_is_canonical_line_by_line(data: st.DataObject) -> None:
    """Whatever the names (quotes, backslashes, other scripts) and values: the bytes of `canonical`, and read back as they were."""
    columns = data.draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    instruments = data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    made = data.draw(events(instruments=instruments, columns=columns, values=ANY_VALUES, revisions_max=2))
    manifest, blobs = build_snapshot(made, name="s", chunk_events=7)
    ordered = sorted(made, key=lambda event: (event.event_time, event.event_id, event.revision))
    for index, (blob, ref) in enumerate(zip(blobs, manifest.chunks, strict=True)):
        part = ordered[index * 7 : index * 7 + 7]
        assert encode_columns(columns_of(part, columns)) == blob
        for line, event in zip(blob.splitlines(), part, strict=True):
            assert canonical(json.loads(line)) == line
            assert parse_event(line) == event
        rows = read_chunk(blob, ref, manifest)
        assert rows.ids == [event.event_id for event in part]
        for name in columns:
            found = [None if value != value else value for value in rows.values[name].tolist()]
            assert found == [event.values[name] for event in part]
    assert parse_manifest(encode_manifest(manifest)) == manifest


LINE = (
    '{"available_at":"2026-01-05T09:00:00Z","close":1.5,"event_id":"e1","event_time":"2026-01-05T09:00:00Z",'
    '"instrument":"A","revision":0}'
)


def one_line(line: str | bytes) -> tuple[bytes, ChunkRef, Manifest]:
    """A snapshot of one chunk of that one line, whatever it is."""
    data = (line.encode() if isinstance(line, str) else line) + b"\n"
    time = to_micros(parse_instant("2026-01-05T09:00:00Z"))
    ref = chunk_ref(data, 1, time, time)
    return data, ref, Manifest(name="s", attribution="", columns=("close",), instruments=("A",), chunks=(ref,))


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("1", 1.0),
        ("-0", 0.0),
        ("-0.0", 0.0),
        ("9007199254740993", 9007199254740992.0),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
        ("1e400", None),
        ("-1e400", None),
        ("1e-400", 0.0),
        ("9" * 400, None),
        ("9" * 5000, None),
        ("NaN", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("null", None),
    ],
)
def test_one_rule_for_missing_values(number: str, value: float | None) -> None:
    """In a single record and in a chunk: missing, not finite and too large are null; a number is itself, rounded once."""
    line = LINE.replace("1.5", number)
    assert repr(parse_event(line).values["close"]) == repr(value)
    found = read_chunk(*one_line(line)).values["close"].tolist()[0]
    assert repr(None if found != found else found) == repr(value)


def test_an_absent_value_is_null() -> None:
    """A record without a column has a gap there."""
    line = LINE.replace('"close":1.5,', "")
    found = read_chunk(*one_line(line)).values["close"].tolist()[0]
    assert found != found


@pytest.mark.parametrize("raw", ["true", "false", '"1.5"', '"NaN"', '""', "[1]", "{}"])
def test_an_unreadable_value_names_event_and_column(raw: str) -> None:
    """Bools, strings and structures are no values: fail closed, and say where."""
    line = LINE.replace("1.5", raw)
    for read in (lambda: parse_event(line), lambda: read_chunk(*one_line(line))):
        with pytest.raises(ValueUnreadableError) as caught:
            read()
        assert "e1" in str(caught.value)
        assert "close" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace('"revision":0', '"revision":0,"revision":1'),
        LINE.replace('"close":1.5', '"close":1.5,"close":1.5'),
        LINE.replace('"revision":0', '"revision":0.0'),
        LINE.replace('"revision":0', '"revision":-1'),
        LINE.replace('"revision":0', '"revision":9223372036854775808'),
        LINE.replace('"revision":0', '"revision":true'),
        LINE.replace('"revision":0', '"revision":NaN'),
        LINE.replace(',"revision":0', ""),
        LINE.replace('"e1"', '"e\\u0000"'),
        LINE.replace('"e1"', '"e\\ud800"'),
        LINE.replace('"e1"', '"cafe\\u0301"'),
        LINE.replace('"e1"', '"cafe\u0301"'),
        LINE.replace('"e1"', '""'),
        LINE.replace('"e1"', "7"),
        LINE.replace('"A"', '"' + "a" * 256 + '"'),
        LINE.replace("09:00:00Z", "09:00:00"),
        LINE.replace("09:00:00Z", "09:00:00.0000001Z"),
        LINE.replace("2026-01-05T", "2026-02-30T"),
        LINE.replace('"close"', '"clo\\u0000se"'),
        LINE.replace('"close":1.5', '"close":1.5,"other":2.0'),
        LINE[:-1],
        "",
        "[]",
        "null",
        "{}",
        LINE + LINE,
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_place(line: str | bytes) -> None:
    """Each kind of broken line, typed and placed, by the reader of chunks."""
    with pytest.raises((RecordInvalidError, SnapshotInvalidError)) as caught:
        read_chunk(*one_line(line))
    assert caught.value.at


def broken(kind: str, data: bytes, ref: ChunkRef, manifest: Manifest) -> tuple[bytes, ChunkRef, Manifest]:
    """A good chunk made bad in one way."""
    from msgspec.structs import replace

    lines = data.splitlines(keepends=True)
    if kind == "a line too few":
        return b"".join(lines[:-1]), ref, manifest
    if kind == "a line twice":
        return b"".join([*lines[:-1], lines[-2]]), ref, manifest
    if kind == "out of order":
        return b"".join([lines[1], lines[0], *lines[2:]]), ref, manifest
    if kind == "other first time":
        return data, replace(ref, first_event_time=ref.first_event_time - 1), manifest
    if kind == "other last time":
        return data, replace(ref, last_event_time=ref.last_event_time + 1), manifest
    return data, ref, replace(manifest, instruments=("B",))


@pytest.mark.parametrize(
    "kind",
    ["a line too few", "a line twice", "out of order", "other first time", "other last time", "unknown instrument"],
)
def test_a_chunk_that_is_not_what_its_manifest_says_is_refused(kind: str) -> None:
    """Rows, order, times and instruments are checked, not believed."""
    time = to_micros(parse_instant("2026-01-05T09:00:00Z"))
    made = [
        MarketEvent(
            event_id=f"e{n}", instrument="A", event_time=time, available_at=time, revision=0, values={"close": 1.0}
        )
        for n in range(4)
    ]
    manifest, (blob,) = build_snapshot(made, name="s")
    read_chunk(blob, manifest.chunks[0], manifest)
    with pytest.raises(SnapshotInvalidError):
        read_chunk(*broken(kind, blob, manifest.chunks[0], manifest))


def test_an_event_encodes_as_its_line() -> None:
    """The line in this file is what an event looks like."""
    assert encode_event(parse_event(LINE)).decode() == LINE
