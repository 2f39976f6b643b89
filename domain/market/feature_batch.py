"""FeatureBatch: what a run computed, as an artifact with an address.

It holds the flow's address, the schema and the ticks, nothing that differs between two runs of equal work: no run, no instant,
no machine. What must stay true: ticks stand in clock order, (event_time, event_id as UTF-8 bytes), over all instruments; a tick
carries the outputs of its own instrument and no others, so no null is invented for an event that never arrived;
`parse_feature_batch(batch.encode())` is the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec
import numpy as np

from domain.canonical import address, canonical, parse
from domain.errors import CanonicalError, NotFoundError
from domain.instants import format_micros
from domain.market.compiled import Floats
from domain.market.errors import SnapshotInvalidError
from domain.market.fields import Reader
from domain.market.flow import FlowSpec, flow_address
from domain.market.instant_reader import parse_instants
from domain.market.lanes import LaneValues, lanes_of
from domain.market.text_columns import Texts, float_texts, instant_texts, join_rows, json_escaped, texts_of

FORMAT: Final = "FEATURE_BATCH_V1"

HEADS_MAX: Final = 64
"""Flows whose batches' first bytes are kept."""

SMALL_ROWS_MAX: Final = 8
"""Rows up to which plain Python writes a column quicker than array operations do."""


SLICE_ROWS: Final = 65_536
"""Rows that are encoded or hashed between two calls of `progress`: some 50 ms."""

Progress = Callable[[], None]


def no_progress() -> None:
    """Nobody waits for progress."""


@dataclass(frozen=True)
class OutputSchema:
    """One output: its name and its instrument. Its values are binary64 or null."""

    name: str
    instrument: str


@dataclass(frozen=True)
class FeatureBatch:
    """The ticks of a run by lane (instrument), and the schema in the order of the flow's outputs."""

    flow: str
    schema: tuple[OutputSchema, ...]
    lanes: tuple[LaneValues, ...]

    def lane_of(self, output: str) -> LaneValues:
        """The ticks that carry an output: times in microseconds, ids, and its column. `NotFoundError` for an unknown output."""
        for lane in self.lanes:
            if output in lane.outputs:
                return lane
        expected = "one of " + ", ".join(described.name for described in self.schema[:16])
        raise NotFoundError(f"no output {output[:64]!r}", at="output", expected=expected)

    def values(self, output: str) -> list[float | None]:
        """The bare list of an output's values, in clock order."""
        column = self.lane_of(output).outputs[output]
        return [None if value != value else value for value in column.tolist()]

    def rows(self, output: str) -> int:
        """Ticks that carry the output."""
        return len(self.lane_of(output))

    def values_hash(self, output: str, progress: Progress = no_progress) -> str:
        """The address of the bare list of values. `progress` is called now and then, and may raise to leave."""
        column = self.lane_of(output).outputs[output]
        if len(column) <= SMALL_ROWS_MAX:
            return address(f"[{','.join(map(_float_text, column.tolist()))}]".encode())
        parts = []
        for start in range(0, len(column), SLICE_ROWS):
            progress()
            parts.append(join_rows([(b"", float_texts(column[start : start + SLICE_ROWS]))], b","))
        return address(b"[" + b"".join(parts)[:-1] + b"]")

    def encode(self, progress: Progress = no_progress) -> bytes:
        """The canonical bytes. `progress` is called now and then, and may raise to leave."""
        return _head(self.flow, self.schema) + b',"ticks":[' + self._ticks(progress) + b"]}"

    def _ticks(self, progress: Progress) -> bytes:
        if len(self.lanes) == 1:
            return _encode_lane(self.lanes[0], b",", progress)[:-1]
        keyed = [
            (time, event_id.encode("utf-8"), row)
            for lane in self.lanes
            for time, event_id, row in zip(
                lane.event_times.tolist(),
                lane.event_ids,
                _encode_lane(lane, b"\n", progress).split(b"\n"),
                strict=False,
            )
        ]
        keyed.sort(key=lambda tick: tick[:2])
        return b",".join(row for _, _, row in keyed)


def make_feature_batch(flow: FlowSpec, lanes: Sequence[LaneValues]) -> FeatureBatch:
    """The batch of a flow's lanes, which must be those of `lanes_of(flow)` in that order."""
    return FeatureBatch(flow_address(flow), schema_of(flow), tuple(lanes))


def schema_of(flow: FlowSpec) -> tuple[OutputSchema, ...]:
    """The schema of a flow's batches."""
    instruments = {output.name: plan.instrument for plan in lanes_of(flow) for output in plan.outputs}
    return tuple(OutputSchema(output.name, instruments[output.name]) for output in flow.outputs)


def schema_body(schema: Sequence[OutputSchema]) -> dict[str, Any]:
    """The schema as JSON."""
    outputs = [{"instrument": output.instrument, "name": output.name, "type": "float64"} for output in schema]
    return {"format": FORMAT, "outputs": outputs}


class _Tick(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A tick as it stands in an artifact."""

    event_id: str
    event_time: str
    values: dict[str, float | None]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact: the schema is small and read strictly, the ticks may be millions and are read quickly."""

    flow: str
    schema: msgspec.Raw
    ticks: list[_Tick]


def parse_feature_batch(data: bytes) -> FeatureBatch:
    """Read an artifact whose bytes were verified against its address. `SnapshotInvalidError` if it is no FeatureBatch.

    Times, ids and values are those that were encoded, to the bit; that the bytes are canonical is for their address to say.
    """
    try:
        document = msgspec.json.decode(data, type=_Document)
        schema = _schema(parse(bytes(document.schema)))
        ticks: dict[str, list[_Tick]] = {output.instrument: [] for output in schema}
        instruments = {output.name: output.instrument for output in schema}
        for tick in document.ticks:
            ticks[instruments[next(iter(tick.values))]].append(tick)
        return FeatureBatch(document.flow, schema, tuple(_lane(name, rows, schema) for name, rows in ticks.items()))
    except (CanonicalError, msgspec.MsgspecError, KeyError, ValueError, StopIteration) as error:
        raise SnapshotInvalidError(f"no FeatureBatch: {error}", at="$", expected=FORMAT) from None


def _schema(value: Any) -> tuple[OutputSchema, ...]:
    described = Reader(value, "$.schema", ("format", "outputs"), (), SnapshotInvalidError)
    described.choice("format", (FORMAT,))
    items = (
        Reader(item, at, ("instrument", "name", "type"), (), SnapshotInvalidError)
        for item, at in described.items("outputs", least=1, most=None)
    )
    return tuple(OutputSchema(item.text("name"), item.text("instrument")) for item in items)


def _lane(instrument: str, ticks: Sequence[_Tick], schema: Sequence[OutputSchema]) -> LaneValues:
    names = [output.name for output in schema if output.instrument == instrument]
    times, said = parse_instants(texts_of([tick.event_time for tick in ticks]), strict=True)
    if said.any():
        raise ValueError(f"tick {int(said.argmax())} of {instrument!r} has no instant")
    columns: dict[str, Floats] = {
        name: np.array([tick.values[name] for tick in ticks], dtype=np.float64) for name in names
    }
    return LaneValues(instrument, times, [tick.event_id for tick in ticks], columns)


@lru_cache(maxsize=HEADS_MAX)
def _head(flow: str, schema: tuple[OutputSchema, ...]) -> bytes:
    return canonical({"flow": flow, "schema": schema_body(schema)})[:-1]


def _encode_lane(lane: LaneValues, end: bytes, progress: Progress) -> bytes:
    """The rows of a lane, slice by slice: each is short enough that other threads get their turn in time."""
    if len(lane) <= SMALL_ROWS_MAX:
        return _encode_small(lane, end)
    parts = []
    for start in range(0, len(lane), SLICE_ROWS):
        progress()
        rows = slice(start, start + SLICE_ROWS)
        outputs = {name: column[rows] for name, column in lane.outputs.items()}
        part = LaneValues(lane.instrument, lane.event_times[rows], lane.event_ids[rows], outputs)
        parts.append(_encode_rows(part, end))
    return b"".join(parts)


def _encode_rows(lane: LaneValues, end: bytes) -> bytes:
    parts: list[tuple[bytes, Texts]] = [
        (b'{"event_id":"', json_escaped(texts_of(lane.event_ids))),
        (b'","event_time":"', instant_texts(lane.event_times)),
    ]
    before = b'","values":{'
    for name in sorted(lane.outputs):
        parts.append((before + canonical(name) + b":", float_texts(lane.outputs[name])))
        before = b","
    return join_rows(parts, b"}}" + end)


def _encode_small(lane: LaneValues, end: bytes) -> bytes:
    """The same bytes row by row."""
    columns = [(encode_basestring(name), lane.outputs[name].tolist()) for name in sorted(lane.outputs)]
    rows = []
    for place, (event_id, time) in enumerate(zip(lane.event_ids, lane.event_times.tolist(), strict=True)):
        values = ",".join(f"{name}:{_float_text(column[place])}" for name, column in columns)
        at = format_micros(time)
        rows.append(f'{{"event_id":{encode_basestring(event_id)},"event_time":"{at}","values":{{{values}}}}}')
    rows.append("")
    return end.decode().join(rows).encode("utf-8")


def _float_text(value: float) -> str:
    return repr(value) if value - value == 0.0 else "null"
