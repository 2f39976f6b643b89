"""The audit on a real PostgreSQL: a healthy system has no differences, and every kind of damage is found and named."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from domain.runs.messages import ResultPublished
from projections.registry import PROJECTIONS
from services.audit.findings import FINDINGS_OF_A_KIND_MAX, Finding, FindingKind, Findings
from services.store import log_snapshot
from tests.support.audited_system import AuditedSystem
from tests.support.read_models import execute, store_all
from tests.support.store import facts, opened

Plant = Callable[[AuditedSystem], str]
"""Does the damage and returns what the report must name."""


def test_a_healthy_system_is_clean(system: AuditedSystem) -> None:
    """Nothing is found, everything was looked at, and the last seal vouches for its position."""
    report = system.audit()
    assert report.findings == ()
    assert report.clean
    assert report.not_checked == ()
    assert (report.events, report.position) == (len(system.events), len(system.events))
    assert report.streams == len({event.stream for event in system.events})
    assert {model.name for model in report.read_models if model.rows_served} >= {
        "runs",
        "leases",
        "publications",
        "outbox",
    }
    assert report.blobs_checked > 0
    assert 0 < report.seals.vouched_position < report.position
    assert report.seals.vouched_seal == "seal-0000000002"
    assert "seal-0000000002" in report.vouches


def test_that_there_are_no_seals_is_said(system: AuditedSystem) -> None:
    """A folder that is not mounted looks like one in which nothing was sealed: the rest is clean, and nothing is vouched for."""
    for file in system.seal_files.iterdir():
        file.unlink()
    report = system.audit()
    assert (report.clean, report.not_checked) == (True, ("seals: there are none that can be read",))
    assert report.vouches.startswith("No seal vouches")


def test_in_parts_it_finds_the_same(system: AuditedSystem) -> None:
    """Read in many passes, each holding a part of the streams, the audit counts and compares the same, damage included."""
    whole, parts = system.audit(), system.audit(streams_max=20)
    assert parts.passes > 3
    assert (parts.events, parts.streams, parts.findings) == (whole.events, whole.streams, whole.findings)
    assert {m.name: (m.rows_expected, m.rows_served) for m in parts.read_models} == {
        m.name: (m.rows_expected, m.rows_served) for m in whole.read_models
    }
    for plant in (change_a_row, remove_a_row, change_an_event, flip_a_byte):
        plant(system)
    assert sorted(map(_short, system.audit(streams_max=20).findings)) == sorted(map(_short, system.audit().findings))


def _short(finding: Finding) -> tuple[str, str]:
    return finding.kind.value, finding.subject


@pytest.mark.parametrize("page_rows", [1, 7])
def test_whatever_a_page_holds_it_finds_the_same(
    system: AuditedSystem, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    """Read in many pages, each while the one before is looked at, it is clean, and one altered event is one finding."""
    monkeypatch.setattr(log_snapshot, "PAGE_ROWS", page_rows)
    with log_snapshot.log_snapshot(system.dsn) as snapshot:
        pages = list(snapshot.event_pages(0, 2**62))
        assert [row for page in pages for row in page] == list(snapshot.events(0, 2**62))
        assert {len(page) for page in pages[:-1]} == {page_rows}
    assert system.audit().findings == ()
    named = change_an_event(system)
    assert [f.subject for f in system.audit().findings if f.kind is FindingKind.EVENT_ALTERED] == [named]


def test_whoever_leaves_while_a_page_is_fetched_leaves_nothing(
    system: AuditedSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit that is ended at one of its borders, with the next page on its way, ends there; the next audit is whole."""
    monkeypatch.setattr(log_snapshot, "PAGE_ROWS", 5)
    for border in (1, 2, 30):
        told = itertools.count(1)

        def leave(done: int, total: int, told: Iterator[int] = told, border: int = border) -> None:
            if next(told) == border:
                raise RuntimeError("left")

        with pytest.raises(RuntimeError, match="left"):
            system.audit(leave)
    assert system.audit().findings == ()


def test_it_is_of_one_position_while_writers_write(system: AuditedSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and rows that come while it looks are neither seen nor missed: audit after audit is clean."""
    appends = system.more(monkeypatch, 99, 300)
    done = threading.Event()
    half_way = threading.Event()

    def write() -> None:
        half_way.wait(30)
        try:
            store_all(system.log, appends, at_once=1)
            system.catch_up()
        finally:
            done.set()

    def on_progress(n: int, total: int) -> None:
        half_way.set()
        done.wait(30)

    writer = threading.Thread(target=write)
    writer.start()
    before = system.log.high_water_mark()
    report = system.audit(on_progress)
    writer.join()
    assert (report.findings, report.position) == ((), before)
    assert system.log.high_water_mark() > before
    while_lagging = system.log.high_water_mark()
    after = system.audit()
    assert (after.findings, after.position) == ((), while_lagging)


def test_a_seal_that_is_made_meanwhile_is_not_of_this_audit(
    system: AuditedSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing goes on while an audit looks: a seal beyond the audit's position is younger than it, and no sign of a cut."""
    appends = iter(system.more(monkeypatch, 31, 100))

    def seal_more(done: int, total: int) -> None:
        append = next(appends, None)
        if append is not None:
            store_all(system.log, (append,))
            system.seal()

    report = system.audit(seal_more)
    assert report.findings == ()
    assert report.seals.seals == 2
    assert len(system.seals.numbers()) > 2


def test_a_read_model_that_lags_is_not_wrong(system: AuditedSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared at the position that it has reached."""
    store_all(system.log, system.more(monkeypatch, 5, 100), at_once=1)
    report = system.audit()
    assert report.findings == ()
    assert next(m.position for m in report.read_models if m.name == "runs") < report.position


def test_an_audit_that_dies_leaves_nothing(system: AuditedSystem) -> None:
    """Ended at any border, it has changed nothing; begun again, it finds what it would have found."""
    borders = 0

    def count(done: int, total: int) -> None:
        nonlocal borders
        borders += 1

    expected = system.audit(count)
    for border in range(borders):

        def die(done: int, total: int, at: list[int] = [border]) -> None:  # noqa: B006 - a counter of this call
            if at[0] == 0:
                raise KeyboardInterrupt
            at[0] -= 1

        with pytest.raises(KeyboardInterrupt):
            system.audit(die)
    assert execute(system.dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'finaz snapshot'") == [
        (0,)
    ]
    assert system.audit().chain_head == expected.chain_head


# ------------------------------------------------------------------------------------------------ damage


def _event(system: AuditedSystem, topic: str = "run.started.v1", after: int = 0) -> tuple[int, str]:
    return next((e.position, e.stream) for e in system.events if e.event.topic == topic and e.position > after)


def change_an_event(system: AuditedSystem) -> str:
    position, stream = _event(system)
    system.tamper("UPDATE finaz.events SET state = replace(state, 'owner-', 'ownex-') WHERE position = %s", position)
    return stream


def change_an_events_time(system: AuditedSystem) -> str:
    position, stream = _event(system, "lease.renewed.v1")
    system.tamper("UPDATE finaz.events SET recorded_at = recorded_at + interval '1 us' WHERE position = %s", position)
    return stream


def change_an_events_principal(system: AuditedSystem) -> str:
    position, stream = _event(system, "run.requested.v1")
    system.tamper("UPDATE finaz.events SET principal = 'mallory' WHERE position = %s", position)
    return stream


def change_a_hash(system: AuditedSystem) -> str:
    position, stream = _event(system)
    system.tamper("UPDATE finaz.events SET chain = sha256(chain) WHERE position = %s", position)
    return stream


def remove_an_event(system: AuditedSystem) -> str:
    position, _ = _event(system)
    system.tamper("DELETE FROM finaz.events WHERE position = %s", position)
    return f"position {position}"


def insert_an_event_at_the_end(system: AuditedSystem) -> str:
    """A renewal that nobody appended: right in form, wrong in its hash."""
    position, stream = _event(system, "run.succeeded.v1")
    system.tamper(
        "INSERT INTO finaz.events SELECT (SELECT max(position) + 1 FROM finaz.events), version + 1, recorded_at, %s, causation_id,"
        " stream, topic, correlation_id, principal, state, chain FROM finaz.events WHERE position = %s",
        uuid4(),
        position,
    )
    return stream


def insert_an_event_in_the_middle(system: AuditedSystem) -> str:
    """Everything behind it moved by one, as an insertion needs."""
    position, _ = _event(system)
    system.tamper("UPDATE finaz.events SET position = position + 1000000 WHERE position > %s", position)
    system.tamper("UPDATE finaz.events SET position = position - 999999 WHERE position > 1000000")
    system.tamper(
        "INSERT INTO finaz.events SELECT position + 1, 1, recorded_at, %s, NULL, 'lease/forged', topic, NULL, NULL, state, chain"
        " FROM finaz.events WHERE position = %s",
        uuid4(),
        position,
    )
    return "lease/forged"


def cut_the_end_off(system: AuditedSystem) -> str:
    """From within what the last seal covers to the end, and the read models put back with it."""
    sealed = system.audit().seals.last_position
    system.tamper("DELETE FROM finaz.events WHERE position >= %s", sealed)
    return "seal-0000000002"


def rewrite_the_past(system: AuditedSystem) -> str:
    """An event changed and every hash behind it computed anew: only the seals can tell."""
    position, _ = _event(system, "run.requested.v1")
    system.tamper("UPDATE finaz.events SET principal = 'mallory' WHERE position = %s", position)
    system.rehash()
    return "seal-0000000001"


def forget_a_topic(system: AuditedSystem) -> str:
    position, stream = _event(system, "run.requeued.v1")
    system.tamper("UPDATE finaz.events SET topic = 'run.requeued.v99' WHERE position = %s", position)
    return stream


def swap_versions(system: AuditedSystem) -> str:
    position, stream = _event(system, "run.started.v1")
    system.tamper("UPDATE finaz.events SET version = version + 100 WHERE position = %s", position)
    return stream


def repeat_an_ending(system: AuditedSystem) -> str:
    """An event that the table does not allow, with a right hash."""
    _, stream = _event(system, "run.succeeded.v1")
    insert_an_event_at_the_end(system)
    system.rehash()
    return stream


def take_a_token_back(system: AuditedSystem) -> str:
    """A grant under a token that was given before, with right hashes."""
    grants = [e for e in system.events if e.event.topic == "lease.granted.v1" and e.version > 1]
    statement = (
        """UPDATE finaz.events SET state = regexp_replace(state, '"token":\\d+', '"token":1') WHERE position = %s"""
    )
    system.tamper(statement, grants[0].position)
    system.rehash()
    return grants[0].stream


def change_a_row(system: AuditedSystem) -> str:
    ((run_id,),) = execute(system.dsn, "UPDATE finaz.runs_g1 SET priority = priority + 1 WHERE run_id = (SELECT min(run_id)"
                           " FROM finaz.runs_g1) RETURNING run_id")  # fmt: skip
    return f"runs {run_id}"


def remove_a_row(system: AuditedSystem) -> str:
    ((resource,),) = execute(
        system.dsn,
        "DELETE FROM finaz.leases_g1 WHERE resource = (SELECT max(resource) FROM finaz.leases_g1) RETURNING resource",
    )
    return f"leases {resource}"


def put_a_projection_ahead(system: AuditedSystem) -> str:
    execute(system.dsn, "UPDATE finaz.projections SET position = position + 7 WHERE name = 'jobs' AND role = 'active'")
    return "jobs"


def _artifact(system: AuditedSystem) -> str:
    return next(e.event.result.artifact for e in system.events if isinstance(e.event, ResultPublished))


def flip_a_byte(system: AuditedSystem) -> str:
    address = _artifact(system)
    file = system.blob_file(address)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    return address


def remove_a_blob(system: AuditedSystem) -> str:
    address = _artifact(system)
    system.blob_file(address).unlink()
    return address


def change_a_seal(system: AuditedSystem) -> str:
    file = system.seal_files / "seal-0000000001.json"
    file.chmod(0o600)
    file.write_bytes(file.read_bytes().replace(b'"position":', b'"position":1'))
    return "seal-0000000001"


def forge_a_seal(system: AuditedSystem) -> str:
    file = system.seal_files / "seal-0000000002.json"
    file.chmod(0o600)
    file.write_bytes(file.read_bytes().replace(b'"signature":"', b'"signature":"00')[:-4] + b'"}')
    return "seal-0000000002"


def remove_a_seal(system: AuditedSystem) -> str:
    (system.seal_files / "seal-0000000001.json").unlink()
    return "seal-0000000001"


def remove_the_last_seal(system: AuditedSystem) -> str:
    (system.seal_files / "seal-0000000002.json").unlink()
    return "seal-0000000002"


DAMAGE: tuple[tuple[Plant, FindingKind], ...] = (
    (change_an_event, FindingKind.EVENT_ALTERED),
    (change_an_events_time, FindingKind.EVENT_ALTERED),
    (change_an_events_principal, FindingKind.EVENT_ALTERED),
    (change_a_hash, FindingKind.EVENT_ALTERED),
    (remove_an_event, FindingKind.EVENT_MISSING),
    (insert_an_event_at_the_end, FindingKind.EVENT_ALTERED),
    (insert_an_event_in_the_middle, FindingKind.EVENT_ALTERED),
    (cut_the_end_off, FindingKind.LOG_CUT),
    (rewrite_the_past, FindingKind.SEAL_BROKEN),
    (forget_a_topic, FindingKind.EVENT_UNREADABLE),
    (swap_versions, FindingKind.VERSION_OUT_OF_ORDER),
    (repeat_an_ending, FindingKind.TRANSITION_ILLEGAL),
    (take_a_token_back, FindingKind.INVARIANT_BROKEN),
    (change_a_row, FindingKind.ROW_DIFFERENT),
    (remove_a_row, FindingKind.ROW_MISSING),
    (put_a_projection_ahead, FindingKind.PROJECTION_AHEAD),
    (flip_a_byte, FindingKind.BLOB_CORRUPT),
    (remove_a_blob, FindingKind.BLOB_MISSING),
    (change_a_seal, FindingKind.SEAL_INVALID),
    (forge_a_seal, FindingKind.SEAL_INVALID),
    (remove_a_seal, FindingKind.SEAL_MISSING),
    (remove_the_last_seal, FindingKind.SEAL_MISSING),
)


@pytest.mark.parametrize(("plant", "kind"), DAMAGE, ids=[plant.__name__ for plant, _ in DAMAGE])
def test_each_kind_of_damage_is_named(system: AuditedSystem, plant: Plant, kind: FindingKind) -> None:
    """One thing changed, removed or put in by hand: the report has it, by its kind and its name."""
    subject = plant(system)
    report = system.audit()
    assert not report.clean
    named = [finding for finding in report.findings if finding.kind is kind and finding.subject == subject]
    assert named, report.findings
    assert all(finding.expected and finding.actual for finding in named)


def test_one_altered_event_is_one_finding(system: AuditedSystem) -> None:
    """The rows behind it are not accused: each is judged by the hash that is stored before it."""
    change_an_events_principal(system)
    (finding,) = system.audit().findings
    assert finding.kind is FindingKind.EVENT_ALTERED


def test_nothing_is_vouched_for_behind_what_was_altered(system: AuditedSystem) -> None:
    """A seal that stands behind damage vouches for nothing."""
    seals = system.audit().seals
    assert seals.vouched_position == seals.last_position
    change_an_event(system)
    assert system.audit().seals.vouched_position == 0


def _key_of(system: AuditedSystem, table: str) -> list[str]:
    """The columns of a table's primary key, without the generation."""
    found = execute(
        system.dsn,
        "SELECT a.attname FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY array_position(i.indkey::int[], a.attnum::int)",
        f"finaz.{table}",
    )
    return [f'"{name}"' for (name,) in found if name != "generation"]


FORGED = {"text": "'forged'", "date": "date '1999-01-01'"}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_one_row_of_each_read_model(system: AuditedSystem, name: str) -> None:
    """Of every read model, inline ones too: rows changed, removed and put in are named by their keys, and nothing else is."""
    table = name if PROJECTIONS[name].inline else f"{name}_g1"
    key = _key_of(system, table)
    returning = f"RETURNING {', '.join(f't.{column}::text' for column in key)}"
    ((rows,),) = execute(system.dsn, f"SELECT count(*) FROM finaz.{table}")
    assert rows, "the past has nothing of this read model"
    expected: set[tuple[FindingKind, str]] = set()

    def damage(kind: FindingKind, statement: str) -> None:
        (found,) = execute(system.dsn, f"{statement} {returning}")
        expected.add((kind, f"{name} {' '.join(found)}"))

    last = key[-1]
    forged = FORGED.get(_type(system, table, last), "999")
    execute(
        system.dsn, f"CREATE TABLE forged AS SELECT * FROM finaz.{table} LIMIT 1; UPDATE forged SET {last} = {forged}"
    )
    damage(FindingKind.ROW_EXTRA, f"INSERT INTO finaz.{table} AS t SELECT * FROM forged")
    first = f"SELECT min(ctid) FROM finaz.{table} WHERE {last} <> {forged}"
    if rows > 1:
        damage(FindingKind.ROW_MISSING, f"DELETE FROM finaz.{table} AS t WHERE ctid = ({first})")
    damage(FindingKind.ROW_DIFFERENT, f"UPDATE finaz.{table} AS t SET position = position + 1 WHERE ctid = ({first})")
    assert {(finding.kind, finding.subject) for finding in system.audit().findings} == expected


def _type(system: AuditedSystem, table: str, column: str) -> str:
    ((found,),) = execute(
        system.dsn,
        "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s",
        f"finaz.{table}",
        column.strip('"'),
    )
    return str(found)


def test_a_lost_artifact_that_was_written_off_is_told_apart(system: AuditedSystem) -> None:
    """What an operator has accepted as lost is in the report, and is no difference."""
    from domain.discrepancies.messages import (
        DiscrepancyAlertRaised,
        DiscrepancyAlertResolved,
        DiscrepancyFound,
        DiscrepancyKind,
    )
    from services.ports import Append
    from tests.support.store import new

    event = next(e for e in system.events if isinstance(e.event, ResultPublished))
    run_id, kind = event.stream.removeprefix("run/"), DiscrepancyKind.ARTIFACT_MISSING
    address = event.event.result.artifact  # type: ignore[attr-defined]
    system.blob_file(address).unlink()
    settled = (
        DiscrepancyFound(kind=kind, subject=run_id, expected=address, actual="missing"),
        DiscrepancyAlertRaised(kind=kind, subject=run_id, reason="lost"),
        DiscrepancyAlertResolved(kind=kind, subject=run_id, principal="ana", note="gone with the disk"),
    )
    stream = f"discrepancy/{kind.value}/{run_id}"
    system.log.append_blocking(Append(events=tuple(new(stream, n, e) for n, e in enumerate(settled, 1))))
    system.catch_up()
    report = system.audit()
    assert [finding.subject for finding in report.written_off] == [address]
    assert report.findings == ()


def test_a_flood_is_counted_and_listed_up_to_its_limit() -> None:
    """A million differences of one kind make a report that can be read, and none of another kind is lost in them."""
    findings = Findings()
    for n in range(FINDINGS_OF_A_KIND_MAX + 10):
        findings.add(FindingKind.ROW_MISSING, f"row {n}", "a row", "none")
    findings.add(FindingKind.BLOB_CORRUPT, "blob", "x" * 10_000, "y")
    assert len(findings.listed) == FINDINGS_OF_A_KIND_MAX + 1
    assert findings.differences == FINDINGS_OF_A_KIND_MAX + 11
    assert len(findings.listed[-1].expected) == 2000


def test_an_empty_log_is_clean(database: str, tmp_path: Path) -> None:
    """Nothing happened, nothing is wrong."""
    with opened(database) as log:
        report = AuditedSystem(database, log, tmp_path).audit()
    assert (report.clean, report.position, report.events) == (True, 0, 0)
    said = " ".join(report.cannot_exclude)
    assert all(word in said for word in ("append function", "key of the seals", "projection_skips", "Not compared"))


def test_an_unknown_kind_of_stream_is_said(system: AuditedSystem) -> None:
    """What nothing folds is not passed over in silence."""
    system.log.append_blocking(facts("elsewhere/x", 1))
    assert any("elsewhere" in line for line in system.audit().not_checked)
