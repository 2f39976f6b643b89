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

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import BodySpec, Call, Handler, Operation
from api.parameters import Place, choice, cursor, instant, limit, looked_up_name, own_write, pattern
from api.parts import ApiParts
from api.run_schemas import RUN_BODY_EXAMPLE, RUN_BODY_SCHEMA, SWEEP_BODY_EXAMPLE, SWEEP_BODY_SCHEMA
from api.schemas import (
    RUN_ID_PATTERN,
    SWEEP_ID_PATTERN,
    Admitted,
    EventList,
    SweepAdmitted,
    view_event,
)
from api.schemas import RunList as RunListDocument
from api.submissions import SUBMITTED_HEADERS, idempotency_key, submission_key, submitted
from domain.canonical import is_address
from domain.errors import FinazError, InputError, RunNotFoundError
from domain.runs.messages import Mode
from services.requests import parse_run_body, parse_sweep_body, placed
from services.run_listing import LIST_LIMIT_MAX, LIST_TAGS_MAX, RUN_STATES, RunQuery
from services.runs import RunView

LIST_LIMIT_DEFAULT: Final = 50

_std_log: Final = logging.getLogger("finaz.api")
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.api")

RUN_ID: Final = pattern("run_id", "The run's id.", RUN_ID_PATTERN, RunNotFoundError, place=Place.PATH)
_KEY: Final = idempotency_key("ema-nightly-2026-01-05")
_LIST_PARAMETERS: Final = (
    choice("state", "Runs in any of these states.", RUN_STATES, repeated=True),
    looked_up_name("tag", "Runs that have all of these tags.", repeated=True, repeated_max=LIST_TAGS_MAX),
    choice("mode", "Runs of this mode.", [mode.value for mode in Mode]),
    pattern("sweep", "Runs of this sweep.", SWEEP_ID_PATTERN, InputError, place=Place.QUERY),
    instant("requested_from", "Runs requested at or after this instant."),
    instant("requested_to", "Runs requested before this instant."),
    cursor(),
    limit("Runs", maximum=LIST_LIMIT_MAX, default=LIST_LIMIT_DEFAULT),
    *own_write("the list"),
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
        answers=(document_answer("A page of runs.", RunListDocument),),
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
        answers=(document_answer("The run as of now.", RunView),),
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
        answers=(document_answer("It was asked; the run as of now.", RunView, 202),),
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
        answers=(document_answer("Every event, by position.", EventList),),
        problems=(404,),
        handler=handlers.history,
    )


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
    admitted = document_answer("It is admitted, now or before.", answer, 202, headers=SUBMITTED_HEADERS)
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
        key = submission_key(call)
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
        return json_answer(answer, 202, submitted(f"/v1/runs/{done.run_id}", replayed=done.replayed))

    async def submit_sweep(self, call: Call) -> Answer:
        key = submission_key(call)
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
        return json_answer(answer, 202, submitted(f"/v1/runs?sweep={done.sweep_id}", replayed=done.replayed))

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
