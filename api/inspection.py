"""Looking at the log over HTTP: streams, states, causes, search, export, following it live. It needs the scope `operate`.

What must stay true: looking changes nothing; every page is bounded, and its cursor is a place in the log or among the names of
streams, which stays good for ever. Decode, call one service, encode.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final
from uuid import UUID

import msgspec

from api.answers import Answer, Stream, json_answer
from api.auth import Scope
from api.declaring import LAST_EVENT_ID, UUID_PATTERN, document_answer, read_last_event_id
from api.follow import LogFollowers
from api.operations import AnswerSpec, Call, Handler, Operation
from api.parameters import (
    Parameter,
    Place,
    choice,
    cursor,
    instant,
    limit,
    looked_up_name,
    pattern,
    position,
    position_cursor,
)
from api.parts import ApiParts
from api.problems import document_of
from domain.canonical import canonical
from domain.errors import FinazError, InputError, OverloadedError
from services.inspected import AggregateState, EventChain, InspectedPage, StateDifference, StreamPage
from services.inspection import PAGE_MAX, EventNotFoundError, Inspection, Search
from services.log_export import ExportSource

PAGE_DEFAULT: Final = 100
STREAM_CHARACTERS_MAX: Final = 1024

EXPORTS_MAX: Final = 2
"""Exports at once in one process: each holds a connection and a snapshot of the database until its client has read it."""

EXPORT_LINES: Final = 500
"""Lines of one chunk."""

NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"

_STREAM_NAME: Final = f"^[^\\x00]{{1,{STREAM_CHARACTERS_MAX}}}$"
_STREAM: Final = pattern(
    "stream", "The stream: category/key.", _STREAM_NAME, InputError, place=Place.QUERY, required=True
)
_PREFIX: Final = pattern("prefix", "Streams whose names begin so: `run/`.", _STREAM_NAME, InputError, place=Place.QUERY)
_LIMIT: Final = limit("Items", maximum=PAGE_MAX, default=PAGE_DEFAULT)
_ORDER: Final = choice("order", "Oldest or newest first.", ("asc", "desc"), default="asc")
_EVENT_ID: Final = pattern("event_id", "The event.", UUID_PATTERN, EventNotFoundError, place=Place.PATH)
_FILTERS: Final = (
    looked_up_name("topic", "Events of any of these topics, known to this version or not.", repeated=True),
    pattern("principal", "Of this principal.", _STREAM_NAME, InputError, place=Place.QUERY),
    pattern("correlation_id", "Of this correlation.", _STREAM_NAME, InputError, place=Place.QUERY),
    _PREFIX,
)


def _version(name: str, description: str, *, required: bool = False) -> Parameter:
    return msgspec.structs.replace(position(name, description), required=required)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of inspection."""
    handlers = _Handlers(parts.inspection, parts.followers, parts.exports)
    place = position_cursor()
    yield _looking(
        "listStreams",
        "/v1/streams",
        "Streams by name",
        StreamPage,
        handlers.streams,
        (_PREFIX, cursor(characters_max=4096), _LIMIT),
    )
    yield _looking(
        "readStream",
        "/v1/streams/events",
        "The events of one stream, either way",
        InspectedPage,
        handlers.read,
        (_STREAM, _ORDER, place, _LIMIT),
    )
    yield _looking(
        "getStreamState",
        "/v1/streams/state",
        "The state of an aggregate as of a version or an instant",
        AggregateState,
        handlers.state,
        (_STREAM, _version("version", "As of this version."), instant("at", "As of this instant")),
    )
    yield _looking(
        "getStreamDifference",
        "/v1/streams/difference",
        "What changed between two versions, field by field",
        StateDifference,
        handlers.difference,
        (
            _STREAM,
            _version("from", "From this version; 0 is before everything.", required=True),
            _version("to", "To this one.", required=True),
        ),
    )
    since, until = instant("since", "Recorded then or later"), instant("until", "Recorded earlier")
    yield _looking(
        "searchEvents",
        "/v1/events/search",
        "Find events by topic, time, principal, correlation, stream",
        InspectedPage,
        handlers.search,
        (*_FILTERS, since, until, _ORDER, place, _LIMIT),
    )
    for name, summary, handler in (
        ("getCauses", "The event and everything that led to it", handlers.causes),
        ("getEffects", "The event and everything that came of it", handlers.effects),
    ):
        path = f"/v1/events/{{event_id}}/{name.removeprefix('get').lower()}"
        yield _looking(name, path, summary, EventChain, handler, (_EVENT_ID,))
    yield _follow(handlers.follow)
    yield _export(handlers.export)


def _looking(
    name: str,
    path: str,
    summary: str,
    answer: type[msgspec.Struct],
    handler: Handler,
    parameters: tuple[Parameter, ...],
) -> Operation:
    return Operation(
        name=name,
        method="GET",
        path=path,
        summary=summary,
        tag="inspection",
        scope=Scope.OPERATE,
        parameters=parameters,
        answers=(document_answer(f"{summary}.", answer),),
        problems=(404, 409, 422),
        handler=handler,
    )


def _follow(handler: Handler) -> Operation:
    after = position("after", "Begin behind this position; without it, at the end.")
    message = {"type": "object", "properties": {"id": {"type": "string"}, "data": {"type": "string"}}}
    return Operation(
        name="followLog",
        method="GET",
        path="/v1/events/follow",
        summary="Follow the log live by server-sent events",
        description="One message per event: `id` its position, `event` its topic, `data` as in a page. Never ends by itself.",
        tag="inspection",
        scope=Scope.OPERATE,
        parameters=(*_FILTERS, after, LAST_EVENT_ID),
        answers=(AnswerSpec(status=200, description="Events as they come.", content={EVENT_STREAM: message}),),
        handler=handler,
    )


def _export(handler: Handler) -> Operation:
    stream = msgspec.structs.replace(_STREAM, required=False)
    return Operation(
        name="exportLog",
        method="GET",
        path="/v1/events/export",
        summary="Export a range of the log, or one stream, as JSON Lines",
        description="The first line is the head, with how many events follow; a connection that breaks leaves fewer.",
        tag="inspection",
        scope=Scope.OPERATE,
        parameters=(
            stream,
            position("first", "The first position.", minimum=1, default=1),
            position("last", "The last position; without it, to the end.", minimum=1),
        ),
        answers=(AnswerSpec(status=200, description="Head and events.", content={NDJSON: {"type": "string"}}),),
        problems=(404, 409),
        handler=handler,
    )


class _Handlers:
    def __init__(self, inspection: Inspection, followers: LogFollowers, exports: ExportSource) -> None:
        self._inspection = inspection
        self._followers = followers
        self._exports = exports
        self._exporting = 0

    async def streams(self, call: Call) -> Answer:
        given = call.arguments
        looked = self._inspection.streams
        return json_answer(await asyncio.to_thread(looked, given["prefix"] or "", given["limit"], given["cursor"]))

    async def read(self, call: Call) -> Answer:
        given = call.arguments
        page = await asyncio.to_thread(
            self._inspection.read, given["stream"], given["cursor"], given["limit"], given["order"] == "desc"
        )
        return json_answer(page)

    async def state(self, call: Call) -> Answer:
        given = call.arguments
        return json_answer(
            await asyncio.to_thread(self._inspection.state, given["stream"], given["version"], given["at"])
        )

    async def difference(self, call: Call) -> Answer:
        given = call.arguments
        looked = self._inspection.difference
        return json_answer(await asyncio.to_thread(looked, given["stream"], given["from"], given["to"]))

    async def search(self, call: Call) -> Answer:
        given = call.arguments
        wanted = msgspec.structs.replace(
            _wanted(given), since=given["since"], until=given["until"], backward=given["order"] == "desc"
        )
        return json_answer(await asyncio.to_thread(self._inspection.search, wanted, given["limit"], given["cursor"]))

    async def causes(self, call: Call) -> Answer:
        return json_answer(await asyncio.to_thread(self._inspection.causes, UUID(call.path_arguments["event_id"])))

    async def effects(self, call: Call) -> Answer:
        return json_answer(await asyncio.to_thread(self._inspection.effects, UUID(call.path_arguments["event_id"])))

    async def follow(self, call: Call) -> Stream:
        given = call.arguments
        last = read_last_event_id(call)
        begin = await self._followers.begin(given["after"] if last is None else last)
        return Stream(self._followers.chunks(_wanted(given), begin), self._followers.leave, EVENT_STREAM)

    async def export(self, call: Call) -> Stream:
        if self._exporting >= EXPORTS_MAX:
            raise OverloadedError("too many exports", at="export", expected=f"at most {EXPORTS_MAX} at once")
        given = call.arguments
        self._exporting += 1
        try:
            opened = await asyncio.to_thread(self._exports.open, given["stream"], given["first"], given["last"])
        except BaseException:
            self._exporting -= 1
            raise

        def close() -> None:
            self._exporting -= 1
            opened.close()

        return Stream(_chunks(opened.lines, call.request_id), close, NDJSON)


async def _chunks(lines: Iterator[bytes], request_id: str) -> AsyncGenerator[bytes, None]:
    """The lines, many at once. Where one cannot be given: those before it, and `{"problem": …}` as the last line.

    The head is sent already when a damaged row is met, so the problem goes in-band; taking in such a file is refused at that line.
    """

    def some() -> tuple[bytes, bool]:
        taken: list[bytes] = []
        try:
            taken.extend(itertools.islice(lines, EXPORT_LINES))  # keeps what came before an error
        except FinazError as error:
            problem = canonical({"problem": document_of(error, request_id)})
            return b"".join((*taken, problem, b"\n")), False
        return b"".join(taken), len(taken) == EXPORT_LINES

    more = True
    while more:
        chunk, more = await asyncio.to_thread(some)
        yield chunk


def _wanted(given: Any) -> Search:
    return Search(
        topics=given["topic"],
        principal=given["principal"],
        correlation_id=given["correlation_id"],
        stream_prefix=given["prefix"],
    )
