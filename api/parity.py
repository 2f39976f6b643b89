"""Parity over HTTP: two runs compared, to the bit, with where they part; and the verdict on a stream.

What must stay true: 200 says that they were compared, equal or not; what could not be compared is a problem document.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import Call, Operation
from api.parameters import Place, pattern
from api.parts import ApiParts
from api.runs import RUN_ID
from api.schemas import RUN_ID_PATTERN
from domain.errors import InputError, NotFoundError
from services.parity import Parity, ParityReport
from services.stream_parity import Judgement

JUDGED_AT_ONCE_MAX: Final = 1
"""Verdicts at the same time; each reads a whole topic and holds what was accepted. More wait."""

_REFERENCE: Final = pattern(
    "reference", "The run to compare with.", RUN_ID_PATTERN, InputError, place=Place.QUERY, required=True
)
_OTHER: Final = pattern(
    "other", "The run that is compared.", RUN_ID_PATTERN, InputError, place=Place.QUERY, required=True
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operation of parity."""
    handlers = _Handlers(parts)
    yield Operation(
        name="getParity",
        method="GET",
        path="/v1/parity",
        summary="Compare the results of two runs",
        description="Of any modes: hashes and rows, and the first tick where they part, what is missing, extra, mismatched.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(_REFERENCE, _OTHER),
        answers=(document_answer("They were compared.", ParityReport),),
        problems=(404, 409, 422),
        handler=handlers.compare,
    )

    yield Operation(
        name="getVerdict",
        method="GET",
        path="/v1/runs/{run_id}/verdict",
        summary="Judge a STREAM run that has ended",
        description="The topic is read a second time and what must have been accepted is worked out anew: is the result what a"
        " batch over it gives, and what a batch over the source gives? Where the topic cannot be read, the answer says so.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(document_answer("The verdict, and whether the topic agrees with what the run recorded.", Judgement),),
        problems=(404, 409, 422),
        handler=handlers.judge,
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parity = Parity(parts.runs, parts.blobs)
        self._runs = parts.runs
        self._judges = parts.stream_parity
        self._turns = asyncio.Semaphore(JUDGED_AT_ONCE_MAX)

    async def judge(self, call: Call) -> Answer:
        run_id, who = call.path_arguments["run_id"], call.principal
        await self._runs.folded(run_id, who.name, who.operates)
        if self._judges is None:
            raise NotFoundError("no verdicts are given here", at=run_id, expected="an API with the log's states")
        async with self._turns:
            return json_answer(await asyncio.to_thread(self._judges.judge, run_id))

    async def compare(self, call: Call) -> Answer:
        given, who = call.arguments, call.principal
        return json_answer(await self._parity.compare(given["reference"], given["other"], who.name, who.operates))
