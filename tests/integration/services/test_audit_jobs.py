"""The audit as a job: its outcome is its last event, its report is in CAS, and a runner that dies costs only time."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from domain.canonical import parse
from domain.errors import InputError
from domain.jobs.errors import JobRunningError
from services.adapters.ed25519 import verify
from services.audit.audit import AuditParts
from services.audit.job import TARGET, AuditKind
from services.job_kinds import JobWork
from services.seals import verified
from services.store.log_snapshot import log_snapshot
from tests.support.audited_system import AuditedSystem
from tests.support.job_rig import JobRig
from tests.support.read_models import execute


class DyingKind(AuditKind):
    """An audit that dies at the n-th border of its first attempt."""

    dies_at: int | None = None

    def run(self, work: JobWork) -> Any:
        borders = 0
        reached = work.reached

        def counted(position: int, total: int) -> None:
            nonlocal borders
            if work.attempt == 1 and borders == self.dies_at:
                raise SystemExit  # the process is gone: nothing of it is told to anybody
            borders += 1
            reached(position, total)

        work.reached = counted  # type: ignore[method-assign]
        return super().run(work)


def rig_of(system: AuditedSystem, dies_at: int | None = None) -> JobRig:
    """Jobs over the system, with audits as their kind."""
    parts = AuditParts(blobs=system.blobs, seals=lambda: verified(system.seals, system.signer.public_key, verify))
    kind = DyingKind(partial(log_snapshot, system.dsn), lambda: nullcontext(parts), system.blobs)
    kind.dies_at = dies_at
    return JobRig(system.log, kind)


def test_the_outcome_is_an_event_and_the_report_is_in_cas(system: AuditedSystem) -> None:
    """Clean, then with a difference: both SUCCEEDED, told apart by `outcome`; the report says the rest."""
    rig = rig_of(system)
    first = rig.request(TARGET)
    assert rig.runner("a").run_once()
    view = rig.view(first)
    assert view.result is not None
    assert (view.state, view.result["outcome"], view.result["differences"]) == ("SUCCEEDED", "clean", 0)
    report: Any = parse(system.blobs.get(view.report or ""))
    assert (report["format"], report["position"], report["findings"]) == ("finaz.audit.v1", view.result["position"], [])
    execute(system.dsn, "UPDATE finaz.outbox SET lane = 'forged' WHERE ctid = (SELECT min(ctid) FROM finaz.outbox)")
    second = rig.request(TARGET)
    assert rig.runner("a").run_once()
    view = rig.view(second)
    assert view.result is not None
    assert (view.state, view.result["outcome"], view.result["counts"]) == (
        "SUCCEEDED",
        "differences",
        {"ROW_DIFFERENT": 1},
    )


def test_one_audit_at_a_time(system: AuditedSystem) -> None:
    """A second is refused while one lives; other targets and parameters are refused before anything happens."""
    rig = rig_of(system)
    rig.request(TARGET)
    with pytest.raises(JobRunningError):
        rig.request(TARGET)
    with pytest.raises(InputError):
        rig.request("runs")
    with pytest.raises(InputError):
        rig.request(TARGET, depth=1)


def test_a_runner_that_dies_at_any_border_costs_only_time(system: AuditedSystem) -> None:
    """Killed at each border, the audit is taken up by the next runner, begins again and ends as it would have."""
    for border in (0, 1, 5, 10):
        rig = rig_of(system, dies_at=border)
        job_id = rig.request(TARGET)
        with pytest.raises(SystemExit):
            rig.runner("dead").run_once()
        assert rig.view(job_id).state == "RUNNING"
        _expire(system, job_id)
        assert rig.runner("alive").run_once()
        view = rig.view(job_id)
        assert view.result is not None
        assert (view.state, view.attempts, view.result["outcome"]) == ("SUCCEEDED", 2, "clean")


def _expire(system: AuditedSystem, job_id: str) -> None:
    """Let the dead runner's lease run out now instead of in a while, in the guard and in the fold alike."""
    from uuid import uuid4

    from domain.leases.messages import LeaseReleased
    from services.ports import Append, Fence, NewEvent

    stream = f"lease/{job_id}"
    events = system.log.read_streams_blocking([stream]).streams[stream]
    last: Any = events[-1].event
    released = LeaseReleased(resource=job_id, owner=last.owner, token=last.token)
    new = NewEvent(stream, events[-1].version + 1, released, uuid4())
    system.log.append_blocking(Append(events=(new,), guard=Fence(job_id, last.owner, last.token)))


def test_a_cancelled_audit_ends_at_its_next_border(system: AuditedSystem) -> None:
    """Asked to stop, it stops; nothing is left to undo."""
    rig = rig_of(system)
    job_id = rig.request(TARGET)
    rig.cancel(job_id)
    rig.runner("a").run_once()
    assert rig.view(job_id).state == "CANCELLED"


def test_an_audit_that_cannot_read_fails_or_is_tried_again(system: AuditedSystem) -> None:
    """A store that is away is not an outcome: the job waits and is tried again, and never says clean."""
    kind = AuditKind(
        partial(log_snapshot, "host=/nonexistent dbname=x"),
        lambda: nullcontext(AuditParts(blobs=system.blobs, seals=None)),
        system.blobs,
    )
    rig = JobRig(system.log, kind)
    job_id = rig.request(TARGET)
    rig.runner("a").run_once()
    view = rig.view(job_id)
    assert view.state == "QUEUED"
    assert view.result is None
