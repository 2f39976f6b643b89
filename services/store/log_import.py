"""Taking in an exported log: into an empty store, with the positions, instants and ids as they were recorded.

What must stay true: the store has the whole log afterwards or nothing of it: rows are brought into temporary tables, and from there
in one statement of the import function, which takes the append lock for its own duration, looks that nothing has happened yet,
computes every hash again and writes events, lease guard and outbox together. A crash at any point before that statement's commit
leaves an empty store. In memory is one batch; on the server's disk, for a while, the log twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from domain.errors import StoreUnavailableError
from domain.instants import parse_instant
from domain.log_errors import ExportInvalidError, LogNotEmptyError
from projections.folding import ReadModel, batch_of, fold
from projections.leases import guard
from projections.log import StoredEvent
from projections.outbox import projection as outbox
from projections.statements import statements
from services.log_export import Head, Line, read_export
from services.store.connections import AWAY, LACKING, Connection, connect, lacking

BATCH_EVENTS: Final = 5000
"""Events brought at a time: so many are in memory."""

STATEMENT_SECONDS_MAX: Final = 6 * 3600
"""Seconds that the one statement may take that takes everything in."""

_SQL: Final = statements("services.store", "importing.sql")

OnProgress = Callable[[int, int], None]
"""Called with (events brought, events in the file); whatever it raises ends the import, of which nothing is left."""


class _Aside:
    """The rows of an inline projection, folded in a temporary table while the events are brought."""

    def __init__(
        self,
        model: ReadModel[Any, Any],
        row_type: type[Any],
        key_of_row: Callable[[Any], Any],
        text: Callable[[Any], str],
    ) -> None:
        self._model = model
        self._decode = msgspec.json.Decoder(row_type).decode
        self._key_of_row = key_of_row
        self._text = text

    def apply(self, connection: Connection, stored: Sequence[StoredEvent]) -> None:
        """Fold the events of a batch. Raises `ExportInvalidError` for one that cannot follow."""
        mine = [event for event in stored if event.stream.partition("/")[0] in self._model.categories]
        batch = batch_of(self._model, mine, stored[-1].position)
        keys = [self._text(key) for key in batch.keys]
        found = connection.execute(self._statement("load"), {"keys": keys}).fetchall() if keys else []
        rows = {self._key_of_row(row): row for row in map(self._decode, (document for (document,) in found))}
        folded = fold(self._model, rows, batch)
        if folded.failure is not None:
            raise ExportInvalidError(
                f"{self._model.name} cannot take the event: {folded.failure.reason}",
                at=f"line {folded.failure.position + 1}",
                expected="events that follow one another",
            )
        if folded.rows:
            connection.execute(self._statement("drop"), {"keys": [self._text(key) for key in folded.rows]})
            written = msgspec.json.encode(list(folded.rows.values())).decode()
            connection.execute(self._statement("save"), {"rows": written})

    def _statement(self, kind: str) -> str:
        return _SQL[f"{kind}_{self._model.name}"]


_ASIDE: Final = (
    _Aside(guard.MODEL, guard.GuardRow, lambda row: row.resource, str),
    _Aside(outbox.MODEL, outbox.OutboxRow, lambda row: (row.kind, row.key), "/".join),
)


def import_log(dsn: str, lines: Iterable[bytes], on_progress: OnProgress = lambda done, total: None) -> Head:
    """Take in the log of an export; its head.

    Raises `LogNotEmptyError` where something has happened in the store, `ExportInvalidError` naming the line, and
    `StoreUnavailableError` and `SchemaMissingError`.
    """
    head, events = read_export(lines)
    try:
        with connect(dsn, STATEMENT_SECONDS_MAX) as connection:
            row = connection.execute(_SQL["is_empty"]).fetchone()
            if row is None or not row[0]:
                raise LogNotEmptyError(
                    "the log has events", at="the store", expected="one in which nothing has happened"
                )
            connection.execute(_SQL["tables"])
            done = 0
            for batch in _batches(events):
                _bring(connection, batch)
                done += len(batch)
                on_progress(done, head.events)
            _take_in(connection, head)
    except AWAY as error:
        raise StoreUnavailableError(f"the database cannot be reached: {error}".strip()) from error
    except LACKING as error:
        raise lacking(error) from error
    return head


def _batches(events: Iterator[Line]) -> Iterator[list[Line]]:
    while batch := list(islice(events, BATCH_EVENTS)):
        yield batch


def _bring(connection: Connection, batch: Sequence[Line]) -> None:
    try:
        with connection.cursor() as cursor, cursor.copy(_SQL["copy"]) as copy:
            for line in batch:
                copy.write_row(_row(line))
        stored = [_stored(line) for line in batch]
    except (psycopg.DataError, psycopg.IntegrityError, ValueError) as error:
        raise ExportInvalidError(
            f"a value that the store cannot hold: {error}",
            at=f"lines {batch[0].position + 1} to {batch[-1].position + 1}",
            expected="events of a log",
        ) from error
    for aside in _ASIDE:
        aside.apply(connection, stored)


def _take_in(connection: Connection, head: Head) -> None:
    try:
        connection.execute(_SQL["import"], {"events": head.events, "chain": bytes.fromhex(head.chain)})
    except psycopg.Error as error:
        if error.sqlstate == "FZ001":
            raise LogNotEmptyError(
                _said(error), at="the store", expected="one in which nothing has happened"
            ) from error
        if error.sqlstate == "FZ002" or isinstance(error, psycopg.IntegrityError):
            raise ExportInvalidError(_said(error), at="the file", expected="a whole log") from error
        raise


def _said(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)


def _row(line: Line) -> tuple[Any, ...]:
    return (
        line.position,
        line.version,
        line.recorded_at,
        line.event_id,
        line.causation_id,
        line.stream,
        line.topic,
        line.correlation_id,
        line.principal,
        bytes(line.event).decode("utf-8"),
        bytes.fromhex(line.chain),
    )


def _stored(line: Line) -> StoredEvent:
    return StoredEvent(
        line.position,
        line.stream,
        line.version,
        UUID(line.event_id),
        parse_instant(line.recorded_at),
        line.topic,
        bytes(line.event).decode("utf-8"),
    )
