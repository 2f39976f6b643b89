"""Snapshots: a manifest that names chunks of market events, and the events' place in them.

What must stay true: events stand in the order (event_time, event_id as UTF-8 bytes, revision), across chunks too, each once; an
`event_id` keeps its instrument and event_time through all its revisions; the manifest's address covers every byte of the
snapshot, because it names its chunks by content. A manifest is written last, so a crash half-way leaves chunks that nothing
names. Times are microseconds since the UTC epoch here, RFC 3339 in the documents.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from domain.canonical import address, canonical, is_address, parse
from domain.errors import CanonicalError, InstantInvalidError
from domain.instants import format_instant, from_micros, parse_instant, to_micros
from domain.market.errors import SnapshotInvalidError
from domain.market.fields import Reader
from domain.market.records import COLUMNS_MAX, FIELDS, MarketEvent, encode_event

FORMAT: Final = "FINAZ_SNAPSHOT_V1"

CHUNK_EVENTS_MAX: Final = 65_536
"""Events in one chunk."""

CHUNKS_MAX: Final = 1_000_000
"""Chunks of one snapshot: 65 thousand million events, and a manifest of 250 MB."""

INSTRUMENTS_MAX: Final = 100_000
"""Instruments of one snapshot."""

ATTRIBUTION_BYTES_MAX: Final = 10_000
"""Bytes of the text that says where the data comes from."""


class ChunkRef(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk: its address, how many events, and the first and last event_time."""

    address: str
    rows: int
    first_event_time: int
    last_event_time: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is. `columns` and `instruments` are sorted; `attribution` says where the data comes from, or is empty."""

    name: str
    attribution: str
    columns: tuple[str, ...]
    instruments: tuple[str, ...]
    chunks: tuple[ChunkRef, ...]

    @property
    def rows(self) -> int:
        """Events in all chunks, revisions included."""
        return sum(chunk.rows for chunk in self.chunks)


def manifest_body(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON. Its canonical bytes are what is stored, their address is the snapshot's."""
    body: dict[str, Any] = {
        "attribution": manifest.attribution,
        "chunks": [
            {
                "address": chunk.address,
                "first_event_time": _instant_text(chunk.first_event_time),
                "last_event_time": _instant_text(chunk.last_event_time),
                "rows": chunk.rows,
            }
            for chunk in manifest.chunks
        ],
        "columns": list(manifest.columns),
        "format": FORMAT,
        "instruments": list(manifest.instruments),
        "name": manifest.name,
        "rows": manifest.rows,
    }
    if manifest.chunks:
        body["first_event_time"] = _instant_text(manifest.chunks[0].first_event_time)
        body["last_event_time"] = _instant_text(manifest.chunks[-1].last_event_time)
    return body


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical bytes of a manifest."""
    return canonical(manifest_body(manifest))


def parse_manifest(data: bytes) -> Manifest:
    """Read and check a manifest. `SnapshotInvalidError` with the place for whatever is not as `manifest_body` writes it."""
    try:
        return _read_manifest(parse(data))
    except (CanonicalError, InstantInvalidError) as error:
        raise SnapshotInvalidError(error.detail, at=error.at, expected=error.expected) from None


def make_manifest(
    name: str, attribution: str, columns: Iterable[str], instruments: Iterable[str], chunks: Iterable[ChunkRef]
) -> Manifest:
    """A checked manifest of chunks that were written. `SnapshotInvalidError` as `parse_manifest` raises it."""
    manifest = Manifest(
        name=name,
        attribution=attribution,
        columns=tuple(sorted(columns)),
        instruments=tuple(sorted(instruments)),
        chunks=tuple(chunks),
    )
    return _read_manifest(manifest_body(manifest))


def build_snapshot(
    events: Iterable[MarketEvent], *, name: str, attribution: str = "", chunk_events: int = CHUNK_EVENTS_MAX
) -> tuple[Manifest, list[bytes]]:
    """A snapshot of events that fit into memory, in any order: the manifest and the bytes of its chunks.

    Raises `SnapshotInvalidError` for two events of one id and revision, and for an id with two instruments or times.
    """
    ordered = sorted(events, key=lambda event: (event.event_time, event.event_id, event.revision))
    _check_identities(ordered)
    columns = sorted({column for event in ordered for column in event.values})
    nothing = dict.fromkeys(columns)
    chunks, blobs = [], []
    for start in range(0, len(ordered), chunk_events):
        part = ordered[start : start + chunk_events]
        whole = (msgspec.structs.replace(event, values={**nothing, **event.values}) for event in part)
        blob = b"".join(encode_event(event) + b"\n" for event in whole)
        blobs.append(blob)
        chunks.append(chunk_ref(blob, len(part), part[0].event_time, part[-1].event_time))
    instruments = {event.instrument for event in ordered}
    return make_manifest(name, attribution, columns, instruments, chunks), blobs


def chunk_ref(blob: bytes, rows: int, first_event_time: int, last_event_time: int) -> ChunkRef:
    """The reference to a chunk's bytes."""
    return ChunkRef(
        address=address(blob), rows=rows, first_event_time=first_event_time, last_event_time=last_event_time
    )


def _check_identities(ordered: list[MarketEvent]) -> None:
    seen: dict[str, MarketEvent] = {}
    for event in ordered:
        other = seen.get(event.event_id)
        if other is not None:
            at = event.event_id
            if other.revision == event.revision and other.event_time == event.event_time:
                raise SnapshotInvalidError(
                    f"revision {event.revision} stands twice", at=at, expected="each revision once"
                )
            if (other.instrument, other.event_time) != (event.instrument, event.event_time):
                expected = "one instrument and event_time per event_id"
                raise SnapshotInvalidError("a revision contradicts another", at=at, expected=expected)
        seen[event.event_id] = event


def _read_manifest(value: Any) -> Manifest:
    fields = ("attribution", "chunks", "columns", "format", "instruments", "name", "rows")
    reader = Reader(value, "$", fields, ("first_event_time", "last_event_time"), SnapshotInvalidError)
    reader.choice("format", (FORMAT,))
    attribution = reader.text("attribution")
    if len(attribution.encode("utf-8")) > ATTRIBUTION_BYTES_MAX:
        expected = f"at most {ATTRIBUTION_BYTES_MAX} bytes"
        raise SnapshotInvalidError("too long", at="$.attribution", expected=expected)
    columns = _names(reader, "columns", COLUMNS_MAX)
    for column in columns:
        if column in FIELDS:
            raise SnapshotInvalidError(f"{column} is no value column", at="$.columns", expected="value columns")
    chunks = tuple(_chunks(reader))
    manifest = Manifest(
        name=reader.name("name"),
        attribution=attribution,
        columns=columns,
        instruments=_names(reader, "instruments", INSTRUMENTS_MAX),
        chunks=chunks,
    )
    reader.integer("rows", manifest.rows, manifest.rows)
    if manifest_body(manifest) != value:
        raise SnapshotInvalidError(
            "first or last event_time do not fit the chunks", at="$", expected="those of the chunks"
        )
    return manifest


def _chunks(reader: Reader) -> Iterator[ChunkRef]:
    previous = None
    for item, at in reader.items("chunks", least=0, most=CHUNKS_MAX):
        fields = Reader(item, at, ("address", "first_event_time", "last_event_time", "rows"), (), SnapshotInvalidError)
        if not is_address(fields.text("address")):
            raise SnapshotInvalidError("no content address", at=f"{at}.address", expected="sha256:…")
        first, last = (
            to_micros(parse_instant(fields.text(name), at=f"{at}.{name}"))
            for name in ("first_event_time", "last_event_time")
        )
        if first > last or (previous is not None and first < previous):
            raise SnapshotInvalidError("chunks out of order", at=at, expected="chunks in order of event_time")
        previous = last
        yield ChunkRef(
            address=fields.text("address"),
            rows=fields.integer("rows", 1, CHUNK_EVENTS_MAX),
            first_event_time=first,
            last_event_time=last,
        )


def _names(reader: Reader, field: str, most: int) -> tuple[str, ...]:
    names = tuple(reader.checked_name(item, at) for item, at in reader.items(field, least=0, most=most))
    if any(left >= right for left, right in itertools.pairwise(names)):
        raise SnapshotInvalidError(
            "not sorted, or one stands twice", at=f"$.{field}", expected="names in order, each once"
        )
    return names


def _instant_text(micros: int) -> str:
    return format_instant(from_micros(micros))
