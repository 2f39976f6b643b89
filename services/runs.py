"""Runs as their owners see them: look at one, ask that it stop, read its history.

What must stay true: everything here folds the run's own stream, so an answer is never behind what it decides about; a run of
another principal is not found unless the caller operates. A cancellation is one append under the version that was read: a
worker that started or published in between wins the race and the decision is made again. A crash leaves the append or nothing.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from domain.errors import RunNotFoundError, VersionConflictError
from domain.events import Metadata, Recorded
from domain.identity import RUN_ID, lease_stream, run_stream
from domain.runs.aggregate import Run, RunState, decide, evolve
from domain.runs.messages import Mode, RequestCancellation, RunError
from projections.runs.projection import PublishedResult as PublishedResult
from projections.runs.projection import RunFold, RunRow, apply, row_of
from projections.runs.projection import published as published
from services import effects
from services.event_ids import new_event_id
from services.ports import Append, EventLog, NewEvent, StreamsRead

CONFLICT_RETRIES_MAX: Final = 8
"""Times that a decision is made again because its stream had moved on; a run has fewer events than that in a busy second."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a client sees of one run; a STREAM run may have no snapshot ("") and then no as-of instant.

    `position` is that of the run's last event: wait for it to read your write. Of a STREAM run: its `topic`, whether it is
    `bounded` by the marks of its first opening, and the BATCH run that it `continues`, if any; of a REPLAY run: the address of its
    fault `schedule`, if any. None everywhere else.
    """

    run_id: str
    state: RunState
    run_revision: int
    principal: str
    mode: Mode
    flow: str
    flow_name: str
    snapshot: str
    as_of: datetime | None
    tags: tuple[str, ...]
    priority: int
    deadline_at: datetime
    attempts: int
    errors: tuple[RunError, ...]
    results: tuple[PublishedResult, ...]
    token: int
    sweep_id: str | None
    cancellation_requested: bool
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    position: int
    topic: str | None
    bounded: bool | None
    continues: str | None
    schedule: str | None


def fold_run(run_id: str, events: Sequence[Recorded]) -> Run:
    """The state of the run after its events (none: `ABSENT`)."""
    run = Run(run_id)
    for recorded in events:
        run = evolve(run, recorded.event, recorded.recorded_at)
    return run


def view_run(run_id: str, events: Sequence[Recorded]) -> RunView:
    """The view of a run from its events. Raises `RunNotFoundError` if there are none."""
    folded: RunFold | None = None
    for recorded in events:
        folded = apply(folded, recorded)
    if folded is None:
        raise _not_found(run_id)
    return view_of_row(row_of(folded))


def view_of_row(row: RunRow) -> RunView:
    """The view of a run from the row that its stream folds to, or that a list has of it."""
    return RunView(
        run_id=row.run_id,
        state=RunState(row.state),
        run_revision=row.run_revision,
        principal=row.principal,
        mode=Mode(row.mode),
        flow=row.flow,
        flow_name=row.flow_name,
        snapshot=row.snapshot,
        as_of=row.as_of if row.snapshot else None,
        tags=row.tags,
        priority=row.priority,
        deadline_at=row.deadline_at,
        attempts=row.attempts,
        errors=row.errors,
        results=row.results,
        token=row.token,
        sweep_id=row.sweep_id,
        cancellation_requested=row.cancellation_requested,
        requested_at=row.requested_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        position=row.position,
        topic=row.topic,
        bounded=row.bounded,
        continues=row.continues,
        schedule=row.schedule,
    )


class Runs:
    """The use cases of runs that exist. `principal` asks; `operates` lets it see and stop everybody's runs."""

    def __init__(self, log: EventLog, new_id: Callable[[], UUID] = new_event_id) -> None:
        self._log = log
        self._new_id = new_id

    async def get(self, run_id: str, principal: str, operates: bool = False) -> RunView:
        """The run as of now. Raises `RunNotFoundError`, also for another principal's run."""
        return view_run(run_id, await self._events(run_id, principal, operates))

    async def folded(self, run_id: str, principal: str, operates: bool = False) -> Run:
        """The run's state as its stream folds. Raises as `get`."""
        return fold_run(run_id, await self._events(run_id, principal, operates))

    async def cancel(self, run_id: str, principal: str, operates: bool = False) -> RunView:
        """Ask that the run end without a result; asking twice is asking once. Raises `RunFinishedError` after its end."""
        for _ in range(CONFLICT_RETRIES_MAX):
            read, events = await self._read(run_id, principal, operates)
            wanted = decide(fold_run(run_id, events), RequestCancellation(principal), read.now)
            if not wanted:
                return view_run(run_id, events)
            news = tuple(
                NewEvent(run_stream(run_id), version, event, self._new_id())
                for version, event in enumerate(wanted, events[-1].version + 1)
            )
            metadata = Metadata(causation_id=events[-1].event_id, correlation_id=run_id, principal=principal)
            try:
                await effects.append(self._log, Append(events=news, metadata=metadata))
            except VersionConflictError:
                continue
            return await self.get(run_id, principal, operates)
        raise VersionConflictError("the run kept moving on while it was being cancelled", at=run_id)

    async def history(self, run_id: str, principal: str, operates: bool = False) -> Sequence[Recorded]:
        """The events of the run and of its leases, by position. Raises `RunNotFoundError`."""
        read = await self._log.read_streams([run_stream(_checked(run_id)), lease_stream(run_id)])
        _check_owner(run_id, read.streams[run_stream(run_id)], principal, operates)
        return sorted((e for events in read.streams.values() for e in events), key=lambda e: e.position)

    async def _events(self, run_id: str, principal: str, operates: bool) -> Sequence[Recorded]:
        return (await self._read(run_id, principal, operates))[1]

    async def _read(self, run_id: str, principal: str, operates: bool) -> tuple[StreamsRead, Sequence[Recorded]]:
        stream = run_stream(_checked(run_id))
        read = await self._log.read_streams([stream])
        _check_owner(run_id, read.streams[stream], principal, operates)
        return read, read.streams[stream]


def _checked(run_id: str) -> str:
    if RUN_ID.match(run_id) is None:
        raise _not_found(run_id)
    return run_id


def _check_owner(run_id: str, events: Sequence[Recorded], principal: str, operates: bool) -> None:
    if not events or not (operates or fold_run(run_id, events[:1]).principal == principal):
        raise _not_found(run_id)


def _not_found(run_id: str) -> RunNotFoundError:
    return RunNotFoundError("there is no such run among yours", at=run_id[:80], expected="the run_id of a run of yours")
