"""Places before and after every effect where a test can kill the process, pause it, or make it fail.

What must stay true: in production nothing is armed and `point` costs one comparison; every effect on the outside goes through
`services.effects`, which passes a point before and after it; every point is registered here, so that one test can walk them all
and another can tell that none is missing. A handler that raises stands for an effect that failed (before) or whose answer was
lost (after).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from projections.runner import POSITION_COMMIT_AFTER, POSITION_COMMIT_BEFORE

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
