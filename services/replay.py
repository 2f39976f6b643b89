"""Making replays: the arrival log of a stored snapshot under a fault schedule, and schedules of random faults.

What must stay true: the log is the one that a REPLAY run of the same inputs makes and records. Nothing is written here.
"""

from collections.abc import Iterable, Iterator

from domain.market.arrivals import ARRIVALS_MAX, ArrivalLog, encoded_log
from domain.market.chunks import Rows, encoded_events, events_of, read_chunk
from domain.market.errors import RunTooLargeError
from domain.market.faults import FaultKind, FaultSchedule, random_schedule
from domain.market.records import MarketEvent
from domain.market.snapshot import Manifest, parse_manifest
from services.ports import BlobStore


def made_log(blobs: BlobStore, snapshot: str, as_of: int, schedule: FaultSchedule) -> ArrivalLog:
    """The arrival log of a snapshot, as of an instant in microseconds.

    Raises `BlobMissingError`, `BlobCorruptError`, `SnapshotInvalidError`, `ScheduleInvalidError`, `RunTooLargeError`.
    """
    manifest = parse_manifest(blobs.get(snapshot))
    if manifest.rows > ARRIVALS_MAX:
        raise RunTooLargeError(f"{manifest.rows} records to replay", at=snapshot, expected=f"at most {ARRIVALS_MAX}")
    return encoded_log(with_bytes(_chunks(blobs, manifest), manifest), as_of, schedule, snapshot)


def with_bytes(parts: Iterable[Rows], manifest: Manifest) -> Iterator[tuple[MarketEvent, bytes]]:
    """The events of chunks, each with its canonical bytes."""
    for rows in parts:
        yield from zip(events_of(rows, manifest.columns), encoded_events(rows), strict=True)


def drawn_schedule(
    blobs: BlobStore, snapshot: str, as_of: int, seed: int, rates: dict[FaultKind, float]
) -> FaultSchedule:
    """A schedule of random faults over the events that take part. Raises `ScheduleInvalidError` for a rate outside 0..1."""
    ids: dict[str, None] = {}
    for rows in _chunks(blobs, parse_manifest(blobs.get(snapshot))):
        ids.update(dict.fromkeys(rows.ids[place] for place in (rows.available_at <= as_of).nonzero()[0].tolist()))
    return random_schedule(seed, rates, ids)


def _chunks(blobs: BlobStore, manifest: Manifest) -> Iterator[Rows]:
    return (read_chunk(blobs.get(ref.address), ref, manifest) for ref in manifest.chunks)
