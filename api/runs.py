"""Runs over HTTP: submit one or a sweep, list, look, cancel, read the history.

What must stay true: a submission is answered the same way however often it is made (202, the same body; only the header
`Idempotency-Replayed` differs), so a client that lost the answer asks again. Decode, call one service, encode: nothing is decided
here.
"""

import asyncio
import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog

from api.answers import Answer, Headers, json_answer
from api.auth import Scope
from api.operations import AnswerSpec, BodySpec, Call, Handler, Operation
from api.parameters import Parameter, Place, choice, instant, integer, looked_up_name, pattern
from api.parts import ApiParts
from api.run_schemas import RUN_BODY_EXAMPLE, RUN_BODY_SCHEMA, SWEEP_BODY_EXAMPLE, SWEEP_BODY_SCHEMA
from api.schemas import (
    RUN_ID_PATTERN,
    SWEEP_ID_PATTERN,
    Admitted,
    EventList,
    SweepAdmitted,
    reference,
    view_event,
)
from api.schemas import RunList as RunListDocument
from domain.canonical import is_address
from domain.errors import FinazError, IdempotencyKeyInvalidError, InputError, RunNotFoundError
from domain.identity import KEY_BYTES_MAX, checked_key
from domain.runs.messages import Mode
from services.requests import parse_run_body, parse_sweep_body, placed
from services.run_listing import LIST_LIMIT_MAX, LIST_TAGS_MAX, RUN_STATES, RunQuery
from services.runs import RunView

LIST_LIMIT_DEFAULT: Final = 50
POSITION_MAX: Final = 2**63 - 1
WAIT_SECONDS_MAX: Final = 30
"""How long a read may wait for a position."""

REPLAYED: Final = b"idempotency-replayed"
_std_log: Final = logging.getLogger("finaz.api")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.api")

RUN_ID: Final = pattern("run_id", "The run's id.", RUN_ID_PATTERN, RunNotFoundError, place=Place.PATH)
_KEY: Final = Parameter(
    name="Idempotency-Key",
    place=Place.HEADER,
    description="Names this submission among the principal's own. Printable, NFC, 1 to 255 bytes of UTF-8.",
    schema={"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    read=lambda text, at: text,
    required=True,
    example="ema-nightly-2026-01-05",
)
_SUBMITTED_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "Location": {"schema": {"type": "string"}, "description": "Where the run is.", "required": True},
    "Idempotency-Replayed": {
        "schema": {"type": "string", "enum": ["true"]},
        "description": "Present if the key had admitted this body before; status and body are those of the first answer.",
    },
}
_LIST_PARAMETERS: Final = (
    choice("state", "Runs in any of these states.", RUN_STATES, repeated=True),
    looked_up_name("tag", "Runs that have all of these tags.", repeated=True, repeated_max=LIST_TAGS_MAX),
    choice("mode", "Runs of this mode.", [mode.value for mode in Mode]),
    pattern("sweep", "Runs of this sweep.", SWEEP_ID_PATTERN, InputError, place=Place.QUERY),
    instant("requested_from", "Runs requested at or after this instant."),
    instant("requested_to", "Runs requested before this instant."),
    pattern("cursor", "Where the page before ended.", "^[A-Za-z0-9_=-]{1,200}$", InputError, place=Place.QUERY),
    integer("limit", "Runs in one page.", minimum=1, maximum=LIST_LIMIT_MAX, default=LIST_LIMIT_DEFAULT),
    integer(
        "position",
        "Wait until the list has seen this position of the log (a submission's answer has its own): read your own write.",
        minimum=0,
        maximum=POSITION_MAX,
        default=0,
    ),
    integer(
        "timeout_seconds",
        "How long to wait for it; then 409 `WAIT_TIMEOUT`.",
        minimum=0,
        maximum=WAIT_SECONDS_MAX,
        default=5,
    ),
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of runs."""
    handlers = _Handlers(parts)
    yield _submission(
        "submitRun",
        "/v1/runs",
        handlers.submit_run,
        parts.body_bytes_max,
        summary="Submit a run",
        description="Idempotent: the same key with the same typed body is the same run and the same answer.",
        schema=RUN_BODY_SCHEMA,
        example=RUN_BODY_EXAMPLE,
        answer=Admitted,
    )
    yield _submission(
        "submitSweep",
        "/v1/sweeps",
        handlers.submit_sweep,
        parts.body_bytes_max,
        summary="Submit a sweep: flows × instruments × parameters, each a run",
        description="All runs of a sweep are admitted in one append, or none.",
        schema=SWEEP_BODY_SCHEMA,
        example=SWEEP_BODY_EXAMPLE,
        answer=SweepAdmitted,
    )
    yield from _of_admitted_runs(handlers)


def _of_admitted_runs(handlers: "_Handlers") -> Iterator[Operation]:
    """What can be done with runs that are there."""
    yield Operation(
        name="listRuns",
        method="GET",
        path="/v1/runs",
        summary="List runs, newest first",
        description="A principal sees its own runs; one that operates sees everybody's.",
        scope=Scope.RUNS_READ,
        parameters=_LIST_PARAMETERS,
        answers=(AnswerSpec(status=200, description="A page of runs.", content=_json_of(RunListDocument)),),
        problems=(404, 409, 422),
        handler=handlers.list_runs,
    )
    yield Operation(
        name="getRun",
        method="GET",
        path="/v1/runs/{run_id}",
        summary="Look at a run",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(AnswerSpec(status=200, description="The run as of now.", content=_json_of(RunView)),),
        problems=(404,),
        handler=handlers.get_run,
    )
    yield Operation(
        name="cancelRun",
        method="POST",
        path="/v1/runs/{run_id}/cancel",
        summary="Ask that a run end without a result",
        description="A queued run ends at once, a running one at its next border between stages. Asking twice is asking once.",
        scope=Scope.RUNS_WRITE,
        parameters=(RUN_ID,),
        answers=(AnswerSpec(status=202, description="It was asked; the run as of now.", content=_json_of(RunView)),),
        problems=(404, 409),
        handler=handlers.cancel_run,
    )
    yield Operation(
        name="getRunEvents",
        method="GET",
        path="/v1/runs/{run_id}/events",
        summary="The run's history, its leases included",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(AnswerSpec(status=200, description="Every event, by position.", content=_json_of(EventList)),),
        problems=(404,),
        handler=handlers.history,
    )


def _json_of(answer: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    return {"application/json": reference(answer)}


def _submission(
    name: str,
    path: str,
    handler: Handler,
    bytes_max: int,
    *,
    summary: str,
    description: str,
    schema: dict[str, Any],
    example: Any,
    answer: type[msgspec.Struct],
) -> Operation:
    """A submission under an idempotency key: answered 202 with the same body, now and ever after."""
    admitted = AnswerSpec(
        status=202,
        description="It is admitted, now or before.",
        content=_json_of(answer),
        headers=_SUBMITTED_HEADERS,
    )
    return Operation(
        name=name,
        method="POST",
        path=path,
        summary=summary,
        description=description,
        scope=Scope.RUNS_WRITE,
        parameters=(_KEY,),
        body=BodySpec(media_type="application/json", bytes_max=bytes_max, schema=schema, example=example),
        answers=(admitted,),
        problems=(404, 409, 422),
        handler=handler,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def submit_run(self, call: Call) -> Answer:
        key = checked_key(call.text_header(b"idempotency-key", IdempotencyKeyInvalidError))
        value = await call.json(self._parts.body_bytes_max)
        try:
            done = await self._parts.admissions.submit_run(call.principal.name, key, parse_run_body(value))
        except FinazError as error:
            await self._look_for_snapshot(value, error)
            raise
        self._parts.metrics.admitted("runs.create", replayed=done.replayed)
        if _std_log.isEnabledFor(
            logging.DEBUG
        ):  # a line for each would cost a tenth of the admission; the log of events has it
            _log.debug(
                "run admitted",
                run_id=done.run_id,
                position=done.position,
                replayed=done.replayed,
                principal=call.principal.name,
                request_id=call.request_id,
            )
        answer = Admitted(run_id=done.run_id, position=done.position, body_hash=done.body_hash)
        return json_answer(answer, 202, _submitted(f"/v1/runs/{done.run_id}", replayed=done.replayed))

    async def submit_sweep(self, call: Call) -> Answer:
        key = checked_key(call.text_header(b"idempotency-key", IdempotencyKeyInvalidError))
        value = await call.json(self._parts.body_bytes_max)
        try:
            done = await self._parts.admissions.submit_sweep(call.principal.name, key, parse_sweep_body(value))
        except FinazError as error:
            await self._look_for_snapshot(value, error)
            raise
        self._parts.metrics.admitted("sweeps.create", replayed=done.replayed)
        _log.info(
            "sweep admitted",
            sweep_id=done.sweep_id,
            runs=len(done.run_ids),
            position=done.position,
            replayed=done.replayed,
            principal=call.principal.name,
            request_id=call.request_id,
        )
        answer = SweepAdmitted(sweep_id=done.sweep_id, run_ids=done.run_ids, position=done.position)
        return json_answer(answer, 202, _submitted(f"/v1/runs?sweep={done.sweep_id}", replayed=done.replayed))

    async def _look_for_snapshot(self, value: Any, error: FinazError) -> None:
        """Of a body that is wrong in itself and names a snapshot that isn't stored, the latter is said."""
        snapshot = value.get("snapshot") if isinstance(value, dict) else None
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY and isinstance(snapshot, str) and is_address(snapshot):
            with placed("$.snapshot"):
                await asyncio.to_thread(self._parts.blobs.get, snapshot)

    async def list_runs(self, call: Call) -> Answer:
        given = call.arguments
        query = RunQuery(
            states=given["state"],
            tags=given["tag"],
            mode=given["mode"],
            sweep_id=given["sweep"],
            requested_from=given["requested_from"],
            requested_to=given["requested_to"],
            cursor=given["cursor"],
            limit=given["limit"],
            position=given["position"],
            timeout_seconds=given["timeout_seconds"],
        )
        page = await self._parts.listing.list(call.principal.name, query, operates=call.principal.operates)
        return json_answer(RunListDocument(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def get_run(self, call: Call) -> Answer:
        return json_answer(await self._parts.runs.get(*_asked(call)))

    async def cancel_run(self, call: Call) -> Answer:
        view = await self._parts.runs.cancel(*_asked(call))
        self._parts.metrics.appended()
        _log.info(
            "cancellation asked",
            run_id=view.run_id,
            position=view.position,
            token=view.token,
            state=view.state.value,
            principal=call.principal.name,
            request_id=call.request_id,
        )
        return json_answer(view, 202)

    async def history(self, call: Call) -> Answer:
        events = await self._parts.runs.history(*_asked(call))
        return json_answer(EventList(items=tuple(view_event(recorded) for recorded in events)))


def _asked(call: Call) -> tuple[str, str, bool]:
    """The run, who asks, and whether it may see everybody's."""
    return call.path_arguments["run_id"], call.principal.name, call.principal.operates


def _submitted(location: str, *, replayed: bool) -> Headers:
    where = (b"location", location.encode())
    return (where, (REPLAYED, b"true")) if replayed else (where,)
