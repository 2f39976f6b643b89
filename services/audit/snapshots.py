"""Are the snapshots of states what the events make? Each stream is folded again up to its version, and compared to the byte.

A snapshot is a cache that may be emptied, so a missing one is none of the audit's business; but services read on from one that is
there: from which checkpoint a stream run is restored, say. What must stay true: those of a schema that no service reads are passed
over, as services do; a stream that cannot be folded so far is named by the look at the streams, and its snapshot isn't compared.
Holds one state per snapshot of its part. Pure, but for reading which there are.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from domain.canonical import canonical, parse
from domain.errors import FinazError
from domain.events import Recorded
from services.audit.audit import Snapshot
from services.audit.findings import AuditedModel, FindingKind, Findings
from services.audit.streams import Part
from services.store.states import Fold

NAME: Final = "snapshots"

_UNFOLDED: Final = object()


class _Taken(msgspec.Struct):
    """A snapshot, and its stream's state so far; `_UNFOLDED` once the stream went wrong."""

    stream: str
    version: int
    document: str
    fold: Fold[Any]
    state: Any
    seen: int = 0

    @property
    def subject(self) -> str:
        return f"{NAME} {self.stream} {self.fold.topic}"

    def event(self, recorded: Recorded) -> None:
        """The stream's next event."""
        if recorded.version > self.version or self.state is _UNFOLDED:
            return
        if recorded.version > self.seen + 1:
            self.state = _UNFOLDED  # an event before it could not be read, or isn't there
            return
        self.seen = recorded.version
        try:
            self.state = self.fold.evolve(self.state, recorded)
        except Exception:  # whatever a fold cannot take is named with its stream
            self.state = _UNFOLDED


class SnapshotsCheck:
    """`services.audit.audit.FurtherCheck` of the snapshots that these folds read."""

    name = NAME

    def __init__(self, part: Part, snapshot: Snapshot, folds: Iterable[Fold[Any]]) -> None:
        by_topic = {fold.topic: fold for fold in folds}
        self._taken: dict[str, list[_Taken]] = {}
        for stream, version, topic, document in snapshot.snapshots():
            fold = by_topic.get(topic)
            if fold is not None and part.has(stream):
                taken = _Taken(stream, version, document, fold, fold.initial(stream))
                self._taken.setdefault(stream, []).append(taken)
        self._position = snapshot.head()[0]
        self._expected = 0

    def event(self, recorded: Recorded) -> None:
        """The next event of the log."""
        for taken in self._taken.get(recorded.stream, ()):
            taken.event(recorded)

    def check(self, snapshot: Snapshot, findings: Findings, alive: Callable[[], None]) -> None:
        """Compare each with the state that its version's events made."""
        for taken in self._all():
            alive()
            if taken.state is _UNFOLDED:
                continue
            if taken.seen < taken.version:
                actual = f"a snapshot of version {taken.version}"
                findings.add(FindingKind.ROW_EXTRA, taken.subject, f"{taken.seen} events that can be read", actual)
                continue
            self._expected += 1
            _compare(taken, findings)

    def audited(self) -> AuditedModel:
        """How many snapshots there are, and how many of them have a version that their stream has had."""
        served = sum(1 for _ in self._all())
        return AuditedModel(name=NAME, position=self._position, rows_expected=self._expected, rows_served=served)

    def _all(self) -> Iterable[_Taken]:
        return (taken for of_stream in self._taken.values() for taken in of_stream)


def _compare(taken: _Taken, findings: Findings) -> None:
    expected = taken.fold.to_document(taken.state)
    if canonical(expected).decode("utf-8") == taken.document:
        return
    wanted, found, fields = _apart(expected, taken.document)
    place: dict[str, Any] = {"version": taken.version, "at": ", ".join(fields) or None}
    findings.add(FindingKind.ROW_DIFFERENT, taken.subject, wanted, found, **place)


def _apart(expected: Any, document: str) -> tuple[str, str, list[str]]:
    """Both sides, with nothing but the fields that differ where the document has fields, and those."""
    try:
        actual = parse(document)
    except FinazError:
        actual = None
    if not isinstance(expected, dict) or not isinstance(actual, dict):
        return canonical(expected).decode("utf-8"), document, []
    fields = [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]
    wanted, found = ({name: side[name] for name in fields if name in side} for side in (expected, actual))
    return canonical(wanted).decode("utf-8"), canonical(found).decode("utf-8") if fields else document, fields
