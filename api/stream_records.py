"""What becomes of a STREAM run, over HTTP: how it stands, its checkpoints, records not simply taken, and asking to retry some.

Decode, call one service, encode. A crash leaves each done or not done.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import structlog

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import BodySpec, Call, Operation
from api.parameters import POSITION_MAX, choice, cursor, limit
from api.parts import ApiParts
from api.runs import RUN_ID
from api.schemas import CheckpointList, RecordList
from domain.errors import BodyInvalidError
from domain.stream.messages import Place
from services.stream_records import (
    PAGE_ROWS_MAX,
    RECORD_STATES,
    RETRY_ITEMS_MAX,
    RetryAnswer,
    StreamRecords,
    StreamStatus,
)

PAGE_DEFAULT: Final = 50

RETRY_BYTES_MAX: Final = 128 * 1024
"""Bytes of a request to retry: `RETRY_ITEMS_MAX` places fit in."""

_LIMIT: Final = limit("Rows", maximum=PAGE_ROWS_MAX, default=PAGE_DEFAULT)
_STATE: Final = choice("state", "Only records whose treatment is this now.", RECORD_STATES)
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.api")


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of stream runs' records."""
    handlers = _Handlers(parts)
    yield Operation(
        name="getStreamStatus",
        method="GET",
        path="/v1/runs/{run_id}/stream",
        summary="How a STREAM run stands: how far it is, and what holds it up",
        tag="streams",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(document_answer("Offsets, quarantine, pressure.", StreamStatus),),
        problems=(404,),
        handler=handlers.status,
    )
    yield Operation(
        name="listCheckpoints",
        method="GET",
        path="/v1/runs/{run_id}/checkpoints",
        summary="The checkpoints of a STREAM run, newest first",
        tag="streams",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID, cursor(), _LIMIT),
        answers=(document_answer("A page of committed cuts.", CheckpointList),),
        problems=(404, 409),
        handler=handlers.checkpoints,
    )
    yield Operation(
        name="listQuarantine",
        method="GET",
        path="/v1/runs/{run_id}/quarantine",
        summary="Records of a STREAM run that were omitted, late, or retried",
        description="By partition and offset. The bytes of an omitted record are an artifact, under the address in `quarantine`.",
        tag="streams",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID, _STATE, cursor(), _LIMIT),
        answers=(document_answer("A page of records.", RecordList),),
        problems=(404, 409),
        handler=handlers.quarantine,
    )
    yield Operation(
        name="retryQuarantine",
        method="POST",
        path="/v1/runs/{run_id}/quarantine/retry",
        summary="Have omitted records judged again, after a fix of the reader, say",
        description="The worker does so at its next commit or resume. What is no longer omitted is left as it is.",
        tag="streams",
        scope=Scope.OPERATE,
        parameters=(RUN_ID,),
        body=_body(),
        answers=(document_answer("What was asked for; nothing, if none of it is omitted.", RetryAnswer),),
        problems=(404, 409, 422),
        handler=handlers.retry,
    )


def _body() -> BodySpec:
    number = {"type": "integer", "minimum": 0, "maximum": POSITION_MAX}
    place = {
        "type": "object",
        "required": ["partition", "offset"],
        "properties": {"partition": number, "offset": number},
        "additionalProperties": False,
    }
    items = {
        "type": "array",
        "items": place,
        "maxItems": RETRY_ITEMS_MAX,
        "description": "None named: all that are omitted.",
    }
    schema = {"type": "object", "required": ["items"], "properties": {"items": items}, "additionalProperties": False}
    example = {"items": [{"partition": 3, "offset": 4}]}
    return BodySpec(media_type="application/json", bytes_max=RETRY_BYTES_MAX, schema=schema, example=example)


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._records: StreamRecords = parts.stream_records
        self._metrics = parts.metrics

    async def status(self, call: Call) -> Answer:
        run_id, principal = call.path_arguments["run_id"], call.principal
        return json_answer(await self._records.status(run_id, principal.name, principal.operates))

    async def checkpoints(self, call: Call) -> Answer:
        given, principal = call.arguments, call.principal
        page = await self._records.checkpoints(
            call.path_arguments["run_id"], principal.name, principal.operates, given["cursor"], given["limit"]
        )
        return json_answer(CheckpointList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def quarantine(self, call: Call) -> Answer:
        given, principal = call.arguments, call.principal
        page = await self._records.records(
            call.path_arguments["run_id"],
            principal.name,
            principal.operates,
            given["state"],
            given["cursor"],
            given["limit"],
        )
        return json_answer(RecordList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def retry(self, call: Call) -> Answer:
        run_id, places = call.path_arguments["run_id"], _places(await call.json(RETRY_BYTES_MAX))
        answer = await self._records.request_retry(run_id, call.principal.name, places)
        if answer.requested:
            self._metrics.appended()
        _log.info(
            "retry requested",
            principal=call.principal.name,
            request_id=call.request_id,
            run_id=run_id,
            records=len(answer.requested),
            position=answer.position,
        )
        return json_answer(answer)


def _places(value: Any) -> tuple[Place, ...]:
    """The places that a body names."""
    try:
        if not isinstance(value, dict) or value.keys() != {"items"}:
            raise ValueError
        if any(set(item) != {"partition", "offset"} for item in value["items"]):
            raise ValueError
        places = msgspec.convert(value["items"], tuple[Place, ...])
    except (ValueError, TypeError, msgspec.ValidationError):
        raise BodyInvalidError(
            "the body is something else", at="$", expected="items, each a partition and an offset"
        ) from None
    if len(places) > RETRY_ITEMS_MAX:
        raise BodyInvalidError(f"{len(places)} items", at="$.items", expected=f"at most {RETRY_ITEMS_MAX}")
    if any(not 0 <= number <= POSITION_MAX for place in places for number in (place.partition, place.offset)):
        raise BodyInvalidError("no place", at="$.items", expected=f"numbers in 0..{POSITION_MAX}")
    return places
