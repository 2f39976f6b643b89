"""Runs, to list and to show: one row per run, the state that its stream folds to.

What must stay true: a row equals what folding the run's stream gives (the same `evolve` makes both), plus the positions of its
first and last event; `requested_position` never changes, so that pages of runs are stable while runs change and arrive.
"""

from datetime import datetime
from typing import Final

import msgspec

from domain.events import Event, Recorded
from domain.runs.aggregate import Run, RunState, evolve
from domain.runs.messages import (
    Mode,
    ResultPublished,
    ResultRef,
    RunCancellationRequested,
    RunCancelled,
    RunError,
    RunFailed,
    RunHandedOff,
    RunRequested,
    RunRequeued,
    RunSpec,
    RunStarted,
    RunSucceeded,
)
from projections.folding import ReadModel

NAME: Final = "runs"

RUN_EVENTS: Final = frozenset(
    {
        RunRequested,
        RunStarted,
        RunCancellationRequested,
        RunCancelled,
        RunRequeued,
        RunFailed,
        ResultPublished,
        RunSucceeded,
        RunHandedOff,
    }
)


class PublishedResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A result as a reader of the run sees it: the reference, the token of the owner that published it, and when."""

    run_id: str
    output: str
    artifact: str
    values_hash: str
    rows: int
    schema: str
    flow: str
    inputs: tuple[str, ...]
    fence_token: int
    published_at: datetime
    code: str = ""

    @property
    def result(self) -> ResultRef:
        """The reference as the run's aggregate has it."""
        return ResultRef(
            output=self.output,
            artifact=self.artifact,
            values_hash=self.values_hash,
            rows=self.rows,
            schema=self.schema,
            flow=self.flow,
            inputs=self.inputs,
            code=self.code,
        )


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run, flat, as its table has it. Fields are those of `Run` and `RunSpec`; the last four are None where its mode has no such
    thing, and in rows that version 1 of this projection made.
    """

    run_id: str
    state: str
    run_revision: int
    principal: str
    mode: str
    flow: str
    flow_name: str
    snapshot: str
    as_of: datetime
    tags: tuple[str, ...]
    priority: int
    deadline_seconds: int
    deadline_at: datetime
    body_hash: str
    sweep_id: str | None
    attempts: int
    failures: int
    token: int
    owner: str
    cancellation_requested: bool
    errors: tuple[RunError, ...]
    results: tuple[PublishedResult, ...]
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    requested_position: int
    position: int
    topic: str | None = None
    bounded: bool | None = None
    continues: str | None = None
    schedule: str | None = None


class RunFold(msgspec.Struct, frozen=True, gc=False):
    """What the fold carries along: the aggregate's own state, the results as readers see them, first and last position."""

    run: Run
    results: tuple[PublishedResult, ...]
    requested_position: int
    position: int


def key_of(event: Event) -> str | None:
    """The run that the event is about, or None."""
    return event.run_id if type(event) in RUN_EVENTS else None  # type: ignore[attr-defined]


def apply(row: RunFold | None, recorded: Recorded) -> RunFold:
    """The run after the event. Raises `IllegalTransitionError` for one that cannot follow."""
    event, position = recorded.event, recorded.position
    if row is None:
        return RunFold(evolve(Run(event.run_id), event, recorded.recorded_at), (), position, position)  # type: ignore[attr-defined]
    run, results = evolve(row.run, event, recorded.recorded_at), row.results
    if type(event) is ResultPublished:
        results = (*results, published(event.run_id, event.result, event.token, recorded.recorded_at))
    return RunFold(run, results, row.requested_position, position)


def row_of(folded: RunFold) -> RunRow:
    """The row of the table."""
    run = folded.run
    spec, deadline_at, requested_at = run.spec, run.deadline_at, run.requested_at
    assert spec is not None
    assert deadline_at is not None
    assert requested_at is not None
    return RunRow(
        run_id=run.run_id,
        state=run.state.value,
        run_revision=run.run_revision,
        principal=run.principal,
        mode=spec.mode.value,
        flow=spec.flow,
        flow_name=spec.flow_name,
        snapshot=spec.snapshot,
        as_of=spec.as_of,
        tags=spec.tags,
        priority=spec.priority,
        deadline_seconds=spec.deadline_seconds,
        deadline_at=deadline_at,
        body_hash=run.body_hash,
        sweep_id=run.sweep_id,
        attempts=run.attempts,
        failures=run.failures,
        token=run.token,
        owner=run.owner,
        cancellation_requested=run.cancellation_requested,
        errors=run.errors,
        results=folded.results,
        requested_at=requested_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        requested_position=folded.requested_position,
        position=folded.position,
        topic=spec.topic or None,
        bounded=spec.bounded if spec.topic else None,
        continues=spec.continues or None,
        schedule=spec.schedule or None,
    )


def fold_of(row: RunRow) -> RunFold:
    """What the fold carries along, from the row of the table."""
    run = Run(
        row.run_id,
        RunState(row.state),
        row.run_revision,
        row.principal,
        _spec(row),
        row.body_hash,
        row.sweep_id,
        row.attempts,
        row.failures,
        row.token,
        row.owner,
        row.cancellation_requested,
        row.errors,
        tuple([published.result for published in row.results]),
        row.requested_at,
        row.started_at,
        row.finished_at,
    )
    return RunFold(run, row.results, row.requested_position, row.position)


def published(run_id: str, result: ResultRef, token: int, at: datetime) -> PublishedResult:
    """A result reference together with the run, the token, and the instant of its publication."""
    return PublishedResult(
        run_id=run_id,
        output=result.output,
        artifact=result.artifact,
        values_hash=result.values_hash,
        rows=result.rows,
        schema=result.schema,
        flow=result.flow,
        inputs=result.inputs,
        fence_token=token,
        published_at=at,
        code=result.code,
    )


def _spec(row: RunRow) -> RunSpec:
    return RunSpec(
        mode=Mode(row.mode),
        flow=row.flow,
        flow_name=row.flow_name,
        snapshot=row.snapshot,
        as_of=row.as_of,
        tags=row.tags,
        priority=row.priority,
        deadline_seconds=row.deadline_seconds,
        topic=row.topic or "",
        bounded=row.bounded is not False,
        continues=row.continues or "",
        schedule=row.schedule or "",
    )


MODEL: Final = ReadModel[str, RunFold](NAME, ("run",), key_of, apply, version=2)
