"""Rebuilding staging on real engines: another generation beside the served one, compared, switched at one position, or dropped."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from domain.canonical import canonical, parse
from domain.errors import OverloadedError
from projections.errors import NoOldCopyError
from projections.position import CopyRole
from projections.rebuilding import rebuildable
from projections.rebuilding.rebuildable import Builder, Goal
from projections.rebuilding.staging import StagingRebuild
from projections.runner import POSITION_COMMIT_BEFORE, Point, nowhere, run_once
from projections.staging.clickhouse import FeatureValues
from projections.staging.points import INSERT_AFTER
from projections.staging.projection import MODEL
from tests.support.read_models import CrashError, crash_at, execute
from tests.support.staging_rig import Market, batch_of
from tests.support.store import opened

STEPS = (
    rebuildable.COPY_CREATE_AFTER,
    INSERT_AFTER,
    POSITION_COMMIT_BEFORE,
    rebuildable.COPY_COMPARE_AFTER,
    rebuildable.COPY_SWITCH_BEFORE,
    rebuildable.COPY_SWITCH_AFTER,
)
"""Where a rebuild can die in different states: between two of these, nothing durable happens."""


class Pulse:
    """Told how far it is; does something at each border, if asked."""

    def __init__(self, at_border: Callable[[], None] = lambda: None) -> None:
        self._at_border = at_border

    def reached(self, position: int, total: int) -> None:
        self._at_border()

    def alive(self, quiet_seconds: float = 0.0) -> None:
        return None


@pytest.fixture
def market(database: str, clickhouse: str) -> Iterator[Market]:
    """A market of the test's own with some runs staged."""
    values = FeatureValues(clickhouse)
    with opened(database) as log:
        made = Market(database, log, values)
        for number in range(4):
            made.publish(number, batch_of(6, ("ema", "sma"), f"fx-{number % 2}"))
        made.catch_up()
        yield made
    values.close()


def rebuild_of(market: Market, job: str = "job_1", point: Point = nowhere) -> StagingRebuild:
    """A rebuild by a job."""
    return StagingRebuild(market.dsn, market.stager(point), Builder(job, job), point)


def rebuilt(market: Market, job: str = "job_1", point: Point = nowhere, pulse: Pulse | None = None) -> int:
    """One attempt of a job, from its claim to the switch; the generation that is served then."""
    rebuild, pulse = rebuild_of(market, job, point), pulse or Pulse()
    try:
        rebuild.claim()
        switched = rebuild.switched()
        if switched is None:
            rebuild.begin()
            rebuild.catch_up(pulse, Goal.SERVED)
            assert rebuild.compare(pulse).equal
            switched = rebuild.switch(pulse, 3600.0)
        return switched.generation
    finally:
        rebuild.close()


def roles(market: Market) -> list[str]:
    return [
        role
        for (role,) in execute(
            market.dsn, "SELECT role FROM finaz.projections WHERE name = 'staging' ORDER BY generation"
        )
    ]


def test_a_rebuild_serves_equal_rows_of_a_new_generation(market: Market) -> None:
    """The rows are the same before, during and after; the old copy is kept, rolled back to, and dropped."""
    published = market.published()
    assert rebuilt(market) == 2
    assert market.seen() == published
    assert market.attempts.generation() == 2
    assert roles(market) == ["retired", "active"]
    market.publish(9, batch_of(3))
    market.catch_up()
    back = rebuild_of(market, "job_2")
    back.claim()
    back.begin(from_old=True)
    back.catch_up(Pulse(), Goal.LOG)
    assert back.compare(Pulse()).equal
    assert back.switch(Pulse(), 3600.0).generation == 1
    assert market.seen() == market.published()
    assert back.drop_old(expired_only=True) == 0
    assert back.drop_old(expired_only=False) == 1
    with pytest.raises(NoOldCopyError):
        back.begin(from_old=True)
    back.close()
    assert roles(market) == ["active"]
    assert market.seen() == market.published()
    assert market.stray_attempts() == set()


def test_a_rebuild_while_runs_are_published_and_staged(market: Market) -> None:
    """At every border another run is published and, in a thread, staged: in the end every row is there once."""
    numbers, ended = iter(range(100, 100_000)), threading.Event()

    def stage() -> None:
        while not ended.is_set():
            with market.session() as session:
                session.claim()
                while not ended.is_set():
                    try:
                        run_once(session, MODEL, 3)
                    except Exception:  # swapped under its hands, as a runner sees it
                        break

    staging = threading.Thread(target=stage)
    staging.start()
    try:
        for job in ("job_1", "job_2"):
            rebuilt(market, job, pulse=Pulse(lambda: _publish(market, next(numbers))))
    finally:
        ended.set()
        staging.join()
    market.catch_up()
    assert market.attempts.generation() == 3
    assert market.seen() == market.published()


def _publish(market: Market, number: int) -> None:
    if number < 140:
        market.publish(number, batch_of(2, instrument=f"fx-{number % 3}"))


@pytest.mark.parametrize("step", STEPS)
def test_a_rebuild_that_dies_at_any_step_goes_on(market: Market, step: str) -> None:
    """Killed at the first pass of a step, the job's next attempt ends it; the rows are the same all along, nothing is left over."""
    published = market.published()
    died = False
    try:
        rebuilt(market, point=crash_at({0}, step))
    except CrashError:
        died = True
    assert died
    assert market.seen() == published
    assert rebuilt(market) == 2
    assert market.seen() == published
    rebuild = rebuild_of(market, "job_2")
    rebuild.claim()
    rebuild.drop_old(expired_only=False)
    rebuild.close()
    assert roles(market) == ["active"]
    assert market.seen() == published
    assert market.stray_attempts() == set()


def test_the_comparison_names_what_differs(market: Market) -> None:
    """One value changed, one infinite, one id that is no text, one row removed, one inserted, one output gone, one that was never
    published: each named, with its row, in a report that can be stored whatever somebody has written there."""
    found = market.attempts.visible(10)
    market.damage(found[0], "value", row=2)
    market.damage(found[1], "removed", row=3)
    market.damage(found[2], "inserted")
    market.damage(found[5], "infinite", row=4)
    market.damage(found[6], "bytes", row=4)
    execute(market.dsn, "DELETE FROM finaz.staging_attempts WHERE attempt = %s", found[3].attempt)
    execute(market.dsn, "UPDATE finaz.staging_attempts SET run_id = 'run_nobody' WHERE attempt = %s", found[4].attempt)
    rebuild = rebuild_of(market)
    rebuild.claim()
    rebuild.begin()
    rebuild.catch_up(Pulse(), Goal.SERVED)
    difference = rebuild.compare(Pulse())
    assert (difference.missing, difference.extra, difference.different) == (2, 1, 5)
    assert (difference.served_rows, difference.rebuilt_rows) == (7, 8)
    named: dict[Any, Any] = {(s.key["run_id"], s.key["output"]): s for s in difference.samples}
    changed = named[found[0].key]
    assert changed.served["first_different_row"]["value"] == -1.0
    assert changed.rebuilt["first_different_row"]["value"] != -1.0
    assert named[found[5].key].served["first_different_row"]["value"] == "-inf"
    assert parse(canonical(msgspec.to_builtins(difference)))["different"] == 5
    assert named[found[3].key].kind == "missing"
    assert named["run_nobody", found[4].output].kind == "extra"
    rebuild.drop_built()
    rebuild.close()
    assert roles(market) == ["active"]


def test_a_switch_that_never_catches_up_gives_up(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `SWITCH_TRIES_MAX` tries the old copy is served on, and the error says that another try may help."""
    monkeypatch.setattr("projections.rebuilding.staging.SWITCH_TRIES_MAX", 2)
    monkeypatch.setattr("projections.rebuilding.staging.COMPARE_OUTPUTS", 3)
    monkeypatch.setattr(StagingRebuild, "_try_to_switch", lambda *_: None)
    rebuild = rebuild_of(market)
    rebuild.claim()
    rebuild.begin()
    rebuild.catch_up(Pulse(), Goal.LOG)
    assert (rebuild.compare(Pulse()).served_rows, rebuild.compare(Pulse()).equal) == (8, True)
    with pytest.raises(OverloadedError):
        rebuild.switch(Pulse(), 0.0)
    rebuild.drop_built()
    rebuild.close()
    assert market.seen() == market.published()


def test_a_cancelled_rebuild_leaves_nothing(market: Market) -> None:
    """What was built is dropped, in ClickHouse as well; what was served is served on."""
    published = market.published()
    rebuild = rebuild_of(market)
    rebuild.claim()
    rebuild.begin()
    rebuild.catch_up(Pulse(), Goal.LOG)
    assert market.stray_attempts() != set()
    rebuild.drop_built()
    rebuild.close()
    assert market.stray_attempts() == set()
    assert market.seen() == published
    assert roles(market) == ["active"]
    with market.session(CopyRole.BUILDING) as session, pytest.raises(Exception, match="NOT_FOUND"):
        session.look()
