"""Where a projection stands: its copies, their positions, what it is doing, and how far behind it is.

A projection is served from one *copy* of its rows, of some *generation*; a rebuild makes another copy, of the next generation,
beside it. Each copy has its own position. What must stay true: rows and position of a copy move in one transaction, from the
position they were read at (`PositionConflictError` otherwise), so whatever crashes repeats nothing.
"""

from datetime import datetime
from enum import Enum
from typing import Final

import msgspec

from projections.log import Failure

HEARTBEAT_SECONDS: Final = 1.0
"""How often, at least, a live runner says so while it has nothing to do."""

DEAD_AFTER_SECONDS: Final = 10.0
"""Without a heartbeat for so long a runner counts as dead, and a stand-by ends its session and takes over."""


class CopyRole(Enum):
    """What a copy is for: being read, becoming that, or having been that and waiting to be dropped."""

    ACTIVE = "active"
    BUILDING = "building"
    RETIRED = "retired"


class CopyState(Enum):
    """What its runner may do. `STOPPED` is by an event that it cannot apply; `PAUSED` by an operator."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Copy(msgspec.Struct, frozen=True):
    """A copy as its row stood at one instant, and the log's high-water mark then."""

    generation: int
    position: int
    state: CopyState
    high_water_mark: int
    """Or the position at which an operator wants it to stop, if that comes first."""
    code_version: int = 1
    """Of the projection's code that made it."""

    @property
    def lag_events(self) -> int:
        """Events of the log, of any kind, after its position."""
        return max(0, self.high_water_mark - self.position)


class Progress(msgspec.Struct, frozen=True):
    """What one `run_once` did: the position reached, the mark it aimed at, the events folded, why it stopped if it did."""

    name: str
    generation: int
    position: int
    high_water_mark: int
    state: CopyState
    applied: int = 0
    failure: Failure | None = None

    @property
    def caught_up(self) -> bool:
        """Whether nothing was left to read."""
        return self.position >= self.high_water_mark


class Health(Enum):
    """A projection as seen from outside, the worst first."""

    DEAD = "dead"
    """No runner has shown a sign of life lately."""
    STOPPED = "stopped"
    """Alive, and waiting for an operator or new code: it met an event it cannot apply."""
    PAUSED = "paused"
    CATCHING_UP = "catching_up"
    CAUGHT_UP = "caught_up"


class Trouble(msgspec.Struct, frozen=True):
    """The last fault of the infrastructure that kept a runner from working; it works again, or tries to."""

    code: str
    reason: str
    at: datetime


class ErrorCategory(Enum):
    """Whose matter an error of a projection is."""

    UNDECODABLE = "undecodable"
    """The event's document does not have the form of its topic: the log or an upcaster is at fault."""
    UNKNOWN_TOPIC = "unknown topic"
    """Newer code wrote it: this process is too old."""
    REFUSED = "refused by apply"
    """The fold does not take the event, or the table not its row: the projection's code is at fault, or the history."""
    CODE_VERSION = "code version"
    """The copy was made by another version of the projection's code: rebuild it."""
    INFRASTRUCTURE = "infrastructure"
    """The database is away or slow; it is tried again."""


_CATEGORIES: Final = {
    "UNDECODABLE_EVENT": ErrorCategory.UNDECODABLE,
    "UNKNOWN_TOPIC": ErrorCategory.UNKNOWN_TOPIC,
    "CODE_VERSION_DIFFERS": ErrorCategory.CODE_VERSION,
}


def category_of(code: str) -> ErrorCategory:
    """The category of the error code at which a projection stopped."""
    return _CATEGORIES.get(code, ErrorCategory.REFUSED)


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One projection for an operator. Ages and lags are in seconds by the database's clock.

    `lag_seconds` is the age of the oldest event not yet applied, 0 when there is none. `events_per_second` is how fast its position
    moved lately. `code_version` is of the code that made the copy. `stop_at` is where it is to pause, `skipped` how many events it
    passes over, `retired_generation` the copy that a rollback would serve again, until `drop_after`. An inline projection is
    written with the events themselves: it has no runner, no heartbeat and no lag.
    """

    name: str
    inline: bool
    generation: int
    state: CopyState
    position: int
    high_water_mark: int
    lag_events: int
    lag_seconds: float
    owner: str = ""
    heartbeat_at: datetime | None = None
    heartbeat_age_seconds: float | None = None
    moved_at: datetime | None = None
    failure: Failure | None = None
    failed_at: datetime | None = None
    building_generation: int | None = None
    building_position: int | None = None
    pause_reason: str | None = None
    paused_by: str | None = None
    code_version: int = 1
    stop_at: int | None = None
    events_per_second: float = 0.0
    trouble: Trouble | None = None
    retired_generation: int | None = None
    drop_after: datetime | None = None
    skipped: int = 0

    @property
    def health(self) -> Health:
        """What an operator should think of it."""
        return health_of(self.inline, self.state, self.lag_events, self.heartbeat_age_seconds)


def health_of(inline: bool, state: CopyState, lag_events: int, heartbeat_age_seconds: float | None) -> Health:
    """Dead and caught up never look alike: without a fresh heartbeat a projection is dead, whatever else is true of it."""
    if inline:
        return Health.CAUGHT_UP
    if heartbeat_age_seconds is None or heartbeat_age_seconds > DEAD_AFTER_SECONDS:
        return Health.DEAD
    if state is CopyState.STOPPED:
        return Health.STOPPED
    if state is CopyState.PAUSED:
        return Health.PAUSED
    return Health.CATCHING_UP if lag_events else Health.CAUGHT_UP
