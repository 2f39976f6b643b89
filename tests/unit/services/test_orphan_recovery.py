"""Orphan recovery as a fold: what it wants after any history, and what it would do about one run."""

from datetime import timedelta

from hypothesis import example, given

from domain.events import Recorded
from domain.identity import RUN_ID
from domain.runs.aggregate import FINISHED, Run, RunState
from domain.runs.messages import Mode, RunCancelled, RunFailed, RunRequeued
from projections.folding import fold_all
from services.leases import fold_lease
from services.process_managers.instances import InstanceRow, instances_of
from services.process_managers.orphan_recovery import EXPIRE, RECOVER, OrphanRecovery, wanted_of
from services.runs import fold_run
from tests.support.histories import START, History, histories, seeded_history
from tests.support.memory_log import MemoryLog

MANAGER = OrphanRecovery(MemoryLog())

RICH = seeded_history(5, 300)
"""Small histories seldom come to renewals, hand-backs and faults; this one has many of each."""


def instances(history: History) -> dict[str, InstanceRow]:
    """What the manager remembers and wants after the history."""
    return fold_all(instances_of(MANAGER), history.events)


def runs_of(history: History) -> dict[str, tuple[Run, tuple[Recorded, ...]]]:
    """Each run's state, and the events of its leases."""
    ids = {event.stream.partition("/")[2] for event in history.events if event.stream.startswith("run/")}
    return {
        run_id: (fold_run(run_id, history.stream(f"run/{run_id}")), history.stream(f"lease/{run_id}"))
        for run_id in sorted(ids)
        if RUN_ID.match(run_id)
    }


@given(histories())
@example(RICH)
def test_every_live_lease_has_its_deadline_and_every_ended_run_has_none(history: History) -> None:
    """The deadline stands at the lease's expiry exactly, however often it was renewed; what ended is forgotten."""
    rows = instances(history)
    for run_id, (run, leases) in runs_of(history).items():
        deadlines = {deadline.name: deadline.due_at for deadline in rows[run_id].deadlines}
        lease = fold_lease(run_id, leases)
        if run.state in FINISHED:
            assert EXPIRE not in deadlines
        else:
            assert deadlines[EXPIRE] == run.deadline_at
        if run.state is RunState.RUNNING:
            assert lease.expires_at is not None
            ends_at = leases[-1].recorded_at if lease.state.name == "RELEASED" else lease.expires_at
            assert deadlines[RECOVER] == ends_at


@given(histories())
@example(RICH)
def test_folding_again_wants_the_same_under_the_same_ids(history: History) -> None:
    """So a replay from position 0 stores no command twice."""
    assert instances(history) == instances(history)
    rows = instances(history).values()
    ids = [wanted.command_id for row in rows for wanted in (*row.deadlines, *row.commands)]
    assert len(ids) == len(set(ids))


@given(histories())
@example(RICH)
def test_what_becomes_of_an_orphan_is_legal_and_a_stream_run_is_never_requeued(history: History) -> None:
    """Back to the queue, or an end that its state calls for; a waiting or a stream run only ends if that is due."""
    late = START + timedelta(days=30)
    for run, _ in runs_of(history).values():
        for now in (START, late):
            events = wanted_of(run, now)
            if run.state in FINISHED:
                assert events == ()
            elif run.state is RunState.QUEUED:
                assert [type(event) for event in events] in ([], [RunFailed])
                assert bool(events) is (run.deadline_at is not None and now >= run.deadline_at)
            elif run.spec is not None and run.spec.mode is Mode.STREAM:
                ends = run.cancellation_requested or (run.deadline_at is not None and now >= run.deadline_at)
                assert [isinstance(event, RunFailed | RunCancelled) for event in events] == [True] * ends
            else:
                assert len(events) == 1
                assert isinstance(events[0], RunRequeued) or run.cancellation_requested or run.failures or now == late
