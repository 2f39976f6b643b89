"""What memory a stream worker holds over 5 million records: it has to be flat once the dedupe's horizon is full.

The records are those of `stream.py`, 10 ms of event time apart, so the horizon of an hour holds 360 000 identities and is full from
there on. What is measured is this process, with the Kafka client's queues, at each commit. Scale 1 publishes and reads about
1 GB, which takes minutes: one run, whatever the repeats.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from deployment.bench.figures import aim, answer, figure
from deployment.bench.stream import Read, published, worker_read
from deployment.brokers.apache import apache_kafka
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.jars import KAFKA_JARS
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from domain.market.pipeline import warm_up
from projections.inline import INLINE
from services.adapters.kafka import KafkaBroker
from services.cas import DirectoryBlobStore
from services.store.application import Log

RECORDS: Final = 5_000_000
RECORDS_MIN: Final = 1000

SHARES: Final = (0.1, 0.5, 1.0)
"""Shares of all records at which memory is shown."""

FLAT_AIM: Final = 1.05
"""What the end may hold, to the half: what an allocator keeps is no growth."""


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Publish, read once, and look at what was held; see `registry.py`."""
    records = max(RECORDS_MIN, int(RECORDS * scale))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finaz-")))
        database = stack.enter_context(EmbeddedPostgres())
        migrate(database.dsn())
        process = stack.enter_context(embedded_broker() if KAFKA_JARS.missing() else apache_kafka())
        broker = KafkaBroker(process.bootstrap)
        stack.callback(broker.close)
        log = stack.enter_context(Log(database.dsn(), INLINE))
        report(f"stream-memory: publishing {records} records to {process.name}")
        size = published(broker, records)
        warm_up()
        report("stream-memory: the worker reads")
        read = worker_read(log, DirectoryBlobStore(folder / "cas"), broker, records)
    return answer(
        f"What does a worker hold that reads {records} records of {size} bytes?",
        [
            *(figure(f"at {share:.0%}", [read.mebibytes_at(share)], "MiB") for share in SHARES),
            figure("records per second", [records / read.seconds], "records/s"),
        ],
        [aim("memory at the end to memory at half of the records", flatness(read), at_most=FLAT_AIM)],
        ["The whole process is measured, with the Kafka client's queues. One run, whatever the repeats."],
        records=records,
        versions={"broker": process.name},
    )


def flatness(read: Read) -> float:
    """Memory at the end to memory at half of the records."""
    return read.mebibytes_at(1.0) / read.mebibytes_at(0.5)
