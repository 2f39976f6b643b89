"""`python -m deployment.brokers`: says which broker the tests of this machine run against, and fetches it if it isn't here yet.

Exit status 1, with the reason, where Apache Kafka should run and cannot be fetched. A crash leaves nothing that counts.
"""

import sys
from importlib import metadata

from deployment.brokers.embedded import DISTRIBUTION
from deployment.brokers.jars import KAFKA_JARS
from deployment.brokers.process import EmbeddedBrokerError


def main() -> int:
    """Print one line; returns the exit status."""
    lacking = KAFKA_JARS.missing()
    if lacking is not None:
        print(f"broker: embedded, {DISTRIBUTION} {metadata.version(DISTRIBUTION)} ({lacking} for Apache Kafka)")
        return 0
    try:
        KAFKA_JARS.folder()
    except EmbeddedBrokerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"broker: Apache Kafka {KAFKA_JARS.version()}, one node, on this machine's JDK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
