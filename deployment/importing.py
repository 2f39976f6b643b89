"""Importing a file as a snapshot, with progress, for the command line and the demo."""

import time
from pathlib import Path
from typing import Any

from deployment.progress import Progress
from domain.market.snapshot import parse_manifest
from services.import_options import ImportOptions, ImportProgress
from services.ports import BlobStore
from services.snapshot_import import import_snapshot


def imported(file: Path, options: ImportOptions, blobs: BlobStore, *, quiet: bool) -> dict[str, Any]:
    """Import the file; returns the snapshot's address, name, rows, instruments and chunks, and the seconds that it took.

    Raises what `import_snapshot` raises, and what the store raises.
    """
    began = time.monotonic()
    with Progress("bytes read", quiet=quiet) as progress:

        def told(how_far: ImportProgress) -> None:
            unit = "bytes read" if how_far.stage == "reading" else "events written"
            progress.reached(how_far.done, how_far.total, unit)

        address = import_snapshot(file, blobs, options, told)
    manifest = parse_manifest(blobs.get(address))
    return {
        "address": address,
        "name": manifest.name,
        "rows": manifest.rows,
        "instruments": len(manifest.instruments),
        "chunks": len(manifest.chunks),
        "seconds": round(time.monotonic() - began, 3),
    }
