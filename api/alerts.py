"""What asks for an operator, over HTTP: alerts, dead letters, and pausing what goes wrong. All of it needs the scope `operate`.

What must stay true: what an operator does carries the operator's name and, where something is given up or held back, a reason;
dealing twice with the same thing is refused (404 the second time), so two operators don't undo each other. Decode, call one
service, encode. A crash leaves each done or not done.
"""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from api.answers import Answer, json_answer
from api.declaring import UUID_PATTERN, document_answer, operator_operation, read_text, tell, text_body
from api.operations import Call, Operation
from api.parameters import Parameter, Place, choice, cursor, known_name, limit, pattern
from api.parts import ApiParts
from api.schemas import (
    RUN_ID_PATTERN,
    AlertList,
    AlertResolved,
    DeadLetterChanged,
    DeadLetterList,
)
from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import AlertNotFoundError, NotFoundError, ProjectionUnknownError
from services.alerts import (
    ALERT_STATES,
    ALERTS_PAGE_MAX,
    DEAD_LETTERS_MAX,
    MANAGERS,
    NOTE_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    RUNNERS,
    refuse_others,
)
from services.read_models import ProjectionView

ALERTS_PAGE_DEFAULT: Final = 50


def _kind() -> Parameter:
    """A kind of the reconciler's alerts; one of another source is told what settles it."""
    known = known_name("kind", "What disagrees.", (kind.value for kind in DiscrepancyKind), AlertNotFoundError)

    def read(text: str, at: str) -> str:
        refuse_others(text, at=at)
        return str(known.read(text, at))

    return msgspec.structs.replace(known, read=read)


_ALERT: Final = (
    _kind(),
    pattern("run_id", "The run that it is about.", RUN_ID_PATTERN, AlertNotFoundError, place=Place.PATH),
)
_DEAD_LETTER: Final = (
    known_name("manager", "The process manager.", MANAGERS, NotFoundError),
    pattern("command_id", "The dead letter.", UUID_PATTERN, NotFoundError, place=Place.PATH),
)
_RUNNER: Final = known_name("name", "A projection or a process manager.", RUNNERS, ProjectionUnknownError)
_MANAGER: Final = known_name("name", "The process manager.", MANAGERS, ProjectionUnknownError)
_LIST_PARAMETERS: Final = (
    choice("state", "In this state; `ALERTED` waits for an operator.", ALERT_STATES, default="ALERTED"),
    cursor(),
    limit("Alerts", maximum=ALERTS_PAGE_MAX, default=ALERTS_PAGE_DEFAULT),
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of operators who deal with what went wrong."""
    handlers = _Handlers(parts)
    yield from _of_alerts(handlers)
    yield from _of_dead_letters(handlers)
    yield from _of_runners(handlers)


def _of_alerts(handlers: "_Handlers") -> Iterator[Operation]:
    yield operator_operation(
        "listAlerts",
        "GET",
        "/v1/alerts",
        "What asks for an operator, from every source",
        handlers.list_alerts,
        document_answer("A page of alerts, newest first.", AlertList),
        parameters=_LIST_PARAMETERS,
        problems=(409,),
    )
    yield operator_operation(
        "resolveAlert",
        "POST",
        "/v1/alerts/{kind}/{run_id}/resolve",
        "Say that an alert was dealt with, and how",
        handlers.resolve,
        document_answer("It is resolved.", AlertResolved),
        parameters=_ALERT,
        body=text_body("note", NOTE_CHARACTERS_MAX, "restored from the backup of Monday"),
        problems=(404, 409, 422),
    )


def _of_dead_letters(handlers: "_Handlers") -> Iterator[Operation]:
    yield operator_operation(
        "listDeadLetters",
        "GET",
        "/v1/dead-letters",
        "What process managers could not do",
        handlers.list_dead_letters,
        document_answer(f"The oldest {DEAD_LETTERS_MAX}.", DeadLetterList),
        parameters=(choice("manager", "Of this process manager.", MANAGERS),),
    )
    yield operator_operation(
        "reviveDeadLetter",
        "POST",
        "/v1/dead-letters/{manager}/{command_id}/revive",
        "Have a dead letter tried again",
        handlers.revive,
        document_answer("It is pending, and due now.", DeadLetterChanged),
        description="One called `react` is an event, not a command: it is not found here, a replay of its manager tries it again.",
        parameters=_DEAD_LETTER,
        problems=(404,),
    )
    yield operator_operation(
        "discardDeadLetter",
        "POST",
        "/v1/dead-letters/{manager}/{command_id}/discard",
        "Have done with a dead letter, saying why",
        handlers.discard,
        document_answer("It is discarded, for good.", DeadLetterChanged),
        parameters=_DEAD_LETTER,
        body=text_body("reason", REASON_CHARACTERS_MAX, "the run was submitted again"),
        problems=(404, 422),
    )


def _of_runners(handlers: "_Handlers") -> Iterator[Operation]:
    yield operator_operation(
        "pauseProjection",
        "POST",
        "/v1/projections/{name}/pause",
        "Have a projection or process manager stay where it is",
        handlers.pause,
        document_answer("It as it stands now; one that had stopped by itself stays stopped.", ProjectionView),
        parameters=(_RUNNER,),
        body=text_body("reason", REASON_CHARACTERS_MAX, "the database is being moved"),
        problems=(404, 422),
    )
    yield operator_operation(
        "resumeProjection",
        "POST",
        "/v1/projections/{name}/resume",
        "Let a projection or process manager go on, also one that stopped at an event",
        handlers.resume,
        document_answer("It as it stands now.", ProjectionView),
        parameters=(_RUNNER,),
        problems=(404,),
    )
    yield operator_operation(
        "replayProcessManager",
        "POST",
        "/v1/projections/{name}/replay",
        "Have a paused process manager fold the log again from its beginning",
        handlers.replay,
        document_answer("It as it stands now, at position 0. Nothing is issued twice.", ProjectionView),
        parameters=(_MANAGER,),
        problems=(404, 409),
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._alerts = parts.alerts
        self._read_models = parts.read_models
        self._metrics = parts.metrics

    async def list_alerts(self, call: Call) -> Answer:
        given = call.arguments
        page = await self._alerts.list(given["state"], given["cursor"], given["limit"])
        return json_answer(AlertList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def resolve(self, call: Call) -> Answer:
        kind, run_id = call.path_arguments["kind"], call.path_arguments["run_id"]
        note = await read_text(call, "note")
        position = await self._alerts.resolve(kind, run_id, call.principal.name, note)
        self._metrics.appended()
        tell("alert resolved", call, kind=kind, run_id=run_id, position=position)
        return json_answer(AlertResolved(kind=kind, run_id=run_id, position=position))

    async def list_dead_letters(self, call: Call) -> Answer:
        return json_answer(DeadLetterList(items=tuple(await self._alerts.dead_letters(call.arguments["manager"]))))

    async def revive(self, call: Call) -> Answer:
        manager, command_id = _dead_letter(call)
        await self._alerts.revive(manager, command_id, call.principal.name)
        return _changed(call, manager, command_id, "pending")

    async def discard(self, call: Call) -> Answer:
        manager, command_id = _dead_letter(call)
        await self._alerts.discard(manager, command_id, call.principal.name, await read_text(call, "reason"))
        return _changed(call, manager, command_id, "discarded")

    async def pause(self, call: Call) -> Answer:
        name, reason = call.path_arguments["name"], await read_text(call, "reason")
        await self._alerts.pause(name, call.principal.name, reason)
        tell("projection paused", call, projection=name, reason=reason)
        return await self._view(name)

    async def resume(self, call: Call) -> Answer:
        name = call.path_arguments["name"]
        await self._alerts.resume(name, call.principal.name)
        tell("projection resumed", call, projection=name)
        return await self._view(name)

    async def replay(self, call: Call) -> Answer:
        name = call.path_arguments["name"]
        await self._alerts.replay(name, call.principal.name)
        tell("process manager replayed", call, projection=name)
        return await self._view(name)

    async def _view(self, name: str) -> Answer:
        return json_answer(await self._read_models.view(name))


def _dead_letter(call: Call) -> tuple[str, UUID]:
    return call.path_arguments["manager"], UUID(call.path_arguments["command_id"])


def _changed(call: Call, manager: str, command_id: UUID, state: str) -> Answer:
    tell("dead letter changed", call, manager=manager, command_id=str(command_id), state=state)
    return json_answer(DeadLetterChanged(manager=manager, command_id=command_id, state=state))
