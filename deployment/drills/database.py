"""The drills' view of the database: a few named statements, tried again while the server is away.

What must stay true: a drill looks and never writes here; every wait is bounded.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from domain.errors import WaitTimeoutError
from projections.statements import statements

AWAY_SECONDS_MAX: Final = 60.0
"""How long the server may be away before a drill gives up."""

LOOK_SECONDS: Final = 0.05
"""Seconds between two looks at something that nothing announces."""

_SQL: Final = statements("deployment.drills", "drills.sql")


class Database:
    """A connection of the drill's own. Use it in a `with`; one thread at a time."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, however often the server goes away meanwhile. Raises `WaitTimeoutError`."""
        until = time.monotonic() + AWAY_SECONDS_MAX
        while True:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
                return self._connection.execute(_SQL[name]).fetchall()
            except psycopg.OperationalError as error:
                self._drop()
                if time.monotonic() >= until:
                    raise WaitTimeoutError(f"the database stayed away: {error}", at=name) from error
                time.sleep(LOOK_SECONDS)

    def wait(self, name: str, wanted: Callable[[list[tuple[Any, ...]]], bool], seconds_max: float) -> bool:
        """Whether the statement's rows came to be as wanted within the time."""
        until = time.monotonic() + seconds_max
        while not wanted(self.rows(name)):
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
