"""What operators look at: the projections and the log itself. Everything here needs the scope `operate`.

What must stay true: looking changes nothing; a page of the log is bounded, and its cursor is a position, which stays good for ever;
an event that this version cannot decode is shown as it is stored, since it is what stops a projection.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.declaring import document_answer, operator_operation
from api.operations import Call, Operation
from api.parameters import choice, limit, position
from api.parts import ApiParts
from api.schemas import ProjectionList
from domain.events import topics
from services.inspected import InspectedPage
from services.inspection import Search

LOG_PAGE_EVENTS_MAX: Final = 1000
LOG_PAGE_EVENTS_DEFAULT: Final = 100

_LOG_PARAMETERS: Final = (
    position("after", "Events behind this position.", default=0),
    position("cursor", "Where the page before ended; goes before `after`."),
    limit("Events", maximum=LOG_PAGE_EVENTS_MAX, default=LOG_PAGE_EVENTS_DEFAULT),
    choice("topic", "Events of any of these topics.", topics(), repeated=True),
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of operators."""
    handlers = _Handlers(parts)
    yield operator_operation(
        "listProjections",
        "GET",
        "/v1/projections",
        "How far each projection is",
        handlers.projections,
        document_answer("Every projection.", ProjectionList),
    )
    yield operator_operation(
        "listEvents",
        "GET",
        "/v1/events",
        "The log, in order of position",
        handlers.events,
        document_answer("A page of events, readable by this version or not.", InspectedPage),
        parameters=_LOG_PARAMETERS,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def projections(self, call: Call) -> Answer:
        return json_answer(ProjectionList(items=await self._parts.read_models.views()))

    async def events(self, call: Call) -> Answer:
        given = call.arguments
        after: int = given["after"] if given["cursor"] is None else given["cursor"]
        events_max: int = given["limit"]
        wanted = Search(topics=tuple(given["topic"]))
        return json_answer(await asyncio.to_thread(self._parts.inspection.search, wanted, events_max, after))
