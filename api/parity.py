"""Parity over HTTP: two runs compared, to the bit, with where they part.

What must stay true: 200 says that they were compared, equal or not; what could not be compared is a problem document.
"""

from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.auth import Scope
from api.operations import AnswerSpec, Call, Operation
from api.parameters import Place, pattern
from api.parts import ApiParts
from api.schemas import RUN_ID_PATTERN, reference
from domain.errors import InputError
from services.parity import Parity, ParityReport

_REFERENCE: Final = pattern(
    "reference", "The run to compare with.", RUN_ID_PATTERN, InputError, place=Place.QUERY, required=True
)
_OTHER: Final = pattern(
    "other", "The run that is compared.", RUN_ID_PATTERN, InputError, place=Place.QUERY, required=True
)


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operation of parity."""
    handlers = _Handlers(Parity(parts.runs, parts.blobs))
    yield Operation(
        name="getParity",
        method="GET",
        path="/v1/parity",
        summary="Compare the results of two runs",
        description="Of any modes: hashes and rows, and the first tick where they part, what is missing, extra, mismatched.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(_REFERENCE, _OTHER),
        answers=(
            AnswerSpec(
                status=200,
                description="They were compared.",
                content={"application/json": reference(ParityReport)},
            ),
        ),
        problems=(404, 409, 422),
        handler=handlers.compare,
    )


class _Handlers:
    def __init__(self, parity: Parity) -> None:
        self._parity = parity

    async def compare(self, call: Call) -> Answer:
        given, who = call.arguments, call.principal
        return json_answer(await self._parity.compare(given["reference"], given["other"], who.name, who.operates))
