"""What a projection must be able to do for its rows to be made again beside those that are served: the contract of rebuilds.

A rebuild is: `claim`, `begin` (find or make the copy beside), `catch_up` to where the served copy is, `compare` the two at one
position, `catch_up` to the end of the log, `switch`. What must stay true: until `switch` nothing that readers see has changed;
after it everything is the new copy's, from one position on; each step can be repeated after a crash, by another process;
`drop_built` at any moment before `switch` leaves what was before. Whoever works on it holds a lease: a step of one that was
overtaken is refused.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

SAMPLES_MAX: Final = 20
"""Differing rows of each kind that a comparison shows."""

KEEP_SECONDS: Final = 86_400.0
"""Seconds for which the old copy is kept after a switch, unless the rebuild says otherwise."""

COPY_CREATE_BEFORE: Final = "copy_create.before"
COPY_CREATE_AFTER: Final = "copy_create.after"
COPY_ATTACH_BEFORE: Final = "copy_attach.before"
COPY_ATTACH_AFTER: Final = "copy_attach.after"
COPY_COMPARE_BEFORE: Final = "copy_compare.before"
COPY_COMPARE_AFTER: Final = "copy_compare.after"
COPY_SWITCH_BEFORE: Final = "copy_switch.before"
COPY_SWITCH_AFTER: Final = "copy_switch.after"
COPY_DROP_BEFORE: Final = "copy_drop.before"
COPY_DROP_AFTER: Final = "copy_drop.after"


class Pulse(Protocol):
    """Who asked for the rebuild: told how it is going, and free to end it by raising."""

    def reached(self, position: int, total: int) -> None:
        """A border between two batches: `position` of `total` positions of the log. May raise to stop here."""
        ...

    def alive(self, quiet_seconds: float = 0.0) -> None:
        """Getting on; the next sign of life may take `quiet_seconds`. May raise once overtaken."""
        ...


class Builder(msgspec.Struct, frozen=True):
    """For whom a copy is built: a job, and the lease under which it is executed (token 0: none)."""

    job_id: str
    owner: str
    token: int = 0


class Goal(Enum):
    """How far to catch up."""

    SERVED = "served"
    """To where the served copy is, and not beyond it."""
    LOG = "log"
    """To the end of the log."""


class DifferenceSample(msgspec.Struct, frozen=True):
    """One row that differs: its key, as it is served, and as it was made again."""

    kind: str
    key: dict[str, Any]
    served: dict[str, Any] | None
    rebuilt: dict[str, Any] | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How the served rows differ from those made again, both at `position`.

    `missing` rows should be served and are not, `extra` ones are served though no events made them, `different` ones are served
    with other values. Samples are the first of each kind, in the order of their keys.
    """

    position: int
    served_rows: int
    rebuilt_rows: int
    missing: int
    extra: int
    different: int
    samples: tuple[DifferenceSample, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether there is none."""
        return not (self.missing or self.extra or self.different)


class Rebuilt(msgspec.Struct, frozen=True):
    """What is served now: the copy's generation, and the position at which it took over."""

    name: str
    generation: int
    position: int


class Rebuildable(Protocol):
    """One projection, opened for one attempt at a rebuild. Blocking; one thread.

    Everything raises `StoreUnavailableError` (try again later) and `StaleFenceError` (another attempt has taken over).
    """

    @property
    def name(self) -> str: ...

    def claim(self) -> None:
        """Become the only one that builds. Whoever was overtaken is ended. Raises `RebuildRunningError`."""
        ...

    def switched(self) -> Rebuilt | None:
        """What is served, if an earlier attempt of this job has made the switch already."""
        ...

    def begin(self, *, from_old: bool = False, confirmed: bool = False) -> None:
        """Find the copy that this job builds, or make an empty one; what other jobs left is dropped.

        `from_old`: take the old copy that the last switch kept instead. `confirmed`: an operator has confirmed what was found of
        the copy, so none is made in its place (`CopyGoneError`). Raises `NoOldCopyError`, `CodeVersionError`.
        """
        ...

    def catch_up(self, pulse: Pulse, goal: Goal) -> int:
        """Fold up to the goal, and return the position. Raises `ProjectionStoppedError` at an event that cannot be applied."""
        ...

    def compare(self, pulse: Pulse) -> Difference:
        """The difference of the served copy and the one beside, both at exactly one position."""
        ...

    def switch(self, pulse: Pulse, keep_seconds: float) -> Rebuilt:
        """Serve the copy beside from one position on, and keep the old one for so long."""
        ...

    def drop_built(self) -> None:
        """Drop the copy beside (an old one is kept again), if there is one."""
        ...

    def drop_old(self, *, expired_only: bool) -> int:
        """Drop old copies: all, or those whose time is over. How many."""
        ...

    def close(self) -> None:
        """Give everything back; never raises."""
        ...


Open = Callable[[Builder], Rebuildable]
"""Opens a projection for a rebuild by a builder."""
