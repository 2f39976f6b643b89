"""How the projections are doing, waiting for one, and telling one to pause.

What must stay true: positions only grow, as they are seen from here: a rebuild swaps in a copy that is at least as far. Ages and
lags are by the database's clock. Reading changes nothing; a pause or a resume is one statement.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from domain.errors import FinazError, ProjectionStoppedError, ProjectionUnknownError, WaitTimeoutError
from domain.events import decode
from projections.errors import NotStoppedThereError, PositionPassedError
from projections.log import Failure
from projections.position import CopyState, ProjectionStatus, Trouble
from projections.reading import Query
from projections.registry import OPTIONAL, PROCESS_MANAGERS, PROJECTIONS, Projection
from projections.statements import statements

WAIT_SECONDS_MAX: Final = 60.0
"""Seconds that one call may wait for a position."""

LOOK_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Seconds between looks at a position that is waited for; the last one from then on."""

_SQL: Final = statements("projections", "statements.sql")


class Skip(msgspec.Struct, frozen=True):
    """An event that a projection passes over, and who had it do so."""

    position: int
    stream: str
    topic: str
    code: str
    principal: str
    reason: str
    skipped_at: datetime


class LogEntry(msgspec.Struct, frozen=True):
    """What was done to a projection: `action` (pause, resume, stop-at, skip, stopped, …), by whom, why, at which position."""

    id: int
    name: str
    action: str
    principal: str
    reason: str
    position: int
    at: datetime


class Projections:
    """All projections of the registry, seen from outside. Blocks except where a method says otherwise; any thread may call it."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def statuses(self) -> list[ProjectionStatus]:
        """Every projection, by name."""
        found = [_status(row) for row in self._query.rows(_SQL["status"])]
        mark = found[0].high_water_mark if found else self.high_water_mark()
        skips = dict(self._query.rows(_SQL["skips_counted"]))
        inline = (name for name, projection in PROJECTIONS.items() if projection.inline)
        found += [_inline_status(name, mark, skips.get(name, 0)) for name in inline]
        return sorted(found, key=lambda status: status.name)

    def status(self, name: str) -> ProjectionStatus:
        """One projection. Raises `ProjectionUnknownError`."""
        _checked(name)
        for status in self.statuses():
            if status.name == name:
                return status
        raise _unregistered(name)

    def high_water_mark(self) -> int:
        """The last position of the log."""
        return int(self._query.rows(_SQL["high_water_mark"])[0][0])

    def position(self, name: str) -> int:
        """How far the projection is. An inline one is always at the log's high-water mark."""
        if _checked(name):
            return self.high_water_mark()
        rows = self._query.rows(_SQL["position"], {"name": name})
        if not rows:
            raise _unregistered(name)
        return int(rows[0][0])

    def wait_for_blocking(self, name: str, position: int, timeout_seconds: float) -> int:
        """Return the position once it is at `position` or beyond: read your own write.

        Raises `WaitTimeoutError` (also for a projection that is paused or dead), `ProjectionStoppedError` where waiting is
        useless, `ProjectionUnknownError`.
        """
        for pause in _pauses(timeout_seconds):
            reached = self.position(name)
            if reached >= position:
                return reached
            time.sleep(pause)
        raise self._late(name, position, timeout_seconds)

    async def wait_for(self, name: str, position: int, timeout_seconds: float) -> int:
        """As `wait_for_blocking`, from an event loop and without holding a thread while it waits."""
        for pause in _pauses(timeout_seconds):
            reached = await asyncio.to_thread(self.position, name)
            if reached >= position:
                return reached
            await asyncio.sleep(pause)
        raise await asyncio.to_thread(self._late, name, position, timeout_seconds)

    def pause(self, name: str, reason: str = "", principal: str = "") -> None:
        """Have a projection or a process manager stay where it is; `reason` and `principal` are shown until it goes on.

        An inline projection cannot: it is part of every append (`ProjectionUnknownError`).
        """
        self._query.rows(_SQL["pause"], {"name": _asynchronous(name), "reason": reason, "principal": principal})

    def resume(self, name: str, principal: str = "") -> None:
        """Let one go on that was paused, or that stopped at an event and may try it again."""
        self._query.rows(_SQL["resume"], {"name": _asynchronous(name), "principal": principal})

    def stop_at(self, name: str, position: int, reason: str, principal: str) -> None:
        """Have a running one pause when it has applied everything up to `position`. Raises `PositionPassedError`."""
        given = {"name": _asynchronous(name), "position": position, "reason": reason, "principal": principal}
        if not self._query.rows(_SQL["stop_at"], given):
            raise PositionPassedError(
                "it does not run, or not before that position", at=name, expected="a running one, further back"
            )

    def skip(self, name: str, position: int, reason: str, principal: str) -> None:
        """Have one that stopped at the event at `position` pass over it, also in rebuilds. Raises `NotStoppedThereError`."""
        given = {"name": name, "position": position, "reason": reason, "principal": principal}
        if name in PROJECTIONS and PROJECTIONS[name].inline:
            self._skip_inline(PROJECTIONS[name], given)
            return
        if not self._query.rows(_SQL["skip"], {**given, "name": _asynchronous(name)}):
            raise NotStoppedThereError(
                "it has not stopped at that event", at=f"{name} at {position}", expected="the position of its error"
            )

    def _skip_inline(self, projection: Projection, given: dict[str, Any]) -> None:
        """Have rebuilds of an inline projection pass over an event that nobody can decode; no other can be in their way."""
        for stream, topic, document in self._query.rows(_SQL["event_at"], given):
            if stream.partition("/")[0] in projection.model.categories:
                try:
                    decode(topic, document)
                except FinazError as error:
                    self._query.rows(
                        _SQL["skip_inline"], {**given, "stream": stream, "topic": topic, "code": error.code}
                    )
                    return
        at = f"{projection.name} at {given['position']}"
        raise NotStoppedThereError("no rebuild of it would stop there", at=at, expected="an event that cannot be read")

    def skipped(self, name: str) -> list[Skip]:
        """The events that it passes over, by position."""
        return [Skip(*row) for row in self._query.rows(_SQL["skipped"], {"name": name})]

    def expired(self) -> list[str]:
        """Projections with an old copy whose time is over."""
        return [name for (name,) in self._query.rows(_SQL["expired"])]

    def beside(self) -> list[tuple[str, str]]:
        """Projections with a copy beside what is served, and the job that it is built for."""
        return [(name, job_id) for name, job_id in self._query.rows(_SQL["beside"])]

    def note(self, name: str, action: str, principal: str, reason: str, position: int) -> None:
        """Add to its log what somebody had done to it."""
        given = {"name": name, "action": action, "principal": principal, "reason": reason, "position": position}
        self._query.rows(_SQL["note"], given)

    def entries(self, name: str, limit: int, before: int = 2**63 - 1) -> list[LogEntry]:
        """What was done to it, by operators and by itself, the newest first; of entries before the id `before`."""
        if name not in PROCESS_MANAGERS:
            _checked(name)
        return [
            LogEntry(*row)
            for row in self._query.rows(_SQL["entries"], {"name": name, "limit": limit, "before": before})
        ]

    def _late(self, name: str, position: int, timeout_seconds: float) -> Exception:
        status = self.status(name)
        if status.failure is not None:
            failure = status.failure
            return ProjectionStoppedError(
                f"it stopped before {failure.topic} at position {failure.position}: {failure.reason}",
                at=name,
                position=failure.position,
                topic=failure.topic,
            )
        return WaitTimeoutError(
            f"it is at {status.position} after {timeout_seconds} seconds ({status.health.value})",
            at=name,
            expected=f"position {position}",
        )


def known(name: str) -> Projection:
    """The projection of this name. Raises `ProjectionUnknownError`."""
    try:
        return PROJECTIONS[name]
    except KeyError:
        expected = ", ".join(sorted({*PROJECTIONS, *OPTIONAL}))
        raise ProjectionUnknownError(f"there is no projection {name!r}", at=name, expected=expected) from None


def _checked(name: str) -> bool:
    """Whether the projection of this name is inline. Raises `ProjectionUnknownError` if there is none."""
    return name not in OPTIONAL and known(name).inline


def _unregistered(name: str) -> ProjectionUnknownError:
    expected = "somebody to have worked on it" if name in OPTIONAL else "migrations applied"
    return ProjectionUnknownError(f"the database has no projection {name!r}", at=name, expected=expected)


def _asynchronous(name: str) -> str:
    """The name itself, if it is one of something that has a runner: a projection or a process manager."""
    if name not in PROCESS_MANAGERS and _checked(name):
        raise ProjectionUnknownError("it is written with the events and has no runner", at=name, expected="another one")
    return name


def _pauses(timeout_seconds: float) -> Iterator[float]:
    """Pauses between looks, growing, until the time is over; there is a last look at the very end."""
    until = time.monotonic() + min(max(timeout_seconds, 0.0), WAIT_SECONDS_MAX)
    step = 0
    while (left := until - time.monotonic()) > 0:
        yield min(LOOK_SECONDS[min(step, len(LOOK_SECONDS) - 1)], left)
        step += 1
    yield 0.0


def _status(row: tuple[Any, ...]) -> ProjectionStatus:
    (name, generation, state, position, mark, lag_seconds, owner, heartbeat_at, heartbeat_age_seconds, moved_at) = row[
        :10
    ]
    (error_position, error_stream, error_topic, error_code, error_reason, error_at, building, building_position) = row[
        10:18
    ]
    (pause_reason, paused_by, code_version, stop_at, events_per_second) = row[18:23]
    (trouble_code, trouble_reason, trouble_at, retired_generation, drop_after, skipped) = row[23:]
    failure = None
    if error_position is not None:
        failure = Failure(error_position, error_stream, error_topic, error_code, error_reason)
    return ProjectionStatus(
        name=name,
        inline=False,
        generation=generation,
        state=CopyState(state),
        position=position,
        high_water_mark=mark,
        lag_events=max(0, mark - position),
        lag_seconds=max(0.0, lag_seconds or 0.0),
        owner=owner,
        heartbeat_at=heartbeat_at,
        heartbeat_age_seconds=heartbeat_age_seconds,
        moved_at=moved_at,
        failure=failure,
        failed_at=error_at,
        building_generation=building,
        building_position=building_position,
        pause_reason=pause_reason,
        paused_by=paused_by,
        code_version=code_version,
        stop_at=stop_at,
        events_per_second=events_per_second,
        trouble=None if trouble_at is None else Trouble(trouble_code, trouble_reason, trouble_at),
        retired_generation=retired_generation,
        drop_after=drop_after,
        skipped=skipped,
    )


def _inline_status(name: str, mark: int, skipped: int) -> ProjectionStatus:
    return ProjectionStatus(
        name=name,
        inline=True,
        generation=1,
        state=CopyState.RUNNING,
        position=mark,
        high_water_mark=mark,
        lag_events=0,
        lag_seconds=0.0,
        skipped=skipped,
    )
