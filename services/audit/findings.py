"""What an audit finds, and the report that it makes of it.

What must stay true: a difference names its place (a stream with version and position, a row of a read model by its key, an address,
a seal) and both sides; a flood of one kind is counted whole and listed up to a limit, so that a report stays one document that can
be read. Pure values.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

FINDINGS_OF_A_KIND_MAX: Final = 500
"""Findings of one kind that are listed; the rest of that kind is counted only."""

TEXT_CHARACTERS_MAX: Final = 2000
"""Characters of one side of a difference that are kept."""

FORMAT: Final = "finaz.audit.v1"


class FindingKind(Enum):
    """What can be wrong. The names are part of the report's format."""

    EVENT_ALTERED = "EVENT_ALTERED"
    """A row of the log does not hash to its chain value: it, or the one before, is not what was appended."""
    EVENT_MISSING = "EVENT_MISSING"
    """Positions of the log without a row."""
    EVENT_UNREADABLE = "EVENT_UNREADABLE"
    """An event whose topic is unknown or whose document does not have its topic's form."""
    VERSION_OUT_OF_ORDER = "VERSION_OUT_OF_ORDER"
    """A stream's versions do not follow one another."""
    TRANSITION_ILLEGAL = "TRANSITION_ILLEGAL"
    """An event that the aggregate's table does not allow where it stands."""
    INVARIANT_BROKEN = "INVARIANT_BROKEN"
    """A token that goes back, a count with a gap, an output published twice."""
    CLOCK_SET_BACK = "CLOCK_SET_BACK"
    """An event recorded before the one at the position before it. It is noted and no difference: the server's clock did that."""
    EVENT_INAPPLICABLE = "EVENT_INAPPLICABLE"
    """A projection cannot apply an event that its copy has passed."""
    ROW_MISSING = "ROW_MISSING"
    """A row that the events make is not served."""
    ROW_EXTRA = "ROW_EXTRA"
    """A row is served that no event makes."""
    ROW_DIFFERENT = "ROW_DIFFERENT"
    """A row is served that is not the one that the events make."""
    ROW_UNREADABLE = "ROW_UNREADABLE"
    """A row is served that is none."""
    PROJECTION_AHEAD = "PROJECTION_AHEAD"
    """A projection says that it has come further than the log goes."""
    BLOB_MISSING = "BLOB_MISSING"
    """Nothing is stored under an address that an event names."""
    BLOB_CORRUPT = "BLOB_CORRUPT"
    """What is stored under an address does not hash to it."""
    SEAL_INVALID = "SEAL_INVALID"
    """A seal that cannot be read, is not signed by the key, or does not follow the one before."""
    SEAL_MISSING = "SEAL_MISSING"
    """A seal that the numbering says must have been there."""
    SEAL_BROKEN = "SEAL_BROKEN"
    """The log's chain value at a sealed position is not the sealed one: something before it was rewritten."""
    LOG_CUT = "LOG_CUT"
    """The log ends before a sealed position: events were removed from its end."""


NOTED: Final = frozenset({FindingKind.CLOCK_SET_BACK})
"""Kinds that are told and do not make an audit find differences."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `subject` is a stream, `projection key`, an address or a seal; `at` the field, where it is one."""

    kind: FindingKind
    subject: str
    expected: str
    actual: str
    position: int | None = None
    version: int | None = None
    at: str | None = None


class Findings:
    """Collects differences, bounded."""

    def __init__(self) -> None:
        self.counts: Counter[FindingKind] = Counter()
        self.listed: list[Finding] = []

    def add(
        self,
        kind: FindingKind,
        subject: str,
        expected: Any,
        actual: Any,
        *,
        position: int | None = None,
        version: int | None = None,
        at: str | None = None,
    ) -> None:
        """Count a difference, and list it while there is room for its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= FINDINGS_OF_A_KIND_MAX:
            self.listed.append(
                Finding(
                    kind=kind,
                    subject=_cut(subject),
                    expected=_cut(expected),
                    actual=_cut(actual),
                    position=position,
                    version=version,
                    at=at,
                )
            )

    @property
    def differences(self) -> int:
        """How many there are, listed or not, without what is only noted."""
        return sum(count for kind, count in self.counts.items() if kind not in NOTED)


class AuditedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A read model as it was compared: at which position, how many rows the events make, how many were served."""

    name: str
    position: int
    rows_expected: int
    rows_served: int


class AuditedSeals(msgspec.Struct, frozen=True, kw_only=True):
    """The seals as they were compared. `vouched_position` is the last position up to which the log is what was sealed."""

    checked: bool
    seals: int = 0
    last_position: int = 0
    vouched_seal: str | None = None
    vouched_position: int = 0
    vouched_at: datetime | None = None


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit looked at, as of one position, and what it found."""

    format: str
    audited_at: datetime
    position: int
    chain_head: str
    events: int
    streams: int
    passes: int
    read_models: tuple[AuditedModel, ...]
    blobs_checked: int
    seals: AuditedSeals
    differences: int
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    written_off: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    vouches: str
    cannot_exclude: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return self.differences == 0


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome in short: for the event and for who waits. `report` is the report's address, if it could be stored."""

    outcome: str
    position: int
    events: int
    differences: int
    counts: dict[str, int]
    vouches: str
    report: str | None = None


CLEAN: Final = "clean"
DIFFERENCES: Final = "differences"


def summary_of(report: AuditReport, address: str | None) -> Audit:
    """The outcome of a report that is stored under an address."""
    return Audit(
        outcome=CLEAN if report.clean else DIFFERENCES,
        position=report.position,
        events=report.events,
        differences=report.differences,
        counts=report.counts,
        vouches=report.vouches,
        report=address,
    )


def by_name(findings: Sequence[Finding], kind: FindingKind) -> tuple[str, ...]:
    """The subjects of all listed findings of a kind."""
    return tuple(finding.subject for finding in findings if finding.kind is kind)


def _cut(text: Any) -> str:
    whole = str(text)
    return whole if len(whole) <= TEXT_CHARACTERS_MAX else whole[: TEXT_CHARACTERS_MAX - 1] + "…"
