"""What the API knows of the broker."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from deployment import up
from deployment.broker_wiring import broker_probes
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.process import EmbeddedBrokerError
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


async def test_a_machine_without_an_embedded_broker_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it isn't installed there are no streams, which is told, and everything else; where it is, it goes with the rest."""
    told: list[tuple[str, dict[str, Any]]] = []

    def absent(_: Path) -> None:
        raise EmbeddedBrokerError("not installed")

    async with contextlib.AsyncExitStack() as stack:
        bootstrap = await up._broker(tmp_path / "broker", stack, lambda what, **more: told.append((what, more)))
        assert bootstrap is not None
        assert [what for what, _ in told] == ["broker_starting", "broker_ready"]
        assert told[-1][1]["bootstrap"] == bootstrap
        monkeypatch.setattr(up, "embedded_broker", absent)
        assert await up._broker(tmp_path / "other", stack, lambda what, **more: told.append((what, more))) is None
        assert told[-1][0] == "broker_absent"
    probe = broker_probes(load_settings({"FINAZ_KAFKA_BOOTSTRAP": bootstrap}))["broker"]
    with pytest.raises(BrokerUnavailableError):
        await asyncio.wait_for(probe(), 30)
