"""Does every stream fold from nothing? Versions contiguous, transitions legal, tokens and counts in order.

What must stay true: a stream that went wrong is named at its first wrong event and not folded on, so it is one finding; every event
is read as its service reads it. Holds one state per stream of its part of the log: that is what grows, and what parts bound. Pure.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from domain.errors import FinazError
from domain.events import Event, Metadata, Recorded, decode
from domain.folds import FOLDS, AggregateFold, category_of, key_of
from services.audit.findings import FindingKind, Findings

NO_METADATA: Final = Metadata()
_BROKEN: Final = object()


class Part:
    """One of `count` parts of everything, by name: what one pass holds in memory."""

    def __init__(self, index: int = 0, count: int = 1) -> None:
        self.index = index
        self.count = count

    def has(self, name: str) -> bool:
        """Whether the name belongs to this part."""
        return self.count == 1 or crc32(name.encode("utf-8", "surrogatepass")) % self.count == self.index


class _Stream(msgspec.Struct, gc=False):
    """A stream so far. `state` is `_BROKEN` once it went wrong; `fold` is None where nothing folds it."""

    fold: AggregateFold | None
    state: Any
    version: int | None = None


class StreamsCheck:
    """Fed the events of the part in order of position."""

    def __init__(self, findings: Findings, part: Part) -> None:
        self._findings = findings
        self._part = part
        self._streams: dict[str, _Stream] = {}
        self.unfolded: set[str] = set()

    @property
    def streams(self) -> int:
        """Streams of this part so far."""
        return len(self._streams)

    def events(self, events: Iterable[Recorded], wanted: Container[type[Event]] = ()) -> list[tuple[Recorded, Any]]:
        """The next events of streams of the part. Gives back those of a `wanted` type, each with its stream's state after it."""
        known, found = self._streams, []
        for recorded in events:
            stream = known.get(recorded.stream) or self._begin(recorded.stream)
            if stream.version != recorded.version - 1:
                self._check_version(stream, recorded.stream, recorded.version, recorded.position)
            stream.version = recorded.version
            if stream.state is not _BROKEN:
                self._fold(stream, recorded)
            if type(recorded.event) in wanted:
                found.append((recorded, None if stream.state is _BROKEN else stream.state))
        return found

    def unreadable(self, name: str, version: int, position: int) -> None:
        """An event that could not be read stands here: count its version and fold its stream no further."""
        if self._part.has(name):
            stream = self._streams.get(name) or self._begin(name, told=False)
            if stream.version != version - 1:
                self._check_version(stream, name, version, position)
            stream.version, stream.state = version, _BROKEN

    def _begin(self, name: str, *, told: bool = True) -> _Stream:
        fold = FOLDS.get(category_of(name))
        if fold is None and told:
            self.unfolded.add(category_of(name))
        stream = _Stream(fold, _BROKEN if fold is None else fold.initial(key_of(name)))
        self._streams[name] = stream
        return stream

    def _fold(self, stream: _Stream, recorded: Recorded) -> None:
        fold = stream.fold
        assert fold is not None
        try:
            problem = fold.problem(stream.state, recorded.event)
            if problem is not None:
                self._wrong(FindingKind.INVARIANT_BROKEN, recorded, "an event that keeps the stream's rules", problem)
            stream.state = fold.evolve(stream.state, recorded)
        except FinazError as error:
            self._wrong(FindingKind.TRANSITION_ILLEGAL, recorded, error.expected or "another event", error.detail)
            stream.state = _BROKEN
        except Exception as error:  # an event of another aggregate, say: what a fold cannot take is a finding
            expected = f"an event of {category_of(recorded.stream)}"
            self._wrong(FindingKind.TRANSITION_ILLEGAL, recorded, expected, f"{recorded.event.topic}: {error!r}")
            stream.state = _BROKEN

    def _check_version(self, stream: _Stream, name: str, version: int, position: int) -> None:
        known = stream.version
        if known is None and version in (0, 1):
            return
        self._findings.add(
            FindingKind.VERSION_OUT_OF_ORDER,
            name,
            "version 1" if known is None else f"version {known + 1}",
            f"version {version}",
            position=position,
            version=version,
        )

    def _wrong(self, kind: FindingKind, recorded: Recorded, expected: str, actual: str) -> None:
        place: dict[str, Any] = {"position": recorded.position, "version": recorded.version}
        self._findings.add(kind, recorded.stream, expected, actual, **place)


def recorded_of(row: Sequence[Any], decoded: Callable[[str, str], Event] = decode) -> Recorded:
    """The event of a row of a log snapshot. Raises what its decoding raises."""
    position, version, _, _, _, stream, topic, correlation_id, principal, state, _, event_id, causation_id, at = row
    if causation_id is None and correlation_id is None and principal is None:
        metadata = NO_METADATA
    else:
        metadata = Metadata(causation_id=causation_id, correlation_id=correlation_id, principal=principal)
    return Recorded(
        position=position,
        stream=stream,
        version=version,
        event_id=event_id,
        recorded_at=at,
        event=decoded(topic, state),
        metadata=metadata,
    )
