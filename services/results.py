"""Results: what a run published, read back from CAS and rendered for a client.

What must stay true: every format holds the same ticks, in clock order, and the same values; the artifact's bytes were verified
against its address, and the values against the published `values_hash`, before any of them is served. Nothing is written.
"""

from collections.abc import Mapping
from typing import Any, Final

from domain.canonical import canonical
from domain.errors import BlobCorruptError, InputError
from domain.market.feature_batch import FeatureBatch, OutputSchema, parse_feature_batch
from domain.market.lanes import LaneValues
from domain.market.text_columns import float_texts, instant_texts, join_rows, json_escaped, texts_of
from services.ports import BlobStore
from services.runs import PublishedResult

MEDIA_TYPES: Final[Mapping[str, str]] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
}
"""Formats by name, and what each is called in HTTP."""


class Results:
    """The use case of reading results. Blocks: call it in a thread from an event loop."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def ticks(self, result: PublishedResult) -> LaneValues:
        """The ticks that carry the output: times in microseconds, ids, and its column (NaN is null).

        Raises `BlobMissingError`, and `BlobCorruptError` for an artifact that isn't what was published.
        """
        return self._batch(result).lane_of(result.output)

    def render(self, result: PublishedResult, form: str) -> bytes:
        """The result in one of `MEDIA_TYPES`: `event_time`, `event_id` and `value`, one row per tick.

        JSON is one object with the ticks and what the result says of itself. Raises as `ticks` does, and `InputError` for
        another format.
        """
        if form not in MEDIA_TYPES:
            raise InputError(f"no format {form[:40]!r}", at="format", expected="one of " + ", ".join(MEDIA_TYPES))
        batch = self._batch(result)
        lane = batch.lane_of(result.output)
        if form == "json":
            return _json(result, lane, batch.schema)
        if form == "csv":
            return _csv(result.output, lane)
        from services.adapters import tabular_results

        return tabular_results.render(result, lane, form)

    def _batch(self, result: PublishedResult) -> FeatureBatch:
        batch = parse_feature_batch(self._blobs.get(result.artifact))
        if batch.values_hash(result.output) != result.values_hash or batch.flow != result.flow:
            raise BlobCorruptError(
                "the artifact does not hold the values that were published",
                at=result.artifact,
                expected=result.values_hash,
            )
        return batch


def _json(result: PublishedResult, lane: LaneValues, schema: tuple[OutputSchema, ...]) -> bytes:
    """Canonical JSON; the ticks, of which there may be millions, are joined by column."""
    about: dict[str, Any] = {
        "artifact": result.artifact,
        "fence_token": result.fence_token,
        "flow": result.flow,
        "inputs": list(result.inputs),
        "instrument": lane.instrument,
        "output": result.output,
        "rows": result.rows,
        "run_id": result.run_id,
        "schema": result.schema,
    }
    ticks = join_rows(
        [
            (b'{"event_id":"', json_escaped(texts_of(lane.event_ids))),
            (b'","event_time":"', instant_texts(lane.event_times)),
            (b'","value":', float_texts(lane.outputs[result.output])),
        ],
        b"},",
    )
    end = canonical({"values_hash": result.values_hash})[1:]
    return canonical(about)[:-1] + b',"ticks":[' + ticks[:-1] + b"]," + end


def _csv(output: str, lane: LaneValues) -> bytes:
    """RFC 4180 with a header; an id is always quoted, since it may hold anything printable; null is an empty cell."""
    quoted = texts_of([event_id.replace('"', '""') for event_id in lane.event_ids])
    values = lane.outputs[output]
    rows = join_rows([(b"", instant_texts(lane.event_times)), (b',"', quoted), (b'",', float_texts(values))], b"\r\n")
    return b"event_time,event_id,value\r\n" + rows.replace(b'",null\r\n', b'",\r\n')
