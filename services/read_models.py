"""The read models seen from outside: how each is doing, and what they count, for people and for metrics.

What must stay true: looking changes nothing; counting everything costs as much as there is, so it happens at most once in
`MEASURE_SECONDS_MIN`, however many ask. A crash leaves nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from domain.discrepancies.aggregate import DiscrepancyState
from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import ProjectionUnknownError
from projections.log import Failure
from projections.position import ErrorCategory, Health, ProjectionStatus, Trouble, category_of
from projections.purchases.postgres import open_purchases
from projections.reading import Query
from projections.registry import PROCESS_MANAGERS
from projections.statements import statements
from projections.status import Projections

MEASURE_SECONDS_MIN: Final = 2.0
"""Seconds for which a count is given again instead of being counted anew."""

_SQL: Final = statements("services", "read_models.sql")

_UNSETTLED: Final = tuple(
    (kind.value, state.value)
    for kind in DiscrepancyKind
    for state in (DiscrepancyState.FOUND, DiscrepancyState.ALERTED)
)


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """The event at which a projection stopped, whose matter that is (`category`), and why; `failed_at` says since when."""

    category: str
    code: str
    position: int
    stream: str
    topic: str
    reason: str
    failed_at: datetime | None


class TroubleView(msgspec.Struct, frozen=True, kw_only=True):
    """The last fault of the infrastructure that kept its runner from working for a while."""

    category: str
    code: str
    reason: str
    at: datetime


class ProjectionView(msgspec.Struct, frozen=True, kw_only=True):
    """One projection: where it is, how far behind in events and seconds, when its runner last beat, what stopped it.

    `events_per_second` is how fast its position moved lately. `code_version` is of the code that made the copy being served.
    `stop_at` is the position at which it is to pause, `skipped` the number of events that it passes over. `building_…` is the copy
    that a rebuild makes, `retired_generation` the old one that a rollback would serve again, kept until `drop_after`.
    """

    name: str
    inline: bool
    state: str
    health: str
    generation: int
    position: int
    lag_events: int
    lag_seconds: float
    heartbeat_at: datetime | None
    error: str | None
    pause_reason: str | None
    paused_by: str | None
    events_per_second: float
    failure: FailureView | None
    trouble: TroubleView | None
    code_version: int
    stop_at: int | None
    skipped: int
    building_generation: int | None
    building_position: int | None
    retired_generation: int | None
    drop_after: datetime | None

    @property
    def alive(self) -> bool:
        """Whether its runner beats; an inline one is as alive as the log."""
        return self.health != Health.DEAD.value


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What the database counts: the log's last position, items of the queue by (kind, state), runs by state.

    `discrepancies` are those not settled, by (kind, state), `dead_letters` those of each process manager; none is counted as 0, so
    that whoever watches can tell none from no answer.
    """

    log_position: int
    queue: tuple[tuple[str, str, int], ...]
    runs: tuple[tuple[str, int], ...]
    streams_unowned: int
    """STREAM runs under way whose worker has stopped at something, or is gone, and that no other has taken up."""
    projections: tuple[ProjectionView, ...]
    discrepancies: tuple[tuple[str, str, int], ...]
    dead_letters: tuple[tuple[str, int], ...]
    purchases: tuple[tuple[str, int, float, int], ...] = ()
    """Purchases that have not come to an end, by state: how many, the age of the oldest in seconds, and how many are overdue."""


class ReadModels:
    """The use cases of looking at read models."""

    def __init__(
        self, projections: Projections, query: Query, clock_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._projections = projections
        self._query = query
        self._clock_seconds = clock_seconds
        self._counting = asyncio.Lock()
        self._measured: tuple[float, Measures] | None = None

    async def views(self) -> tuple[ProjectionView, ...]:
        """Every projection, by name."""
        return tuple(view_of_status(status) for status in await asyncio.to_thread(self._projections.statuses))

    async def view(self, name: str) -> ProjectionView:
        """One projection. Raises `ProjectionUnknownError` for one that this database does not have."""
        for view in await self.views():
            if view.name == name:
                return view
        raise ProjectionUnknownError("it is not there", at=name, expected="one that is listed")

    async def measures(self) -> Measures:
        """The counts, at most `MEASURE_SECONDS_MIN` old."""
        async with self._counting:
            now = self._clock_seconds()
            if self._measured is None or now - self._measured[0] >= MEASURE_SECONDS_MIN:
                self._measured = now, await asyncio.to_thread(self._measure)
            return self._measured[1]

    def _measure(self) -> Measures:
        statuses: Sequence[ProjectionStatus] = self._projections.statuses()
        queue = tuple((str(kind), str(state), int(count)) for kind, state, count in self._query.rows(_SQL["queue"]))
        runs = tuple((str(state), int(count)) for state, count in self._query.rows(_SQL["runs_by_state"]))
        found = {(str(kind), str(state)): int(count) for kind, state, count in self._query.rows(_SQL["discrepancies"])}
        letters = {str(manager): int(count) for manager, count in self._query.rows(_SQL["dead_letters"])}
        return Measures(
            log_position=max((status.high_water_mark for status in statuses), default=0),
            queue=queue,
            runs=runs,
            streams_unowned=sum(int(count) for (count,) in self._query.rows(_SQL["streams_unowned"])),
            projections=tuple(view_of_status(status) for status in statuses),
            discrepancies=tuple((*key, found.get(key, 0)) for key in _UNSETTLED),
            purchases=tuple((c.state, c.count, c.oldest_seconds, c.overdue) for c in open_purchases(self._query)),
            dead_letters=tuple((manager, letters.get(manager, 0)) for manager in sorted(PROCESS_MANAGERS)),
        )


def view_of_status(status: ProjectionStatus) -> ProjectionView:
    """The status as it is shown."""
    failure = status.failure
    return ProjectionView(
        name=status.name,
        inline=status.inline,
        state=status.state.value,
        health=status.health.value,
        generation=status.generation,
        position=status.position,
        lag_events=status.lag_events,
        lag_seconds=status.lag_seconds,
        heartbeat_at=status.heartbeat_at,
        error=None if failure is None else f"{failure.code} at position {failure.position}: {failure.reason}",
        pause_reason=status.pause_reason,
        paused_by=status.paused_by,
        events_per_second=round(status.events_per_second, 1),
        failure=None if failure is None else _failure(failure, status.failed_at),
        trouble=None if status.trouble is None else _trouble(status.trouble),
        code_version=status.code_version,
        stop_at=status.stop_at,
        skipped=status.skipped,
        building_generation=status.building_generation,
        building_position=status.building_position,
        retired_generation=status.retired_generation,
        drop_after=status.drop_after,
    )


def _failure(failure: Failure, failed_at: datetime | None) -> FailureView:
    fields = msgspec.structs.asdict(failure)
    return FailureView(category=category_of(failure.code).value, failed_at=failed_at, **fields)


def _trouble(trouble: Trouble) -> TroubleView:
    return TroubleView(category=ErrorCategory.INFRASTRUCTURE.value, **msgspec.structs.asdict(trouble))
