"""Is what is served what the events make? One read model, folded aside and compared row by row at the position it has reached.

What must stay true: rows and events are of one snapshot, so a read model that lags is compared with the events that it has seen and
never found wrong for being behind. Holds the rows of one part. Pure, but for reading what is served.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from domain.events import Recorded
from projections.folding import ReadModel
from services.audit.findings import AuditedModel, FindingKind, Findings
from services.audit.streams import Part


class ServedRows(Protocol):
    """The rows of a read model, as they are served."""

    @property
    def all_statement(self) -> str:
        """The statement that gives every row, each as JSON."""
        ...

    def decode(self, document: str) -> Any:
        """A row. Raises `msgspec.DecodeError`, `msgspec.ValidationError`."""
        ...

    def key_of(self, row: Any) -> Any:
        """Its key."""
        ...

    def row_of(self, row: Any) -> Any:
        """The row that is served for a row of the fold; None for none."""
        ...


class Comparable(Protocol):
    """A read model with the rows that are served of it: a `Projection`, or what a process manager remembers."""

    @property
    def model(self) -> ReadModel[Any, Any]: ...

    @property
    def rows(self) -> ServedRows: ...

    @property
    def inline(self) -> bool:
        """Whether it is written inside the append, and so always at the end of the log."""
        ...


@dataclass(frozen=True)
class Memory:
    """What the instances of a process manager remember: `Comparable`."""

    model: ReadModel[Any, Any]
    rows: ServedRows
    inline: bool = False


class RowsCheck:
    """Fed events in order of position, then given the rows that are served."""

    def __init__(self, findings: Findings, part: Part, projection: Comparable, position: int) -> None:
        self._findings = findings
        self._part = part
        self._model = projection.model
        self._rows = projection.rows
        self.position = position
        self._expected: dict[Any, Any] = {}
        self._apply = projection.model.apply
        self._each = projection.model.each
        self._key_of = projection.model.key_of
        self._parts = projection.model.parts
        self._whole = part.count == 1
        self.categories = frozenset(projection.model.categories)
        self.served = 0
        self.expected = 0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def statement(self) -> str:
        """What gives the rows that are served, each as JSON."""
        return self._rows.all_statement

    def events(self, events: Iterable[Recorded]) -> None:
        """The next events of its categories, at or before its position."""
        if self._parts is not None:
            for recorded in events:
                self._in_parts(recorded)
            return
        key_of, apply, expected, has = self._key_of, self._apply, self._expected, self._part.has
        for recorded in events:
            try:
                key = key_of(recorded.event)
                if key is not None and (self._whole or has(_text(key))):
                    expected[key] = apply(expected.get(key), recorded)
            except Exception as error:  # whatever a model raises: its copy cannot have passed here
                self._inapplicable(recorded, error)

    def _in_parts(self, recorded: Recorded) -> None:
        try:
            for key, part in self._each(recorded):
                if self._part.has(_text(key)):
                    self._expected[key] = self._apply(self._expected.get(key), part)
        except Exception as error:
            self._inapplicable(recorded, error)

    def _inapplicable(self, recorded: Recorded, error: Exception) -> None:
        self._findings.add(
            FindingKind.EVENT_INAPPLICABLE,
            f"{self.name} {recorded.stream}",
            "an event that it can apply, or a copy that has stopped before it",
            f"{recorded.event.topic}: {error}",
            position=recorded.position,
            version=recorded.version,
        )

    def compare(self, documents: Iterable[tuple[str]]) -> None:
        """Compare with some of the rows that are served, after the last event."""
        for (document,) in documents:
            self._compare(document)

    def end(self) -> None:
        """No more rows are served: those that are left are missing."""
        for key, folded in self._expected.items():
            expected = self._rows.row_of(folded)
            if expected is not None:
                self.expected += 1
                self._findings.add(FindingKind.ROW_MISSING, f"{self.name} {_text(key)}", _shown(expected), "no row")
        self._expected.clear()

    def audited(self) -> AuditedModel:
        """What was compared so far, of this part."""
        return AuditedModel(
            name=self.name, position=self.position, rows_expected=self.expected, rows_served=self.served
        )

    def _compare(self, document: str) -> None:
        try:
            row = self._rows.decode(document)
            key = self._rows.key_of(row)
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError, TypeError) as error:
            if self._part.index == 0:
                self._findings.add(FindingKind.ROW_UNREADABLE, self.name, "a row of its form", f"{document} ({error})")
            return
        if not self._whole and not self._part.has(_text(key)):
            return
        self.served += 1
        expected = self._rows.row_of(self._expected.pop(key)) if key in self._expected else None
        if expected is None:
            self._findings.add(FindingKind.ROW_EXTRA, f"{self.name} {_text(key)}", "no row", _shown(row))
            return
        self.expected += 1
        if expected != row:
            self._different(f"{self.name} {_text(key)}", expected, row)

    def _different(self, subject: str, expected: Any, row: Any) -> None:
        before, after = msgspec.to_builtins(expected), msgspec.to_builtins(row)
        fields = [name for name in before if before[name] != after.get(name)]
        wanted = ", ".join(f"{name}={before[name]!r}" for name in fields) or _shown(expected)
        found = ", ".join(f"{name}={after.get(name)!r}" for name in fields) or _shown(row)
        self._findings.add(FindingKind.ROW_DIFFERENT, subject, wanted, found, at=", ".join(fields) or None)


def _text(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _shown(row: Any) -> str:
    return msgspec.json.encode(row).decode()
