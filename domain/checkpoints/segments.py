"""Segments of a stream run's sink: what its checkpoints released and accepted, in blobs that point back at each other.

Each commit adds what is new as segments behind the last one; the manifest names the head alone, so a checkpoint stays bounded
however long the run is. Walking back from the head gives everything in order. What must stay true: a segment never changes; it
holds at most `SEGMENT_ROWS_MAX` rows; equal content behind an equal head has an equal address, so a repeated commit adds nothing.
A crash between storing and committing leaves segments that nothing names. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.documents import plain_bytes
from domain.market.event_runs import EventRun, joined_runs, run_of
from domain.market.lane_arrays import lane_of, listed
from domain.market.lanes import LaneValues, joined_parts
from domain.market.records import MarketEvent
from domain.stream.errors import CheckpointInvalidError

SEGMENT_FORMAT: Final = "FINAZ_STREAM_SEGMENT_V1"

SEGMENT_ROWS_MAX: Final = 50_000
"""Ticks and accepted events of one segment together: some ten megabytes."""

_ENCODER: Final = msgspec.json.Encoder()


class TickColumns(msgspec.Struct, frozen=True):
    """Ticks of one instrument in clock order; a value of None is null."""

    times: list[int]
    ids: list[str]
    outputs: dict[str, list[float | None]]


class AcceptedColumns(msgspec.Struct, frozen=True):
    """Events of one instrument in the order in which they were accepted, later revisions included."""

    times: list[int]
    ids: list[str]
    revisions: list[int]
    available_at: list[int]
    values: dict[str, list[float | None]]


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one blob of the sink holds. `previous` is the address of the segment before it."""

    format: str
    previous: str | None
    ticks: dict[str, TickColumns]
    accepted: dict[str, AcceptedColumns]

    @property
    def rows(self) -> tuple[int, int]:
        """Ticks and accepted events."""
        return sum(len(t.ids) for t in self.ticks.values()), sum(len(a.ids) for a in self.accepted.values())


def segments_of(ticks: Mapping[str, Sequence[LaneValues]], accepted: Iterable[MarketEvent | EventRun]) -> list[Segment]:
    """What is new, as segments in order, each within the limit; `previous` is for `encode_segment` to set."""
    parts: list[Segment] = []
    held: Segment | None = None
    room = 0
    for piece in (*_tick_pieces(ticks), *_accepted_pieces(accepted)):
        rows = sum(piece.rows)
        if held is None or rows > room:
            held, room = Segment(format=SEGMENT_FORMAT, previous=None, ticks={}, accepted={}), SEGMENT_ROWS_MAX
            parts.append(held)
        if held.ticks.keys() & piece.ticks.keys() or held.accepted.keys() & piece.accepted.keys():
            held, room = Segment(format=SEGMENT_FORMAT, previous=None, ticks={}, accepted={}), SEGMENT_ROWS_MAX
            parts.append(held)
        held.ticks.update(piece.ticks)
        held.accepted.update(piece.accepted)
        room -= rows
    return parts


def encode_segment(segment: Segment, previous: str | None) -> bytes:
    """The canonical bytes of a segment behind `previous`."""
    head = canonical({"format": segment.format, "previous": previous})[1:-1]
    ticks = {
        name: _object(ids=plain_bytes(of.ids), outputs=_floats_of(of.outputs), times=plain_bytes(of.times))
        for name, of in segment.ticks.items()
    }
    accepted = {
        name: _object(
            available_at=plain_bytes(of.available_at),
            ids=plain_bytes(of.ids),
            revisions=plain_bytes(of.revisions),
            times=plain_bytes(of.times),
            values=_floats_of(of.values),
        )
        for name, of in segment.accepted.items()
    }
    return b'{"accepted":' + _named(accepted) + b"," + head + b',"ticks":' + _named(ticks) + b"}"


def parse_segment(data: bytes, at: str) -> Segment:
    """Read a segment. `CheckpointInvalidError` at `at` (its address) if it is none."""
    try:
        segment = msgspec.json.decode(data, type=Segment)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointInvalidError(f"no segment: {error}", at=at, expected=SEGMENT_FORMAT) from None
    columns: list[tuple[int, tuple[list[Any], ...]]] = [
        (len(ticks.ids), (ticks.times, *ticks.outputs.values())) for ticks in segment.ticks.values()
    ]
    columns += [
        (len(events.ids), (events.times, events.revisions, events.available_at, *events.values.values()))
        for events in segment.accepted.values()
    ]
    if segment.format != SEGMENT_FORMAT or any(len(column) != rows for rows, parts in columns for column in parts):
        raise CheckpointInvalidError("no segment", at=at, expected=f"{SEGMENT_FORMAT}, with columns of one length")
    return segment


def lanes_of_segments(segments: Sequence[Segment]) -> dict[str, LaneValues]:
    """All ticks of segments in order, by instrument; instruments without any are not there."""
    parts: dict[str, list[TickColumns]] = {}
    for segment in segments:
        for instrument, ticks in segment.ticks.items():
            parts.setdefault(instrument, []).append(ticks)
    return {
        instrument: joined_parts(
            instrument,
            tuple(pieces[0].outputs),
            [lane_of(instrument, piece.times, piece.ids, piece.outputs) for piece in pieces],
        )
        for instrument, pieces in parts.items()
    }


def accepted_of_segments(segments: Iterable[Segment]) -> Iterator[MarketEvent]:
    """All accepted events of segments in order, those of one instrument in the order in which they were accepted."""
    for segment in segments:
        for instrument, events in segment.accepted.items():
            columns = list(events.values)
            rows = zip(*events.values.values(), strict=True) if columns else iter([()] * len(events.ids))
            for event_id, time, available_at, revision, values in zip(
                events.ids, events.times, events.available_at, events.revisions, rows, strict=True
            ):
                yield MarketEvent(
                    event_id=event_id,
                    instrument=instrument,
                    event_time=time,
                    available_at=available_at,
                    revision=revision,
                    values=dict(zip(columns, values, strict=True)),
                )


def _floats_of(columns: dict[str, list[float | None]]) -> bytes:
    return _named({name: _floats(column) for name, column in columns.items()})


def _floats(column: list[float | None]) -> bytes:
    """Canonical floats: msgspec's own but for exponents, and for small numbers, which have one in canonical JSON alone."""
    written = _ENCODER.encode(column)
    if b"e" not in written and b"0.0000" not in written:
        return written
    return b"[" + ",".join(["null" if value is None else repr(value) for value in column]).encode() + b"]"


def _named(members: dict[str, bytes]) -> bytes:
    return b"{" + b",".join(canonical(name) + b":" + members[name] for name in sorted(members)) + b"}"


def _object(**members: bytes) -> bytes:
    """An object of members whose names stand sorted."""
    return b"{" + b",".join(f'"{name}":'.encode() + value for name, value in members.items()) + b"}"


def _tick_pieces(ticks: Mapping[str, Sequence[LaneValues]]) -> Iterator[Segment]:
    for instrument, lanes in ticks.items():
        if not lanes:
            continue
        whole = joined_parts(instrument, tuple(lanes[0].outputs), lanes)
        times, ids = whole.event_times.tolist(), whole.event_ids
        outputs = {name: listed(column) for name, column in whole.outputs.items()}
        for start in range(0, len(ids), SEGMENT_ROWS_MAX):
            rows = slice(start, start + SEGMENT_ROWS_MAX)
            columns = {name: column[rows] for name, column in outputs.items()}
            piece = TickColumns(times[rows], ids[rows], columns)
            yield Segment(format=SEGMENT_FORMAT, previous=None, ticks={instrument: piece}, accepted={})


def _accepted_pieces(accepted: Iterable[MarketEvent | EventRun]) -> Iterator[Segment]:
    by_instrument: dict[str, list[EventRun]] = {}
    for part in accepted:
        run = part if isinstance(part, EventRun) else run_of(part)
        by_instrument.setdefault(run.instrument, []).append(run)
    for instrument, runs in by_instrument.items():
        for some in _pieces(runs):
            events = joined_runs(some).events
            piece = AcceptedColumns(
                events.times.tolist(),
                events.ids,
                events.revisions.tolist(),
                events.available_at.tolist(),
                {column: listed(events.column(column)) for column in events.columns},
            )
            yield Segment(format=SEGMENT_FORMAT, previous=None, ticks={}, accepted={instrument: piece})


def _pieces(runs: Sequence[EventRun]) -> Iterator[list[EventRun]]:
    """The runs in order, cut so that each piece has `SEGMENT_ROWS_MAX` rows, but for the last."""
    piece: list[EventRun] = []
    room = SEGMENT_ROWS_MAX
    for run in runs:
        start = 0
        while len(run) - start > room:
            yield [*piece, run.rows(start, start + room)]
            start, room, piece = start + room, SEGMENT_ROWS_MAX, []
        piece.append(run.rows(start, len(run)) if start else run)
        room -= len(run) - start
    if piece:
        yield piece
