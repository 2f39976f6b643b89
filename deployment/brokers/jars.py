"""The jars of Apache Kafka, by `deployment/pom.xml`."""

from pathlib import Path
from typing import Final

from deployment.brokers.process import EmbeddedBrokerError
from deployment.jars import JarSet

KAFKA_JARS: Final = JarSet(
    name="apache-kafka",
    title="Apache Kafka",
    pom=Path(__file__).parents[1] / "pom.xml",
    version_property="kafka.version",
    main="kafka_*.jar",
    error=EmbeddedBrokerError,
)
