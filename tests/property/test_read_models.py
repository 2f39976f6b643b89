"""Read models as pure functions, over random legal histories and over events that cannot be taken."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from domain.events import Recorded, topics
from domain.identity import lease_stream, run_stream
from domain.leases.aggregate import Lease
from domain.leases.aggregate import evolve as evolve_lease
from domain.leases.messages import LeaseGranted
from domain.runs.aggregate import Run
from domain.runs.aggregate import evolve as evolve_run
from domain.runs.messages import ResultPublished, RunRequeued
from projections.checkpoints import projection as checkpoints
from projections.folding import Batch, ReadModel, batch_of, fold, fold_all
from projections.leases import guard
from projections.leases import projection as leases
from projections.log import REASON_CHARACTERS_MAX, StoredEvent, failure_of
from projections.outbox import projection as outbox
from projections.publications import projection as publications
from projections.quarantine import projection as quarantine
from projections.runs import projection as runs
from tests.support.histories import History, histories, played, random_moves, seeded_history
from tests.support.stored_events import stored_event

MODELS: tuple[ReadModel[Any, Any], ...] = (
    runs.MODEL,
    publications.MODEL,
    leases.MODEL,
    outbox.MODEL,
    guard.MODEL,
    checkpoints.MODEL,
    quarantine.MODEL,
)


RICH = seeded_history(5, 300)
"""Small histories seldom come to renewals, hand-backs and faults; this one has many of each."""


def of_categories(model: ReadModel[Any, Any], events: Sequence[Recorded]) -> list[Recorded]:
    return [recorded for recorded in events if recorded.stream.partition("/")[0] in model.categories]


@given(histories())
@example(RICH)
def test_a_run_is_shown_as_its_stream_folds(history: History) -> None:
    """A run's row is the fold of its stream by the aggregate itself, with its publications, and survives its table's form."""
    for run_id, folded in fold_all(runs.MODEL, history.events).items():
        events = history.stream(run_stream(run_id))
        run = Run(run_id)
        for recorded in events:
            run = evolve_run(run, recorded.event, recorded.recorded_at)
        assert folded.run == run
        assert (folded.requested_position, folded.position) == (events[0].position, events[-1].position)
        published = [r for r in events if isinstance(r.event, ResultPublished)]
        assert [(p.published_at, p.result) for p in folded.results] == [
            (r.recorded_at, r.event.result) for r in published if isinstance(r.event, ResultPublished)
        ]
        row = runs.row_of(folded)
        assert runs.fold_of(row) == folded
        assert msgspec.json.decode(msgspec.json.encode(row), type=runs.RunRow) == row


@given(histories())
@example(RICH)
def test_a_lease_is_shown_as_its_stream_folds(history: History) -> None:
    """Row and guard row agree with the aggregate on owner, token, expiry, release; since when, and its label, by the last grant."""
    guards = fold_all(guard.MODEL, history.events)
    for resource, row in fold_all(leases.MODEL, history.events).items():
        lease = Lease(resource)
        for recorded in history.stream(lease_stream(resource)):
            lease = evolve_lease(lease, recorded.event, recorded.recorded_at)
        assert (row.owner, row.token, row.expires_at, row.state) == (
            lease.owner,
            lease.token,
            lease.expires_at,
            lease.state.value,
        )
        grants = [
            recorded for recorded in history.stream(lease_stream(resource)) if isinstance(recorded.event, LeaseGranted)
        ]
        assert isinstance(grants[-1].event, LeaseGranted)
        assert (row.granted_at, row.label) == (grants[-1].recorded_at, grants[-1].event.label)
        assert row.first_position == grants[0].position
        guarded = guards[resource]
        assert (guarded.owner, guarded.token, guarded.expires_at) == (lease.owner, lease.token, lease.expires_at)
        assert guarded.released is (row.state == "RELEASED")
        assert guarded.position == row.position


@given(histories())
@example(RICH)
def test_the_outbox_says_what_is_to_be_done(history: History) -> None:
    """Queued runs are pending, running ones claimed, ended ones delivered, and none is missing; each from when it is due."""
    states = {"QUEUED": "pending", "RUNNING": "claimed"}
    items = fold_all(outbox.MODEL, history.events)
    folded = fold_all(runs.MODEL, history.events)
    assert {key for _, key in items} == set(folded)
    for (_, run_id), item in items.items():
        run = folded[run_id].run
        assert item.state == states.get(run.state.value, "delivered")
        assert run.spec is not None
        assert (item.lane, item.priority, item.enqueued_at) == (
            run.spec.mode.value,
            run.spec.priority,
            run.requested_at,
        )


@given(histories())
@example(RICH)
def test_an_item_is_due_when_its_last_event_says(history: History) -> None:
    """At once, but for a run that was put back, which waits for its delay; the place in the queue never changes."""
    rows: dict[outbox.OutboxKey, outbox.OutboxRow] = {}
    for recorded in history.events:
        key = outbox.key_of(recorded.event)
        if key is None:
            continue
        waits = recorded.event.delay_seconds if isinstance(recorded.event, RunRequeued) else 0.0
        before, rows[key] = rows.get(key), outbox.apply(rows.get(key), recorded)
        assert rows[key].due_at == recorded.recorded_at + timedelta(seconds=waits)
        assert (rows[key].changed_at, rows[key].position) == (recorded.recorded_at, recorded.position)
        if before is not None:
            assert rows[key].enqueued_position == before.enqueued_position


@given(histories(), st.lists(st.integers(1, 9)))
def test_any_cut_of_the_log_gives_the_same_rows(history: History, sizes: list[int]) -> None:
    """Folding in batches of any sizes, from stored documents, is folding at once."""
    for model in MODELS:
        rows: dict[Any, Any] = {}
        rest = [stored_event(r) for r in of_categories(model, history.events)]
        cuts = iter(sizes)
        while rest:
            size = next(cuts, 1000)
            batch = batch_of(model, rest[:size], rest[:size][-1].position)
            folded = fold(model, {key: rows[key] for key in batch.keys if key in rows}, batch)
            assert folded.failure is None
            assert set(folded.rows) == set(batch.keys)
            rows.update(folded.rows)
            rest = rest[size:]
        assert rows == fold_all(model, history.events)


@given(histories(), st.data())
def test_a_batch_ends_before_what_cannot_be_taken(history: History, data: st.DataObject) -> None:
    """With an unknown topic, a bad document or an impossible event anywhere, the batch is everything before it, and names it."""
    model = data.draw(st.sampled_from(MODELS))
    stored = [stored_event(r) for r in of_categories(model, history.events)]
    place = data.draw(st.integers(0, len(stored)))
    position = stored[place - 1].position + 1 if place else 1
    bad = StoredEvent(
        position,
        f"{model.categories[0]}/x",
        1,
        UUID(int=1),
        history.events[0].recorded_at if history.events else seeded_history(0, 1).events[0].recorded_at,
        *data.draw(
            st.sampled_from(
                (
                    ("run.paused.v1", "{}"),
                    ("lease.granted.v1", "{"),
                    ("run.requested.v1", '{"run_id":1}'),
                    ("run.succeeded.v1", '{"run_id":"x","token":1,"more":1}'),
                )
            )
        ),
    )
    batch = batch_of(model, [*stored[:place], bad, *stored[place:]], 10**9)
    folded = fold(model, {}, batch)
    assert folded.failure is not None
    assert (folded.failure.position, folded.failure.stream, folded.failure.topic) == (position, bad.stream, bad.topic)
    assert folded.up_to == position - 1
    assert folded.rows == fold_all(model, [r for r in history.events if r.position < position])


@given(histories(moves_max=30), st.data())
def test_a_fold_ends_before_what_its_model_refuses(history: History, data: st.DataObject) -> None:
    """An exception of any kind out of a fold is the failure of that one event; earlier ones count, also of the same row."""
    events = of_categories(runs.MODEL, history.events)
    if not events:
        return
    refused = data.draw(st.sampled_from(events)).position

    def apply(row: Any, recorded: Recorded) -> Any:
        if recorded.position == refused:
            raise ZeroDivisionError("a bug")
        return runs.apply(row, recorded)

    model: ReadModel[Any, Any] = ReadModel("runs", ("run",), runs.key_of, apply)
    folded = fold(model, {}, batch_of(model, [stored_event(r) for r in events], 10**9))
    assert folded.failure is not None
    assert (folded.failure.position, folded.failure.code) == (refused, "DEFECT")
    assert "ZeroDivisionError" in folded.failure.reason
    assert folded.up_to == refused - 1
    assert folded.rows == fold_all(runs.MODEL, [r for r in history.events if r.position < refused])


@given(histories(), st.integers(0, 10**6))
def test_halving_finds_the_one_event(history: History, dice: int) -> None:
    """A batch that the storage refuses for one event is halved until that event stands alone, first in its batch."""
    events = of_categories(runs.MODEL, history.events)
    if not events:
        return
    refused = events[dice % len(events)].position
    batch: Batch[Any] = batch_of(runs.MODEL, [stored_event(r) for r in events], 10**9)
    done: list[int] = []
    left = list(batch.events)
    while True:
        if refused not in [r.position for _, r in batch.events]:
            assert batch.failure is None
            done += [r.position for _, r in batch.events]
            left = [item for item in left if item[1].position > batch.up_to]
            batch = Batch(left, 10**9)
        elif len(batch.events) > 1:
            batch = batch.halved()
        else:
            batch = batch.refused(ValueError("too big"))
            break
    assert batch.failure is not None
    assert (batch.failure.position, batch.up_to, batch.events) == (refused, refused - 1, ())
    assert done == [r.position for r in events if r.position < refused]


def test_histories_are_legal_and_rich() -> None:
    """Histories of this size have every event of runs and leases that there is, with contiguous versions and positions."""
    made: Counter[str] = Counter()
    for seed in range(60):
        history = played(random_moves(seed, 60, runs=6))
        made.update(recorded.event.topic for recorded in history.events)
        assert [r.position for r in history.events] == list(range(1, len(history.events) + 1))
        for stream in {r.stream for r in history.events}:
            assert all(b.version == a.version + 1 for a, b in pairwise(history.stream(stream)))
    wanted = {topic for topic in topics() if topic.startswith(("run.", "lease."))}
    assert {topic: made[topic] for topic in wanted if made[topic] < 20} == {}


def test_a_reason_has_a_limit() -> None:
    """An endless message is cut at `REASON_CHARACTERS_MAX`, and holds nothing that PostgreSQL cannot."""
    failure = failure_of(1, "s", "t", ValueError("\x00" + "x" * 10**6))
    assert len(failure.reason) == REASON_CHARACTERS_MAX
    assert "\x00" not in failure.reason
