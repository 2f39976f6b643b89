"""Does every `event_id` keep its instrument and event_time? Asked of millions of rows, without holding them.

Each row leaves a fingerprint of its id, one of its instrument and time, and its number, in one of `BUCKETS` files by the id's
fingerprint; rows of one id meet in one file, and files are small enough to sort. What must stay true: two rows that contradict
each other are always found; the one named is the later row, with the earliest that it contradicts.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from domain.market.errors import ImportInvalidError
from domain.market.fingerprints import fingerprints
from services.adapters.spill import spilling
from services.adapters.tabular_cells import texts_of_array

BUCKETS: Final = 64
"""Files that rows are spread over: with 10 million rows each has 5 MB."""

_ROW: Final = np.dtype([("first", "u8"), ("second", "u8"), ("fixed", "u8"), ("row", "i8")])
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class IdentityCheck:
    """Add every batch, then `finish`. `folder` must exist; its owner removes it."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"identities-{bucket}" for bucket in range(BUCKETS)]

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the identities of a batch of events."""
        rows: Any = np.empty(batch.num_rows, dtype=_ROW)
        rows["first"], rows["second"] = fingerprints(texts_of_array(batch.column("event_id")))
        one, two = fingerprints(texts_of_array(batch.column("instrument")))
        times = batch.column("event_time").to_numpy().astype(np.uint64)
        rows["fixed"] = (one ^ (two * _MIX) ^ times) * _MIX
        rows["row"] = batch.column("row").to_numpy()
        buckets = (rows["second"] % np.uint64(BUCKETS)).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
        start = 0
        for path, end in zip(self._paths, ends.tolist(), strict=True):
            if end > start:
                with spilling(), path.open("ab") as file:
                    file.write(rows[order[start:end]].tobytes())
            start = end

    def finish(self, column: str) -> None:
        """Raises `ImportInvalidError` for the first row whose event_id stood before with another instrument or event_time."""
        worst: tuple[int, int] | None = None
        for path in self._paths:
            if path.exists():
                found = _contradiction(np.fromfile(path, dtype=_ROW))
                path.unlink()
                worst = found if worst is None or (found is not None and found < worst) else worst
        if worst is not None:
            raise ImportInvalidError(
                f"row {worst[1]} has this event_id with another instrument or event_time",
                at=f"row {worst[0]}, column {column}",
                expected="one instrument and event_time per event_id",
            )


def _contradiction(rows: Any) -> tuple[int, int] | None:
    """The lowest row that contradicts an earlier one, and the earliest row of its id."""
    rows = rows[np.lexsort((rows["row"], rows["second"], rows["first"]))]
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = (rows["first"][1:] != rows["first"][:-1]) | (rows["second"][1:] != rows["second"][:-1])
    leader = np.flatnonzero(starts)[np.cumsum(starts) - 1]
    wrong = np.flatnonzero(rows["fixed"] != rows["fixed"][leader])
    if not len(wrong):
        return None
    index = int(wrong[np.argmin(rows["row"][wrong])])
    return int(rows["row"][index]), int(rows["row"][leader[index]])
