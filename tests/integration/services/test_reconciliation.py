"""The reconciler on a real PostgreSQL and a real CAS: each kind of damage is found, named, repaired or raised as an alert."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployment.fixture_files import fixture_path
from domain.canonical import address, address_of, parse
from domain.discrepancies.messages import DiscrepancyAlertResolved, DiscrepancyKind
from domain.errors import BlobMissingError, StoreUnavailableError
from domain.identity import discrepancy_stream, run_stream
from domain.leases.messages import LeaseGranted
from domain.runs.messages import ResultPublished, ResultRef, RunSpec, RunStarted, RunSucceeded
from projections.discrepancies.postgres import DiscrepanciesReader
from projections.projector import projector
from services.admission import Admissions
from services.batch_execution import FlowComputation
from services.batch_parts import WorkerSettings
from services.batch_worker import BatchWorker
from services.cas import DirectoryBlobStore
from services.ports import Append, Fence, NewEvent, Vacant
from services.process_managers.reconciler import Reconciler
from services.recomputation import LABEL, Recomputation
from services.reconciliation import EQUAL_AGAIN, ROW_REWRITTEN, Reconciliation
from services.requests import parse_run_body
from services.served_rows import ServedRows
from services.store.application import Log
from services.store.work_queue import OutboxQueue
from tests.integration.services.test_process_managers import Desk, request, until
from tests.support.fixture_market import body, store_snapshot
from tests.support.store import opened

ARTIFACT = b'{"ticks":[]}'


class System:
    """A log, its read models, a CAS, and a reconciliation whose recomputation the test decides."""

    def __init__(self, dsn: str, log: Log, folder: Path) -> None:
        self.dsn = dsn
        self.log = log
        self.folder = folder
        self.blobs = DirectoryBlobStore(folder)
        self.recompute: Callable[[RunSpec], Sequence[bytes]] = lambda spec: (ARTIFACT,)
        self.reconciliation = Reconciliation(
            log, self.blobs, ServedRows(log.pool), lambda run_id, spec: self.recompute(spec)
        )

    def succeeded(self, number: int = 0) -> str:
        """A run that ended well, with its artifact."""
        run_id = request(self.log, number)
        lease, run, artifact = f"lease/{run_id}", run_stream(run_id), self.blobs.put(ARTIFACT)
        granted = LeaseGranted(resource=run_id, owner="w", token=1, ttl_seconds=60.0)
        started = RunStarted(run_id=run_id, owner="w", token=1, attempt=1)
        wanted = (NewEvent(lease, 1, granted, uuid4()), NewEvent(run, 2, started, uuid4()))
        self.log.append_blocking(Append(events=wanted, guard=Vacant(run_id, 0)))
        result = ResultRef(
            output="ema", artifact=artifact, values_hash=address_of([]), rows=0, schema="v1", flow=artifact, inputs=()
        )
        published = ResultPublished(run_id=run_id, token=1, result=result)
        ended = (NewEvent(run, 3, published, uuid4()), NewEvent(run, 4, RunSucceeded(run_id=run_id, token=1), uuid4()))
        self.log.append_blocking(Append(events=ended, guard=Fence(run_id, "w", 1)))
        return run_id

    def catch_up(self) -> None:
        """Have the read models reach the end of the log."""
        mark = self.log.high_water_mark()
        with projector(self.dsn, "test"):
            names = "('runs', 'publications', 'leases', 'discrepancies')"
            until(lambda: self.sql(f"SELECT min(position) FROM finaz.projections WHERE name IN {names}") >= [(mark,)])

    def damaged_blob(self, data: bytes | None) -> None:
        """Replace the artifact's bytes, or remove them."""
        (path,) = self.folder.rglob(address(ARTIFACT).removeprefix("sha256:"))
        path.unlink() if data is None else path.write_bytes(data)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.log.pool.rows(statement)

    def resolve(self, kind: DiscrepancyKind, run_id: str) -> None:
        """An operator's word on the alert."""
        stream = discrepancy_stream(kind.value, run_id)
        version = len(self.log.read_streams_blocking([stream]).streams[stream]) + 1
        resolved = DiscrepancyAlertResolved(kind=kind, subject=run_id, principal="ops", note="written off")
        self.log.append_blocking(Append(events=(NewEvent(stream, version, resolved, uuid4()),)))

    def told(self, kind: DiscrepancyKind, run_id: str) -> list[str]:
        """The topics of the discrepancy's stream, and how each says it ended."""
        stream = discrepancy_stream(kind.value, run_id)
        events = [recorded.event for recorded in self.log.read_streams_blocking([stream]).streams[stream]]
        return [e.topic.split(".")[1] + ":" + getattr(e, "repair", getattr(e, "reason", ""))[:60] for e in events]


@pytest.fixture
def system(database: str, tmp_path: Path) -> Iterator[System]:
    """The parts that the reconciler looks at."""
    with opened(database) as log:
        yield System(database, log, tmp_path)


def test_a_healthy_run_gives_no_event_however_often_it_is_looked_at(system: System) -> None:
    """Nothing is found in a system that is as its events say; a queued run and an unknown one included."""
    run_id, waiting = system.succeeded(1), request(system.log, 2)
    system.catch_up()
    before = system.log.high_water_mark()
    for _ in range(2):
        assert [system.reconciliation.check(r) for r in (run_id, waiting, "run_" + "0" * 64)] == [(), (), ()]
    assert system.log.high_water_mark() == before


@pytest.mark.parametrize("data", [None, b'{"ticks":[1]}'])
def test_a_lost_or_corrupt_artifact_is_computed_again(system: System, data: bytes | None) -> None:
    """Found, repaired with the very same bytes, and said so; looking again finds nothing."""
    run_id = system.succeeded()
    system.catch_up()
    system.damaged_blob(data)
    kind = DiscrepancyKind.ARTIFACT_MISSING if data is None else DiscrepancyKind.ARTIFACT_CORRUPT
    assert system.reconciliation.check(run_id) == (kind,)
    assert system.told(kind, run_id) == ["found:", f"repaired:{LABEL}"]
    assert system.blobs.get(address(ARTIFACT)) == ARTIFACT
    assert system.reconciliation.check(run_id) == ()
    system.damaged_blob(data)
    assert system.reconciliation.check(run_id) == (kind,)
    assert system.told(kind, run_id) == ["found:", f"repaired:{LABEL}"] * 2


def test_what_cannot_be_computed_again_becomes_an_alert_and_settles_when_it_is_back(system: System) -> None:
    """The inputs are gone, or give other bytes: an alert, once; the restored artifact settles it."""
    run_id = system.succeeded()
    system.catch_up()
    system.damaged_blob(None)

    def gone(spec: RunSpec) -> Sequence[bytes]:
        raise BlobMissingError("the snapshot is gone", at=spec.snapshot)

    for system.recompute in (gone, lambda spec: (b"other bytes",), gone):
        assert system.reconciliation.check(run_id) == (DiscrepancyKind.ARTIFACT_MISSING,)
    topics = [told.partition(":")[0] for told in system.told(DiscrepancyKind.ARTIFACT_MISSING, run_id)]
    assert topics == ["found", "alert_raised"]
    system.catch_up()
    (alert,) = DiscrepanciesReader(system.log.pool).newest("ALERTED", 2**63 - 1, 2)
    assert (alert.kind, alert.subject) == ("ARTIFACT_MISSING", run_id)
    assert alert.outcome.startswith("the artifact cannot be computed again")
    assert DiscrepanciesReader(system.log.pool).open() == [("ARTIFACT_MISSING", "ALERTED", 1)]
    system.blobs.put(ARTIFACT)
    assert system.reconciliation.check(run_id) == ()
    assert system.told(DiscrepancyKind.ARTIFACT_MISSING, run_id)[-1] == f"repaired:{EQUAL_AGAIN}"


def test_a_resolved_alert_stays_resolved_until_something_changes(system: System) -> None:
    """What is lost for good is not raised at every round again; another loss after it had been restored is."""
    run_id = system.succeeded()
    system.catch_up()
    system.damaged_blob(None)

    def gone(spec: RunSpec) -> Sequence[bytes]:
        raise BlobMissingError("the snapshot is gone", at=spec.snapshot)

    system.recompute = gone
    system.reconciliation.check(run_id)
    kind = DiscrepancyKind.ARTIFACT_MISSING
    system.resolve(kind, run_id)
    for _ in range(2):
        assert system.reconciliation.check(run_id) == (kind,)
    steps = ["found", "alert_raised", "alert_resolved"]
    assert [told.partition(":")[0] for told in system.told(kind, run_id)] == steps
    system.blobs.put(ARTIFACT)
    system.reconciliation.check(run_id)
    system.damaged_blob(None)
    system.reconciliation.check(run_id)
    again = ["repaired", "found", "alert_raised"]
    assert [told.partition(":")[0] for told in system.told(kind, run_id)] == steps + again


def test_an_infrastructure_fault_while_repairing_is_tried_again_and_raises_no_alert(system: System) -> None:
    """What was found stays found until the part is back."""
    run_id = system.succeeded()
    system.catch_up()
    system.damaged_blob(None)

    def away(spec: RunSpec) -> Sequence[bytes]:
        raise StoreUnavailableError("away")

    system.recompute = away
    with pytest.raises(StoreUnavailableError):
        system.reconciliation.check(run_id)
    assert system.told(DiscrepancyKind.ARTIFACT_MISSING, run_id) == ["found:"]
    system.recompute = lambda spec: (ARTIFACT,)
    assert system.reconciliation.check(run_id) == (DiscrepancyKind.ARTIFACT_MISSING,)
    assert system.told(DiscrepancyKind.ARTIFACT_MISSING, run_id) == ["found:", f"repaired:{LABEL}"]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("UPDATE finaz.runs_generations SET state = 'FAILED' WHERE run_id = '{}'", DiscrepancyKind.RUN_DIFFERS),
        ("DELETE FROM finaz.runs_generations WHERE run_id = '{}'", DiscrepancyKind.RUN_DIFFERS),
        ("UPDATE finaz.publications_generations SET rows = 7 WHERE run_id = '{}'", DiscrepancyKind.PUBLICATION_DIFFERS),
        ("DELETE FROM finaz.publications_generations WHERE run_id = '{}'", DiscrepancyKind.PUBLICATION_DIFFERS),
    ],
)
def test_a_read_model_changed_by_hand_is_an_alert_with_advice(
    system: System, damage: str, kind: DiscrepancyKind
) -> None:
    """One changed or removed row is named; the advice is the command that puts it right."""
    run_id = system.succeeded()
    system.catch_up()
    system.sql(damage.format(run_id))
    assert system.reconciliation.check(run_id) == (kind,)
    assert [told.partition(":")[0] for told in system.told(kind, run_id)] == ["found", "alert_raised"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE finaz.outbox SET state = 'pending'",
        "UPDATE finaz.outbox SET state = 'claimed'",
        "UPDATE finaz.outbox SET priority = 99",
        "DELETE FROM finaz.outbox",
    ],
)
def test_an_outbox_row_changed_by_hand_is_written_again(system: System, damage: str) -> None:
    """Claimed and never delivered, delivered and pending, missing: the events win."""
    run_id = system.succeeded()
    system.catch_up()
    before = system.sql("SELECT * FROM finaz.outbox")
    system.sql(damage)
    assert system.reconciliation.check(run_id) == (DiscrepancyKind.OUTBOX_DIFFERS,)
    assert system.told(DiscrepancyKind.OUTBOX_DIFFERS, run_id) == ["found:", f"repaired:{ROW_REWRITTEN}"]
    assert system.sql("SELECT * FROM finaz.outbox") == before


async def test_what_a_replay_stored_is_made_again(system: System) -> None:
    """Schedule, log, report and artifact, lost one by one or all at once: the same bytes stand there again."""
    faults = parse(fixture_path("schedules/fixture.faults.01.json").read_bytes())
    asked = parse_run_body(body(store_snapshot(system.blobs), mode="REPLAY", schedule=faults))
    run_id = (await Admissions(system.log, system.blobs).submit_run("ana", "key", asked)).run_id
    worker = BatchWorker(system.log, system.blobs, OutboxQueue(system.log.hot_pool), WorkerSettings(), "w")
    result = await worker.run_one()
    assert result is not None
    again = Recomputation(FlowComputation(system.blobs, 10**6, 10**6))
    system.recompute = lambda spec: again(run_id, spec)
    stored = (*result.inputs[1:], result.artifact)
    assert len(stored) == 4
    for lost in (*((name,) for name in stored[1:]), stored[1:]):
        for name in lost:
            next(iter(system.folder.rglob(name.removeprefix("sha256:")))).unlink()
        found = await asyncio.to_thread(system.reconciliation.check, run_id)
        assert found == (DiscrepancyKind.ARTIFACT_MISSING,)
        assert all(system.blobs.get(name) for name in stored)
        assert await asyncio.to_thread(system.reconciliation.check, run_id) == ()
    told = system.told(DiscrepancyKind.ARTIFACT_MISSING, run_id)
    assert told[:2] == ["found:", f"repaired:{LABEL}"]


def test_a_queued_run_whose_item_reads_delivered_becomes_pending_again(system: System) -> None:
    """The case of the specification, by the manager itself: its sweep finds the run, and a worker can take it."""
    run_id = request(system.log)
    system.sql("UPDATE finaz.outbox SET state = 'delivered'")
    with Desk(system.dsn, system.log, Reconciler(system.log, system.reconciliation, round_seconds=0.1)):
        until(lambda: system.sql("SELECT key, state FROM finaz.outbox") == [(run_id, "pending")])


def test_a_read_model_that_is_behind_is_no_discrepancy(system: System) -> None:
    """Nothing has been projected yet, and nothing is found."""
    run_id = system.succeeded()
    assert system.reconciliation.check(run_id) == ()


def test_each_run_is_verified_after_it_succeeded_and_again_in_the_sweeps(system: System) -> None:
    """Damage right after the publication, and damage long after: both are found without anybody asking."""
    first = system.succeeded(1)
    system.damaged_blob(b"x")
    with Desk(system.dsn, system.log, Reconciler(system.log, system.reconciliation, round_seconds=0.1)):
        until(lambda: system.told(DiscrepancyKind.ARTIFACT_CORRUPT, first) == ["found:", f"repaired:{LABEL}"])
        system.damaged_blob(None)
        until(lambda: system.told(DiscrepancyKind.ARTIFACT_MISSING, first) == ["found:", f"repaired:{LABEL}"])
        until(
            lambda: (
                system.sql("SELECT count(*) FROM finaz.manager_commands WHERE name = 'verify' AND state = 'issued'")
                == [(1,)]
            )
        )
