"""Commands and events of a discrepancy: two things that should agree and don't, found by the reconciler.

`kind` says which two (`DiscrepancyKind`), `subject` what it is about (a run, an output, an outbox key). A discrepancy that
cannot be repaired becomes an alert that an operator sees until it is resolved.
"""

from enum import Enum
from typing import ClassVar

import msgspec

from domain.events import Event, registered


class DiscrepancyKind(Enum):
    """What can disagree."""

    ARTIFACT_MISSING = "ARTIFACT_MISSING"
    """A publication names an artifact that CAS doesn't hold."""
    ARTIFACT_CORRUPT = "ARTIFACT_CORRUPT"
    """A publication names an artifact whose bytes don't hash to its address."""
    PUBLICATION_DIFFERS = "PUBLICATION_DIFFERS"
    """The publications read model doesn't say what the run's events say."""
    RUN_DIFFERS = "RUN_DIFFERS"
    """The runs read model doesn't say what the run's events say."""
    OUTBOX_DIFFERS = "OUTBOX_DIFFERS"
    """The outbox row doesn't say what the run's events say (claimed and never delivered, delivered and never executed)."""
    STAGING_DIFFERS = "STAGING_DIFFERS"
    """The rows staged in ClickHouse are not those of the artifact that was published."""


class RecordDiscrepancy(msgspec.Struct, frozen=True, kw_only=True):
    """Record what was found, once while it lasts."""

    kind: DiscrepancyKind
    subject: str
    expected: str
    actual: str


class RecordRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the two agree again, and by what means."""

    repair: str


class RaiseAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Ask an operator: it cannot be repaired from events and CAS."""

    reason: str


class ResolveAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's word, with a note, that it has been dealt with; or the reconciler's, that it is gone."""

    principal: str
    note: str


@registered
class DiscrepancyFound(Event, frozen=True, kw_only=True):
    """Two things that should agree don't."""

    topic: ClassVar[str] = "discrepancy.found.v1"
    kind: DiscrepancyKind
    subject: str
    expected: str
    actual: str


@registered
class DiscrepancyRepaired(Event, frozen=True, kw_only=True):
    """They agree again, by the named means."""

    topic: ClassVar[str] = "discrepancy.repaired.v1"
    kind: DiscrepancyKind
    subject: str
    repair: str


@registered
class DiscrepancyAlertRaised(Event, frozen=True, kw_only=True):
    """It could not be repaired; an operator is asked."""

    topic: ClassVar[str] = "discrepancy.alert_raised.v1"
    kind: DiscrepancyKind
    subject: str
    reason: str


@registered
class DiscrepancyAlertResolved(Event, frozen=True, kw_only=True):
    """The alert was dealt with."""

    topic: ClassVar[str] = "discrepancy.alert_resolved.v1"
    kind: DiscrepancyKind
    subject: str
    principal: str
    note: str
