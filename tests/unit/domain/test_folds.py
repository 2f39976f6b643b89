"""Folding streams without their services: which rules hold besides the tables, and what breaks them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from domain.chain import ChainedRow, chain, link, link_of_columns
from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.folds import FOLDS, category_of, fold_of, key_of
from domain.instants import to_micros
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.log_errors import AggregateUnknownError
from domain.purchases.messages_seats import ShowCreated
from domain.runs.messages import ResultPublished, ResultRef, RunRequested, RunStarted, RunSucceeded
from tests.support.histories import played, seeded_moves
from tests.support.store import RESOURCE, spec

AT = datetime(2026, 1, 5, 9, tzinfo=UTC)


def problems(stream: str, *events: Event) -> list[str | None]:
    """What is wrong with each event of a stream."""
    fold = fold_of(stream)
    state: Any = fold.initial(key_of(stream))
    found = []
    for version, event in enumerate(events, 1):
        found.append(fold.problem(state, event))
        state = fold.evolve(state, recorded(stream, version, event))
    return found


def recorded(stream: str, version: int, event: Event) -> Recorded:
    return Recorded(
        position=version, stream=stream, version=version, event_id=UUID(int=version), recorded_at=AT, event=event
    )


def granted(token: int, owner: str = "A") -> LeaseGranted:
    return LeaseGranted(resource="r", owner=owner, token=token, ttl_seconds=6.0)


def started(token: int, attempt: int = 1) -> RunStarted:
    return RunStarted(run_id=RESOURCE, owner="A", token=token, attempt=attempt)


REQUESTED = RunRequested(run_id=RESOURCE, principal="ana", spec=spec(), body_hash="")
RESULT = ResultRef(output="ema", artifact="", values_hash="", rows=1, schema="", flow="", inputs=())


def published(token: int) -> ResultPublished:
    return ResultPublished(run_id=RESOURCE, token=token, result=RESULT)


def committed(epoch: int, token: int = 1, **offsets: int) -> CheckpointCommitted:
    return CheckpointCommitted(
        run_id=RESOURCE, epoch=epoch, token=token, manifest="", manifest_hash="", next_offsets={"0": 0, **offsets}
    )


@pytest.mark.parametrize(
    ("stream", "events", "wrong"),
    [
        ("lease/r", (granted(1), granted(1)), 1),
        ("lease/r", (granted(1), granted(3)), 1),
        ("lease/r", (granted(2),), 0),
        ("lease/r", (granted(1), LeaseRenewed(resource="r", owner="A", token=2, ttl_seconds=6.0)), 1),
        ("lease/r", (granted(1), LeaseReleased(resource="r", owner="B", token=1)), 1),
        ("run/" + RESOURCE, (REQUESTED, started(0)), 1),
        ("run/" + RESOURCE, (REQUESTED, started(1, attempt=2)), 1),
        ("run/" + RESOURCE, (REQUESTED, started(1), published(2)), 2),
        ("run/" + RESOURCE, (REQUESTED, started(1), published(1), published(1)), 3),
        ("run/" + RESOURCE, (REQUESTED, started(2), RunSucceeded(run_id=RESOURCE, token=1)), 2),
        ("checkpoint/" + RESOURCE, (committed(1), committed(3)), 1),
        ("checkpoint/" + RESOURCE, (committed(1, 2), committed(2, 1)), 1),
        ("checkpoint/" + RESOURCE, (committed(1, 1, **{"0": 5}), committed(2, 1, **{"0": 4})), 1),
    ],
)
def test_each_rule_names_the_event_that_breaks_it(stream: str, events: tuple[Event, ...], wrong: int) -> None:
    """The event at which a rule is broken has a problem, and only it."""
    found = problems(stream, *events)
    assert [n for n, problem in enumerate(found) if problem] == [wrong]


def test_legal_histories_break_no_rule() -> None:
    """Whatever the aggregates decide is in order."""
    states: dict[str, Any] = {}
    for event in played(seeded_moves(21, 2000)).events:
        fold = fold_of(event.stream)
        state = states.get(event.stream) or fold.initial(key_of(event.stream))
        assert fold.problem(state, event.event) is None, event
        states[event.stream] = fold.evolve(state, event)
    assert len(states) > 300


def test_a_stream_of_facts_has_them_in_order_and_no_more() -> None:
    """Where no aggregate decides, each event is allowed in its place only."""
    fold = FOLDS["show"]
    show = ShowCreated(
        show_id="s", title="t", starts_at=AT, currency="EUR", seat_count=1, hold_seconds=60, principal="ana"
    )
    with pytest.raises(IllegalTransitionError):
        fold.evolve(fold.initial("s"), recorded("show/s", 1, REQUESTED))
    state = fold.evolve(fold.initial("s"), recorded("show/s", 1, show))
    with pytest.raises(IllegalTransitionError):
        fold.evolve(state, recorded("show/s", 2, show))


def test_an_unknown_category_is_refused() -> None:
    """Nothing is guessed of a stream that nobody has described."""
    assert (category_of("run/x/y"), key_of("run/x/y")) == ("run", "x/y")
    with pytest.raises(AggregateUnknownError):
        fold_of("elsewhere/x")


@pytest.mark.parametrize("text", ["plain", "čeněk 📉", "", "a|b:c"])
@pytest.mark.parametrize("absent", [True, False])
def test_the_quick_link_is_the_link(text: str, absent: bool) -> None:
    """Computed from the columns as the database writes them, the chain value is the one that is defined."""
    row = ChainedRow(
        position=7,
        stream="run/" + text,
        version=3,
        event_id=UUID(int=9),
        topic="t" + text,
        state=f'{{"n":"{text}"}}',
        recorded_at=AT,
        causation_id=None if absent else UUID(int=11),
        correlation_id=None if absent else text,
        principal=None if absent else text,
    )
    before = chain([row])
    assert link_of_columns(
        before,
        row.position,
        row.version,
        to_micros(row.recorded_at),
        str(row.event_id),
        None if row.causation_id is None else str(row.causation_id),
        row.stream,
        row.topic,
        row.correlation_id,
        row.principal,
        row.state,
    ) == link(before, row)
