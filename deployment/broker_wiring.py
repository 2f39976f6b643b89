"""The broker as the settings name it, wired for the API: nothing of it is loaded where no broker is configured."""

import asyncio
from typing import TYPE_CHECKING, Final

from deployment.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.parts import Probe
    from services.broker import Broker

PROBE_SECONDS_MAX: Final = 1.5
"""How long the broker may take to answer a probe, below what the API gives a probe."""


def broker_probes(settings: Settings) -> "dict[str, Probe]":
    """Ready only if the broker answers; no probe where no broker is configured."""
    if settings.kafka_bootstrap is None:
        return {}
    from services.adapters.kafka import KafkaBroker

    topics = KafkaBroker(settings.kafka_bootstrap, request_seconds_max=PROBE_SECONDS_MAX).topics()

    async def probe() -> None:
        await asyncio.to_thread(topics.reach)

    return {"broker": probe}


def broker_opener(settings: Settings) -> "Callable[[], Broker] | None":
    """Opens the broker when it is needed; None where no broker is configured."""
    bootstrap = settings.kafka_bootstrap
    if bootstrap is None:
        return None

    def opened() -> "Broker":
        from services.adapters.kafka import KafkaBroker

        return KafkaBroker(bootstrap)

    return opened
