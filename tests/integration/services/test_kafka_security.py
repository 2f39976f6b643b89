"""A broker that is spoken to under TLS by who has a password: Apache Kafka with a certificate of our own and one user."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deployment.brokers.apache import apache_kafka
from deployment.brokers.jars import KAFKA_JARS
from domain.stream.errors import BrokerRefusedError, BrokerUnavailableError
from services.adapters.kafka import KafkaBroker
from services.adapters.kafka_security import PLAINTEXT, BrokerSecurity
from services.broker import Broker

pytestmark = pytest.mark.skipif(KAFKA_JARS.missing() is not None, reason="needs a JDK and Maven")

PASSWORD = "not-to-be-shown-31"
ANSWER_SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Guarded:
    """A broker that lets in only who comes by `security`."""

    bootstrap: str
    security: BrokerSecurity
    folder: Path

    def opened(self, **changes: object) -> Broker:
        """The broker, asked under the right security but for the changes."""
        security = msgspec.structs.replace(self.security, **changes)
        return KafkaBroker(self.bootstrap, security, request_seconds_max=ANSWER_SECONDS_MAX)


def certificate(folder: Path, name: str) -> Path:
    """A key and its certificate for 127.0.0.1, signed by itself, in one PEM file; beside it the certificate alone, `name.crt`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / f"{name}.crt").write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both = folder / f"{name}.pem"
    both.write_bytes(private + pem)
    return both


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
    users = f'username="broker" password="{PASSWORD}" user_broker="{PASSWORD}" user_ana="{PASSWORD}"'
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    settings = {
        "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": plain,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate(folder, "broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "broker.crt"),
    }
    security = BrokerSecurity(
        protocol="SASL_SSL",
        ca_file=folder / "broker.crt",
        sasl_mechanism="PLAIN",
        sasl_user="ana",
        sasl_password_file=folder / "password",
    )
    with apache_kafka(settings=settings, security=security) as process:
        yield Guarded(process.bootstrap, security, folder)


def test_every_client_gets_in(guarded: Guarded) -> None:
    """Topics are made, records are sent and read, all under TLS and a password."""
    broker, topic = guarded.opened(), f"t-{uuid4().hex}"
    broker.topics().create(topic, 1, {})
    publisher = broker.publisher()
    publisher.send(topic, 0, b"key", b"value", {})
    publisher.flush(ANSWER_SECONDS_MAX)
    publisher.close()
    source = broker.source(topic)
    source.assign({0: 0})
    assert [record.value for record in source.poll(10, ANSWER_SECONDS_MAX).records] == [b"value"]
    source.close()
    broker.close()


@pytest.mark.parametrize("wrong", ["password", "user", "authority"])
def test_who_is_not_let_in_is_told_so_and_no_secret_is_shown(
    guarded: Guarded, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password or user, and a certificate that another signed, are refusals, not outages; no text has a password."""
    (guarded.folder / "wrong").write_text("not-to-be-shown-either", encoding="utf-8")
    certificate(guarded.folder, "stranger")
    changes: dict[str, dict[str, object]] = {
        "password": {"sasl_password_file": guarded.folder / "wrong"},
        "user": {"sasl_user": "bob"},
        "authority": {"ca_file": guarded.folder / "stranger.crt"},
    }
    broker = guarded.opened(**changes[wrong])
    with caplog.at_level(logging.DEBUG), pytest.raises(BrokerRefusedError) as refused:
        broker.topics().describe("t")
    broker.close()
    assert refused.value.at == guarded.bootstrap
    assert "not-to-be-shown" not in caplog.text + str(refused.value) + repr(broker.__dict__)


def test_who_speaks_in_plain_text_is_not_answered(guarded: Guarded) -> None:
    """Without TLS there is nobody there, and that is said within the limit."""
    broker = KafkaBroker(guarded.bootstrap, PLAINTEXT, request_seconds_max=1.0)
    with pytest.raises(BrokerUnavailableError):
        broker.topics().describe("t")
    broker.close()


def test_a_password_that_cannot_be_read_is_refused_before_anything_is_asked(guarded: Guarded) -> None:
    """Away, empty, of two lines, or too long: named by its file."""
    file = guarded.folder / "odd"
    for content in (None, b"", b"one\ntwo\n", b"\xff\xfe", b"x" * 5000):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        broker = guarded.opened(sasl_password_file=file)
        for ask in (broker.publisher, lambda broker=broker: broker.topics().describe("t")):
            with pytest.raises(BrokerRefusedError) as refused:
                ask()
            assert refused.value.at == str(file)
