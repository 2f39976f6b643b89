"""Where a result comes from, over HTTP: its determinism contract, and what a replay did to its input.

What must stay true: both are read from the run's events and the documents that they name, so they say what was done.
"""

from collections.abc import Iterator

from api.answers import Answer, json_answer
from api.auth import Scope
from api.declaring import document_answer
from api.operations import Call, Operation
from api.parts import ApiParts
from api.runs import RUN_ID
from services.provenance import DeterminismContract, Provenance, ReplayView


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of provenance."""
    handlers = _Handlers(Provenance(parts.runs, parts.blobs))
    yield Operation(
        name="getContract",
        method="GET",
        path="/v1/runs/{run_id}/contract",
        summary="What decides the run's result: flow, code, ops, inputs, seed",
        description="The same code on the same flow and inputs gives the same bytes; docs/determinism.md has the conditions.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(document_answer("The determinism contract.", DeterminismContract),),
        problems=(404, 409),
        handler=handlers.contract,
    )
    yield Operation(
        name="getReplay",
        method="GET",
        path="/v1/runs/{run_id}/replay",
        summary="What a REPLAY run made of its snapshot",
        description="Counts, and the faults as they were applied. The arrival log and the whole report are artifacts.",
        tag="results",
        scope=Scope.RUNS_READ,
        parameters=(RUN_ID,),
        answers=(document_answer("The replay.", ReplayView),),
        problems=(404, 409),
        handler=handlers.replay,
    )


class _Handlers:
    def __init__(self, provenance: Provenance) -> None:
        self._provenance = provenance

    async def contract(self, call: Call) -> Answer:
        return json_answer(await self._provenance.contract(*_asked(call)))

    async def replay(self, call: Call) -> Answer:
        return json_answer(await self._provenance.replay(*_asked(call)))


def _asked(call: Call) -> tuple[str, str, bool]:
    return call.path_arguments["run_id"], call.principal.name, call.principal.operates
