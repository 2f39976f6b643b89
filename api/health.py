"""Whether the process lives, whether it can serve, and its metrics.

What must stay true: `/health/live` asks nothing of anybody, so a database that is away never gets the process killed;
`/health/ready` names each thing that is missing; each probe has a time limit, so the answer always comes. Nothing here is behind a
token: no answer names a run or a principal.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from api.answers import Answer, json_answer
from api.metrics import METRICS_MEDIA_TYPE
from api.operations import AnswerSpec, Call, Operation
from api.parts import ApiParts, Probe
from api.schemas import Check, Health, reference
from domain.errors import FinazError, InfrastructureError, StoreUnavailableError
from services.alerts import AWAITED_BY_NOBODY
from services.ports import EventLog
from services.read_models import Measures, ReadModels

PROBE_SECONDS_MAX: Final = 2.0
"""How long one probe, or the measuring for a page of metrics, may take."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("finaz.health")


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of health."""
    handlers = _Handlers(parts)
    health = {"application/json": reference(Health)}
    yield Operation(
        name="healthLive",
        method="GET",
        path="/health/live",
        summary="Whether the process lives",
        tag="health",
        answers=(AnswerSpec(status=200, description="It does.", content=health),),
        handler=handlers.live,
    )
    yield Operation(
        name="healthReady",
        method="GET",
        path="/health/ready",
        summary="Whether the process can serve",
        tag="health",
        answers=(
            AnswerSpec(status=200, description="It can.", content=health),
            AnswerSpec(status=503, description="It cannot; the checks say why.", content=health),
        ),
        handler=handlers.ready,
    )
    yield Operation(
        name="metrics",
        method="GET",
        path="/metrics",
        summary="Metrics in Prometheus text format",
        tag="health",
        answers=(AnswerSpec(status=200, description="The page.", content={METRICS_MEDIA_TYPE: {"type": "string"}}),),
        handler=handlers.metrics,
    )


def database_probe(log: EventLog) -> Probe:
    """Ready only if the event store answers."""

    async def probe() -> None:
        await asyncio.to_thread(log.now)

    return probe


def projections_probe(read_models: ReadModels) -> Probe:
    """Ready only if every projection's runner beats; one that lags but beats is ready.

    Process managers do not count, nor does staging: nothing else that the API serves waits for them, so a dead one must not take
    the API away too.
    """

    async def probe() -> None:
        views = await read_models.views()
        dead = [view.name for view in views if view.name not in AWAITED_BY_NOBODY and not view.alive]
        if dead:
            raise InfrastructureError(
                f"dead: {', '.join(dead)}", at="projections", expected="a recent heartbeat of each"
            )

    return probe


def migrations_probe(is_current: Callable[[], bool]) -> Probe:
    """Ready only if the database has every migration of this program. `is_current` may block."""

    async def probe() -> None:
        if not await asyncio.to_thread(is_current):
            raise InfrastructureError("the database lacks migrations", at="migrations", expected="finaz migrate")

    return probe


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def live(self, call: Call) -> Answer:
        return json_answer(Health(status="live"))

    async def ready(self, call: Call) -> Answer:
        names = tuple(self._parts.probes)
        found = await asyncio.gather(*(_ask(name, self._parts.probes[name]) for name in names))
        checks = dict(zip(names, found, strict=True))
        ready = all(check.ok for check in found)
        return json_answer(Health(status="ready" if ready else "unready", checks=checks), 200 if ready else 503)

    async def metrics(self, call: Call) -> Answer:
        return Answer(200, self._parts.metrics.page(await self._measured(call)), METRICS_MEDIA_TYPE)

    async def _measured(self, call: Call) -> Measures | None:
        try:
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                return await self._parts.read_models.measures()
        except (TimeoutError, FinazError) as error:
            _log.warning("not measured", request_id=call.request_id, detail=str(error) or "no answer in time")
            return None


async def _ask(name: str, probe: Probe) -> Check:
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            detail = await probe()
    except TimeoutError:
        return Check(ok=False, detail=f"no answer within {PROBE_SECONDS_MAX:g} seconds")
    except StoreUnavailableError as error:
        return Check(ok=False, detail=error.code)  # its sentence names the server, which is nobody's business out here
    except FinazError as error:
        return Check(ok=False, detail=f"{error.code}: {error.detail}")
    except Exception as error:
        _log.error("probe broke", probe=name, exc_info=error)
        return Check(ok=False, detail="DEFECT")
    return Check(ok=True, detail=detail)
