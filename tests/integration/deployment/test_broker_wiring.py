"""What the API knows of the broker."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from deployment import up
from deployment.broker_wiring import broker_opener, broker_probes, configured_broker
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.process import EmbeddedBrokerError
from deployment.settings import load_settings
from domain.stream.errors import BrokerRefusedError, BrokerUnavailableError
from services.adapters import kafka_publisher, kafka_source, kafka_topics
from tests.architecture.sources import ROOT, modules


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


def test_every_client_is_made_as_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admins, readers and publishers alike are told protocol, authority, mechanism, user and password."""
    (tmp_path / "password").write_text("one\n", encoding="utf-8")
    settings = load_settings(guarded(tmp_path))
    wanted = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ana",
        "sasl.password": "one",
    }
    made: list[dict[str, Any]] = []

    class NoClientError(Exception):
        """Ends the making of a client whose settings are known."""

    def client(given: dict[str, Any], **_: Any) -> None:
        made.append(given)
        raise NoClientError

    monkeypatch.setattr(kafka_topics, "AdminClient", client)
    monkeypatch.setattr(kafka_source, "Consumer", client)
    monkeypatch.setattr(kafka_publisher, "Producer", client)
    monkeypatch.setattr(kafka_topics.KafkaTopics, "partitions_of", lambda *_: 1)
    opener = broker_opener(settings)
    assert opener is not None
    for broker in (configured_broker(settings), configured_broker(settings, "there:9092", group="g"), opener()):
        for ask in (broker.topics().describe, broker.source, lambda _, broker=broker: broker.publisher()):
            with pytest.raises(NoClientError):
                ask("t")
    assert len(made) == 9
    for given in made:
        assert wanted.items() <= given.items()


def test_a_password_that_has_gone_is_an_error_with_its_file(tmp_path: Path) -> None:
    """What was right at the start may be gone when a client is made; then nothing connects under another name."""
    (tmp_path / "password").write_text("one", encoding="utf-8")
    settings = load_settings(guarded(tmp_path))
    (tmp_path / "password").unlink()
    with pytest.raises(BrokerRefusedError) as refused:
        configured_broker(settings).publisher()
    assert refused.value.at == str(tmp_path / "password")


def test_no_other_module_opens_the_configured_broker() -> None:
    """Who opens a broker from the settings does so where their security is heeded; the others have one of their own."""
    opening = {path for path in modules() if "KafkaBroker(" in (ROOT / path).read_text(encoding="utf-8")}
    knowing = {path for path in modules() if "kafka_bootstrap" in (ROOT / path).read_text(encoding="utf-8")}
    assert [str(path) for path in opening & knowing] == ["deployment/broker_wiring.py"]


def guarded(folder: Path) -> dict[str, str]:
    """Settings of a broker that asks for everything, with files of this folder."""
    (folder / "ca.pem").write_text("any", encoding="utf-8")
    return {
        "FINAZ_KAFKA_BOOTSTRAP": "here:9092",
        "FINAZ_BROKER_SECURITY_PROTOCOL": "SASL_SSL",
        "FINAZ_BROKER_CA_FILE": str(folder / "ca.pem"),
        "FINAZ_BROKER_SASL_MECHANISM": "SCRAM-SHA-256",
        "FINAZ_BROKER_SASL_USER": "ana",
        "FINAZ_BROKER_SASL_PASSWORD_FILE": str(folder / "password"),
    }
