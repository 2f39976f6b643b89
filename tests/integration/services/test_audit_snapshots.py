"""The audit looks at the snapshots that services read on from: each is what the events up to its version make, or it is named.

And no table of the database is forgotten: each is compared, or it is said here why not.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

import services
from deployment.audit_wiring import FOLDS_WITH_SNAPSHOTS, snapshots
from domain.leases.messages import LeaseGranted, LeaseReleased
from projections.registry import PROJECTIONS
from services.audit.findings import AuditReport, FindingKind
from services.ports import Append, NewEvent
from services.store.states import Fold, States
from services.stream_claim import LEASE_FOLD
from tests.support.audited_system import AuditedSystem
from tests.support.read_models import execute

COMPARED = {*PROJECTIONS, "events", "snapshots", "staging_attempts", "manager_instances"}
"""Tables of the log, of the read models, of staging, of what process managers remember."""

NOT_COMPARED = {
    "manager_commands": "an operator may discard or replay them",
    "reservations": "a hint",
    "tracking": "how far readers are: no event tells",
    "projections": "which copies there are and how far: used to compare",
    "projection_skips": "an operator's word: used to compare",
    "projection_log": "an operator's words",
    "staging_system": "whose ClickHouse it is",
    "business_clock": "an offset for tests",
    "contacts": "outside the log, so that they can be erased",
    "migrations": "what was done to the schema",
}
"""Tables that no event makes, or of which docs/audit.md says why they are not compared."""


def looked_at(system: AuditedSystem, **changes: Any) -> AuditReport:
    return system.audit(further=lambda part, snapshot: (snapshots(part, snapshot),), **changes)


def take(system: AuditedSystem) -> list[str]:
    """Take a snapshot by each fold: of every lease, a journal, the checkpoints of a run. The streams."""
    leases = sorted({event.stream for event in system.events if isinstance(event.event, LeaseGranted)})
    taken = [(stream, LEASE_FOLD) for stream in leases]
    taken += [(f"{fold.name}/run_x", fold) for fold in FOLDS_WITH_SNAPSHOTS if fold is not LEASE_FOLD]
    states = States(system.log.pool)
    for stream, fold in taken:
        states.take(stream, fold)
    return [stream for stream, _ in taken]


def go_on(system: AuditedSystem) -> str:
    """Another event in the stream of a lease, behind its snapshot."""
    last = {event.stream: event for event in system.events}
    free = next(event for event in last.values() if isinstance(event.event, LeaseReleased))
    assert isinstance(free.event, LeaseReleased)
    granted = LeaseGranted(resource=free.event.resource, owner="another", token=free.event.token + 1, ttl_seconds=6.0)
    system.log.append_blocking(Append(events=(NewEvent(free.stream, free.version + 1, granted, uuid4()),)))
    return free.stream


def test_what_was_taken_is_clean(system: AuditedSystem) -> None:
    """Of every fold, at the end of its stream or before it, in one pass or many; without any there is nothing to say."""
    assert looked_at(system).findings == ()
    streams = take(system)
    go_on(system)
    report, parts = looked_at(system), looked_at(system, streams_max=20)
    assert (report.findings, parts.findings) == ((), ())
    for one in (report, parts):
        (model,) = (model for model in one.read_models if model.name == "snapshots")
        assert (model.rows_expected, model.rows_served) == (len(streams), len(streams))


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("SET state = replace(state, '\"token\":', '\"token\":7')", FindingKind.ROW_DIFFERENT),
        ("SET state = state || ' '", FindingKind.ROW_DIFFERENT),
        ("SET state = 'rubbish'", FindingKind.ROW_DIFFERENT),
        ("SET state = '[]'", FindingKind.ROW_DIFFERENT),
        ("SET version = version + 7", FindingKind.ROW_EXTRA),
        ("SET stream = 'lease/nothing'", FindingKind.ROW_EXTRA),
    ],
)
def test_a_changed_one_is_named(system: AuditedSystem, damage: str, kind: FindingKind) -> None:
    """One row changed is one finding, with its stream and fold, though the stream has gone on since."""
    take(system)
    stream = go_on(system)
    execute(system.dsn, f"UPDATE finaz.snapshots {damage} WHERE stream = %s", stream)
    named = "lease/nothing" if "nothing" in damage else stream
    found = [(finding.kind, finding.subject) for finding in looked_at(system).findings]
    assert found == [(kind, f"snapshots {named} {LEASE_FOLD.topic}")]


def test_what_no_service_reads_is_passed_over(system: AuditedSystem) -> None:
    """A missing one, one of another schema, and one whose stream cannot be folded so far: that is named by itself."""
    take(system)
    stream = go_on(system)
    execute(
        system.dsn, "UPDATE finaz.snapshots SET topic = 'snapshot.lease.v0', state = '{}' WHERE stream = %s", stream
    )
    execute(system.dsn, "DELETE FROM finaz.snapshots WHERE stream LIKE 'checkpoint/%'")
    assert looked_at(system).findings == ()
    system.tamper("UPDATE finaz.events SET topic = 'nobody.knows.v1' WHERE stream = 'journal/run_x' AND version = 1")
    found = {finding.subject for finding in looked_at(system).findings}
    assert "journal/run_x" in found
    assert not [subject for subject in found if subject.startswith("snapshots ")]


def test_every_fold_with_snapshots_is_looked_at() -> None:
    """No fold of a service is missing among those whose snapshots are compared."""
    assert {fold.topic for fold in _folds()} == {fold.topic for fold in FOLDS_WITH_SNAPSHOTS}


def _folds() -> Iterator[Fold[Any]]:
    for module in pkgutil.walk_packages(services.__path__, "services."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Fold):
                yield value


def test_no_table_is_forgotten(system: AuditedSystem) -> None:
    """Each table is one that the audit compares, or one of which it is said why not; copies count as what they are copies of."""
    rows = system.log.pool.rows(
        "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'finaz'::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition"
    )
    assert {name.removesuffix("_generations") for (name,) in rows} == COMPARED | set(NOT_COMPARED)
