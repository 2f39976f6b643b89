"""`Log`: the log of all events, an `Application` of the library on our mapper, recorder and committer.

What must stay true: nothing is read from the environment; tables are made by migrations only; all that decides goes through one
append function. Constructing a `Log` touches no server; the first use connects. Methods may be called from any thread; `append` and
`read_streams` from any event loop. A crash leaves what the append function leaves: every append whole or not at all.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

from eventsourcing.application import Application
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    Mapper,
    ProcessRecorder,
    TrackingRecorder,
)
from eventsourcing.utils import Environment, EnvType

from domain.events import Recorded
from projections.inline import Inline
from projections.statements import statements
from services.ports import Append, Appended, StreamsRead
from services.store import committer as committing
from services.store.committer import Committer
from services.store.connections import POOL_CONNECTIONS_MAX, Pool
from services.store.mapper import RecordMapper, StateSnapshot, recorded_until_bad
from services.store.notifications import Listener
from services.store.prepared import prepare
from services.store.reader import Reader
from services.store.recorder import LogRecorder, SnapshotRecorder
from services.store.states import Fold, StateRead, States

_SQL: Final = statements("services.store", "statements.sql")

S = TypeVar("S")


class Log(Application[str]):
    """The event log. Implements `services.ports.EventLog`; close it, or use it in a `with`.

    `dsn` names the database, `inline` what is written inside each append, `connections_max` bounds the connections for reading of
    each of two pools (besides one for appending and one for listening). Everything raises `StoreUnavailableError` when the database
    is away.
    """

    name = "finaz"
    snapshot_class = StateSnapshot
    is_snapshotting_enabled = True

    def __init__(
        self,
        dsn: str,
        inline: Inline,
        *,
        connections_max: int = POOL_CONNECTIONS_MAX,
        retry_seconds_max: float = committing.RETRY_SECONDS_MAX,
        queue_max: int = committing.QUEUE_APPENDS_MAX,
    ) -> None:
        self.inline = inline
        self.pool = Pool(dsn, connections_max)
        self.hot_pool = Pool(dsn, connections_max, plan_once=True)
        """For the statements of every run: reading its streams, and reserving it (`OutboxQueue`)."""
        self.committer = Committer(dsn, retry_seconds_max=retry_seconds_max, queue_max=queue_max)
        self.listener = Listener(dsn)
        self._reader = Reader(self.hot_pool)
        self._states = States(self.pool)
        self._threads = ThreadPoolExecutor(connections_max, thread_name_prefix="finaz-log")
        super().__init__()

    # ---------------------------------------------------------------- EventLog

    async def append(self, append: Append) -> Appended:
        """Append all or nothing; see `EventLog`. Cancelling the caller does not undo it."""
        return await self.committer.append_soon(prepare(append, self.inline, _append_id(append)))

    def append_blocking(self, append: Append) -> Appended:
        """As `append`, from a thread."""
        return self.committer.append(prepare(append, self.inline, _append_id(append)))

    async def read_streams(self, streams: Sequence[str]) -> StreamsRead:
        """All events of each stream and the database's clock; what is asked for at once shares a round trip."""
        return await self._reader.read_soon(streams)

    def read_streams_blocking(self, streams: Sequence[str]) -> StreamsRead:
        """As `read_streams`, from a thread."""
        return self._reader.read(streams)

    def read_log(self, after: int, limit: int, topics: Sequence[str] = ()) -> Sequence[Recorded]:
        """Events by position. Those before one that cannot be read come first; then its error is raised at each call."""
        if topics:
            rows = self.pool.rows(_SQL["read_log_topics"], {"after": after, "limit": limit, "topics": list(topics)})
        else:
            rows = self.pool.rows(_SQL["read_log"], {"after": after, "limit": limit})
        return recorded_until_bad(rows)

    def high_water_mark(self) -> int:
        """The highest position safe to read; everything up to it is visible for ever."""
        position: int = self.pool.rows(_SQL["high_water_mark"])[0][0]
        return position

    def now(self) -> datetime:
        """The database's clock, in UTC."""
        clock: datetime = self.pool.rows(_SQL["now"])[0][0]
        return clock.astimezone(UTC)

    # ---------------------------------------------------------------- states

    async def read_state(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """The state of a stream, from its last snapshot of the fold's schema or from nothing; see `States.read`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._states.read, stream, fold)

    def read_state_blocking(self, stream: str, fold: Fold[S]) -> StateRead[S]:
        """As `read_state`, from a thread."""
        return self._states.read(stream, fold)

    # ---------------------------------------------------------------- the library's construction

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:
        """The library's settings: ours, and none from `os.environ`."""
        return Environment(name, {"CREATE_TABLE": "n", "IS_SNAPSHOTTING_ENABLED": "y", **(env or {})})

    def construct_factory(self, env: Environment) -> "LogFactory":
        """What makes the library's parts."""
        return LogFactory(env, LogRecorder(self.committer, self.pool, self.listener, self.inline), self.pool)

    def construct_mapper(self) -> Mapper[str]:
        """Ours."""
        return RecordMapper()

    def close(self) -> None:
        """Commit what has queued, stop the threads and close the connections."""
        if self.closing.is_set():
            return
        super().close()
        self.committer.close()
        self._reader.close()
        self.listener.close()
        self._threads.shutdown(wait=True)
        self.pool.close()
        self.hot_pool.close()


class LogFactory(InfrastructureFactory[Any]):
    """Gives the library our recorders; it reads no environment and makes no table."""

    def __init__(self, env: Environment, recorder: LogRecorder, pool: Pool) -> None:
        super().__init__(env)
        self._recorder = recorder
        self._pool = pool

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Snapshots have a table of their own."""
        return SnapshotRecorder(self._pool) if purpose == "snapshots" else self._recorder

    def application_recorder(self) -> ApplicationRecorder:
        """The log."""
        return self._recorder

    def tracking_recorder(self, tracking_recorder_class: type[TrackingRecorder] | None = None) -> TrackingRecorder:
        """The log, which keeps the tracking positions too."""
        return self._recorder

    def process_recorder(self) -> ProcessRecorder:
        """The log."""
        return self._recorder


def _append_id(append: Append) -> str | None:
    """A name for an append without events, by which it is recognised when it is made again."""
    return None if append.events else uuid4().hex
