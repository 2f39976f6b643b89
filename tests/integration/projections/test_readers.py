"""Reading the read models: filters, pages that stay stable, and every value as it went in."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from domain.errors import BodyInvalidError, CursorInvalidError, InstantInvalidError
from domain.runs.messages import RunRequested
from projections.leases.postgres import LeasesReader
from projections.outbox.postgres import OutboxReader
from projections.publications.postgres import PublicationsReader
from projections.publications.projection import PublicationRow
from projections.rebuilding.opening import rebuild_blocking
from projections.registry import PROJECTIONS
from projections.runs.postgres import TAGS_MAX, RunFilter, RunsReader
from projections.runs.projection import RunRow, row_of
from projections.status import Projections
from services.store.application import Log
from tests.support.histories import PRINCIPALS, TAGS, History, played, seeded_moves
from tests.support.read_models import ASYNCHRONOUS, bring_forward, execute, expected, served, store, stored
from tests.support.store import opened

HISTORY = played([*seeded_moves(5, 300), *seeded_moves(6, 400, runs=40)])


@pytest.fixture(scope="module")
def module_database(postgres: str, _template: str) -> Iterator[str]:
    """One database for the tests that only read, or say what they change."""
    name = "test_readers"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {_template}")  # names of ours
        yield make_conninfo(postgres, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def log(module_database: str) -> Iterator[Log]:
    with opened(module_database) as log:
        store(log, HISTORY)
        for name in ASYNCHRONOUS:
            bring_forward(module_database, name)
        yield log


@pytest.fixture(scope="module")
def rows(log: Log) -> list[RunRow]:
    """All runs, newest first, as the fold has them."""
    folded = [row_of(row) for row in expected("runs", stored(log)).values()]
    return sorted(folded, key=lambda row: -row.requested_position)


def all_pages(reader: RunsReader, wanted: RunFilter, limit: int, between: Callable[[], Any] = list) -> list[RunRow]:
    """Every row, page by page; `between` happens between two pages."""
    found: list[RunRow] = []
    cursor: str | None = None
    while True:
        page = reader.list(wanted, cursor, limit)
        assert len(page.items) <= limit
        found += page.items
        if page.next_cursor is None:
            return found
        assert len(page.items) == limit
        cursor = page.next_cursor
        between()


FILTERS: dict[str, tuple[RunFilter, Callable[[RunRow], bool]]] = {
    "all": (RunFilter(), lambda row: True),
    "principal": (RunFilter(principal=PRINCIPALS[2]), lambda row: row.principal == PRINCIPALS[2]),
    "states": (RunFilter(states=("SUCCEEDED", "QUEUED")), lambda row: row.state in ("SUCCEEDED", "QUEUED")),
    "tag": (RunFilter(tags=(TAGS[3],)), lambda row: TAGS[3] in row.tags),
    "tags": (RunFilter(tags=(TAGS[5], TAGS[0])), lambda row: {TAGS[5], TAGS[0]} <= set(row.tags)),
    "mode": (RunFilter(mode="REPLAY"), lambda row: row.mode == "REPLAY"),
    "sweep": (RunFilter(sweep_id="sweep_1"), lambda row: row.sweep_id == "sweep_1"),
    "nothing": (RunFilter(principal="nobody"), lambda row: False),
    "several": (
        RunFilter(principal=PRINCIPALS[0], states=("SUCCEEDED",), tags=(TAGS[0],)),
        lambda row: row.principal == PRINCIPALS[0] and row.state == "SUCCEEDED" and TAGS[0] in row.tags,
    ),
}


@pytest.mark.parametrize("limit", [1, 7, 200])
@pytest.mark.parametrize("name", FILTERS)
def test_pages_hold_what_the_filter_says(log: Log, rows: list[RunRow], name: str, limit: int) -> None:
    """All pages together are exactly the runs that the filter means, newest first."""
    wanted, holds = FILTERS[name]
    matching = [row for row in rows if holds(row)]
    assert all_pages(RunsReader(log.pool), wanted, limit) == matching
    assert (name == "nothing") == (matching == [])


def test_a_time_range_includes_its_start_and_not_its_end(log: Log, rows: list[RunRow]) -> None:
    """`requested_from` is in, `requested_to` is out, to the microsecond, in any zone; without a zone it is refused."""
    reader = RunsReader(log.pool)
    first, last = rows[-3].requested_at, rows[3].requested_at
    found = all_pages(reader, RunFilter(requested_from=first, requested_to=last), 50)
    assert found == [row for row in rows if first <= row.requested_at < last]
    assert reader.list(RunFilter(requested_from=last + timedelta(days=1))).items == ()
    with pytest.raises(InstantInvalidError):
        reader.list(RunFilter(requested_from=datetime(2026, 1, 1)))


def test_a_cursor_belongs_to_its_query(log: Log) -> None:
    """A cursor that is damaged, or was given out for another filter, is refused; one for an equal filter is not."""
    reader = RunsReader(log.pool)
    cursor = reader.list(RunFilter(states=("FAILED", "SUCCEEDED")), None, 2).next_cursor
    assert cursor is not None
    assert reader.list(RunFilter(states=("SUCCEEDED", "FAILED")), cursor, 50).items
    for damaged in (cursor[:-1], cursor + "A", "", "é", "x" * 1000, "MTIz", cursor.swapcase()):
        with pytest.raises(CursorInvalidError):
            reader.list(RunFilter(states=("FAILED", "SUCCEEDED")), damaged, 2)
    with pytest.raises(CursorInvalidError, match="another query"):
        reader.list(RunFilter(states=("FAILED",)), cursor, 2)


@pytest.mark.parametrize("limit", [0, -1, 201])
def test_a_page_has_a_limit(log: Log, limit: int) -> None:
    """A page of no rows, or of more than `PAGE_ROWS_MAX`, is refused; so are more than `TAGS_MAX` tags."""
    with pytest.raises(BodyInvalidError, match="page"):
        RunsReader(log.pool).list(RunFilter(), None, limit)
    with pytest.raises(BodyInvalidError, match="tag"):
        RunsReader(log.pool).list(RunFilter(tags=tuple(map(str, range(TAGS_MAX + 1)))))


def test_a_page_says_which_position_it_shows(log: Log) -> None:
    """Rows and position are of one instant."""
    assert RunsReader(log.pool).list(RunFilter(principal="nobody")).position == len(HISTORY.events)


def test_one_run_and_its_publications_and_lease(log: Log, rows: list[RunRow]) -> None:
    """Looked up one by one, everything is as the fold has it; what isn't there is None or empty."""
    runs, publications, leases = RunsReader(log.pool), PublicationsReader(log.pool), LeasesReader(log.pool)
    published, leased = expected("publications", stored(log)), expected("leases", stored(log))
    for row in rows[:40]:
        assert runs.get(row.run_id) == row
        assert publications.of_run(row.run_id) == [found for key, found in published.items() if key[0] == row.run_id]
        seen = leases.get(row.run_id)
        assert (seen.row if seen else None) == leased.get(row.run_id)
    assert runs.get("run_x") is None
    assert publications.of_run("run_x") == []
    assert leases.get("run_x") is None


def test_publications_are_listed_in_order(log: Log) -> None:
    """By position, after any position, of one artifact or of all."""
    reader = PublicationsReader(log.pool)
    published = list(expected("publications", stored(log)).values())
    found: list[PublicationRow] = []
    after = 0
    while page := reader.list(after, 13):
        found += page
        after = page[-1].position
    assert found == published
    artifact = published[0].artifact
    assert reader.list(0, 200, artifact) == [row for row in published if row.artifact == artifact][:200]


def test_live_leases_are_judged_by_the_database(log: Log, module_database: str) -> None:
    """A lease is live until its expiry by the database's clock and not after, and never once it is released."""
    reader = LeasesReader(log.pool)
    ((now,),) = execute(module_database, "SELECT clock_timestamp()")
    every = [seen for after in (0,) for seen in reader.list(after, 200)]
    assert {seen.live for seen in every} >= {False}
    for seen in every:
        if seen.row.state == "RELEASED":
            assert not seen.live
        elif abs((seen.row.expires_at - now).total_seconds()) > 5:
            assert seen.live is (seen.row.expires_at > now)
    assert [seen.row for seen in reader.list(0, 200, live=False)] == [seen.row for seen in every if not seen.live]


def test_the_depth_of_the_outbox(log: Log) -> None:
    """Pending and claimed items are counted by lane, from the rows themselves."""
    rows = expected("outbox", stored(log)).values()
    counted: dict[tuple[str, str, str], int] = {}
    for row in rows:
        if row.state != "delivered":
            place = (row.kind, row.lane, row.state)
            counted[place] = counted.get(place, 0) + 1
    depth = OutboxReader(log.pool).depth()
    assert {(d.kind, d.lane, d.state): d.items for d in depth} == counted
    assert all(0 <= d.due <= d.items for d in depth)
    item = next(iter(rows))
    assert OutboxReader(log.pool).get(item.kind, item.key) == item


def test_pages_are_stable_while_runs_change_and_arrive(log: Log, database: str) -> None:
    """Between pages new runs arrive, old ones change, the read model is rebuilt: no row of the first instant comes twice or is
    missing, and none that came later is mixed in."""
    whole = played([*seeded_moves(6, 300, runs=40), *seeded_moves(8, 500, runs=80)])
    half = len(whole.appends) // 2
    with opened(database) as log:
        store(log, History((), whole.appends[:half]))
        bring_forward(database, "runs")
        reader = RunsReader(log.pool)
        before = {row.run_id: row for row in all_pages(reader, RunFilter(), 200)}
        appends = iter(whole.appends[half:])
        rebuilt = iter((True, False, False))

        def between() -> None:
            store(log, History((), tuple(append for _, append in zip(range(40), appends, strict=False))))
            bring_forward(database, "runs")
            if next(rebuilt, False):
                assert rebuild_blocking(database, PROJECTIONS["runs"], "test") is not None

        found = all_pages(reader, RunFilter(), 5, between)
        assert [row.run_id for row in found] == list(before)
        assert any(row != before[row.run_id] for row in found)
        assert len(all_pages(reader, RunFilter(), 200)) > len(before)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_no_session_zone_shifts_an_instant(postgres: str, database: str, zone: str) -> None:
    """Server and client in another zone: instants before 1970 and with microseconds come back as they went in."""
    ((name,),) = execute(database, "SELECT current_database()")
    execute(database, f"ALTER DATABASE {name} SET timezone = '{zone}'")
    (requested, *_) = [e for e in HISTORY.events if isinstance(e.event, RunRequested)]
    assert isinstance(requested.event, RunRequested)
    as_of = datetime(1883, 11, 18, 16, 59, 59, 999_999, tzinfo=UTC)
    spec = msgspec.structs.replace(requested.event.spec, as_of=as_of)
    appends = [
        msgspec.structs.replace(
            append,
            events=tuple(
                msgspec.structs.replace(new, event=msgspec.structs.replace(new.event, spec=spec))
                if isinstance(new.event, RunRequested)
                else new
                for new in append.events
            ),
        )
        for append in HISTORY.appends[:30]
    ]
    with opened(database) as log:
        events = store(log, History((), tuple(appends)))
        for name in ASYNCHRONOUS:
            bring_forward(database, name)
            assert served(log, name) == expected(name, events)
        for name in ("outbox", "lease_guard"):
            assert rebuild_blocking(database, PROJECTIONS[name], "test") is not None
            assert served(log, name) == expected(name, events)
        assert {row.as_of for row in RunsReader(log.pool).list().items} == {as_of}
        assert Projections(log.pool).status("runs").lag_seconds == 0.0
