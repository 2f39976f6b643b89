"""What operators look at: the projections and the log itself. Everything here needs the scope `operate`.

What must stay true: looking changes nothing; a page of the log is bounded, and its cursor is a position, which stays good for ever.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.operations import AnswerSpec, Call, Operation
from api.parameters import choice, integer
from api.parts import ApiParts
from api.runs import POSITION_MAX
from api.schemas import LogPage, ProjectionList, reference, view_event
from domain.events import topics

LOG_PAGE_EVENTS_MAX: Final = 1000
LOG_PAGE_EVENTS_DEFAULT: Final = 100

_LOG_PARAMETERS: Final = (
    integer("after", "Events behind this position.", minimum=0, maximum=POSITION_MAX, default=0),
    integer("cursor", "Where the page before ended; goes before `after`.", minimum=0, maximum=POSITION_MAX),
    integer("limit", "Events in one page.", minimum=1, maximum=LOG_PAGE_EVENTS_MAX, default=LOG_PAGE_EVENTS_DEFAULT),
    choice("topic", "Events of any of these topics.", topics(), repeated=True),
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of operators."""
    handlers = _Handlers(parts)
    yield Operation(
        name="listProjections",
        method="GET",
        path="/v1/projections",
        summary="How far each projection is",
        tag="operating",
        scope=Scope.OPERATE,
        answers=(
            AnswerSpec(
                status=200, description="Every projection.", content={"application/json": reference(ProjectionList)}
            ),
        ),
        handler=handlers.projections,
    )
    yield Operation(
        name="listEvents",
        method="GET",
        path="/v1/events",
        summary="The log, in order of position",
        tag="operating",
        scope=Scope.OPERATE,
        parameters=_LOG_PARAMETERS,
        answers=(
            AnswerSpec(status=200, description="A page of events.", content={"application/json": reference(LogPage)}),
        ),
        handler=handlers.events,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def projections(self, call: Call) -> Answer:
        return json_answer(ProjectionList(items=await self._parts.read_models.views()))

    async def events(self, call: Call) -> Answer:
        given = call.arguments
        after: int = given["after"] if given["cursor"] is None else given["cursor"]
        limit: int = given["limit"]
        found = await asyncio.to_thread(self._parts.log.read_log, after, limit, given["topic"])
        more = str(found[-1].position) if len(found) == limit else None
        return json_answer(LogPage(items=tuple(view_event(recorded) for recorded in found), next_cursor=more))
