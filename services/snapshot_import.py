"""Importing market events: from a file to a snapshot in the blob store.

Read in batches, each row brought to the form of an event; sorted outside memory; written as chunks; the manifest last. What must
stay true: memory does not grow with the file; equal data under equal options gives the same address, whatever the format or order
of the file; what cannot be read whole is refused, with the row and column, and a refused or interrupted import leaves at most
chunks that no manifest names (harmless, and found again by the next attempt) and no temporary file.
"""

from pathlib import Path

from domain.identity import checked_name
from domain.market.errors import ImportInvalidError
from domain.market.snapshot import encode_manifest, make_manifest
from services import effects
from services.adapters.event_tables import event_table, source_map
from services.adapters.identity_check import IdentityCheck
from services.adapters.sorted_events import Seen, distinct, store_chunks
from services.adapters.spill import SortedSpill
from services.adapters.tabular import open_table
from services.adapters.tabular_cells import known_zone
from services.import_options import DELAY_MILLIS_MAX, ImportOptions, ImportProgress, Progress
from services.ports import BlobStore


def no_progress(progress: ImportProgress) -> None:
    """For callers that don't watch."""


def import_snapshot(
    source: Path,
    blobs: BlobStore,
    options: ImportOptions,
    progress: Progress = no_progress,
    *,
    temporary: Path | None = None,
) -> str:
    """Import one file; returns the address of the snapshot's manifest.

    `temporary` is where runs are spilled (about as many bytes as the file has uncompressed); None is the system's folder.
    Raises `ImportInvalidError` with row and column for the first bad cell, for rows that repeat or contradict each other, and
    for a file that cannot be read to its end; `NameInvalidError` for options that aren't names.
    """
    _check(options)
    with SortedSpill(temporary) as spill:
        seen = _read(source, options, spill, progress)
        if not seen.rows:
            raise ImportInvalidError("no rows", at=source.name, expected="at least one")
        chunks = []
        written = 0
        for ref in store_chunks(distinct(spill.merged()), seen.columns, blobs):
            chunks.append(ref)
            written += ref.rows
            progress(ImportProgress("writing", written, written, seen.rows))
    manifest = make_manifest(options.name, options.attribution, seen.columns, seen.instruments, chunks)
    return effects.store_blob(blobs, encode_manifest(manifest))


def _read(source: Path, options: ImportOptions, spill: SortedSpill, progress: Progress) -> Seen:
    """Bring all rows to the form of events and into the spill."""
    seen = Seen()
    mapped = None
    before = _mark_of(source)
    total = before[0] if before is not None else 0
    with open_table(source, options) as batches:
        check = IdentityCheck(spill.folder)
        for raw in batches:
            if mapped is None:
                mapped = source_map(raw.table.schema.names, options)
            batch = event_table(raw, mapped, options)
            seen.add(batch)
            if mapped.event_id is not None:
                check.add(batch)
            spill.add(batch)
            progress(ImportProgress("reading", seen.rows, raw.done, total))
        if mapped is not None and mapped.event_id is not None:
            check.finish(mapped.event_id)
    if _mark_of(source) != before:
        raise ImportInvalidError("the file changed while it was read", at=source.name, expected="a file at rest")
    return seen


def _mark_of(source: Path) -> tuple[int, int, int] | None:
    """Size, time of the last change, and identity of the file; None for one that isn't there (opening it says so)."""
    try:
        found = source.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _check(options: ImportOptions) -> None:
    """Refuse options that could not give a snapshot before anything is read."""
    checked_name(options.name, at="name")
    if options.instrument_constant is not None:
        checked_name(options.instrument_constant, at="instrument_constant")
    if not 0 <= options.delay_millis <= DELAY_MILLIS_MAX:
        raise ImportInvalidError("no delay", at="delay_millis", expected=f"0 to {DELAY_MILLIS_MAX}")
    if len(options.delimiter) != 1 or not options.delimiter.isascii():
        raise ImportInvalidError("no delimiter", at="delimiter", expected="one ASCII character")
    if options.zone is not None and known_zone(options.zone) is None:
        raise ImportInvalidError(
            f"no zone {options.zone[:64]!r}", at="zone", expected="an IANA name such as Europe/Madrid"
        )
    make_manifest(options.name, options.attribution, (), (), ())
