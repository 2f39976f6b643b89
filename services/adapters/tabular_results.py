"""Results as Arrow and Parquet files, for programs that read columns.

What must stay true: both hold the columns `event_time` (UTC, microseconds), `event_id` and `value` (binary64, null where there is
none), and in the file's metadata what the result says of itself; equal results give equal tables. Nothing is written to disk.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from domain.market.lanes import LaneValues
from services.runs import PublishedResult

ROW_GROUP_ROWS: Final = 1_000_000
"""Rows of one row group of a Parquet file, and of one record batch of an Arrow file."""


def render(result: PublishedResult, lane: LaneValues, form: str) -> bytes:
    """The ticks of one output in the form `arrow` (the IPC file format) or `parquet`."""
    table = _table(result, lane)
    sink = pa.BufferOutputStream()
    if form == "arrow":
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=ROW_GROUP_ROWS)
    else:
        parquet.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(result: PublishedResult, lane: LaneValues) -> Any:
    values = lane.outputs[result.output]
    about = {
        "artifact": result.artifact,
        "flow": result.flow,
        "instrument": lane.instrument,
        "output": result.output,
        "run_id": result.run_id,
        "values_hash": result.values_hash,
    }
    return pa.table(
        {
            "event_time": pa.array(lane.event_times, pa.timestamp("us", "UTC")),
            "event_id": pa.array(lane.event_ids, pa.string()),
            "value": pa.array(values, pa.float64(), mask=np.isnan(values)),
        }
    ).replace_schema_metadata({f"finaz.{name}": value for name, value in about.items()})
