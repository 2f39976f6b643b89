"""What many operations share: documents as answers, what operators alone may do, bodies of one text, places to go on from.

What must stay true: a text that an operator must give is declared and read by the same function's limit of bytes, so that whatever
the schema allows fits in, however it is escaped; whether it says enough is the service's to judge.
"""

from typing import Any, Final

import structlog

from api.auth import Scope
from api.operations import AnswerSpec, BodySpec, Call, Handler, Operation
from api.parameters import Place, position
from api.schemas import reference
from domain.errors import BodyInvalidError, InputError

TEXT_BODY_BYTES_MAX: Final = 64 * 1024
"""Bytes of a body that carries a note or a reason: its characters, each escaped as two `\\uXXXX`, fit in."""

UUID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"

LAST_EVENT_ID: Final = position(
    "Last-Event-ID",
    "The position of the last event that the client has; the stream goes on behind it.",
    place=Place.HEADER,
)
"""By which a client of server-sent events says how far it is; `read_last_event_id` reads it."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.api")


def document_answer(
    description: str, document: type[Any], status: int = 200, *, headers: dict[str, dict[str, Any]] | None = None
) -> AnswerSpec:
    """An answer that is one JSON document."""
    content = {"application/json": reference(document)}
    return AnswerSpec(status=status, description=description, content=content, headers=headers or {})


def operator_operation(
    name: str, method: str, path: str, summary: str, handler: Handler, answer: AnswerSpec, **more: Any
) -> Operation:
    """An operation that needs the scope `operate`; `more` are further fields of `Operation`."""
    return Operation(
        name=name,
        method=method,
        path=path,
        summary=summary,
        handler=handler,
        answers=(answer,),
        tag="operating",
        scope=Scope.OPERATE,
        **more,
    )


def text_schema(characters_max: int) -> dict[str, Any]:
    """The schema of a text that says something: not empty, not only white space, no U+0000."""
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": characters_max,
        "pattern": "^[^\\u0000]*[^\\s\\u0000][^\\u0000]*$",
    }


def text_body(field: str, characters_max: int, example: str) -> BodySpec:
    """A body of one field, a text that says something."""
    properties = {field: text_schema(characters_max)}
    schema = {"type": "object", "required": [field], "properties": properties, "additionalProperties": False}
    return BodySpec(
        media_type="application/json", bytes_max=TEXT_BODY_BYTES_MAX, schema=schema, example={field: example}
    )


async def read_text(call: Call, field: str) -> str:
    """The only field of the body. Raises `BodyInvalidError` if it is something else than one text."""
    value = await call.json(TEXT_BODY_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != {field} or not isinstance(value[field], str):
        raise BodyInvalidError("the body is something else", at="$", expected=f"an object of just {field!r}, a text")
    text: str = value[field]
    return text


def read_last_event_id(call: Call) -> int | None:
    """The position in the header `Last-Event-ID`, if there is one. Raises `InputError` if it is none."""
    raw = call.text_header(b"last-event-id", InputError)
    return None if raw is None else LAST_EVENT_ID.read(raw, LAST_EVENT_ID.name)


def tell(what: str, call: Call, **facts: Any) -> None:
    """Log what somebody did, with who it was."""
    _log.info(what, principal=call.principal.name, request_id=call.request_id, **facts)
