"""What operators tell projections beyond pausing them, and what was told: stop-at, skip, the log of each; dead letters one by one.

What must stay true: a command carries the operator's name and reason, and is in the projection's log; the one event that is skipped
is the one at which the projection stands. Decode, call one service, encode. A crash leaves each done or not done.
"""

from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.declaring import (
    TEXT_BODY_BYTES_MAX,
    UUID_PATTERN,
    document_answer,
    operator_operation,
    tell,
    text_schema,
)
from api.operations import BodySpec, Call, Operation
from api.parameters import POSITION_MAX, Place, known_name, limit, pattern, position_cursor
from api.parts import ApiParts
from api.schemas import DeadLettersRevived, ProjectionLog
from domain.errors import BodyInvalidError, NotFoundError, ProjectionUnknownError
from services.alerts import MANAGERS, RUNNERS
from services.projection_operations import ENTRIES_MAX, NAMES, REASON_CHARACTERS_MAX, DeadLetter
from services.read_models import ProjectionView

ENTRIES_DEFAULT: Final = 50
_RUNNER: Final = known_name("name", "A projection or a process manager.", RUNNERS, ProjectionUnknownError)
_ANY: Final = known_name("name", "A projection or a process manager.", NAMES, ProjectionUnknownError)
_MANAGER: Final = known_name("manager", "The process manager.", MANAGERS, NotFoundError)
_LETTER: Final = pattern("command_id", "The dead letter.", UUID_PATTERN, NotFoundError, place=Place.PATH)
_LOG_PARAMETERS: Final = (
    _ANY,
    position_cursor(),
    limit("Entries", maximum=ENTRIES_MAX, default=ENTRIES_DEFAULT),
)
_BODY: Final = BodySpec(
    media_type="application/json",
    bytes_max=TEXT_BODY_BYTES_MAX,
    schema={
        "type": "object",
        "required": ["position", "reason"],
        "properties": {
            "position": {"type": "integer", "minimum": 1, "maximum": POSITION_MAX},
            "reason": text_schema(REASON_CHARACTERS_MAX),
        },
        "additionalProperties": False,
    },
    example={"position": 1042, "reason": "written by a program that was never released"},
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations."""
    handlers = _Handlers(parts)
    yield operator_operation(
        "stopProjectionAt",
        "POST",
        "/v1/projections/{name}/stop-at",
        "Have a running projection pause when it has applied everything up to a position",
        handlers.stop_at,
        document_answer("It as it stands now.", ProjectionView),
        parameters=(_RUNNER,),
        body=_BODY,
        problems=(404, 409, 422),
    )
    yield operator_operation(
        "skipEvent",
        "POST",
        "/v1/projections/{name}/skip",
        "Have a projection pass over the one event at which it stopped",
        handlers.skip,
        document_answer("It as it stands now. Rebuilds pass over the event too.", ProjectionView),
        parameters=(_ANY,),
        body=_BODY,
        problems=(404, 409, 422),
    )
    yield operator_operation(
        "getProjectionLog",
        "GET",
        "/v1/projections/{name}/log",
        "What was done to a projection, by whom and why",
        handlers.entries,
        document_answer("A page of entries, the newest first, and what it passes over.", ProjectionLog),
        parameters=_LOG_PARAMETERS,
        problems=(404,),
    )
    yield operator_operation(
        "getDeadLetter",
        "GET",
        "/v1/dead-letters/{manager}/{command_id}",
        "One dead letter, with its document, its error and its attempts",
        handlers.dead_letter,
        document_answer("The dead letter.", DeadLetter),
        parameters=(_MANAGER, _LETTER),
        problems=(404,),
    )
    yield operator_operation(
        "reviveDeadLetters",
        "POST",
        "/v1/dead-letters/{manager}/revive",
        "Have all dead letters of a process manager tried again",
        handlers.revive_all,
        document_answer(
            "They are pending, and due now; those called `react` stay: a replay tries them again.", DeadLettersRevived
        ),
        parameters=(_MANAGER,),
        problems=(404,),
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._operations = parts.projection_operations
        self._read_models = parts.read_models

    async def stop_at(self, call: Call) -> Answer:
        name, (position, reason) = call.path_arguments["name"], await _place(call)
        await self._operations.stop_at(name, position, call.principal.name, reason)
        tell("projection told to stop", call, projection=name, position=position, reason=reason)
        return await self._view(name)

    async def skip(self, call: Call) -> Answer:
        name, (position, reason) = call.path_arguments["name"], await _place(call)
        await self._operations.skip(name, position, call.principal.name, reason)
        tell("event skipped", call, projection=name, position=position, reason=reason)
        return await self._view(name)

    async def entries(self, call: Call) -> Answer:
        name, limit = call.path_arguments["name"], call.arguments["limit"]
        found = tuple(await self._operations.entries(name, call.arguments["cursor"], limit))
        skipped = tuple(await self._operations.skipped(name))
        more = str(found[-1].id) if len(found) == limit else None
        return json_answer(ProjectionLog(items=found, skipped=skipped, next_cursor=more))

    async def dead_letter(self, call: Call) -> Answer:
        return json_answer(await self._operations.dead_letter(*call.path_arguments.values()))

    async def revive_all(self, call: Call) -> Answer:
        manager = call.path_arguments["manager"]
        revived = await self._operations.revive_all(manager, call.principal.name)
        tell("dead letters revived", call, manager=manager, revived=revived)
        return json_answer(DeadLettersRevived(manager=manager, revived=revived))

    async def _view(self, name: str) -> Answer:
        return json_answer(await self._read_models.view(name))


async def _place(call: Call) -> tuple[int, str]:
    """Position and reason of the body; whether the reason says enough is the service's to judge."""
    value = await call.json(TEXT_BODY_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != {"position", "reason"}:
        raise BodyInvalidError("the body is something else", at="$", expected="an object of position and reason")
    position, reason = value["position"], value["reason"]
    if type(position) is not int or not 1 <= position <= POSITION_MAX:
        raise BodyInvalidError("that is no position", at="$.position", expected=f"an integer 1 to {POSITION_MAX}")
    if not isinstance(reason, str):
        raise BodyInvalidError("that is no reason", at="$.reason", expected="a text")
    return position, reason
