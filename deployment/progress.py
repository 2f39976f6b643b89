"""Progress of long work, on standard error: a bar on a terminal, a plain line now and then elsewhere, nothing when quiet.

What must stay true: progress never reaches standard output, and writing it costs the work nothing that matters (at most
`PLAIN_LINES_SECONDS` apart where it is lines).
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PLAIN_LINES_SECONDS: Final = 5.0
"""Seconds between two plain lines; the last one is always written."""


class Progress:
    """How far some work is: `advance` it within the context. `total` None: unknown. `unit` says what is counted."""

    def __init__(self, unit: str, total: int | None = None, *, quiet: bool = False) -> None:
        self._unit = unit
        self._total = total
        self._done = 0
        self._quiet = quiet
        self._said_at = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from deployment.cli.output import console

            self._bar = _bar_on(console(error=True))
            self._task = self._bar.add_task(self._unit, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and error is None:
            self._say()

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.reached(self._done + count)

    def reached(self, done: int, total: int | None = None, unit: str | None = None) -> None:
        """`done` are done altogether, of `total` if that is known by now; another `unit` begins another stage."""
        self._done = done
        self._total = self._total if total is None else total
        self._unit = unit or self._unit
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=self._unit)
        elif not self._quiet and time.monotonic() - self._said_at >= PLAIN_LINES_SECONDS:
            self._said_at = time.monotonic()
            self._say()

    def _say(self) -> None:
        of = "" if self._total is None else f" of {self._total}"
        print(f"{self._done}{of} {self._unit}", file=sys.stderr, flush=True)


def _bar_on(console: object) -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    assert isinstance(console, Console)
    return Bar(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
