"""Export and import against real databases: the same log again, or nothing."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from domain.identity import lease_stream, run_stream
from domain.log_errors import ExportInvalidError, LogDamagedError, LogNotEmptyError, StreamNotFoundError
from projections.registry import PROJECTIONS
from services.log_export import exported, exported_stream, head_line, read_export
from services.ports import Append, Fence, Vacant
from services.store import log_import
from services.store.application import Log
from services.store.log_import import import_log
from services.store.log_snapshot import log_snapshot
from tests.support import histories
from tests.support.read_models import ASYNCHRONOUS, INLINE_NAMES, bring_forward, execute, served, store_all, stored
from tests.support.store import fact, facts, granted, new, opened

COLUMNS = (
    "position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal, state, chain"
)


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def full(log: Log) -> Log:
    """A log with a past of every kind, foreign letters included."""
    store_all(log, histories.played(histories.seeded_moves(3, 300)).appends, at_once=1)
    log.append_blocking(Append(events=(new("run/é", 1, fact("čeněk 📉")),)))
    return log


@pytest.fixture
def empty(postgres: str, _template: str) -> Iterator[str]:
    """Another store, in which nothing has happened."""
    name = f"empty_{uuid4().hex[:12]}"
    execute(postgres, f"CREATE DATABASE {name} TEMPLATE {_template}")
    yield make_conninfo(postgres, dbname=name)
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def export(dsn: str, **range_: Any) -> list[bytes]:
    """All lines of an export."""
    with log_snapshot(dsn) as snapshot:
        head, lines = exported(snapshot, **range_)
        return [head_line(head), *lines]


def rows(dsn: str) -> list[tuple[Any, ...]]:
    """The whole table of events."""
    return execute(dsn, f"SELECT {COLUMNS} FROM finaz.events ORDER BY position")


def test_a_log_that_is_taken_in_is_the_same(full: Log, database: str, empty: str) -> None:
    """Events byte for byte, positions, instants, ids and hashes; the inline rows; and every read model that they make."""
    lines = export(database)
    head = import_log(empty, lines)
    assert rows(empty) == rows(database)
    assert head.chain == bytes(rows(database)[-1][-1]).hex()
    assert {aside._model.name for aside in log_import._ASIDE} == set(INLINE_NAMES)  # none is forgotten
    for table, order in (("lease_guard", "resource"), ("outbox", "kind, key")):
        statement = f"SELECT * FROM finaz.{table} ORDER BY {order}"
        there = execute(database, statement)
        assert len(there) > 10
        assert execute(empty, statement) == there
    assert export(empty)[1:] == lines[1:]
    with opened(empty) as other:
        for name in ASYNCHRONOUS:
            bring_forward(database, name)
            bring_forward(empty, name)
        for name in PROJECTIONS:
            assert served(other, name) == served(full, name)


def test_it_goes_on_where_it_was(full: Log, database: str, empty: str) -> None:
    """Appends follow in both stores: leases are judged by the rows that came in, versions and the chain go on."""
    full.append_blocking(Append(events=(new(lease_stream("r"), 1, granted(1, resource="r", ttl_seconds=86_400.0)),)))
    mark = full.high_water_mark()
    import_log(empty, export(database))
    with opened(empty) as other:
        under = Append(events=(new(run_stream("r"), 1, fact()),), guard=Fence("r", "A", 1))
        assert other.append_blocking(under).position == mark + 1
        with pytest.raises(Exception, match="LEASE_HELD"):
            other.append_blocking(Append(events=(new(run_stream("r"), 2, fact()),), guard=Vacant("r", 1)))
        assert len(stored(other)) == mark + 1
    assert export(empty)[-1] != export(database)[-1]


def test_an_import_needs_an_empty_store(full: Log, database: str) -> None:
    """Where something has happened, nothing is taken in."""
    before = rows(database)
    with pytest.raises(LogNotEmptyError):
        import_log(database, export(database))
    assert rows(database) == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO finaz.lease_guard VALUES ('r', 'o', 1, now(), false, 1)",
        "INSERT INTO finaz.tracking (name, position) VALUES ('reader', 1)",
        "UPDATE finaz.projections SET position = 1 WHERE name = 'runs'",
    ],
)
def test_traces_of_a_past_count_as_one(full: Log, database: str, empty: str, statement: str) -> None:
    """A store without events in which a reader, a lease or a projection has been is not empty either."""
    execute(empty, statement)
    with pytest.raises(LogNotEmptyError):
        import_log(empty, export(database))
    assert rows(empty) == []


def _line(lines: list[bytes], number: int, **changes: Any) -> list[bytes]:
    """The lines with one changed."""
    document = json.loads(lines[number - 1]) | changes
    return [*lines[: number - 1], json.dumps(document, separators=(",", ":")).encode() + b"\n", *lines[number:]]


def test_what_is_not_a_whole_log_is_refused(full: Log, database: str, empty: str) -> None:
    """Each kind of wrong file is refused, by the line that is wrong, and leaves nothing."""
    lines = export(database)
    third = json.loads(lines[2])
    wrong: dict[str, list[bytes]] = {
        "line 1": [b"{}\n", *lines[1:]],
        "line 3": _line(lines, 3, principal="mallory"),
        "line 4": [*lines[:3], *lines[4:]],
        "line 5": _line(lines, 5, position=77),
        "line 6": _line(lines, 6, recorded_at="2026-01-05T09:00:00"),
        "line 7": [*lines[:6], lines[6][:20], *lines[7:]],
        "line 8": _line(lines, 8, event={"n": 1}),
        f"line {len(lines) - 1}": lines[:-1],
    }
    for at, given in wrong.items():
        with pytest.raises(ExportInvalidError) as error:
            import_log(empty, given)
        assert error.value.at == at, given[0][:200]
        assert rows(empty) == []
    assert third["position"] == 2
    for given in (export(database, first=2), _line(lines, 1, format="finaz.log.v9")):
        with pytest.raises(ExportInvalidError):
            import_log(empty, given)
    import_log(empty, lines)


def test_an_import_that_dies_leaves_nothing(
    full: Log, database: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended after any batch, the store is as empty as before; begun again, it takes everything in."""
    monkeypatch.setattr(log_import, "BATCH_EVENTS", 100)
    lines = export(database)
    for batch in range(3):

        def die(done: int, total: int, at: int = batch) -> None:
            assert total == len(lines) - 1
            if done // 100 > at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_log(empty, lines, die)
        assert rows(empty) == []
        assert execute(empty, "SELECT count(*) FROM finaz.outbox") == [(0,)]
    import_log(empty, lines)
    assert rows(empty) == rows(database)


def test_the_function_judges_by_itself(full: Log, database: str, empty: str) -> None:
    """What is in the temporary tables is checked again under the lock, whoever put it there."""
    import psycopg

    lines = export(database)
    for damage in (
        "UPDATE pg_temp.imported_events SET principal = 'mallory' WHERE position = 3",
        "DELETE FROM pg_temp.imported_events WHERE position = 3",
        "UPDATE pg_temp.imported_events SET version = 9 WHERE position = 3",
    ):
        with psycopg.connect(empty, autocommit=True) as connection:
            connection.execute("CREATE TEMP TABLE imported_events (LIKE finaz.events)")
            connection.execute("CREATE TEMP TABLE imported_lease_guard (LIKE finaz.lease_guard)")
            connection.execute("CREATE TEMP TABLE imported_outbox (LIKE finaz.outbox)")
            head, events = read_export(lines)
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY pg_temp.imported_events ({COLUMNS}) FROM STDIN") as copy,
            ):
                from services.store.log_import import _row

                for line in events:
                    copy.write_row(_row(line))
            connection.execute(damage)
            with pytest.raises(psycopg.Error) as error:
                connection.execute("SELECT finaz.import_v1(%s, %s)", (head.events, bytes.fromhex(head.chain)))
            assert error.value.sqlstate == "FZ002"
        assert rows(empty) == []


def test_a_range_says_what_was_before(full: Log, database: str) -> None:
    """A range of positions begins with the chain value before it, so that it can be checked against its neighbour."""
    whole = export(database)
    part = export(database, first=11, last=20)
    head = json.loads(part[0])
    assert part[1:] == whole[11:21]
    assert (head["events"], head["first_position"], head["last_position"]) == (10, 11, 20)
    assert (head["chain_before"], head["chain"]) == (json.loads(whole[10])["chain"], json.loads(whole[20])["chain"])


def test_a_stream_is_exported_to_be_looked_at(full: Log, database: str, empty: str) -> None:
    """One stream, all of it; it is no log, and is not taken in as one."""
    stream = stored(full)[0].stream
    with log_snapshot(database) as snapshot:
        head, lines = exported_stream(snapshot, stream)
        given = [head_line(head), *lines]
        with pytest.raises(StreamNotFoundError):
            exported_stream(snapshot, "run/nobody")
    assert [json.loads(line)["version"] for line in given[1:]] == [
        e.version for e in stored(full) if e.stream == stream
    ]
    with pytest.raises(ExportInvalidError):
        import_log(empty, given)


def test_a_damaged_log_is_not_exported_as_a_whole_one(full: Log, database: str) -> None:
    """A row that does not hash, or is not there, ends the export by its position."""
    execute(database, "ALTER TABLE finaz.events DISABLE TRIGGER events_append_only")
    execute(database, "UPDATE finaz.events SET principal = 'mallory' WHERE position = 30")
    with pytest.raises(LogDamagedError) as error:
        export(database)
    assert error.value.context["position"] == 30
    execute(database, "DELETE FROM finaz.events WHERE position = 20")
    with pytest.raises(LogDamagedError) as error:
        export(database)
    assert error.value.context["position"] == 20


def test_an_empty_log_goes_and_comes(database: str, empty: str) -> None:
    """Nothing is exported and taken in as nothing."""
    lines = export(database)
    assert len(lines) == 1
    import_log(empty, lines)
    assert rows(empty) == []


def test_more_than_a_batch_is_brought_in_batches(
    log: Log, database: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log longer than `BATCH_EVENTS` says how far it is, and arrives whole."""
    monkeypatch.setattr(log_import, "BATCH_EVENTS", 500)
    log.append_blocking(facts("run/long", *range(1, 1202)))
    told: list[int] = []
    import_log(empty, export(database), lambda done, total: told.append(done))
    assert told == [500, 1000, 1201]
    assert rows(empty) == rows(database)
