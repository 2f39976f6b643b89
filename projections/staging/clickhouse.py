"""The table `feature_values` in ClickHouse: columns in, columns out, by one client for a server and for the embedded engine.

What must stay true: instants are microseconds since the epoch in UTC on both ways, whatever the time zone of the process or of
the server; a missing value is NULL, and NaN is never stored. Rows become visible only through their attempt, which PostgreSQL
records, so an insert may be repeated, cut short or left behind. An insert that returned survives a power cut.

The engine is opened at first use. An embedded folder has one owner: a second process is refused with a typed error, and a process
opens one folder only. A crash in the middle leaves rows of an attempt that nobody has recorded.
"""

import fcntl
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np

from domain.market.batch_columns import OutputColumns
from domain.market.compiled import Floats, Ints
from domain.market.text_columns import EARLIEST, LATEST, Texts, join_rows
from projections.staging.arrow import columns_of
from projections.staging.errors import StagingFolderTakenError, StagingUnavailableError
from projections.statements import statements

CONNECT_SECONDS_MAX: Final = 5
"""Seconds to wait for a connection to a server."""

QUERY_SECONDS_MAX: Final = 60
"""Seconds that one statement may take."""

ATTEMPTS_PAGE_MAX: Final = 1000
"""Attempts that are asked about in one statement."""

_TABLE: Final = "feature_values"
_EMBEDDED: Final = "chdb://"
_SQL: Final = statements("projections.staging", "clickhouse.sql")
_SETTINGS: Final = {"max_execution_time": str(QUERY_SECONDS_MAX)}
_INSERT_SETTINGS: Final = {"async_insert": "0"}
_NO_ATTEMPT: Final = UUID(int=0)

_opening: Final = threading.Lock()
_opened: str | None = None
"""The embedded folder that this process has opened."""
_anchor: Any = None
"""A client of it that is never closed: the engine leaves a folder with its last client, and would have to be opened again."""


@dataclass(frozen=True)
class StagedSlice:
    """Rows of one attempt."""

    attempt: UUID
    generation: int
    run_id: str
    output: str
    instrument: str
    columns: OutputColumns


class Place(NamedTuple):
    """A row's place in clock order over several outputs: microseconds, event_id, run_id, output."""

    time: int
    event_id: str
    run_id: str
    output: str


START: Final = Place(EARLIEST - 1, "", "", "")
"""Before every row."""


@dataclass(frozen=True)
class StagedColumns:
    """Rows in clock order. NaN in `values` is null."""

    event_times: Ints
    event_ids: Texts
    run_ids: list[str]
    outputs: list[str]
    instruments: list[str]
    values: Floats
    not_numbers: int
    """Rows whose value is NaN and not NULL; there should be none."""
    table: Any
    """The same as an Arrow table."""

    def __len__(self) -> int:
        return len(self.event_times)

    @property
    def last(self) -> Place:
        """The place of the last row."""
        event_id = self.event_ids.rows(slice(len(self) - 1, None)).strings()[0]
        return Place(int(self.event_times[-1]), event_id, self.run_ids[-1], self.outputs[-1])


@dataclass(frozen=True)
class Digest:
    """What the rows of an attempt come to."""

    rows: int
    digest: int


def is_embedded(dsn: str) -> bool:
    """Whether the engine lives in the process that opens it, and its folder belongs to that process."""
    return dsn.startswith(_EMBEDDED)


class FeatureValues:
    """The table. One client of its own; calls from several threads wait for one another. Opens at first use.

    Everything raises `StagingUnavailableError`, of which `StagingFolderTakenError` is one kind.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._client: Any = None
        self._lock = threading.Lock()

    def own(self, system: UUID) -> None:
        """Say whose rows these are. Raises `StagingUnavailableError` if they are another system's."""
        with self._using() as client:
            owners = [owner for (owner,) in client.query(_SQL["owners"]).result_rows]
            if not owners:
                client.command(_SQL["own"], {"system": system})
        if owners not in ([], [system]):
            raise StagingUnavailableError(
                "this ClickHouse database holds what another system has staged",
                at=_place(self.dsn),
                expected=f"a database of its own for system {system}",
            )

    def insert(self, slices: Sequence[StagedSlice]) -> None:
        """Add rows, as one insert."""
        self.insert_table(arrow_of(slices))

    def insert_table(self, table: Any) -> None:
        """Add the rows of an Arrow table with the columns of `arrow_of`, as one insert."""
        with self._using() as client:
            client.insert_arrow(_TABLE, table, settings=_INSERT_SETTINGS)

    def delete(self, attempts: Sequence[UUID]) -> None:
        """Remove every row of these attempts."""
        for first in range(0, len(attempts), ATTEMPTS_PAGE_MAX):
            with self._using() as client:
                client.command(_SQL["delete"], {"attempts": list(attempts[first : first + ATTEMPTS_PAGE_MAX])})

    def drop_generation(self, generation: int) -> None:
        """Remove every row of a generation."""
        with self._using() as client:
            client.command(_SQL["drop_generation"], {"generation": str(generation)})

    def attempts(self) -> Iterator[list[UUID]]:
        """Every attempt that has rows, in pages."""
        page = [_NO_ATTEMPT]
        while page:
            with self._using() as client:
                arguments = {"after": page[-1], "limit": ATTEMPTS_PAGE_MAX}
                page = [attempt for (attempt,) in client.query(_SQL["attempts"], arguments).result_rows]
            if page:
                yield page

    def counts(self, attempts: Sequence[UUID]) -> dict[UUID, int]:
        """How many rows each of these attempts has; those without any are not there."""
        with self._using() as client:
            return {attempt: int(rows) for attempt, rows in _rows(client, "counts", attempts)}

    def digests(self, attempts: Sequence[UUID]) -> dict[UUID, Digest]:
        """What the rows of these attempts come to: equal for equal rows, in whatever order they were inserted."""
        with self._using() as client:
            return {
                attempt: Digest(int(rows), int(digest)) for attempt, rows, digest in _rows(client, "digests", attempts)
            }

    def labels(self, attempts: Sequence[UUID]) -> dict[UUID, tuple[int, list[tuple[str, str, str, int]]]]:
        """How many rows each attempt has, and of what they say they are (run, output, instrument, generation): two at most."""
        with self._using() as client:
            return {attempt: (int(rows), labels) for attempt, rows, labels in _rows(client, "labels", attempts)}

    def rows_of(self, attempts: Sequence[UUID], rows_max: int) -> tuple[OutputColumns, int]:
        """The rows of these, one attempt after the other and each in clock order, and how many values are NaN and not NULL."""
        with self._using() as client:
            arguments = {"attempts": list(attempts), "limit": rows_max}
            return columns_of(client.query_arrow(_SQL["rows_of"], arguments).combine_chunks())

    def foreign_rows(self, attempt: UUID, run_id: str, output: str, instrument: str, generation: int) -> int:
        """Rows of the attempt that claim to be of something else."""
        arguments = {
            "attempt": attempt,
            "run_id": run_id,
            "output": output,
            "instrument": instrument,
            "generation": generation,
        }
        with self._using() as client:
            return int(client.query(_SQL["foreign"], arguments).result_rows[0][0])

    def page(
        self,
        attempts: Sequence[UUID],
        generation: int,
        after: Place = START,
        limit: int = 1000,
        first: int = EARLIEST,
        before: int = LATEST + 1,
    ) -> StagedColumns:
        """Rows of these attempts with first <= event_time < before (microseconds), after a place, in clock order."""
        arguments: dict[str, Any] = {
            **after._asdict(),
            "first": first,
            "before": before,
            "limit": limit,
            "generation": generation,
        }
        if len(attempts) == 1:
            statement, arguments["attempt"] = "page_of_one", attempts[0]
        else:
            statement, arguments["attempts"] = "page_of_many", list(attempts)
        with self._using() as client:
            return _columns_of(client.query_arrow(_SQL[statement], arguments))

    def ping(self) -> None:
        """Open the engine, if it is not, and have it answer."""
        with self._using() as client:
            client.command("SELECT 1")

    def close(self) -> None:
        """Let go of the client; the embedded engine stays with the process."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                with suppress(Exception):  # nothing is left to be said to an engine that is away
                    client.close()

    @contextmanager
    def _using(self) -> Iterator[Any]:
        """The client, opened if need be. After an error it is opened anew: a connection that broke is not used again."""
        from clickhouse_connect.driver.exceptions import Error

        with self._lock:
            try:
                if self._client is None:
                    self._client = _open(self.dsn)
                yield self._client
            except (Error, OSError) as error:
                client, self._client = self._client, None
                if client is not None:
                    with suppress(Exception):
                        client.close()
                raise StagingUnavailableError(f"ClickHouse: {str(error).strip()[:500]}", at=_place(self.dsn)) from error


def _open(dsn: str) -> Any:
    try:
        import clickhouse_connect
    except ImportError as error:
        raise _not_installed(dsn) from error
    if is_embedded(dsn):
        return _open_embedded(clickhouse_connect, dsn)
    client = clickhouse_connect.get_client(
        dsn=dsn,
        secure=dsn.startswith(("https://", "clickhouses://")),
        connect_timeout=CONNECT_SECONDS_MAX,
        send_receive_timeout=QUERY_SECONDS_MAX,
        autogenerate_session_id=False,
        settings=_SETTINGS,
    )
    return _created(client)


def _open_embedded(clickhouse_connect: Any, dsn: str) -> Any:
    global _anchor, _opened
    folder = os.path.realpath(dsn.removeprefix(_EMBEDDED))
    with _opening:
        if _opened not in (None, folder):
            raise StagingUnavailableError(
                "this process has opened another folder, and can have one only", at=_place(dsn), expected=str(_opened)
            )
        if _opened is None:
            _refuse_taken(folder)
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            if _opened is None:
                _anchor = clickhouse_connect.get_client(dsn=_EMBEDDED + folder)
                _opened = folder
            client = clickhouse_connect.get_client(dsn=_EMBEDDED + folder, settings=_SETTINGS)
        except ImportError as error:
            raise _not_installed(dsn) from error
        except clickhouse_connect.driver.exceptions.Error:
            if _opened is None:
                _refuse_taken(folder)  # somebody was quicker
            raise
    return _created(client)


def _created(client: Any) -> Any:
    client.command(_SQL["create"])
    client.command(_SQL["create_owner"])
    return client


def _refuse_taken(folder: str) -> None:
    """Raise `StagingFolderTakenError` if a process holds the engine's lock on the folder."""
    status = Path(folder) / "status"
    with suppress(FileNotFoundError), status.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = re.search(r"PID: (\d+)", file.read())
            name = f"process {owner[1]}" if owner else "another process"
            raise StagingFolderTakenError(
                f"{name} owns this folder", at=folder, expected="one owner; the others ask it through the API"
            ) from None


def _not_installed(dsn: str) -> StagingUnavailableError:
    return StagingUnavailableError(
        "the library for ClickHouse is not installed", at=_place(dsn), expected="pip install 'finaz-runtime[embedded]'"
    )


def _place(dsn: str) -> str:
    """The DSN without what may be secret in it."""
    return re.sub(r"//[^@/]*@", "//", dsn.partition("?")[0])


def _rows(client: Any, statement: str, attempts: Sequence[UUID]) -> Iterator[Any]:
    for first in range(0, len(attempts), ATTEMPTS_PAGE_MAX):
        page = list(attempts[first : first + ATTEMPTS_PAGE_MAX])
        yield from client.query(_SQL[statement], {"attempts": page}).result_rows


def arrow_of(slices: Sequence[StagedSlice]) -> Any:
    """The slices as one Arrow table."""
    import pyarrow as pa

    sizes = [len(one.columns) for one in slices]
    places = pa.array(np.repeat(np.arange(len(slices), dtype=np.int32), sizes))

    def constant(values: list[str]) -> Any:
        encoded = pa.array(values, pa.string()).dictionary_encode()  # ClickHouse takes no dictionary with a text twice
        return pa.DictionaryArray.from_arrays(encoded.indices.take(places), encoded.dictionary)

    ids = b"".join(join_rows([(b"", one.columns.event_ids)], b"") for one in slices)
    offsets = np.zeros(sum(sizes) + 1, dtype=np.int64)
    np.cumsum(np.concatenate([one.columns.event_ids.sizes for one in slices]), out=offsets[1:])
    values = np.concatenate([one.columns.values for one in slices])
    return pa.table(
        {
            "run_id": constant([one.run_id for one in slices]),
            "output": constant([one.output for one in slices]),
            "instrument": constant([one.instrument for one in slices]),
            "event_time": pa.array(
                np.concatenate([one.columns.event_times for one in slices]), pa.timestamp("us", "UTC")
            ),
            "event_id": pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(ids)),
            "value": pa.array(values, pa.float64(), mask=np.isnan(values)),
            "attempt": pa.array([str(one.attempt) for one in slices]).take(places),
            "generation": pa.array([one.generation for one in slices], pa.uint32()).take(places),
        }
    )


def _columns_of(table: Any) -> StagedColumns:
    """The columns of a page."""
    table = table.combine_chunks()
    columns, not_numbers = columns_of(table)
    run_ids, outputs, instruments = (table.column(name).to_pylist() for name in ("run_id", "output", "instrument"))
    return StagedColumns(
        columns.event_times, columns.event_ids, run_ids, outputs, instruments, columns.values, not_numbers, table
    )
