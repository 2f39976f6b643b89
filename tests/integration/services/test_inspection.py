"""Looking at a real log: streams, states at any time, what caused what, search; each by its indexes."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from domain.canonical import parse
from domain.errors import CursorInvalidError, InputError
from domain.events import Metadata, Recorded, encode
from domain.folds import FOLDS, category_of, fold_of, key_of
from domain.log_errors import AggregateUnknownError, EventNotFoundError, StreamNotFoundError
from services import log_search
from services.inspection import CHAIN_EVENTS_MAX, PAGE_MAX, Inspection, Search
from services.ports import Append
from services.store.application import Log
from tests.support.histories import History, played, seeded_moves
from tests.support.read_models import execute, store_all, stored
from tests.support.store import fact, new, opened

EVENTS = 400


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def history(log: Log) -> list[Recorded]:
    """A legal past of all kinds of streams, as the log has it."""
    made: History = played(seeded_moves(7, EVENTS))
    store_all(log, made.appends, at_once=1)
    return stored(log)


class Watched:
    """A query that keeps what was asked, so that its plans can be asked for."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self.asked: list[tuple[str, Any]] = []

    def rows(self, statement: str, arguments: Any = ()) -> Any:
        self.asked.append((statement, arguments))
        return self._query.rows(statement, arguments)


def everything(page: Any, **first: Any) -> list[Any]:
    """All items of all pages."""
    found, given = [], dict(first)
    while True:
        got = page(**given)
        found += got.items
        if got.next_cursor is None:
            return found
        given["cursor"] = got.next_cursor


def test_every_stream_is_listed_once_with_its_ends(log: Log, history: list[Recorded]) -> None:
    """Streams come by name, whatever the size of a page, each with its last version and where it begins and ends."""
    expected: dict[str, list[Recorded]] = {}
    for event in history:
        expected.setdefault(event.stream, []).append(event)
    inspection = Inspection(log.pool)
    for limit in (1, 7, PAGE_MAX):
        found = everything(inspection.streams, limit=limit)
        assert [one.stream for one in found] == sorted(expected)
        for one in found:
            events = expected[one.stream]
            assert (one.version, one.first_position, one.last_position) == (
                events[-1].version,
                events[0].position,
                events[-1].position,
            )
    runs = everything(inspection.streams, prefix="run/", limit=3)
    assert {one.stream for one in runs} == {stream for stream in expected if category_of(stream) == "run"}


def test_a_stream_is_read_both_ways(log: Log, history: list[Recorded]) -> None:
    """Forward and backward give the same events, with all that is known of them, whatever the size of a page."""
    stream = max({e.stream for e in history}, key=lambda name: sum(e.stream == name for e in history))
    events = [e for e in history if e.stream == stream]
    inspection = Inspection(log.pool)
    forward: list[Any] = []
    beyond = None
    while True:
        page = inspection.read(stream, beyond, 2)
        forward += page.items
        if page.next_cursor is None:
            break
        beyond = int(page.next_cursor)
    assert [(e.version, e.position, e.event_id, e.event) for e in forward] == [
        (e.version, e.position, e.event_id, parse(encode(e.event))) for e in events
    ]
    backward = inspection.read(stream, None, PAGE_MAX, backward=True)
    assert list(backward.items) == forward[::-1]
    with pytest.raises(StreamNotFoundError):
        inspection.read("run/nobody")


def test_the_state_at_any_version_and_instant_is_the_fold_so_far(log: Log, history: list[Recorded]) -> None:
    """Whatever the aggregate, its state as of a version or an instant is what folding so many events gives."""
    inspection = Inspection(log.pool)
    for stream in sorted({e.stream for e in history})[::5]:
        fold = fold_of(stream)
        state = fold.initial(key_of(stream))
        at_instant: dict[datetime, Any] = {}
        for event in (e for e in history if e.stream == stream):
            state = fold.evolve(state, event)
            read = inspection.state(stream, version=event.version)
            assert read.state == msgspec.to_builtins(state, order="deterministic")
            assert (read.version, read.position) == (event.version, event.position)
            at_instant[event.recorded_at] = msgspec.to_builtins(state, order="deterministic")  # of one append: the last
        for instant, document in at_instant.items():
            assert inspection.state(stream, at=instant).state == document
        with pytest.raises(StreamNotFoundError):
            inspection.state(stream, at=history[0].recorded_at - timedelta(days=1))
        with pytest.raises(StreamNotFoundError):
            inspection.state(stream, version=event.version + 1)


def test_a_difference_is_all_that_changed(log: Log, history: list[Recorded]) -> None:
    """Applied to the state before, the differences between two versions give the state after."""
    inspection = Inspection(log.pool)
    stream = next(e.stream for e in history if e.event.topic == "run.started.v1")
    found = inspection.difference(stream, 1, 2)
    before, after = inspection.state(stream, 1).state, inspection.state(stream, 2).state
    for difference in found.differences:
        before[difference.path.removeprefix("$.")] = difference.after
    assert before == after
    assert [event.version for event in found.events] == [2]
    whole = inspection.difference(stream, 0, 2)
    assert {d.path for d in whole.differences} >= {"$.state", "$.spec", "$.token"}
    back = inspection.difference(stream, 2, 1)
    assert [(d.path, d.after, d.before) for d in back.differences] == [
        (d.path, d.before, d.after) for d in found.differences
    ]
    assert inspection.difference(stream, 2, 2).differences == ()
    with pytest.raises(StreamNotFoundError):
        inspection.difference(stream, 1, 10_000)


def test_a_stream_that_nothing_folds_is_refused_by_name(log: Log) -> None:
    """The state of an unknown kind of stream is a typed error that names the kinds there are."""
    with pytest.raises(AggregateUnknownError) as error:
        Inspection(log.pool).state("other/thing")
    assert "run" in str(error.value.expected)


def test_every_aggregate_is_folded_here() -> None:
    """Every transition table of the domain belongs to a fold: a new context cannot be forgotten."""
    from tests.support.domain_tables import aggregates_without_fold

    assert aggregates_without_fold(FOLDS) == []


def _caused(log: Log, stream: str, count: int, causes: list[UUID | None]) -> list[UUID]:
    """Events of one stream, the n-th caused by `causes[n]`."""
    ids = [uuid4() for _ in range(count)]
    for n, event_id in enumerate(ids):
        metadata = Metadata(causation_id=causes[n], correlation_id="story", principal="ana" if n % 2 else "bo")
        log.append_blocking(Append(events=(new(stream, n + 1, fact(), event_id),), metadata=metadata))
    return ids


def test_causes_and_effects_are_followed_both_ways(log: Log) -> None:
    """From any event up to what began it, and down to everything that came of it; a loop ends."""
    a, b = uuid4(), uuid4()
    log.append_blocking(
        Append(events=(new("run/a", 1, fact(), a),), metadata=Metadata(causation_id=uuid4()))
    )  # its cause is not of this log
    log.append_blocking(Append(events=(new("run/b", 1, fact(), b),), metadata=Metadata(causation_id=a)))
    children = _caused(log, "run/c", 5, [b, b, b, a, None])
    inspection = Inspection(log.pool)
    assert [e.event_id for e in inspection.causes(children[0]).items] == [a, b, children[0]]
    assert [e.event_id for e in inspection.effects(a).items] == [a, b, *children[:4]]
    assert [e.event_id for e in inspection.effects(children[4]).items] == [children[4]]
    with pytest.raises(EventNotFoundError):
        inspection.causes(uuid4())


def test_a_chain_is_cut_at_its_limit(log: Log) -> None:
    """More effects than `CHAIN_EVENTS_MAX`: so many are given, and that there are more is said."""
    cause = uuid4()
    log.append_blocking(Append(events=(new("run/a", 1, fact(), cause),)))
    events = tuple(new("run/b", n, fact()) for n in range(1, CHAIN_EVENTS_MAX + 10))
    log.append_blocking(Append(events=events, metadata=Metadata(causation_id=cause)))
    chain = Inspection(log.pool).effects(cause)
    assert (len(chain.items), chain.cut) == (CHAIN_EVENTS_MAX, True)


def _holds(wanted: Search, event: Recorded) -> bool:
    """Whether all of the search holds for the event."""
    metadata = event.metadata
    return (
        (not wanted.topics or event.event.topic in wanted.topics)
        and wanted.principal in (None, metadata.principal)
        and wanted.correlation_id in (None, metadata.correlation_id)
        and (wanted.stream_prefix is None or event.stream.startswith(wanted.stream_prefix))
        and (wanted.since is None or event.recorded_at >= wanted.since)
        and (wanted.until is None or event.recorded_at < wanted.until)
    )


def _searches(history: list[Recorded]) -> Iterator[Search]:
    """Each condition by itself and every combination of them, some of which nothing fulfils, in all the log and in a part of it."""
    middle, late = (history[len(history) * share // 4] for share in (2, 3))
    for topics, principal, correlation_id, stream_prefix in itertools.product(
        ((), ("run.started.v1", "lease.granted.v1", "run.started.v1"), ("run.failed.v1",)),
        (None, "ana", "nobody"),
        (None, middle.metadata.correlation_id),
        (None, "lease/", "run/"),
    ):
        wanted = Search(topics=topics, principal=principal, correlation_id=correlation_id, stream_prefix=stream_prefix)
        yield wanted
        yield msgspec.structs.replace(wanted, since=middle.recorded_at, until=late.recorded_at, backward=True)
    yield from (Search(since=middle.recorded_at), Search(until=middle.recorded_at, backward=True))


def test_search_finds_what_a_look_at_everything_finds(
    log: Log, history: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All conditions, alone and together, page by page; however few events are looked at for a page."""
    inspection = Inspection(log.pool)
    for few, examined in ((log_search.FEW_EVENTS, log_search.EXAMINED_MAX), (20, 60), (0, 150)):
        monkeypatch.setattr(log_search, "FEW_EVENTS", few)
        monkeypatch.setattr(log_search, "EXAMINED_FIRST", min(examined, log_search.EXAMINED_FIRST))
        monkeypatch.setattr(log_search, "EXAMINED_MAX", examined)
        for wanted in _searches(history):
            expected = [e.position for e in history if _holds(wanted, e)]
            assert _found(inspection, wanted) == (expected[::-1] if wanted.backward else expected), wanted


@pytest.mark.parametrize("backward", [False, True])
def test_a_search_begins_anywhere(log: Log, backward: bool) -> None:
    """Behind any place that a client may name, the last of all numbers included, whatever is looked for."""
    log.append_blocking(Append(events=(new("run/a", 1, fact()),), metadata=Metadata(principal="bo")))
    inspection = Inspection(log.pool)
    for wanted in (Search(), Search(principal="bo"), Search(stream_prefix="run/", topics=(fact().topic,))):
        for beyond in (0, 1, 2**62, 2**63 - 1):
            page = inspection.search(msgspec.structs.replace(wanted, backward=backward), 5, beyond)
            assert len(page.items) == (beyond > 1 if backward else beyond < 1)


def _found(inspection: Inspection, wanted: Search) -> list[int]:
    """Positions of all pages, each of which goes on behind the one before."""
    found: list[int] = []
    beyond = None
    while True:
        page = inspection.search(wanted, 50, beyond)
        found += [e.position for e in page.items]
        if page.next_cursor is None:
            return found
        assert beyond is None or (int(page.next_cursor) > beyond) is not wanted.backward
        beyond = int(page.next_cursor)


def test_a_page_looks_at_a_bounded_number_of_events(log: Log, database: str) -> None:
    """Nothing that two common conditions have in common: each page ends after so many events, empty, and says where it got to."""
    log.append_blocking(Append(events=(new("run/a", 1, fact()),), metadata=Metadata(principal="bo")))
    events = log_search.EXAMINED_MAX + 2000
    execute(database, COMMON, events)
    execute(database, "ANALYZE finaz.events")
    inspection = Inspection(log.pool)
    border = 2 * log_search.EXAMINED_MAX  # every second event has the topic, the others have the principal
    for backward, expected in ((False, border), (True, 2 * events + 2 - border)):
        wanted = Search(topics=("common",), principal="bo", backward=backward)
        page = inspection.search(wanted)
        assert (page.items, page.next_cursor) == ((), str(expected))
        assert inspection.search(wanted, beyond=expected).next_cursor is None
    assert inspection.search(Search(stream_prefix="made/", principal="bo", topics=("rare",))).next_cursor is None


COMMON = """
INSERT INTO finaz.events (position, version, recorded_at, event_id, stream, topic, principal, state, chain)
SELECT 2 * n + more, 1, clock_timestamp(), gen_random_uuid(), 'made/' || n || '/' || more,
       CASE more WHEN 0 THEN 'common' ELSE 'other' END, CASE more WHEN 0 THEN 'ana' ELSE 'bo' END, '{}', '\\x00'
FROM generate_series(1, %s) AS n, generate_series(0, 1) AS more
"""


def test_an_event_that_cannot_be_decoded_is_shown_as_it_is(log: Log, database: str) -> None:
    """A topic that this version does not know is looked at like any other; only its state cannot be folded."""
    log.append_blocking(Append(events=(new("run/a", 1, fact()),)))
    execute(database, "ALTER TABLE finaz.events DISABLE TRIGGER events_append_only")
    execute(database, "UPDATE finaz.events SET topic = 'run.forgotten.v9', state = '{\"n\":1}'")
    (event,) = Inspection(log.pool).read("run/a").items
    assert (event.topic, event.event) == ("run.forgotten.v9", {"n": 1})
    execute(database, "UPDATE finaz.events SET state = 'no JSON'")
    (event,) = Inspection(log.pool).read("run/a").items
    assert event.event == {"unreadable": "no JSON"}


@pytest.mark.parametrize("cursor", ["", "?", "AAAA", "cnVuLw==", "é"])
def test_a_damaged_cursor_is_refused(log: Log, cursor: str) -> None:
    """What no page gave is no cursor."""
    with pytest.raises(CursorInvalidError):
        Inspection(log.pool).streams(cursor=cursor)
    with pytest.raises(InputError):
        Inspection(log.pool).streams(limit=PAGE_MAX + 1)


def test_no_look_scans_the_log(log: Log, database: str, history: list[Recorded]) -> None:
    """The plan of every statement, over a log that is worth an index, has no sequential scan and reads no more than its page."""
    lengthen(database, 20_000)
    watched = Watched(log.pool)
    inspection = Inspection(watched)
    look_at_everything(inspection, history)
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = psycopg.ClientCursor(connection)
        for statement, arguments in watched.asked:
            cursor.execute("EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) " + statement, arguments)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "Seq Scan on events" not in plan, plan


def lengthen(dsn: str, events: int) -> None:
    """A longer log, put in directly: streams, topics, principals and correlations of the real one, again and again."""
    execute(
        dsn,
        """
        INSERT INTO finaz.events (position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal,
                                  state, chain)
        SELECT h.head + row_number() OVER (ORDER BY n, e.position), e.version, h.at + n * interval '1 second', gen_random_uuid(),
               e.event_id, e.stream || '-' || n, e.topic, e.correlation_id || n, 'somebody-' || n %% 20, e.state, e.chain
        FROM finaz.events AS e,
             (SELECT max(position) AS head, max(recorded_at) AS at, count(*) AS count FROM finaz.events) AS h,
             LATERAL generate_series(1, %s / h.count) AS n
        """,
        events,
    )
    execute(dsn, "VACUUM (ANALYZE) finaz.events")


def look_at_everything(inspection: Inspection, history: list[Recorded]) -> None:
    """Every kind of look once, and the searches that operators make."""
    last = history[-1]
    inspection.streams(limit=PAGE_MAX)
    inspection.streams(prefix="lease/", limit=100)
    inspection.read(last.stream)
    inspection.read(last.stream, backward=True)
    inspection.state(last.stream)
    inspection.difference(last.stream, 0, last.version)
    inspection.causes(last.event_id)
    inspection.effects(last.event_id)
    later = last.recorded_at + timedelta(seconds=10)
    for wanted in (
        Search(topics=("run.failed.v1",)),
        Search(topics=("run.started.v1", "lease.renewed.v1"), backward=True),
        Search(principal="somebody-3"),
        Search(correlation_id=history[1].metadata.correlation_id),
        Search(stream_prefix=last.stream),
        Search(since=later, until=later + timedelta(seconds=5)),
        Search(topics=("run.failed.v1",), principal="somebody-3", since=later, backward=True),
        Search(until=datetime(2020, 1, 1, tzinfo=UTC)),
        Search(topics=("run.started.v1",), principal="nobody"),
        Search(stream_prefix="run/", backward=True),
    ):
        inspection.search(wanted)
