"""Process managers in PostgreSQL: the rows that a manager's runner folds, and its table of commands.

What must stay true: instances, the commands they want, and the position are written in the runner's one transaction; a command
once stored under its id keeps its state, so folding the same events again (after a crash, or from position 0) wants nothing new.
Outcomes are single statements from `pending` to what became of it, so two dispatchers (the old one, overtaken, and the new)
record one outcome.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql

from domain.errors import NotFoundError, RefusedError, RowsRefusedError
from projections.reading import Query
from projections.statements import statements
from services.process_managers.contract import Clock, Command
from services.process_managers.instances import InstanceRow
from services.process_managers.runtime import REASON_CHARACTERS_MAX, DueCommand

_SQL: Final = statements("services.adapters", "manager_store.sql")

_decode_row: Final = msgspec.json.Decoder(InstanceRow).decode
_decode_document: Final = msgspec.json.Decoder(dict[str, Any]).decode

_NOW: Final = {Clock.DATABASE: "clock_timestamp()", Clock.BUSINESS: "(SELECT finaz.business_now())"}

DEAD_LETTERS_MAX: Final = 200
"""Dead letters shown at once."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command, or an event's reaction (`name` is `react`), that failed for good."""

    manager: str
    command_id: UUID
    key: str
    name: str
    document: dict[str, Any]
    attempts: int
    reason: str | None
    caused_by: UUID
    changed_at: datetime


class InstanceRows:
    """The rows of one manager, for `projections.postgres.PostgresSession`. There is one copy: a replay empties it."""

    def __init__(self, manager: str) -> None:
        self._manager = manager

    def load(self, cursor: psycopg.Cursor[Any], generation: int, keys: Sequence[str]) -> Mapping[str, InstanceRow]:
        """The instances of these keys that remember something."""
        cursor.execute(_SQL["load"], {"manager": self._manager, "keys": list(keys)})
        rows = map(_decode_row, [document for (document,) in cursor])
        return {row.key: row for row in rows}

    def save(self, cursor: psycopg.Cursor[Any], generation: int, rows: Mapping[str, InstanceRow]) -> None:
        """Write the instances and what they want. Raises `RowsRefusedError`."""
        kept = [deadline.command_id for row in rows.values() for deadline in row.deadlines]
        commands = [_command(row.key, wanted, deadline=True) for row in rows.values() for wanted in row.deadlines]
        commands += [_command(row.key, wanted, deadline=False) for row in rows.values() for wanted in row.commands]
        manager = {"manager": self._manager}
        try:
            cursor.execute(
                _SQL["save_instances"], {**manager, "rows": _json([_instance(row) for row in rows.values()])}
            )
            cursor.execute(_SQL["withdraw_deadlines"], {**manager, "keys": list(rows), "kept": kept})
            if commands:
                cursor.execute(_SQL["save_commands"], {**manager, "commands": _json(commands)})
        except (psycopg.DataError, psycopg.IntegrityError, OverflowError, ValueError, TypeError) as error:
            expected = "values that its columns take"
            raise RowsRefusedError(str(error).strip(), at="manager_instances", expected=expected) from error


class RememberedRows:
    """The stored instances of one manager, for an audit (`services.audit.rows.ServedRows`)."""

    def __init__(self, manager: str) -> None:
        self.all_statement = _SQL["all"].replace("{manager}", sql.Literal(manager).as_string())

    def decode(self, document: str) -> InstanceRow:
        """A stored instance."""
        return _decode_row(document)

    def key_of(self, row: InstanceRow) -> str:
        """Its key."""
        return row.key

    def row_of(self, row: InstanceRow) -> InstanceRow | None:
        """The instance as it is read when it was stored; None for one that is forgotten, which is not stored."""
        return None if row.forgotten else _decode_row(_json(row))


class PostgresCommandQueue:
    """The commands of one manager (`services.process_managers.runtime.CommandQueue`), due by the clock that it names."""

    def __init__(self, query: Query, manager: str, clock: Clock = Clock.DATABASE) -> None:
        self._query = query
        self._manager = {"manager": manager}
        self._sql = {name: statement.replace("{now}", _NOW[clock]) for name, statement in _SQL.items()}

    def due(self, limit: int) -> list[DueCommand]:
        """See `CommandQueue`."""
        rows = self._query.rows(self._sql["due"], {**self._manager, "limit": limit})
        return [
            DueCommand(command_id=id_, key=key, command=Command(name, _decode_document(document)), attempts=attempts)
            for id_, key, name, document, attempts in rows
        ]

    def next_due_seconds(self) -> float | None:
        """See `CommandQueue`."""
        seconds: float | None = self._query.rows(self._sql["next_due"], self._manager)[0][0]
        return seconds

    def issued(self, command_ids: Sequence[UUID]) -> None:
        """See `CommandQueue`."""
        self._query.rows(self._sql["issued"], {**self._manager, "command_ids": list(command_ids)})

    def again(self, command_id: UUID, delay_seconds: float, document: dict[str, Any]) -> None:
        """See `CommandQueue`."""
        given = {"command_id": command_id, "delay_seconds": delay_seconds, "document": _json(document)}
        self._query.rows(self._sql["again"], {**self._manager, **given})

    def retry(self, command_id: UUID, delay_seconds: float, reason: str) -> None:
        """See `CommandQueue`."""
        given = {"command_id": command_id, "delay_seconds": delay_seconds, "reason": reason[:REASON_CHARACTERS_MAX]}
        self._query.rows(self._sql["retry"], {**self._manager, **given})

    def set_aside(self, command_id: UUID, reason: str) -> None:
        """See `CommandQueue`."""
        given = {"command_id": command_id, "reason": reason[:REASON_CHARACTERS_MAX]}
        self._query.rows(self._sql["set_aside"], {**self._manager, **given})


class ManagerOperations:
    """What an operator does with process managers beyond pausing and resuming them. Blocks."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def dead_letters(self, manager: str | None = None, limit: int = DEAD_LETTERS_MAX) -> list[DeadLetter]:
        """The dead letters of one manager or of all, oldest first."""
        rows = self._query.rows(_SQL["dead_letters"], {"manager": manager, "limit": min(limit, DEAD_LETTERS_MAX)})
        names = DeadLetter.__struct_fields__
        return [
            DeadLetter(**{**dict(zip(names, row, strict=True)), "document": _decode_document(row[4])}) for row in rows
        ]

    def dead_letter(self, manager: str, command_id: UUID) -> DeadLetter:
        """One dead letter. Raises `NotFoundError`."""
        rows = self._query.rows(_SQL["dead_letter"], {"manager": manager, "command_id": command_id})
        if not rows:
            raise NotFoundError("there is no such dead letter", at=str(command_id), expected="one that is listed")
        (row,) = rows
        fields = dict(zip(DeadLetter.__struct_fields__, row, strict=True))
        return DeadLetter(**{**fields, "document": _decode_document(row[4])})

    def revive_all(self, manager: str, principal: str) -> int:
        """Have all dead letters of a manager issued again, but events' reactions. How many that are."""
        return len(self._query.rows(_SQL["revive_all"], {"manager": manager, "principal": principal}))

    def revive(self, manager: str, command_id: UUID, principal: str) -> None:
        """Have a dead letter issued again. Raises `NotFoundError`; an event's reaction is made again by a replay instead."""
        self._changed("revive", {"manager": manager, "command_id": command_id, "principal": principal})

    def discard(self, manager: str, command_id: UUID, principal: str, reason: str) -> None:
        """Have done with a dead letter, saying why. Raises `NotFoundError`."""
        given = {"manager": manager, "command_id": command_id, "principal": principal}
        self._changed("discard", {**given, "reason": reason[:REASON_CHARACTERS_MAX]})

    def pending(self, manager: str) -> tuple[int, int]:
        """How many commands wait, and how many of them are due."""
        ((waiting, due),) = self._query.rows(_SQL["pending"], {"manager": manager})
        return waiting, due

    def replay(self, manager: str) -> None:
        """Have the manager fold the log from position 0 again; it issues nothing twice. Raises `RefusedError` unless paused."""
        if self._query.rows(_SQL["replay"], {"manager": manager}) != [(1,)]:
            raise RefusedError("only a paused process manager can be replayed", at=manager, expected="pause it first")

    def _changed(self, statement: str, given: Mapping[str, Any]) -> None:
        if not self._query.rows(_SQL[statement], given):
            replay = "; a `react` is tried again by a replay of its manager" if statement == "revive" else ""
            raise NotFoundError(
                "there is no such dead letter", at=str(given["command_id"]), expected=f"one that is listed{replay}"
            )


def _instance(row: InstanceRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "position": row.position,
        "state": row.state,
        "deadlines": row.deadlines,
        "forgotten": row.forgotten,
    }


def _command(key: str, wanted: Any, *, deadline: bool) -> dict[str, Any]:
    return {"key": key, "deadline": deadline, **msgspec.structs.asdict(wanted)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
