"""A process manager as a projection: what its instances remember and want is a fold of the events.

What must stay true: a row is a function of its key's events, so it can be thrown away and made again; state, deadlines and
commands move together with the position in one transaction (`projections.runner`). `commands` are only those that the batch at
hand wants: storing the row moves them into the table of commands, under ids that make storing them twice the same as once.
"""

from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec

from domain.errors import FinazError
from domain.events import Recorded
from projections.folding import ReadModel
from services.process_managers.contract import (
    WANTS_PER_EVENT_MAX,
    Clear,
    Command,
    Document,
    ProcessManager,
    SetAside,
    Want,
    command_id,
)


class TooManyWantsError(FinazError):
    """A reaction wants more than the limit; a bug of the manager."""

    code = "TOO_MANY_WANTS"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be issued at `due_at`; `reason` is given if it is a dead letter from the start (a reaction that failed)."""

    command_id: UUID
    name: str
    document: Document
    due_at: datetime
    caused_by: UUID
    reason: str | None = None


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One instance: what it remembers, its pending deadlines (one per name), and what it wants done now."""

    key: str
    position: int
    state: Document = {}
    deadlines: tuple[Wanted, ...] = ()
    commands: tuple[Wanted, ...] = ()

    @property
    def forgotten(self) -> bool:
        """Whether nothing is left to remember: such a row is as good as none."""
        return not self.state and not self.deadlines


def instances_of(manager: ProcessManager) -> ReadModel[str, InstanceRow]:
    """The read model whose rows are the manager's instances."""
    return ReadModel(manager.name, manager.categories, manager.interested, partial(_apply, manager))


def memories_of(manager: ProcessManager) -> ReadModel[str, InstanceRow]:
    """The same without what the instances want done now: what is stored of them, for who looks whether it is right."""

    def apply(row: InstanceRow | None, recorded: Recorded) -> InstanceRow:
        after = _apply(manager, row, recorded)
        return msgspec.structs.replace(after, commands=()) if after.commands else after

    return ReadModel(manager.name, manager.categories, manager.interested, apply)


def _apply(manager: ProcessManager, row: InstanceRow | None, recorded: Recorded) -> InstanceRow:
    """The row after the event. Raises what the manager raises where that means `Stop`."""
    key = manager.interested(recorded.event)
    assert key is not None
    before = InstanceRow(key=key, position=recorded.position) if row is None else row
    try:
        wants = manager.react(before.state, recorded)
        state = manager.apply(before.state, recorded)
        if len(wants) > WANTS_PER_EVENT_MAX:
            raise TooManyWantsError(
                f"{len(wants)} wants", at=recorded.stream, expected=f"at most {WANTS_PER_EVENT_MAX}"
            )
    except Exception as error:
        if not isinstance(manager.on_error(error, 1), SetAside):
            raise
        return _changed(before, recorded, commands=(*before.commands, _dead_letter(manager, recorded, error)))
    return _wanting(manager, _changed(before, recorded, state=state), recorded, wants)


def _wanting(manager: ProcessManager, row: InstanceRow, recorded: Recorded, wants: tuple[Want, ...]) -> InstanceRow:
    deadlines = {deadline.name: deadline for deadline in row.deadlines}
    commands = list(row.commands)
    for index, want in enumerate(wants):
        if isinstance(want, Clear):
            deadlines.pop(want.name, None)
            continue
        wanted = Wanted(
            command_id=command_id(manager.name, recorded.event_id, index),
            name=want.name,
            document=want.document,
            due_at=want.due_at or recorded.recorded_at,
            caused_by=recorded.event_id,
        )
        if isinstance(want, Command):
            commands.append(wanted)
        else:
            deadlines[want.name] = wanted
    return msgspec.structs.replace(row, deadlines=tuple(deadlines.values()), commands=tuple(commands))


def _dead_letter(manager: ProcessManager, recorded: Recorded, error: Exception) -> Wanted:
    return Wanted(
        # Behind everything that a reaction may want: when a replay reacts at last, its wants have ids of their own.
        command_id=command_id(manager.name, recorded.event_id, WANTS_PER_EVENT_MAX),
        name="react",
        document={"stream": recorded.stream, "version": recorded.version, "topic": recorded.event.topic},
        due_at=recorded.recorded_at,
        caused_by=recorded.event_id,
        reason=str(error)[:2000],
    )


def _changed(row: InstanceRow, recorded: Recorded, **changes: object) -> InstanceRow:
    return msgspec.structs.replace(row, position=recorded.position, **changes)
