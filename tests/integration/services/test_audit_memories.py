"""The audit looks at what process managers remember: it is a fold of the events like any read model, and damage to it is named."""

import pytest

from deployment.audit_wiring import memories, reacting
from projections.postgres import PostgresSession
from projections.registry import PROCESS_MANAGERS
from projections.runner import run_once
from projections.status import Projections
from services.adapters.manager_store import InstanceRows, ManagerOperations
from services.audit.findings import AuditReport, FindingKind
from services.process_managers.instances import instances_of
from tests.support.audited_system import AuditedSystem
from tests.support.read_models import execute


def remember(system: AuditedSystem, batch_events_max: int, batches: int = 10**6) -> None:
    """Have every manager that is registered read so many batches of the log."""
    registered = {name for (name,) in system.log.pool.rows("SELECT name FROM finaz.projections")}
    for manager in (manager for manager in reacting() if manager.name in registered):
        model = instances_of(manager)
        session = PostgresSession(system.dsn, model, InstanceRows(manager.name), "test")
        try:
            while batches and not run_once(session, model, batch_events_max).caught_up:
                batches -= 1
        finally:
            session.close()


def looked_at(system: AuditedSystem) -> AuditReport:
    """An audit that looks at them too."""
    return system.audit(memories=memories())


def test_every_manager_is_looked_at() -> None:
    """No process manager is missing among those whose memory an audit looks at."""
    assert {manager.name for manager in reacting()} == PROCESS_MANAGERS


def test_what_they_remember_is_clean(system: AuditedSystem) -> None:
    """Before a manager has ever read, in the middle of the log and at its end, in one pass or many, whatever the batches were."""
    assert looked_at(system).findings == ()
    remember(system, 3, batches=2)
    assert looked_at(system).findings == ()
    remember(system, 7)
    report = looked_at(system)
    assert (report.findings, report.not_checked) == ((), ())
    served = {model.name: model.rows_served for model in report.read_models}
    assert served["reconciler"] == 1
    assert served["orphan_recovery"] >= 1
    parts = system.audit(memories=memories(), streams_max=20)
    assert parts.findings == ()
    assert {model.name: model.rows_served for model in parts.read_models} == served


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("DELETE FROM finaz.manager_instances AS i WHERE {row}", FindingKind.ROW_MISSING),
        ("UPDATE finaz.manager_instances AS i SET state = '{{\"x\": 1}}' WHERE {row}", FindingKind.ROW_DIFFERENT),
        ("UPDATE finaz.manager_instances AS i SET deadlines = '[]' WHERE {row}", FindingKind.ROW_DIFFERENT),
        ("UPDATE finaz.manager_instances AS i SET position = position + 1 WHERE {row}", FindingKind.ROW_DIFFERENT),
        ("UPDATE finaz.manager_instances AS i SET deadlines = '[{{}}]' WHERE {row}", FindingKind.ROW_UNREADABLE),
    ],
)
def test_damage_to_a_memory_is_named(system: AuditedSystem, damage: str, kind: FindingKind) -> None:
    """One instance changed or removed: the manager and the instance are named."""
    remember(system, 1000)
    ((key,),) = system.log.pool.rows(
        "SELECT key FROM finaz.manager_instances WHERE manager = 'orphan_recovery' AND deadlines::text <> '[]' ORDER BY key LIMIT 1"
    )
    execute(system.dsn, damage.format(row=f"i.manager = 'orphan_recovery' AND i.key = '{key}'"))
    found = {(finding.kind, finding.subject) for finding in looked_at(system).findings}
    named = "orphan_recovery" if kind is FindingKind.ROW_UNREADABLE else f"orphan_recovery {key}"
    assert (kind, named) in found
    assert found <= {(kind, named), (FindingKind.ROW_MISSING, f"orphan_recovery {key}")}


def test_a_replay_puts_a_memory_right(system: AuditedSystem) -> None:
    """What the runbook says: pause, replay, resume; then nothing is found."""
    remember(system, 1000)
    execute(system.dsn, "UPDATE finaz.manager_instances SET position = position + 1")
    assert looked_at(system).counts[FindingKind.ROW_DIFFERENT.value] >= 2
    for name in ("orphan_recovery", "reconciler", "payment", "purchase_mail"):
        Projections(system.log.pool).pause(name, "ana", "a memory is wrong")
        ManagerOperations(system.log.pool).replay(name)
        Projections(system.log.pool).resume(name, "ana")
    remember(system, 1000)
    assert looked_at(system).findings == ()


def test_a_memory_that_nothing_made_is_named(system: AuditedSystem) -> None:
    """An instance too many, and one that is remembered though it ought to be forgotten."""
    remember(system, 1000)
    execute(
        system.dsn,
        "INSERT INTO finaz.manager_instances (manager, key, state, deadlines, position) VALUES ('payment', 'x', '{}', '[]', 1)",
    )
    run_id = next(event.stream for event in system.events if event.event.topic == "run.succeeded.v1").removeprefix(
        "run/"
    )
    execute(
        system.dsn,
        "INSERT INTO finaz.manager_instances (manager, key, state, deadlines, position) VALUES ('reconciler', %s, '{}', '[]', 1)",
        run_id,
    )
    found = {(finding.kind, finding.subject) for finding in looked_at(system).findings}
    assert found == {(FindingKind.ROW_EXTRA, "payment x"), (FindingKind.ROW_EXTRA, f"reconciler {run_id}")}
