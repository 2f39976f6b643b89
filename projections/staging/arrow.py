"""Columns out of Arrow tables that ClickHouse answers with.

What must stay true: instants come as microseconds, ids without a copy of their bytes, null as NaN; a value that is NaN and not
null, of which there should be none, is counted.
"""

from typing import Any, Final

import numpy as np

from domain.market.batch_columns import OutputColumns
from domain.market.compiled import Bytes, Ints
from domain.market.text_columns import Texts, texts_from_offsets

NO_ROWS: Final = OutputColumns(
    np.empty(0, np.int64), texts_from_offsets(np.empty(0, np.uint8), np.zeros(1, np.int64)), np.empty(0)
)
"""The columns of an output without rows."""


def columns_of(table: Any) -> tuple[OutputColumns, int]:
    """`event_time`, `event_id` and `value` of a table in one piece, and how many values are NaN and not null."""
    import pyarrow as pa

    times = table.column("event_time").cast(pa.int64()).to_numpy()
    ids = table.column("event_id").cast(pa.large_string()).combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) and ids.num_chunks else ids
    column = table.column("value")
    values = column.to_numpy()
    texts = _texts_of(ids) if len(times) else NO_ROWS.event_ids
    return OutputColumns(times, texts, values), int(np.isnan(values).sum()) - column.null_count


def _texts_of(strings: Any) -> Texts:
    """The column of an Arrow array of large strings, without copying its bytes."""
    _, offsets, data = strings.buffers()
    places: Ints = np.frombuffer(offsets, dtype=np.int64)[strings.offset : strings.offset + len(strings) + 1]
    bytes_: Bytes = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return texts_from_offsets(bytes_, places)
