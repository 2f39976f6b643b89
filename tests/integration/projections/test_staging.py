"""Staging on a real PostgreSQL and a real ClickHouse engine: readers see what was published, whatever crashes or repeats."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.errors import BlobCorruptError, PositionConflictError
from domain.market.feature_batch import FeatureBatch, OutputSchema
from domain.market.lanes import LaneValues
from domain.market.text_columns import EARLIEST, LATEST
from projections.position import CopyState
from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE, run_once
from projections.staging.clickhouse import FeatureValues, StagedSlice, is_embedded
from projections.staging.errors import StagingFolderTakenError, StagingUnavailableError
from projections.staging.points import INSERT_AFTER, INSERT_BEFORE
from projections.staging.postgres import StagingRepairs
from projections.staging.projection import MODEL
from services import faultpoints
from services.cas import DirectoryBlobStore
from tests.support.read_models import CrashError, crash_at, execute
from tests.support.staging_rig import ADDRESS, Market, batch_of, rows_of
from tests.support.store import opened

FAULTS = (INSERT_BEFORE, INSERT_AFTER, POSITION_COMMIT_BEFORE, POSITION_COMMIT_AFTER)


@pytest.fixture
def market(database: str, clickhouse: str) -> Iterator[Market]:
    """A market of the test's own, in a ClickHouse that this process keeps."""
    values = FeatureValues(clickhouse)
    with opened(database) as log:
        yield Market(database, log, values)
    values.close()


def test_every_published_row_is_staged_once(market: Market) -> None:
    """Several outputs, several lanes, instants before 1970, nulls: all rows, each once, in clock order; nulls are NULL."""
    market.publish(1, batch_of(11, ("ema", "sma")))
    market.publish(2, batch_of(0))
    market.publish(3, batch_of(7, instrument="fx-1"), "bo")
    progress = market.catch_up()
    assert (progress.state, progress.caught_up) == (CopyState.RUNNING, True)
    assert market.seen() == market.published()
    assert len(market.seen()) == 29
    assert any(row[-1] is None for row in market.seen())
    assert market.attempts.tally().outputs == 4


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_equal_work_of_two_runs_is_staged_for_each(market: Market, limit: int) -> None:
    """One artifact published by two runs, and two outputs of one artifact: each run has its own rows."""
    for number in range(3):
        market.publish(number, batch_of(5, ("a", "b")))
    market.catch_up(limit)
    assert market.seen() == market.published()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 3)), max_size=5),
    st.booleans(),
)
def test_any_crashes_and_repeated_deliveries_show_the_rows_once(
    market: Market, sizes: list[int], limit: int, crashes: list[tuple[str, int]], repeat: bool
) -> None:
    """Crashes at any fault points in any order, with positions set back between: readers see every row exactly once.

    Afterwards nothing is left of the attempts that came to nothing.
    """
    already = len(market.log.read_log(0, 10**6))
    for number, rows in enumerate(sizes):
        market.publish(already + number, batch_of(rows, ("ema", "sma"), f"fx-{rows}"))
    for where, passes in crashes:
        market.catch_up(limit, crash_at({passes}, where))
        if repeat:
            execute(market.dsn, "UPDATE finaz.projections SET position = position / 2 WHERE name = 'staging'")
        assert _subset(market)
    market.catch_up(limit)
    assert market.seen() == market.published()
    with market.session() as session:
        session.claim()
        session.look()
    assert market.stray_attempts() == set()


def _subset(market: Market) -> bool:
    """Whether what readers see has no row twice and none that was not published."""
    seen = market.seen()
    return len(seen) == len(set(seen)) and set(seen) <= set(market.published())


def test_a_crash_between_insert_and_position_leaves_an_attempt_that_nobody_sees(market: Market) -> None:
    """Its rows are in ClickHouse, readers don't see them, the next delivery deletes them."""
    market.publish(1, batch_of(4))
    with market.session() as session, pytest.raises(CrashError):
        run_once(session, MODEL, 100, crash_at({0}, POSITION_COMMIT_BEFORE))
    assert len(market.stray_attempts()) == 1
    assert market.seen() == []
    market.catch_up()
    assert market.stray_attempts() == set()
    assert market.seen() == market.published()


def test_a_late_insert_of_an_owner_that_was_overtaken_is_never_seen(market: Market) -> None:
    """A stopped owner wakes after another has staged and tidied: it records nothing, and its rows are swept away."""
    market.publish(1, batch_of(4))
    published = next(r for r in market.log.read_log(0, 10) if MODEL.key_of(r.event))
    delivery = MODEL.apply(None, published)
    with market.session() as late, ExitStack() as stack:
        seen = late.look()
        stack.enter_context(late.moving(seen))
        late.save(seen, {delivery.key: delivery})
        with market.session() as other:
            run_once(other, MODEL, 100)
        late._stager.values.insert(market.slices(delivery))  # and once more, of an attempt that nobody knows
        with pytest.raises(PositionConflictError):
            late.move(seen, seen.high_water_mark, None)
        assert len(market.stray_attempts()) >= 1
    assert market.seen() == market.published()
    with market.session() as session:
        session.look()
        session._sweep()
    assert market.stray_attempts() == set()


@pytest.mark.parametrize("damage", ["missing", "corrupt", "rows", "none"])
def test_a_poison_artifact_stops_staging_and_names_it(market: Market, damage: str) -> None:
    """What stands before it is staged; what is wrong is said with the run; after a repair it goes on."""
    market.publish(1, batch_of(3))
    bad = market.publish(2, batch_of(5, instrument="bad"), rows=6 if damage == "rows" else None)
    market.publish(3, batch_of(4))
    address = next(a for a, data in market.blobs.blobs.items() if b'"bad"' in data)
    data, get = market.blobs.blobs[address], market.blobs.get

    def damaged(name: str) -> bytes:
        if name == address:
            raise BlobCorruptError("the bytes hash to another address", at=name)
        return get(name)

    match damage:
        case "missing":
            del market.blobs.blobs[address]
        case "corrupt":
            market.blobs.get = damaged  # type: ignore[method-assign]
        case "none":
            market.blobs.blobs[address] = b"[]"
    progress = market.catch_up()
    assert progress.state is CopyState.STOPPED
    assert progress.failure is not None
    assert progress.failure.code == "ARTIFACT_UNUSABLE"
    assert bad in progress.failure.reason
    assert {row[2] for row in market.seen()}.isdisjoint({bad})
    assert len(market.seen()) == 3
    if damage != "rows":
        market.blobs.blobs[address] = data
        market.blobs.get = get  # type: ignore[method-assign]
        with market.session() as session:
            session.revive()
        market.catch_up()
        assert market.seen() == market.published()


def test_a_delivery_has_a_limit_of_rows(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than `DELIVERY_ROWS_MAX` are staged in several steps, and one output with more all the same."""
    monkeypatch.setattr("projections.staging.postgres.DELIVERY_ROWS_MAX", 10)
    for number, rows in enumerate((6, 4, 1, 25, 3)):
        market.publish(number, batch_of(rows, instrument=f"fx-{number}"))
    with market.session() as session:
        steps = []
        while (progress := run_once(session, MODEL, 1000)).applied:
            steps.append(progress.position)
    assert len(steps) >= 3
    assert market.seen() == market.published()


def test_inserts_are_bounded_and_gathered(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small outputs leave together, a big one in slices; `INSERT_ROWS_MAX` and `INSERT_SLICES_MAX` hold for each insert."""
    monkeypatch.setattr("projections.staging.delivery.INSERT_ROWS_MAX", 8)
    monkeypatch.setattr("projections.staging.delivery.INSERT_SLICES_MAX", 3)
    sizes: list[list[int]] = []
    insert = market.values.insert

    def counted(slices: Sequence[StagedSlice]) -> None:
        sizes.append([len(one.columns) for one in slices])
        insert(slices)

    monkeypatch.setattr(market.values, "insert", counted)
    for number, rows in enumerate((1, 1, 1, 1, 30)):
        market.publish(number, batch_of(rows, instrument=f"fx-{number}"))
    market.catch_up()
    assert all(sum(one) <= 8 and len(one) <= 3 for one in sizes)
    assert max(map(len, sizes)) == 3
    assert market.seen() == market.published()


def test_attempts_are_asked_about_in_pages(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """More attempts than `ATTEMPTS_PAGE_MAX` are listed, counted and deleted all the same, and more than `ABANDONED_MAX` tidied."""
    monkeypatch.setattr("projections.staging.clickhouse.ATTEMPTS_PAGE_MAX", 2)
    monkeypatch.setattr("projections.staging.postgres.ABANDONED_MAX", 2)
    for number in range(3):
        market.publish(number, batch_of(3, ("ema", "sma")))
    market.catch_up()
    ids = [one.attempt for one in market.attempts.visible(100)]
    assert market.values.counts(ids) == dict.fromkeys(ids, 3)
    assert len(market.values.digests(ids)) == 6
    assert {one for page in market.values.attempts() for one in page} >= set(ids)
    market.restage_all()
    execute(market.dsn, "UPDATE finaz.staging_attempts SET state = 'abandoned'")
    with market.session() as session:
        session.tidy()
    assert market.attempts.tally().abandoned == 0
    assert {one for page in market.values.attempts() for one in page} == set()


def test_instants_and_values_survive_to_the_bit(market: Market) -> None:
    """From year 1 to 9999, to the microsecond, and floats of any size; a page can start and end at any of them."""
    times = np.array([EARLIEST, -1, 0, 1, 10**15 + 1, LATEST], dtype=np.int64)
    values = np.array([5e-324, -0.0, np.nan, 1.7976931348623157e308, 0.1 + 0.2, 1.0])
    lane = LaneValues("fx", times, list("abcdef"), {"ema": values})
    market.publish(1, FeatureBatch(ADDRESS, (OutputSchema("ema", "fx"),), (lane,)))
    market.catch_up()
    attempt = market.attempts.visible(1)[0].attempt
    page = market.values.page([attempt], 1)
    assert page.event_times.tolist() == times.tolist()
    assert page.values.tobytes() == values.tobytes()
    for first, before in [(0, 1), (EARLIEST, 0), (-1, LATEST + 1), (LATEST, LATEST + 1), (5, 5)]:
        found = market.values.page([attempt], 1, first=first, before=before).event_times.tolist()
        assert found == [time for time in times.tolist() if first <= time < before]


def test_a_repair_puts_equal_rows_in_the_place_of_damaged_ones(market: Market) -> None:
    """Rows removed by hand: after the repair readers see them again, once, and the damaged attempt is gone."""
    market.publish(1, batch_of(9, ("ema", "sma")))
    market.catch_up()
    damaged = market.attempts.visible(1)[0]
    market.values.delete([damaged.attempt])
    assert market.seen() != market.published()
    repairs = StagingRepairs(market.dsn, market.stager())
    assert repairs.restage(damaged.delivery, 1, damaged)
    assert market.seen() == market.published()
    assert not repairs.restage(damaged.delivery, 1, damaged)
    assert not repairs.restage(damaged.delivery, 2, None)
    assert market.seen() == market.published()
    assert market.stray_attempts() == set()


def test_another_systems_rows_are_left_alone(market: Market) -> None:
    """A database that stages into the ClickHouse of another system is refused before it deletes or inserts anything."""
    market.publish(1, batch_of(3))
    market.catch_up()
    execute(market.dsn, "UPDATE finaz.staging_system SET system = gen_random_uuid()")
    market.publish(2, batch_of(3))
    with market.session() as session, pytest.raises(StagingUnavailableError, match="another system"):
        run_once(session, MODEL, 100)
    assert len(market.seen()) == 3


def test_the_fault_points_are_registered() -> None:
    """Every point that staging passes stands in the register that the drills walk."""
    assert set(FAULTS) <= set(faultpoints.POINTS)


KILLED = """
import os, signal, sys
from pathlib import Path
from projections.runner import nowhere, run_once
from projections.staging.clickhouse import FeatureValues
from projections.staging.delivery import Stager
from projections.staging.postgres import StagingSession
from projections.staging.projection import MODEL
from services.cas import DirectoryBlobStore
dsn, folder, where = sys.argv[1:]
def point(name):
    if name == where:
        os.kill(os.getpid(), signal.SIGKILL)
values = FeatureValues(f"chdb://{folder}/clickhouse")
session = StagingSession(dsn, Stager(values, DirectoryBlobStore(Path(folder) / "cas").get, point), "test")
session.claim()
while not run_once(session, MODEL, 3, point).caught_up:
    pass
session.look()
print(sorted(map(str, (attempt for page in values.attempts() for attempt in page))), sep="")
"""


@pytest.mark.parametrize("where", [INSERT_AFTER, POSITION_COMMIT_BEFORE])
def test_a_process_killed_while_it_stages_is_succeeded_by_another(market: Market, tmp_path: Path, where: str) -> None:
    """SIGKILL in the middle, engine and all; the next process opens the folder, tidies up, and stages each row once."""
    blobs = DirectoryBlobStore(tmp_path / "cas")
    market.blobs = blobs  # type: ignore[assignment]
    for number in range(3):
        market.publish(number, batch_of(5, ("ema", "sma")))
    environment = {"PYTHONPATH": ":".join(sys.path)}
    for fault, status in ((where, -signal.SIGKILL), ("nowhere", 0)):
        command = [sys.executable, "-c", KILLED, market.dsn, str(tmp_path), fault]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == status, ran.stderr[-2000:]
    visible = market.attempts.visible(100)
    assert ran.stdout.strip() == str(sorted(str(one.attempt) for one in visible))
    assert sorted(one.key for one in visible) == sorted({(row[2], row[3]) for row in market.published()})
    assert market.attempts.tally().rows == len(market.published())


ANOTHER_ZONE = """
import sys
from datetime import datetime, UTC
from uuid import uuid4
import numpy as np
from domain.market.batch_columns import OutputColumns
from domain.market.text_columns import texts_of
from projections.staging.clickhouse import FeatureValues, StagedSlice
values, attempt = FeatureValues(sys.argv[1]), uuid4()
times = np.array([int(text) for text in sys.argv[2:]], dtype=np.int64)
ids = texts_of([str(n) for n in range(len(times))])
values.insert([StagedSlice(attempt, 1, "run", "o", "i", OutputColumns(times, ids, times / 7))])
page = values.page([attempt], 1)
print(page.event_times.tolist(), [str(x.as_py()) for x in page.table.column("event_time")])
values.delete([attempt])
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_the_zone_of_the_process_changes_nothing(tmp_path: Path, clickhouse: str, zone: str) -> None:
    """Under TZ={zone}, with instants in summer, in winter, in the hour that a clock change repeats, and before 1970."""
    times = [
        -86_400_000_000 * 200,
        -1,
        1_750_000_000_123_456,
        1_768_000_000_000_001,
        1_762_062_000_000_000,
        1_762_065_600_000_000,
    ]
    dsn = f"chdb://{tmp_path}/folder" if is_embedded(clickhouse) else clickhouse
    ran = subprocess.run(
        [sys.executable, "-c", ANOTHER_ZONE, dsn, *map(str, times)],
        env={"TZ": zone, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.startswith(str(sorted(times))), ran.stdout
    assert "1969-12-31 23:59:59.999999+00:00" in ran.stdout


def test_a_folder_has_one_owner(clickhouse: str) -> None:
    """A second process is refused with a typed error that names the folder and the process that owns it."""
    if not is_embedded(clickhouse):
        pytest.skip("a server has no owner")
    FeatureValues(clickhouse).ping()
    code = f"from projections.staging.clickhouse import FeatureValues\nFeatureValues({clickhouse!r}).ping()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert StagingFolderTakenError.code in ran.stderr
    assert clickhouse.removeprefix("chdb://") in ran.stderr
    with pytest.raises(StagingUnavailableError, match="another folder"):
        FeatureValues(clickhouse + "-other").ping()


def test_a_server_that_is_away_is_a_typed_error() -> None:
    """Nobody listens: an infrastructure error, without what is secret in the DSN."""
    with pytest.raises(StagingUnavailableError) as caught:
        FeatureValues("http://user:secret-word@127.0.0.1:9/db").ping()
    assert "secret-word" not in str(caught.value)


def test_pages_of_any_length_hold_every_row(market: Market) -> None:
    """Pages of one or of many attempts, of any length, follow one another without a gap or a repeat."""
    for number in range(3):
        market.publish(number, batch_of(7, ("ema", "sma"), f"fx-{number % 2}"))
    market.catch_up()
    found = market.attempts.visible(100)
    for attempts in ([found[0]], found):
        whole = rows_of(market.values, [one.attempt for one in attempts], 1)
        for limit in (1, 2, 5, 100):
            assert rows_of(market.values, [one.attempt for one in attempts], 1, limit) == whole
