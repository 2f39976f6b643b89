"""Apache Kafka on this machine: one node in KRaft mode, from jars, on the machine's own JDK, bound to loopback.

It is the reference for tests and drills: as durable as a single node is, with groups, transactions, retention and compaction as in
production. What must stay true: a folder is formatted once and keeps its ports and its records; nothing but the folder is written
to (native libraries and temporary files too). A crash of any kind leaves a log that the next start recovers.
"""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deployment.brokers.jars import KAFKA_JARS
from deployment.brokers.process import HOST, BrokerProcess, EmbeddedBrokerError, Ports, Recipe
from services.adapters.kafka_security import PLAINTEXT, BrokerSecurity

HEAP_MEBIBYTES_MAX: Final = 256

_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "2000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
}
"""A small node that creates no topic by itself; what is said of replicas is what one node can do."""

_JVM: Final = (
    "-Xms64m",
    f"-Xmx{HEAP_MEBIBYTES_MAX}m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.apache.logging.log4j.level=WARN",
)


def apache_kafka(
    folder: Path | str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    security: BrokerSecurity = PLAINTEXT,
    users: Path | None = None,
    quiet: bool = True,
) -> BrokerProcess:
    """An Apache Kafka, not started yet; without a folder, temporary. `settings` go into its `server.properties`, and must make its
    listener `BROKER` such that clients get in by `security`.

    Copies its jars first if they aren't in the cache folder, telling progress unless `quiet`. Raises `EmbeddedBrokerError`.
    """
    lacking = KAFKA_JARS.missing()
    if lacking is not None:
        raise EmbeddedBrokerError(f"Apache Kafka cannot run here: {lacking}", expected="a JDK, 17 or later, and Maven")
    jars = KAFKA_JARS.folder(quiet=quiet)
    chosen = {**_SETTINGS, **(settings or {})}
    recipe = Recipe(
        name=f"Apache Kafka {KAFKA_JARS.version()}",
        ports=2,
        prepare=lambda folder, ports: _prepared(jars, folder, ports, chosen),
        command=lambda folder, _: _java(jars, folder, "kafka.Kafka", str(folder / "server.properties")),
        security=security,
    )
    return BrokerProcess(recipe, folder, users=users)


def _prepared(jars: Path, folder: Path, ports: Ports, settings: Mapping[str, str]) -> list[list[str]]:
    """Write the settings; say how to format the folder if it never ran (until then `ports.json` is not there)."""
    (folder / "tmp").mkdir(exist_ok=True)
    place = folder / "server.properties"
    text = "".join(f"{name}={value}\n" for name, value in {**settings, **_places(folder, ports)}.items())
    place.write_text(text, encoding="ascii")
    if (folder / "ports.json").exists():
        return []
    shutil.rmtree(folder / "data", ignore_errors=True)
    identity = f"--cluster-id={secrets.token_urlsafe(16)}"
    return [_java(jars, folder, "kafka.tools.StorageTool", "format", identity, "--config", str(place))]


def _places(folder: Path, ports: Ports) -> dict[str, str]:
    clients, controller = ports
    return {
        "listeners": f"BROKER://{HOST}:{clients},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"BROKER://{HOST}:{clients}",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "log.dirs": str(folder / "data"),
    }


def _java(jars: Path, folder: Path, *arguments: str) -> list[str]:
    java = shutil.which("java")
    assert java is not None
    return [java, *_JVM, f"-Djava.io.tmpdir={folder / 'tmp'}", "-cp", f"{jars}/*", *arguments]
