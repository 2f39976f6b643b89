"""The append function and the tables, from the side of SQL: what they refuse whoever asks, what they promise to plain readers."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from domain.chain import GENESIS, ChainedRow, chain, digest, link
from domain.errors import CanonicalError, FinazError, InputError, VersionConflictError
from domain.events import Metadata
from domain.runs.messages import RunRequested
from projections.inline import INLINE
from projections.postgres import connect as connect_projection
from services.ports import Append, Fence, NewEvent, Tracking, Vacant
from services.store import prepared
from services.store.application import Log
from services.store.committer import _APPEND, arrays
from services.store.connections import Row, connect
from services.store.prepared import Prepared, prepare
from tests.support.store import RESOURCE, fact, facts, granted, new, opened, spec


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


def call(dsn: str, *appends: Append, before: str = "SELECT 1") -> Row:
    """One call of the append function with these appends, as the committer makes it."""
    with connect(dsn) as connection:
        connection.execute(before)
        row = connection.execute(_APPEND, arrays([prepare(a, INLINE, uuid4().hex) for a in appends])).fetchone()
        assert row is not None
        return row


# -------------------------------------------------------------------- append-only


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE finaz.events SET state = '{}' WHERE position = 1",
        "UPDATE finaz.events SET state = state WHERE false",
        "DELETE FROM finaz.events",
        "TRUNCATE finaz.events",
        "SET session_replication_role = replica; DELETE FROM finaz.events",
    ],
)
def test_the_log_is_append_only(log: Log, database: str, statement: str) -> None:
    """UPDATE, DELETE and TRUNCATE are refused, also to the table's owner, with a sentence that says why."""
    log.append_blocking(facts("run/x", 1))
    with psycopg.connect(database) as connection, pytest.raises(errors.RestrictViolation, match="append-only"):
        connection.execute(statement.encode())
    assert log.high_water_mark() == 1


def test_plain_sql_reads_the_documents_as_json(log: Log) -> None:
    """The view `finaz.log` has the document as json, to be asked with `->>`."""
    log.append_blocking(Append(events=(new("run/x", 1, fact("ána")),)))
    rows = log.pool.rows("SELECT data ->> 'principal' FROM finaz.log WHERE topic = 'run.cancellation_requested.v1'")
    assert rows == [("ána",)]


# -------------------------------------------------------------------- bugs are refused as a whole


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_another_isolation_than_read_committed_is_refused(database: str, level: str) -> None:
    """What follows the lock must see what was committed before it."""
    with pytest.raises(errors.RaiseException, match="READ COMMITTED"):
        call(database, facts("run/x", 1), before=f"SET default_transaction_isolation = '{level}'")


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [
        (facts("run/x", 1), facts("run/x", 2), "stream run/x"),
        (
            Append(events=(), tracking=Tracking("reader", 1)),
            Append(events=(), tracking=Tracking("reader", 2)),
            "position reader",
        ),
        (
            Append(events=(new("lease/a", 1, granted(1)),)),
            facts("run/x", 1, guard=Fence(RESOURCE, "A", 1)),
            "lease",
        ),
        (
            Append(events=(new("lease/a", 1, granted(1)),)),
            Append(events=(new("lease/b", 1, granted(2)),)),
            "lease",
        ),
    ],
)
def test_appends_that_depend_on_each_other_share_no_call(
    log: Log, database: str, one: Append, other: Append, match: str
) -> None:
    """A call whose appends have a stream, a tracking name or a changed lease in common is a bug; nothing is written."""
    with pytest.raises(errors.RaiseException, match=match):
        call(database, one, other)
    assert log.high_water_mark() == 0


def test_versions_in_disorder_are_refused_by_the_function_too(log: Log, database: str) -> None:
    """Whoever calls it directly cannot give a higher version a lower position."""
    rows = [("run/x", version, uuid4().hex, "t", "{}") for version in (2, 1)]
    with connect(database) as connection, pytest.raises(errors.RaiseException, match="not contiguous"):
        connection.execute(_APPEND, arrays([unchecked(rows)]))


def unchecked(rows: list[tuple[str, int, str, str, str]]) -> Prepared:
    found = Prepared([], None, None, Metadata(), None)
    found.events = rows
    return found


def test_what_is_missing_never_passes_for_what_holds(log: Log, database: str) -> None:
    """A guard without its kind, resource, token or owner, and an event of no append, are bugs: refused, and nothing is stored."""
    owned = Append(events=(new("lease/r", 1, granted(1, "A", resource="r")),))
    log.append_blocking(owned)
    mark = log.high_water_mark()
    base = arrays([prepare(facts("run/x", 1, guard=Fence("r", "A", 1)), INLINE, uuid4().hex)])
    guard_kinds, guard_resources, guard_owners, guard_tokens, event_appends = 0, 1, 2, 3, 7
    damages = [(guard_kinds, "{NULL}"), (guard_kinds, "{9}"), (guard_resources, None), (guard_resources, "\x1e")]
    damages += [(guard_owners, "\x1e"), (guard_tokens, "{NULL}")]
    damages += [(event_appends, "{0}"), (event_appends, "{2}"), (event_appends, "{NULL}")]
    for place, damage in damages:
        damaged = [*base[:place], damage, *base[place + 1 :]]
        with psycopg.connect(database, autocommit=True) as connection, pytest.raises(errors.RaiseException):
            connection.execute(_APPEND, damaged)
    assert log.high_water_mark() == mark


def test_lists_of_different_lengths_are_refused(log: Log, database: str) -> None:
    """Whichever list is longer or shorter than those it belongs to, or missing: refused, so no event gets another one's text."""
    wanted = RunRequested(run_id=RESOURCE, principal="ana", spec=spec(), body_hash="sha256:" + "c" * 64)
    append = Append(
        events=(new("lease/r", 1, granted(1, resource="r")), new("run/x", 1, wanted)),
        guard=Fence("r", "A", 1),
        tracking=Tracking("reader", 1),
        metadata=Metadata(causation_id=uuid4(), correlation_id="c", principal="p"),
    )
    base = arrays([prepare(append, INLINE, uuid4().hex)])
    assert None not in base
    for place, text in enumerate(base):
        assert text is not None
        longer = f"{text[:-1]},{text[1:]}" if text.startswith("{") else f"{text}\x1f{text}"
        shorter = "{}" if text.startswith("{") else ""
        for damage in (longer, shorter):
            with psycopg.connect(database, autocommit=True) as connection, pytest.raises(errors.RaiseException):
                connection.execute(_APPEND, [*base[:place], damage, *base[place + 1 :]])
    assert log.high_water_mark() == 0


def test_a_token_never_goes_back(log: Log) -> None:
    """An unguarded lease event with a lower token is a bug of the caller; it is refused and reaches only that caller."""
    log.append_blocking(Append(events=(new("lease/a", 1, granted(5)),)))
    with pytest.raises(FinazError, match="go back"):
        log.append_blocking(Append(events=(new("lease/a", 2, granted(4)),)))
    assert log.high_water_mark() == 1


# -------------------------------------------------------------------- texts, instants


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\ud800", "\x1f", ""])
def test_text_that_cannot_be_stored_never_reaches_the_database(log: Log, bad: str) -> None:
    """Each place where a text goes in refuses U+0000, lone surrogates and the list separator with a typed error."""
    wrong: list[Append] = [
        Append(events=(new(bad, 1, fact()),)),
        Append(events=(new("run/x", 1, fact()),), metadata=Metadata(principal=bad)),
        Append(events=(new("run/x", 1, fact()),), metadata=Metadata(correlation_id=bad)),
        Append(events=(new("run/x", 1, fact()),), guard=Fence(bad, "A", 1)),
        Append(events=(new("run/x", 1, fact()),), guard=Fence("r", bad, 1)),
        Append(events=(), tracking=Tracking(bad, 1)),
        Append(events=(new("lease/x", 1, granted(1, owner=bad)),)),
    ]
    for append in wrong:
        with pytest.raises((CanonicalError, InputError)):
            log.append_blocking(append)
    assert log.high_water_mark() == 0


@pytest.mark.parametrize("text", ["\x1f", "\x1e", "\x1d", "\\", '"', "{,}", "NULL", "é\u2028\U0001f600", "\x7f"])
def test_any_other_text_comes_back_as_it_was(log: Log, text: str) -> None:
    """Separators and SQL's own signs inside an event's document do not disturb the lists in which documents travel."""
    appended = log.append_blocking(Append(events=(new("run/x", 1, fact(text)), new("run/x", 2, fact("next")))))
    read = log.read_streams_blocking(["run/x"]).streams["run/x"]
    assert [r.event for r in read] == [fact(text), fact("next")]
    assert appended.position == 2


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns"])
def test_the_servers_time_zone_changes_nothing(database: str, zone: str) -> None:
    """Instants are the same instants, aware and in UTC, and a lease ends when it should, whatever the default zone is."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET timezone = '{zone}'".encode())
    with opened(database) as log:
        lease = Append(events=(new("lease/a", 1, granted(1, ttl_seconds=60.0)),), guard=Vacant(RESOURCE, 0))
        appended = log.append_blocking(lease)
        now = log.now()
        assert appended.recorded_at.tzinfo is UTC
        assert now.tzinfo is UTC
        assert timedelta(0) <= now - appended.recorded_at < timedelta(seconds=30)
        log.append_blocking(facts("run/x", 1, guard=Fence(RESOURCE, "A", 1)))
        rows = log.pool.rows("SELECT expires_at FROM finaz.lease_guard")
        assert rows[0][0].astimezone(UTC) - appended.recorded_at == timedelta(seconds=60)


def test_the_databases_defaults_change_nothing(database: str) -> None:
    """Dates written the other way round, another encoding, commits that don't wait, read only: each session sets its own."""
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        for default in (
            "DateStyle = 'SQL, DMY'",
            "client_encoding = 'LATIN1'",
            "synchronous_commit = off",
            "default_transaction_read_only = on",
            "default_transaction_isolation = 'serializable'",
        ):
            connection.execute(f'ALTER DATABASE "{name}" SET {default}'.encode())
    with opened(database) as log:
        appended = log.append_blocking(Append(events=(new("run/x", 1, fact("\N{CHECK MARK}")),)))
        (recorded,) = log.read_streams_blocking(["run/x"]).streams["run/x"]
        assert recorded.recorded_at == appended.recorded_at
        assert recorded.event == fact("\N{CHECK MARK}")
        assert log.pool.rows("SHOW synchronous_commit") == [("on",)]
    with connect_projection(database, "runs") as connection:
        assert connection.execute("SHOW client_encoding").fetchone() == ("UTF8",)
        assert connection.execute("SHOW default_transaction_isolation").fetchone() == ("read committed",)


def test_an_append_has_limits(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events or longer documents than an append may have are refused before anything is queued."""
    monkeypatch.setattr(prepared, "APPEND_EVENTS_MAX", 3)
    monkeypatch.setattr(prepared, "APPEND_BYTES_MAX", 1000)
    log.append_blocking(facts("run/x", 1, 2, 3))
    with pytest.raises(InputError, match="4 events"):
        log.append_blocking(facts("run/y", 1, 2, 3, 4))
    with pytest.raises(InputError, match="characters"):
        log.append_blocking(Append(events=(new("run/y", 1, fact("x" * 1000)),)))


# -------------------------------------------------------------------- event ids


def test_an_event_already_stored_under_another_version_is_a_repeat(log: Log) -> None:
    """A process manager that reacts again makes the same event id at the stream's next version: it is recognised, not stored."""
    event_id = uuid4()
    first = log.append_blocking(Append(events=(new("run/x", 1, fact(), event_id),)))
    again = log.append_blocking(Append(events=(new("run/x", 2, fact(), event_id),)))
    assert (again.repeated, again.position) == (True, first.position)


async def test_one_event_id_twice_in_a_call_spoils_nobodys_append(log: Log) -> None:
    """Appends with one event id for different streams, asked for at once with others: one is stored, the rest are its repeats."""
    event_id = uuid4()
    appends = [Append(events=(NewEvent(f"run/{n}", 1, fact(), event_id),)) for n in range(5)]
    others = [facts(f"other/{n}", 1) for n in range(5)]
    outcomes = await asyncio.gather(*map(log.append, [*appends, *others]))
    assert sorted(o.repeated for o in outcomes[:5]) == [False, True, True, True, True]
    assert not any(o.repeated for o in outcomes[5:])
    with pytest.raises(VersionConflictError):
        log.append_blocking(Append(events=(new("run/9", 1, fact(), event_id), new("run/9", 2, fact()))))


# -------------------------------------------------------------------- the chain


def chained_rows(log: Log) -> list[tuple[ChainedRow, bytes]]:
    rows = log.pool.rows(f"SELECT {', '.join(ChainedRow.__struct_fields__)}, chain FROM finaz.events ORDER BY position")
    names = ChainedRow.__struct_fields__
    return [(ChainedRow(**dict(zip(names, row[:10], strict=True))), bytes(row[10])) for row in rows]


def test_the_database_and_python_compute_one_chain(log: Log) -> None:
    """Every row's chain value is `link` of the one before, with and without metadata, over appends and calls."""
    texts = ["plain", "é\u2028\U0001f600", "|:|1:", "\x1f\x1e"]
    for index, text in enumerate(texts):
        metadata = (
            Metadata(causation_id=uuid4(), correlation_id="c|:" + text.strip("\x1f\x1e"), principal="ána")
            if index % 2
            else Metadata()
        )
        events = (new(f"run/{index}", 1, fact(text)), new(f"ränn/{index}", 1, fact(text)))
        log.append_blocking(Append(events=events, metadata=metadata))
    rows = chained_rows(log)
    previous = GENESIS
    for row, value in rows:
        previous = link(previous, row)
        assert value == previous
    assert chain(row for row, _ in rows) == rows[-1][1]


def test_every_column_counts_in_the_digest() -> None:
    """Changing any one column changes the digest; an absent text differs from any present one."""
    row = ChainedRow(
        position=1,
        stream="s",
        version=1,
        event_id=uuid4(),
        topic="t",
        state="{}",
        recorded_at=datetime(2026, 1, 5, tzinfo=UTC),
        causation_id=uuid4(),
        correlation_id="c",
        principal="p",
    )
    changes = {
        "position": 2,
        "stream": "s2",
        "version": 2,
        "event_id": uuid4(),
        "topic": "t2",
        "state": "[]",
        "recorded_at": row.recorded_at + timedelta(microseconds=1),
        "causation_id": None,
        "correlation_id": None,
        "principal": None,
    }
    assert set(changes) == set(ChainedRow.__struct_fields__)
    digests = {digest(msgspec.structs.replace(row, **{name: value})) for name, value in changes.items()}
    assert len(digests | {digest(row)}) == len(changes) + 1
