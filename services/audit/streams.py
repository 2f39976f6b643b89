"""Does every stream fold from nothing? Versions contiguous, transitions legal, tokens and counts in order.

What must stay true: a stream that went wrong is named at its first wrong event and not folded on, so it is one finding; every event
is read as its service reads it. Holds one state per stream of its part of the log: that is what grows, and what parts bound. Pure.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final
from zlib import crc32

from domain.errors import FinazError
from domain.events import Event, Metadata, Recorded, decode
from domain.folds import FOLDS, category_of, key_of
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


class StreamsCheck:
    """Fed rows in order of position. `on_event` gets every event of the part that could be read."""

    def __init__(self, findings: Findings, part: Part) -> None:
        self._findings = findings
        self._part = part
        self._states: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self.unfolded: set[str] = set()

    @property
    def streams(self) -> int:
        """Streams of this part so far."""
        return len(self._versions)

    def event(self, recorded: Recorded) -> None:
        """The next event of a stream of the part."""
        stream, version = recorded.stream, recorded.version
        if self._versions.get(stream) == version - 1:
            self._versions[stream] = version
        else:
            self._version(stream, version, recorded.position)
        known = self._states.get(stream)
        if known is None:
            fold = FOLDS.get(category_of(stream))
            if fold is None:
                self.unfolded.add(category_of(stream))
                return
            known = (fold, fold.initial(key_of(stream)))
        fold, state = known
        if state is _BROKEN:
            return
        try:
            problem = fold.problem(state, recorded.event)
            if problem is not None:
                self._wrong(FindingKind.INVARIANT_BROKEN, recorded, "an event that keeps the stream's rules", problem)
            self._states[stream] = (fold, fold.evolve(state, recorded))
        except FinazError as error:
            self._wrong(FindingKind.TRANSITION_ILLEGAL, recorded, error.expected or "another event", error.detail)
            self._states[stream] = (fold, _BROKEN)
        except Exception as error:  # an event of another aggregate, say: what a fold cannot take is a finding
            expected = f"an event of {category_of(stream)}"
            self._wrong(FindingKind.TRANSITION_ILLEGAL, recorded, expected, f"{recorded.event.topic}: {error!r}")
            self._states[stream] = (fold, _BROKEN)

    def unreadable(self, stream: str, version: int, position: int) -> None:
        """An event that could not be read stands here: count its version and fold its stream no further."""
        if self._part.has(stream):
            self._version(stream, version, position)
            self._states[stream] = (FOLDS.get(category_of(stream)), _BROKEN)

    def state(self, stream: str) -> Any:
        """The state so far; None where there is none or it went wrong."""
        _, state = self._states.get(stream, (None, None))
        return None if state is _BROKEN else state

    def _version(self, stream: str, version: int, position: int) -> None:
        known = self._versions.get(stream)
        if (known is None and version not in (0, 1)) or (known is not None and version != known + 1):
            self._findings.add(
                FindingKind.VERSION_OUT_OF_ORDER,
                stream,
                "version 1" if known is None else f"version {known + 1}",
                f"version {version}",
                position=position,
                version=version,
            )
        self._versions[stream] = version

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
