"""The audit as a job: executed by a runner of jobs, its report in CAS, its outcome the job's last event.

What must stay true: an audit changes nothing, so a crash costs only its time: it is begun again. That it found differences is a
job that SUCCEEDED, with `outcome` "differences"; one that FAILED could not check.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.errors import BodyInvalidError
from services import effects
from services.audit.audit import AuditParts, OnProgress, Snapshot, audit
from services.audit.findings import Audit, AuditReport, summary_of
from services.job_kinds import Done, JobWork
from services.ports import BlobStore

TARGET: Final = "log"
"""What an audit's slot is called: one audit at a time."""

OpenSnapshot = Callable[[], AbstractContextManager[Snapshot]]


def audited(open_snapshot: OpenSnapshot, parts: AuditParts, on_progress: OnProgress) -> AuditReport:
    """An audit of a snapshot that is opened for it."""
    with open_snapshot() as snapshot:
        return audit(snapshot, parts, on_progress)


def stored(report: AuditReport, blobs: BlobStore | None) -> Audit:
    """Put the report into CAS, where there is one, and say in short what it says."""
    address = None if blobs is None else effects.store_blob(blobs, canonical(msgspec.to_builtins(report)))
    return summary_of(report, address)


class AuditKind:
    """`services.job_kinds.JobKind` "audit"."""

    name = "audit"

    def __init__(
        self, open_snapshot: OpenSnapshot, parts: Callable[[], AbstractContextManager[AuditParts]], blobs: BlobStore
    ) -> None:
        self._open_snapshot = open_snapshot
        self._parts = parts
        self._blobs = blobs

    def checked(self, target: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """An audit has no parameters, and its target is `log`."""
        if target != TARGET:
            raise BodyInvalidError(f"an audit of {target[:64]!r}", at="$.target", expected=TARGET)
        if document:
            raise BodyInvalidError("an audit has no parameters", at="$.document", expected="{}")
        return {}

    def run(self, work: JobWork) -> Done:
        """See `JobKind`."""
        with self._parts() as parts:
            report = audited(self._open_snapshot, parts, work.reached)
        summary = stored(report, self._blobs)
        return Done(result=msgspec.to_builtins(summary), report=summary.report)

    def undo(self, work: JobWork) -> None:
        """Nothing was made."""
