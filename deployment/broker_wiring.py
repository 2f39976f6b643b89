"""The broker as the settings name it: the only place where one is opened from them.

What must stay true: whatever talks to a configured broker does so under the security that the settings state. Nothing of it is
loaded where no broker is configured.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from deployment.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.parts import Probe
    from services.adapters.kafka import KafkaBroker
    from services.adapters.kafka_security import BrokerSecurity
    from services.broker import Broker

PROBE_SECONDS_MAX: Final = 1.5
"""How long the broker may take to answer a probe, below what the API gives a probe."""


def configured_broker(settings: Settings, bootstrap: str | None = None, **options: Any) -> "KafkaBroker":
    """The broker of the settings (at another address, if one is given); `options` are further ones of `KafkaBroker`.

    Connects to nothing yet. Raises `SettingsError` without an address, `BrokerRefusedError` for a password that cannot be read.
    """
    from services.adapters.kafka import KafkaBroker

    return KafkaBroker(bootstrap or settings.required_kafka_bootstrap(), broker_security(settings), **options)


def broker_security(settings: Settings) -> "BrokerSecurity":
    """How the settings say that the broker is to be spoken to."""
    from services.adapters.kafka_security import BrokerSecurity

    given = {
        "protocol": settings.broker_security_protocol,
        "ca_file": settings.broker_ca_file,
        "sasl_mechanism": settings.broker_sasl_mechanism,
        "sasl_user": settings.broker_sasl_user,
        "sasl_password_file": settings.broker_sasl_password_file,
    }
    return msgspec.convert(given, BrokerSecurity)


def broker_probes(settings: Settings) -> "dict[str, Probe]":
    """Ready only if the broker answers; no probe where no broker is configured."""
    if settings.kafka_bootstrap is None:
        return {}
    topics = configured_broker(settings, request_seconds_max=PROBE_SECONDS_MAX).topics()

    async def probe() -> None:
        await asyncio.to_thread(topics.reach)

    return {"broker": probe}


def broker_opener(settings: Settings) -> "Callable[[], Broker] | None":
    """Opens the broker when it is needed; None where no broker is configured."""
    return None if settings.kafka_bootstrap is None else lambda: configured_broker(settings)
