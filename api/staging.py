"""Staged values over HTTP: what was published, by run, instrument and time; and how staging is doing.

What must stay true: a principal sees its own runs only unless it operates; a page and a download hold the same rows in the same
order; a download leaves as it is read, page by page, and an error that comes after its first byte ends it without its end.
"""

from collections.abc import Iterator
from typing import Any, Final

from api.answers import Answer, Stream, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import AnswerSpec, Call, Operation
from api.parameters import Place, choice, cursor, instant, limit, looked_up_name, own_write, pattern
from api.parts import ApiParts
from api.schemas import RUN_ID_PATTERN, reference
from domain.errors import InputError, OverloadedError, RunNotFoundError
from services.staging import MEDIA_TYPES, PAGE_ROWS_MAX, Staging, StagingStatus, ValuesPage, ValuesQuery, staging_is_off

PAGE_ROWS_DEFAULT: Final = 200

DOWNLOADS_AT_ONCE_MAX: Final = 4
"""Downloads that are being sent at the same time; each has a page in memory. More are refused."""

_PARAMETERS: Final = (
    pattern("run_id", "Of this run.", RUN_ID_PATTERN, RunNotFoundError, place=Place.QUERY),
    looked_up_name("output", "Of this output."),
    looked_up_name("instrument", "Of this instrument. A query names a run, an instrument, or both."),
    instant("from", "Ticks at or after this instant."),
    instant("to", "Ticks before this instant."),
    cursor(characters_max=4000),
    limit("Rows", maximum=PAGE_ROWS_MAX, default=PAGE_ROWS_DEFAULT),
    *own_write("staging"),
    choice("format", "A page of JSON, or all rows as a download.", ("json", *MEDIA_TYPES), default="json"),
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of staging."""
    handlers = _Handlers(parts.staging)
    files = {media_type: {"type": "string", "format": "binary"} for media_type in MEDIA_TYPES.values()}
    yield Operation(
        name="listStagedValues",
        method="GET",
        path="/v1/staging/values",
        summary="Published features, by run, instrument and time",
        description="Rows in clock order: (event_time, event_id), then run and output. `value` is null where there is none.",
        tag="staging",
        scope=Scope.RUNS_READ,
        parameters=_PARAMETERS,
        answers=(
            AnswerSpec(
                status=200,
                description="A page of rows, or all of them as a download.",
                content={"application/json": reference(ValuesPage), **files},
            ),
        ),
        problems=(400, 404, 409, 422, 503),
        handler=handlers.values,
    )
    yield Operation(
        name="showStaging",
        method="GET",
        path="/v1/staging/status",
        summary="How staging is doing, and which process does it",
        tag="staging",
        scope=Scope.OPERATE,
        answers=(document_answer("How it is doing.", StagingStatus),),
        problems=(409,),
        handler=handlers.status,
    )


class _Handlers:
    def __init__(self, staging: Staging | None) -> None:
        self._staging = staging
        self._downloads = 0

    async def values(self, call: Call) -> Answer | Stream:
        staging, given, principal = self._on(), call.arguments, call.principal
        query = _query(given)
        if given["format"] == "json":
            page = await staging.page(principal.name, query, given["cursor"], given["limit"], principal.operates)
            return json_answer(page)
        if given["cursor"] is not None:
            raise InputError("a download has no pages", at="query.cursor", expected="none, or format=json")
        if self._downloads >= DOWNLOADS_AT_ONCE_MAX:
            raise OverloadedError("too many downloads", at="request", expected=f"at most {DOWNLOADS_AT_ONCE_MAX}")
        self._downloads += 1
        try:
            chunks = await staging.download(principal.name, query, given["format"], principal.operates)
        except BaseException:
            self._downloads -= 1
            raise
        return Stream(chunks, self._downloaded, MEDIA_TYPES[given["format"]])

    async def status(self, call: Call) -> Answer:
        return json_answer(await self._on().status())

    def _downloaded(self) -> None:
        self._downloads -= 1

    def _on(self) -> Staging:
        if self._staging is None:
            raise staging_is_off()
        return self._staging


def _query(given: Any) -> ValuesQuery:
    return ValuesQuery(
        run_id=given["run_id"],
        output=given["output"],
        instrument=given["instrument"],
        time_from=given["from"],
        time_to=given["to"],
        position=given["position"],
        timeout_seconds=given["timeout_seconds"],
    )
