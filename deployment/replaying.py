"""What `finaz replay` does: snapshots and schedules from files or CAS, the log, and its publication."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from deployment.progress import Progress
from domain.canonical import address, canonical, parse
from domain.errors import CanonicalError, FinazError
from domain.instants import format_micros
from domain.market.arrivals import ArrivalLog
from domain.market.errors import ScheduleInvalidError, SnapshotInvalidError
from domain.market.faults import FaultKind, FaultSchedule, schedule_address, schedule_body
from domain.market.records import parse_event
from domain.market.snapshot import FORMAT, build_snapshot, encode_manifest, parse_manifest
from domain.stream.replayed import applied_document
from services.broker import Broker
from services.cas import DirectoryBlobStore
from services.ports import BlobStore
from services.replay_publishing import PublishedReplay, ReplayRequest, publish

SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of a snapshot's file that is read here; a larger one is imported first."""

RATE_DEFAULT: Final = 0.02
"""How probable each kind of random fault is where no rate is given."""


@contextmanager
def snapshot_of_file(path: Path) -> Iterator[tuple[BlobStore, str]]:
    """A snapshot in files, as a store with it and its address; the store is gone afterwards.

    The file is a manifest, whose chunks stand beside it as `*.jsonl`, or the events themselves as JSON Lines; then the snapshot has
    the file's name. Raises `SnapshotInvalidError` and what a wrong event raises.
    """
    if path.stat().st_size > SNAPSHOT_BYTES_MAX:
        expected = f"at most {SNAPSHOT_BYTES_MAX} bytes; finaz snapshot import takes more"
        raise SnapshotInvalidError("the file is too long", at=str(path), expected=expected)
    data = path.read_bytes()
    with tempfile.TemporaryDirectory(prefix="finaz-replay-") as folder:
        blobs = DirectoryBlobStore(Path(folder))
        yield blobs, _store_manifest(blobs, path, data) if _is_manifest(data) else _store_events(blobs, path, data)


def _is_manifest(data: bytes) -> bool:
    try:
        document = parse(data)
    except CanonicalError:
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def _store_manifest(blobs: BlobStore, path: Path, data: bytes) -> str:
    wanted = {chunk.address for chunk in parse_manifest(data).chunks}
    for beside in sorted(path.parent.glob("*.jsonl")):
        content = beside.read_bytes()
        if address(content) in wanted:
            wanted.discard(blobs.put(content))
    if wanted:
        raise SnapshotInvalidError("a chunk is not there", at=min(wanted), expected=f"a .jsonl beside {path.name}")
    return blobs.put(data)


def _store_events(blobs: BlobStore, path: Path, data: bytes) -> str:
    lines = data.splitlines()
    try:
        parse_event(lines[0] if lines else b"", at="line 1")
    except FinazError as error:
        raise SnapshotInvalidError(
            f"neither a manifest nor events as JSON Lines: {error}",
            at=str(path),
            expected="one of them; CSV and Parquet: the address that `finaz snapshot import` prints",
        ) from error
    events = [parse_event(line, at=f"line {number}") for number, line in enumerate(lines, start=1)]
    manifest, chunks = build_snapshot(events, name=path.stem)
    for chunk in chunks:
        blobs.put(chunk)
    return blobs.put(encode_manifest(manifest))


def rates_of(given: Mapping[str, float]) -> dict[FaultKind, float]:
    """The rates of random faults by kind; without any, `RATE_DEFAULT` of each. Raises `ScheduleInvalidError`."""
    known = {kind.value: kind for kind in FaultKind}
    for name in given:
        if name not in known:
            raise ScheduleInvalidError(f"no fault {name[:40]!r}", at="--rate", expected=", ".join(known))
    return {known[name]: rate for name, rate in given.items()} or dict.fromkeys(FaultKind, RATE_DEFAULT)


def published_with_progress(broker: Broker, log: ArrivalLog, request: ReplayRequest, *, quiet: bool) -> PublishedReplay:
    """Publish, showing how far it is."""
    with Progress("records", len(log.arrivals) * request.loads, quiet=quiet) as progress:
        return publish(broker, log, request, progress.reached)


def described(
    log: ArrivalLog, snapshot: str, as_of: int, schedule: FaultSchedule, publication: PublishedReplay | None
) -> dict[str, Any]:
    """What a replay came to, as JSON."""
    return {
        "log_hash": log.log_hash,
        "arrivals": len(log.arrivals),
        "snapshot": snapshot,
        "as_of": format_micros(as_of),
        "schedule": schedule_address(schedule),
        "seed": schedule.seed,
        "applied": [applied_document(applied) for applied in log.applied],
        "publication": None if publication is None else msgspec.to_builtins(publication),
    }


def schedule_text(schedule: FaultSchedule) -> bytes:
    """The schedule's document, as it stands under its address."""
    return canonical(schedule_body(schedule))
