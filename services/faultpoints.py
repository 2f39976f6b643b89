"""Places before and after every effect where a test can kill the process, pause it, or make it fail.

What must stay true: in production nothing is armed and `point` costs one comparison; every effect on the outside goes through
`services.effects`, which passes a point before and after it; every point is registered here, so that one test can walk them all
and another can tell that none is missing. A handler that raises stands for an effect that failed (before) or whose answer was
lost (after).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from projections.rebuilding.rebuildable import (
    COPY_ATTACH_AFTER,
    COPY_ATTACH_BEFORE,
    COPY_COMPARE_AFTER,
    COPY_COMPARE_BEFORE,
    COPY_CREATE_AFTER,
    COPY_CREATE_BEFORE,
    COPY_DROP_AFTER,
    COPY_DROP_BEFORE,
    COPY_SWITCH_AFTER,
    COPY_SWITCH_BEFORE,
)
from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE
from projections.staging.points import INSERT_AFTER as STAGING_INSERT_AFTER
from projections.staging.points import INSERT_BEFORE as STAGING_INSERT_BEFORE

APPEND_BEFORE: Final = "append.before"
APPEND_AFTER: Final = "append.after"
CAS_WRITE_BEFORE: Final = "cas_write.before"
CAS_WRITE_AFTER: Final = "cas_write.after"
PUBLISH_BEFORE: Final = "publish.before"
PUBLISH_AFTER: Final = "publish.after"
COMMAND_BEFORE: Final = "command.before"
COMMAND_AFTER: Final = "command.after"

POINTS: Final[dict[str, str]] = {
    APPEND_BEFORE: "events are decided and not yet sent to the log",
    APPEND_AFTER: "the log has accepted events and the caller does not know it yet",
    CAS_WRITE_BEFORE: "a blob is encoded and not yet written",
    CAS_WRITE_AFTER: "a blob is stored and nothing refers to it yet",
    PUBLISH_BEFORE: "a run's results are stored and not yet published",
    PUBLISH_AFTER: "a run's results are published and its worker does not know it yet",
    POSITION_COMMIT_BEFORE: "rows and position are written and not yet committed",
    POSITION_COMMIT_AFTER: "rows and position are committed and the runner does not know it yet",
    STAGING_INSERT_BEFORE: "an attempt is begun and rows of it are not yet in ClickHouse",
    STAGING_INSERT_AFTER: "rows of an attempt are in ClickHouse and nobody has recorded it",
    COPY_CREATE_BEFORE: "a rebuild is claimed and its copy is not yet there",
    COPY_CREATE_AFTER: "a rebuild's copy is there and nothing is folded into it yet",
    COPY_ATTACH_BEFORE: "a rebuild's copy has its rows and not yet its indexes",
    COPY_ATTACH_AFTER: "a rebuild's copy is whole and nobody reads it",
    COPY_COMPARE_BEFORE: "a rebuild's copy is not yet compared with the served one",
    COPY_COMPARE_AFTER: "the two copies are compared and nobody was told what came of it",
    COPY_SWITCH_BEFORE: "a rebuild's copy has caught up and is not yet served",
    COPY_SWITCH_AFTER: "a rebuild's copy is served and its job does not know it yet",
    COPY_DROP_BEFORE: "an unserved copy is about to be dropped",
    COPY_DROP_AFTER: "an unserved copy is dropped",
    COMMAND_BEFORE: "a process manager's command is due and not yet issued",
    COMMAND_AFTER: "a process manager's command is issued and not yet recorded as such",
}
"""Every point by name, and what is true when it is passed. Names are permanent: drills and tests refer to them."""

Handler = Callable[[str], None]

_armed: Handler | None = None


def point(name: str) -> None:
    """Pass the point; does nothing unless a handler is armed."""
    if _armed is not None:
        _armed(name)


def arm(handler: Handler | None) -> None:
    """Have `handler` called with the name of every point passed in this process; None disarms. For tests and drills only."""
    global _armed
    _armed = handler


@contextmanager
def armed(handler: Handler) -> Iterator[None]:
    """`arm` for the length of a block."""
    arm(handler)
    try:
        yield
    finally:
        arm(None)
