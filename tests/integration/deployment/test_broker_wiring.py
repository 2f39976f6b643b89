"""What the API knows of the broker."""

import pytest

from deployment.broker_wiring import broker_probes
from deployment.brokers.embedded import embedded_broker
from deployment.settings import load_settings
from domain.stream.errors import BrokerUnavailableError


async def test_the_broker_is_probed_only_where_one_is_configured() -> None:
    """An installation without streams is ready without a broker; one with a broker is not ready while it is away."""
    assert broker_probes(load_settings({})) == {}
    with embedded_broker() as broker:
        probes = broker_probes(load_settings({"FINAZ_KAFKA_BOOTSTRAP": broker.bootstrap}))
        assert list(probes) == ["broker"]
        await probes["broker"]()
        broker.stop()
        with pytest.raises(BrokerUnavailableError):
            await probes["broker"]()
        broker.start()
        await probes["broker"]()
