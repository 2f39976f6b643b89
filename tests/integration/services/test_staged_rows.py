"""The reconciler of staged rows on real engines: each kind of damage is found, named, repaired from CAS, or raised as an alert."""

import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest

from domain.discrepancies.messages import (
    DiscrepancyAlertRaised,
    DiscrepancyFound,
    DiscrepancyKind,
    DiscrepancyRepaired,
)
from domain.identity import discrepancy_stream
from projections.staging.clickhouse import FeatureValues
from projections.staging.postgres import StagedAttempts, StagingRepairs
from services.process_managers.contract import Again, Command
from services.process_managers.reconciler import VERIFY
from services.process_managers.staging_reconciler import LOOKS_SECONDS, StagingReconciler
from services.reconciliation import EQUAL_AGAIN
from services.staged_rows import STAGED_AGAIN, Parts, StagedRowsReconciliation
from tests.support.read_models import execute
from tests.support.staging_rig import Market, batch_of
from tests.support.store import opened

STAGING = DiscrepancyKind.STAGING_DIFFERS


class Desk:
    """A market, and the reconciliation of its staged rows."""

    def __init__(self, market: Market) -> None:
        self.market = market
        log = market.log
        repairs = StagingRepairs(market.dsn, market.stager())
        parts = Parts(market.values, StagedAttempts(log.pool), repairs)
        self.reconciliation = StagedRowsReconciliation(log, market.blobs, parts)

    def recorded(self, run_id: str) -> list[object]:
        """The events of the run's discrepancy."""
        stream = discrepancy_stream(STAGING.value, run_id)
        return [one.event for one in self.market.log.read_streams_blocking([stream]).streams[stream]]


@pytest.fixture
def desk(database: str, clickhouse: str) -> Iterator[Desk]:
    """A desk of the test's own."""
    values = FeatureValues(clickhouse)
    with opened(database) as log:
        yield Desk(Market(database, log, values))
    values.close()


def test_any_one_changed_row_is_found_named_and_repaired(desk: Desk) -> None:
    """Changed in any column, removed, inserted, doubled: found by its row, put right under a fresh attempt, recorded once."""
    market = desk.market
    kinds = ["value", "time", "id", "null", "removed", "inserted", "twice", "instrument", "run", "infinite", "bytes"]
    runs = {kind: market.publish(number, batch_of(8)) for number, kind in enumerate(kinds)}
    healthy = market.publish(99, batch_of(8))
    market.catch_up()
    for kind, run_id in runs.items():
        (attempt,) = market.attempts.visible(2, run_id=run_id)
        market.damage(attempt, kind, row=4)
    for kind, run_id in runs.items():
        assert desk.reconciliation.check(run_id) == (STAGING,), kind
        found, repaired = desk.recorded(run_id)
        assert isinstance(found, DiscrepancyFound)
        assert repaired == DiscrepancyRepaired(kind=STAGING, subject=run_id, repair=STAGED_AGAIN)
        if kind in ("value", "time", "id", "null", "removed"):
            assert "row 4: " in found.actual, found.actual
        assert desk.reconciliation.check(run_id) == (), kind
        assert len(desk.recorded(run_id)) == 2
    assert desk.reconciliation.check(healthy) == ()
    assert desk.recorded(healthy) == []
    assert market.seen() == market.published()
    assert market.stray_attempts() == set()


def test_an_output_that_is_gone_or_was_never_published_is_put_right(desk: Desk) -> None:
    """The record of an attempt removed by hand, another forged: the first is staged again, the second withdrawn."""
    market = desk.market
    run_id = market.publish(1, batch_of(5, ("ema", "sma")))
    market.catch_up()
    execute(market.dsn, "UPDATE finaz.staging_attempts SET output = 'forged' WHERE output = 'ema'")
    assert desk.reconciliation.check(run_id) == (STAGING,)
    found = desk.recorded(run_id)[0]
    assert isinstance(found, DiscrepancyFound)
    assert "ema: not staged" in found.actual
    assert "forged: rows of an output that was not published" in found.actual
    assert market.seen() == market.published()
    assert desk.reconciliation.check(run_id) == ()


def test_what_is_behind_or_cannot_be_compared_is_no_discrepancy(desk: Desk) -> None:
    """Before staging has come to the run, and while its artifact is missing, nothing is said; nor is anything of unknown runs."""
    market = desk.market
    run_id = market.publish(1, batch_of(5))
    assert desk.reconciliation.is_behind(run_id)
    assert desk.reconciliation.check(run_id) == ()
    market.catch_up()
    assert not desk.reconciliation.is_behind(run_id)
    address, data = next(iter(market.blobs.blobs.items()))
    market.damage(market.attempts.visible(1)[0], "value")
    del market.blobs.blobs[address]
    assert desk.reconciliation.check(run_id) == ()
    assert desk.recorded(run_id) == []
    market.blobs.blobs[address] = data
    assert desk.reconciliation.check(run_id) == (STAGING,)
    assert desk.reconciliation.check("run_" + "0" * 64) == ()


def test_what_cannot_be_repaired_becomes_an_alert_until_it_is_equal_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that does not help raises an alert; once the rows are right, however that came about, it is settled."""
    market = desk.market
    run_id = market.publish(1, batch_of(5))
    market.catch_up()
    market.damage(market.attempts.visible(1)[0], "removed")
    with monkeypatch.context() as patched:
        patched.setattr(StagingRepairs, "restage", lambda *_: False)
        assert desk.reconciliation.check(run_id) == (STAGING,)
        assert isinstance(desk.recorded(run_id)[-1], DiscrepancyAlertRaised)
    market.restage_all()
    assert desk.reconciliation.check(run_id) == ()
    assert desk.recorded(run_id)[-1] == DiscrepancyRepaired(kind=STAGING, subject=run_id, repair=EQUAL_AGAIN)


def test_a_run_is_verified_once_staging_has_come_to_it(desk: Desk) -> None:
    """The process manager looks again, later and later, and leaves to its sweep what takes too long."""
    market = desk.market
    market.publish(1, batch_of(1))
    market.catch_up()
    run_id = market.publish(2, batch_of(5))
    manager = StagingReconciler(market.log, desk.reconciliation)
    document: dict[str, object] = {"run_id": run_id}
    for seconds in LOOKS_SECONDS:
        again = manager.execute(Command(VERIFY, document), uuid4())
        assert isinstance(again, Again)
        assert again.delay_seconds == seconds
        document = again.document
    assert manager.execute(Command(VERIFY, document), uuid4()) is None
    market.catch_up()
    market.damage(market.attempts.visible(1, run_id=run_id)[0], "value")
    assert manager.execute(Command(VERIFY, {"run_id": run_id}), uuid4()) is None
    assert isinstance(desk.recorded(run_id)[0], DiscrepancyFound)


MILLION = """
import resource, sys
from domain.market.feature_batch import FeatureBatch, OutputSchema
from domain.market.lanes import LaneValues
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import FeatureValues
from projections.staging.comparison import difference
from projections.staging.delivery import Stager
from projections.staging.projection import Delivery
import numpy as np
rows = 1_000_000
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def data():
    ids = [f"event.{n:08d}" for n in range(rows)]
    lane = LaneValues("fx", np.arange(rows, dtype=np.int64) * 1_000_003, ids, {"ema": np.arange(rows) / 7})
    return FeatureBatch("sha256:" + "0" * 64, (OutputSchema("ema", "fx"),), (lane,)).encode()
if sys.argv[2] == "make":
    open(sys.argv[3], "wb").write(data())
else:
    values = FeatureValues(sys.argv[1])
    stager = Stager(values, lambda address: open(sys.argv[3], "rb").read())
    def staged(count):
        delivery = Delivery(run_id="run", output="ema", artifact="a", rows=count, position=1)
        return stager.stage([delivery], 1, lambda attempts: None)
    values.ping()
    before = peak()
    (attempt,) = staged(rows)
    after = peak()
    assert difference(values, attempt, open(sys.argv[3], "rb").read()) is None
    print(before, after, peak(), values.counts([attempt.attempt])[attempt.attempt])
    values.delete([attempt.attempt])
"""


def test_a_million_rows_are_staged_and_compared_in_bounded_memory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Beside the artifact's bytes, staging a million rows and comparing them takes an amount that does not grow with them."""
    folder = tmp_path_factory.mktemp("million")
    arguments = [f"chdb://{folder}/clickhouse", "make", str(folder / "artifact")]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", MILLION, *arguments], env=environment, check=True)
    arguments[1] = "stage"
    ran = subprocess.run(
        [sys.executable, "-c", MILLION, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    before, staged, compared, rows = map(float, ran.stdout.split())
    megabytes = (folder / "artifact").stat().st_size / 2**20
    print(f"before {before:.0f} MiB, staged {staged:.0f}, compared {compared:.0f}, artifact {megabytes:.0f}")
    assert rows == 1_000_000
    assert compared - before < 3 * megabytes + 400
