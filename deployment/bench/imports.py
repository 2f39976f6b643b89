"""Importing 10 million rows: rows per second and peak memory, by format, and memory by size to show that it is flat.

Each import runs in a process of its own (`python -m deployment.bench.imports FILE FOLDER`), into a directory store in a temporary
folder, so that its peak memory is its own. The file is made first, instrument by instrument in blocks, so that it must be sorted.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from deployment.bench.figures import aim, answer, figure
from domain.market.snapshot import parse_manifest
from services.cas import DirectoryBlobStore
from services.import_options import ImportOptions
from services.snapshot_import import import_snapshot

ROWS: Final = 10_000_000
INSTRUMENTS: Final = 100
MINUTES_IN_BLOCK: Final = 2000
MEMORY_MB_MAX: Final = 400.0
SHARES: Final = (0.1, 1.0)
"""Sizes at which memory is measured, as shares of the rows."""

_TIMEOUT_SECONDS: Final = 1800


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure CSV at two sizes and Parquet at one."""
    rows = max(INSTRUMENTS * 10, int(ROWS * scale))
    figures: list[dict[str, Any]] = []
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="finaz-bench-imports-") as folder:
        for kind, share in [("csv", SHARES[0]), ("csv", SHARES[1]), ("parquet", SHARES[1])]:
            count = int(rows * share) // INSTRUMENTS * INSTRUMENTS
            path = Path(folder) / f"made.{kind}"
            report(f"imports: making {count} rows of {kind}")
            _make(path, count)
            label = f"{kind}, {count} rows"
            told = []
            for repeat in range(repeats):
                report(f"imports: {label}, {repeat + 1} of {repeats}")
                told.append(_import_apart(path))
            peaks[label] = max(one["peak_mb"] for one in told)
            figures.append(
                figure(
                    f"import of {label}", [count / one["seconds"] for one in told], "rows/s", bytes=path.stat().st_size
                )
            )
            figures.append(figure(f"peak memory, {label}", [one["peak_mb"] for one in told], "MB"))
            path.unlink()
    aims = [
        aim(f"peak memory of {label} to {MEMORY_MB_MAX:g} MB", peak / MEMORY_MB_MAX, at_most=1.0)
        for label, peak in peaks.items()
    ]
    notes = [
        "Peak memory is the process's, interpreter and libraries included; it is flat if it hardly differs between sizes."
    ]
    return answer("How fast is an import, and does its memory grow with the file?", figures, aims, notes, rows=rows)


def _make(path: Path, rows: int) -> None:
    generator = np.random.default_rng(11)
    names = np.array([f"T{index:03}" for index in range(INSTRUMENTS)])
    minutes = rows // INSTRUMENTS
    writer: Any = None
    for start in range(0, minutes, MINUTES_IN_BLOCK):
        block = np.arange(start, min(start + MINUTES_IN_BLOCK, minutes), dtype=np.int64)
        seconds = np.tile(1_700_000_000 + block * 60, INSTRUMENTS)
        close = np.round(100 + np.cumsum(generator.normal(size=len(seconds))) * 0.01, 2)
        table = pa.table(
            {
                "instrument": np.repeat(names, len(block)),
                "event_time": pa.array(seconds).cast(pa.timestamp("s", tz="UTC")),
                "open": np.round(close + 0.1, 2),
                "high": np.round(close + 0.5, 2),
                "low": np.round(close - 0.5, 2),
                "close": close,
                "volume": generator.integers(1, 1_000_000, len(seconds)),
            }
        )
        if writer is None:
            writer = (parquet.ParquetWriter if path.suffix == ".parquet" else arrow_csv.CSVWriter)(path, table.schema)
        writer.write_table(table) if path.suffix == ".parquet" else writer.write(table)
    writer.close()


def _import_apart(path: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="finaz-bench-store-") as folder:
        command = [sys.executable, "-m", "deployment.bench.imports", str(path), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _import_here(path: Path, folder: Path) -> dict[str, float]:
    blobs = DirectoryBlobStore(folder / "blobs")
    began = time.perf_counter()
    address = import_snapshot(path, blobs, ImportOptions(name="bench"), temporary=folder)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_mb": _peak_kib() / 1024, "rows": parse_manifest(blobs.get(address)).rows}


def _peak_kib() -> int:
    """The most memory that this process has had. `ru_maxrss` would begin with what the parent had when it forked."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(_import_here(Path(sys.argv[1]), Path(sys.argv[2]))))
