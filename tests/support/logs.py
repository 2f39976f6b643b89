"""Logs for the tests: the one in memory and the real one, behind one face."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from projections.inline import INLINE
from services.ports import EventLog
from services.store.application import Log
from tests.support.memory_log import MemoryLog


class LogUnderTest:
    """A log and a way to let its clock pass."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def let_pass(self, seconds: float) -> None:
        """Return when the log's clock has moved on by so much."""
        if isinstance(self.log, MemoryLog):
            self.log.advance(seconds)
            return
        until = await asyncio.to_thread(self.log.now) + timedelta(seconds=seconds)
        while await asyncio.to_thread(self.log.now) < until:  # noqa: ASYNC110 -- a database's clock sends no signal
            await asyncio.sleep(0.005)


async def log_under_test(request: pytest.FixtureRequest) -> AsyncIterator[LogUnderTest]:
    """A fresh, empty log of the kind that the parameter names."""
    if request.param == "memory":
        yield LogUnderTest(MemoryLog())
        return
    log = Log(request.getfixturevalue("database"), INLINE)
    try:
        yield LogUnderTest(log)
    finally:
        await asyncio.to_thread(log.close)


@contextmanager
def opened(dsn: str) -> Iterator[Log]:
    """The real log of a migrated database."""
    log = Log(dsn, INLINE)
    try:
        yield log
    finally:
        log.close()
