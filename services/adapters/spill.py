"""Sorting more events than memory holds: sorted runs in temporary files, merged in blocks.

What must stay true: memory is one run while filling, a block per run while merging; the merged order is that of `KEYS`, texts
compared as UTF-8 bytes; the temporary folder is gone when the context ends, however it ends. A process that is killed leaves
its folder (`finaz-import-…` in the system's temporary folder), which nothing reads.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from domain.errors import InfrastructureError
from services.adapters.event_tables import KEYS

RUN_BYTES: Final = 16 * 1024 * 1024
"""Bytes of events sorted in memory at a time."""

MERGE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of events held while merging, over all runs."""

MERGE_RUNS_MAX: Final = 64
"""Runs merged at a time; more are merged in several passes."""


@contextmanager
def spilling() -> Iterator[None]:
    """What the system says of temporary files (no space, no folder) as `InfrastructureError`."""
    try:
        yield
    except OSError as error:
        detail = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise InfrastructureError(f"temporary files cannot be written: {detail}", at="temporary folder") from error


class SortedSpill:
    """Add batches in any order, then take them all, sorted. A context manager."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        run_bytes: int = RUN_BYTES,
        merge_bytes: int = MERGE_BYTES,
        merge_runs_max: int = MERGE_RUNS_MAX,
    ) -> None:
        self._parent = folder
        self._run_bytes = run_bytes
        self._block_bytes = merge_bytes // merge_runs_max
        self._merge_runs_max = merge_runs_max
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._runs: list[Path] = []
        self._made = 0

    def __enter__(self) -> "SortedSpill":
        with spilling():
            self._folder = Path(tempfile.mkdtemp(prefix="finaz-import-", dir=self._parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """The temporary folder."""
        return self._folder

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of events; writes a run when enough are held."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= self._run_bytes:
            self._write_run(iter([self._sorted_held()]))

    def merged(self) -> Iterator[pa.Table]:
        """All events in order, in tables of at least one row."""
        if not self._runs:
            if self._held:
                yield self._sorted_held()
            return
        if self._held:
            self._write_run(iter([self._sorted_held()]))
        while len(self._runs) > self._merge_runs_max:
            some, self._runs = self._runs[: self._merge_runs_max], self._runs[self._merge_runs_max :]
            self._write_run(self._merge(some))
        yield from self._merge(self._runs)

    def _sorted_held(self) -> pa.Table:
        table = concatenated([pa.Table.from_batches([batch]) for batch in self._held])
        self._held, self._held_bytes = [], 0
        return in_order(table)

    def _write_run(self, tables: Iterator[pa.Table]) -> None:
        path = self._folder / f"run-{self._made}"
        self._made += 1
        schema = None
        writer = None
        try:
            with spilling(), pa.OSFile(str(path), "wb") as file:
                for table in tables:
                    if writer is None or schema is None:
                        schema = table.schema
                        writer = pa.ipc.new_stream(file, schema)
                    rows = self._block_bytes * table.num_rows // max(table.nbytes, 1)
                    writer.write_table(table.select(schema.names), max_chunksize=max(rows, 1))
                if writer is not None:
                    writer.close()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._runs.append(path)

    def _merge(self, paths: Sequence[Path]) -> Iterator[pa.Table]:
        cursors = [_Cursor(path) for path in paths]
        try:
            alive = [cursor for cursor in cursors if cursor.refill()]
            while alive:
                last = min(cursor.last_key() for cursor in alive)
                parts = [part for cursor in alive if (part := cursor.take_through(last)) is not None]
                yield in_order(concatenated(parts)) if len(parts) > 1 else parts[0]
                alive = [cursor for cursor in alive if cursor.refill()]
        finally:
            for cursor in cursors:
                cursor.close()
        for path in paths:
            path.unlink()


class _Cursor:
    """A run being read, one block at a time."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path))
        self._reader = pa.ipc.open_stream(self._file)
        self._block: Any = None
        self._times: Any = None
        self._last: tuple[int, str, int] = (0, "", 0)

    def refill(self) -> bool:
        """Have a block that isn't empty; False at the end of the run."""
        while self._block is None or self._block.num_rows == 0:
            try:
                self._block = self._reader.read_next_batch()
            except StopIteration:
                return False
            self._times = self._block.column("event_time").to_numpy()
            if self._block.num_rows:
                self._last = self._key(self._block.num_rows - 1)
        return True

    def last_key(self) -> tuple[int, str, int]:
        """The key of the block's last row."""
        return self._last

    def take_through(self, key: tuple[int, str, int]) -> pa.Table | None:
        """Take the rows up to and including those of `key` from the block."""
        low = int(np.searchsorted(self._times, key[0], side="left"))
        high = int(np.searchsorted(self._times, key[0], side="right"))
        while low < high:  # among equal times, by id and revision
            middle = (low + high) // 2
            if self._key(middle) <= key:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        taken = pa.Table.from_batches([self._block.slice(0, low)])
        self._block = self._block.slice(low)
        self._times = self._times[low:]
        return taken

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()
        self._file.close()

    def _key(self, row: int) -> tuple[int, str, int]:
        time, event_id, revision = (self._block.column(name)[row].as_py() for name in KEYS)
        return time, event_id, revision


def in_order(table: pa.Table) -> pa.Table:
    """The table sorted by `KEYS`."""
    if table.num_rows < 2:
        return table
    return table.take(compute.sort_indices(table, sort_keys=[(key, "ascending") for key in KEYS]))


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables one behind the other; a value column that one lacks is null there."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
