"""The audit looks at staged rows too: a real ClickHouse engine, each kind of damage named."""

from collections.abc import Iterator
from typing import Any

import pytest

from domain.runs.messages import ResultPublished
from projections.staging import comparison
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import FeatureValues
from projections.staging.postgres import StagingRepairs
from projections.staging.projection import apply
from projections.status import Projections
from services.audit.audit import AuditParts, audit
from services.audit.findings import AuditReport, FindingKind
from services.audit.staging import StagingCheck
from services.store.log_snapshot import log_snapshot
from tests.support.read_models import execute
from tests.support.staging_rig import Market, batch_of
from tests.support.store import opened


@pytest.fixture
def market(database: str, clickhouse: str) -> Iterator[Market]:
    """Three runs published and staged."""
    values = FeatureValues(clickhouse)
    with opened(database) as log:
        market = Market(database, log, values)
        market.publish(1, batch_of(11, ("ema", "sma")))
        market.publish(2, batch_of(0))
        market.publish(3, batch_of(7, instrument="fx-1"), "bo")
        market.catch_up()
        yield market
    values.close()


def audited(market: Market, **changes: Any) -> AuditReport:
    """An audit with staging."""
    parts = AuditParts(
        blobs=market.blobs,
        seals=None,
        further=lambda part, snapshot: (StagingCheck(part, market.values, market.blobs, market.attempts.are_visible),),
        **changes,
    )
    with log_snapshot(market.dsn) as snapshot:
        return audit(snapshot, parts)


def staged(report: AuditReport) -> list[tuple[FindingKind, str]]:
    """What was found of staging; the flows of this market are of no matter."""
    return [(finding.kind, finding.subject) for finding in report.findings if finding.subject.startswith("staging")]


def test_what_was_staged_is_clean(market: Market) -> None:
    """In one pass or in many, at the position that staging has reached, and while it lags."""
    for streams_max in (1000, 1):
        report = audited(market, streams_max=streams_max)
        assert staged(report) == []
        (model,) = [one for one in report.read_models if one.name == "staging"]
        assert (model.rows_expected, model.rows_served) == (4, 4)
    market.publish(4, batch_of(5))
    assert staged(audited(market)) == []


@pytest.mark.parametrize(
    "kind", ["value", "time", "id", "null", "removed", "inserted", "twice", "instrument", "run", "infinite", "bytes"]
)
def test_a_damaged_row_is_named(market: Market, kind: str) -> None:
    """One row changed, removed or put in, in ClickHouse: the output is named, and no other."""
    attempt = market.attempts.visible(1)[0]
    market.damage(attempt, kind, 3)
    assert staged(audited(market)) == [(FindingKind.ROW_DIFFERENT, f"staging {attempt.run_id} {attempt.output}")]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE finaz.staging_attempts SET state = 'abandoned' WHERE attempt = %s", FindingKind.ROW_MISSING),
        ("UPDATE finaz.staging_attempts SET rows = rows + 1 WHERE attempt = %s", FindingKind.ROW_DIFFERENT),
        ("UPDATE finaz.staging_attempts SET instrument = 'x' WHERE attempt = %s", FindingKind.ROW_DIFFERENT),
    ],
)
def test_a_damaged_attempt_is_named(market: Market, statement: str, kind: FindingKind) -> None:
    """The table of attempts is a read model like any other."""
    attempt = market.attempts.visible(1)[0]
    execute(market.dsn, statement, attempt.attempt)
    assert staged(audited(market)) == [(kind, f"staging {attempt.run_id} {attempt.output}")]


def test_an_attempt_that_nobody_published_is_named(market: Market) -> None:
    """A row too many, too."""
    attempt = market.attempts.visible(1)[0]
    execute(market.dsn, "UPDATE finaz.staging_attempts SET run_id = 'run_forged' WHERE attempt = %s", attempt.attempt)
    assert set(staged(audited(market))) == {
        (FindingKind.ROW_EXTRA, f"staging run_forged {attempt.output}"),
        (FindingKind.ROW_MISSING, f"staging {attempt.run_id} {attempt.output}"),
    }


def test_an_audit_without_clickhouse_says_so(market: Market) -> None:
    """Where something is staged and nothing was given to look at it with, the report says what was not looked at."""
    with log_snapshot(market.dsn) as snapshot:
        report = audit(snapshot, AuditParts(blobs=market.blobs, seals=None))
    assert "staging: nothing was given to look at it with" in report.not_checked
    assert not [line for line in audited(market).not_checked if line.startswith("staging")]


def test_what_staging_was_told_to_pass_over_need_not_be_staged(market: Market) -> None:
    """A publication that an operator skipped is no difference; staged since by a repair, it is looked at as any other."""
    run_id = market.publish(4, batch_of(5))
    published = market.log.read_log(0, 1000, (ResultPublished.topic,))[-1]
    delivery = apply(None, published)
    artifact = market.blobs.blobs.pop(delivery.artifact)
    assert market.catch_up().failure is not None
    Projections(market.log.pool).skip("staging", published.position, "its artifact is gone", "ana")
    assert market.catch_up().caught_up
    assert staged(audited(market)) == []
    market.blobs.put(artifact)
    assert StagingRepairs(market.dsn, market.stager()).restage(delivery, 1, None)
    assert staged(audited(market)) == []
    attempt = next(attempt for attempt in market.attempts.visible(100) if attempt.run_id == run_id)
    market.damage(attempt, "value", 3)
    assert staged(audited(market)) == [(FindingKind.ROW_DIFFERENT, f"staging {run_id} ema")]


def test_a_repair_in_between_is_no_difference(market: Market) -> None:
    """Attempts that were superseded, and whose rows are deleted, while the audit looks: nothing is wrong."""
    before = [attempt.attempt for attempt in market.attempts.visible(100)]
    with log_snapshot(market.dsn) as snapshot:
        snapshot.head()  # the snapshot is taken by its first statement
        market.restage_all()
        market.values.delete(before)
        parts = AuditParts(
            blobs=market.blobs,
            seals=None,
            further=lambda part, snapshot: (
                StagingCheck(part, market.values, market.blobs, market.attempts.are_visible),
            ),
        )
        report = audit(snapshot, parts)
    assert not {attempt.attempt for attempt in market.attempts.visible(100)} & set(before)
    assert staged(report) == []


def test_attempts_are_compared_together(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two statements tell all that are equal from those that may not be; however few are taken together, the same is found."""
    attempts = market.attempts.visible(100)

    def unequal() -> list[Attempt]:
        together = comparison.Comparisons(market.values)
        for attempt in attempts:
            together.add(attempt, market.blobs.get(attempt.artifact))
        return together.unequal()

    assert unequal() == []
    market.damage(attempts[1], "value", 3)
    assert unequal() == [attempts[1]]
    damaged = (FindingKind.ROW_DIFFERENT, f"staging {attempts[1].run_id} {attempts[1].output}")
    for limit, most in (("ATTEMPTS", 1), ("ROWS", attempts[0].rows), ("BYTES", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(comparison, f"TOGETHER_{limit}_MAX", most)
            together = comparison.Comparisons(market.values)
            assert not together.is_full
            together.add(attempts[0], market.blobs.get(attempts[0].artifact))
            assert together.is_full
            assert staged(audited(market)) == [damaged]
    monkeypatch.setattr(comparison, "TOGETHER_ROWS_MAX", 1)
    assert not together.takes(attempts[0])
    assert staged(audited(market)) == [damaged]
