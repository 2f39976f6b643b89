"""Results over HTTP: what a run published, as JSON, CSV, Arrow or Parquet.

What must stay true: every format holds the same ticks and values; what is served was read from CAS and verified there.
`?format=` says which, else the `Accept` header does; a format that isn't offered is 406, never a substitute.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import AnswerSpec, Call, Operation
from api.parameters import Place, any_text, choice
from api.parts import ApiParts
from api.runs import RUN_ID
from api.schemas import ResultList
from domain.errors import InputError, NotAcceptableError, NotFoundError, RunNotReadyError
from services.results import MEDIA_TYPES
from services.runs import PublishedResult, RunView

RENDERINGS_AT_ONCE_MAX: Final = 4
"""Results rendered at the same time; each holds a whole result in memory. More wait."""

_FORMAT_OF: Final = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_FORMAT: Final = choice("format", "Which format; else the `Accept` header decides; else JSON.", MEDIA_TYPES)
_OUTPUT: Final = any_text("output", "The output's name.", place=Place.PATH)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of results."""
    handlers = _Handlers(parts)
    yield Operation(
        name="listResults",
        method="GET",
        path="/v1/runs/{run_id}/results",
        summary="What the run published",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(document_answer("References to the results.", ResultList),),
        problems=(404, 409),
        handler=handlers.list_results,
    )
    tabular = {name: {"type": "string", "format": "binary"} for name in MEDIA_TYPES.values()}
    yield Operation(
        name="getResult",
        method="GET",
        path="/v1/runs/{run_id}/results/{output}",
        summary="One result, whole",
        description="The ticks in clock order: event_time, event_id and the output's value, null where there is none.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID, _OUTPUT, _FORMAT),
        answers=(
            AnswerSpec(
                status=200,
                description="The result.",
                content=tabular | {MEDIA_TYPES["json"]: {"type": "object"}},
                headers={"ETag": {"schema": {"type": "string"}, "description": "The address of the artifact, quoted."}},
            ),
        ),
        problems=(404, 406, 409, 422),
        handler=handlers.get_result,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._turns = asyncio.Semaphore(RENDERINGS_AT_ONCE_MAX)

    async def list_results(self, call: Call) -> Answer:
        view = await self._published(call)
        return json_answer(ResultList(run_id=view.run_id, items=view.results))

    async def get_result(self, call: Call) -> Answer:
        wanted = call.arguments["format"] or accepted_format(call.text_header(b"accept", InputError))
        view = await self._published(call)
        result = _find(view, call.path_arguments["output"])
        async with self._turns:
            body = await asyncio.to_thread(self._parts.results.render, result, wanted)
        etag = (b"etag", f'"{result.artifact}.{result.output}.{wanted}"'.encode())
        return Answer(200, body, MEDIA_TYPES[wanted], (etag,))

    async def _published(self, call: Call) -> RunView:
        run_id = call.path_arguments["run_id"]
        view = await self._parts.runs.get(run_id, call.principal.name, call.principal.operates)
        if not view.results:
            raise RunNotReadyError(
                f"the run is {view.state.value} and has published nothing",
                at=run_id,
                expected="SUCCEEDED",
                state=view.state,
            )
        return view


def _find(view: RunView, output: str) -> PublishedResult:
    for result in view.results:
        if result.output == output:
            return result
    outputs = ", ".join(result.output for result in view.results)
    raise NotFoundError("the run has no such output", at="path.output", expected=f"one of {outputs}")


def accepted_format(accept: str | None) -> str:
    """The format that an `Accept` header prefers; JSON where it doesn't care. Raises `NotAcceptableError`."""
    if accept is None or not accept.strip():
        return "json"
    best, best_weight = None, 0.0
    for part in accept.split(","):
        media_range, *parameters = (piece.strip() for piece in part.split(";"))
        weight = _weight(parameters)
        name = _match(media_range.lower())
        if name is not None and weight > best_weight:
            best, best_weight = name, weight
    if best is None:
        raise NotAcceptableError(
            "none of the accepted media types is offered", at="Accept", expected=f"one of {', '.join(_FORMAT_OF)}"
        )
    return best


def _match(media_range: str) -> str | None:
    if media_range in ("*/*", "application/*"):
        return "json"
    if media_range == "text/*":
        return "csv"
    return _FORMAT_OF.get(media_range)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
