"""A loop in plain Python: `consume(500)`, decode, a set of identities, EMA. It keeps no state: a crash begins at the start."""

import importlib
from importlib.metadata import version
from typing import Any

driver: Any = importlib.import_module("stream_driver")
kafka: Any = importlib.import_module("confluent_kafka")

CONSUME = 500


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("confluent-kafka", "msgspec")}


def read(plan: dict[str, Any], work: Any) -> None:
    """Read all partitions from their first offset on."""
    settings = {
        "bootstrap.servers": plan["bootstrap"],
        "group.id": "bench-plain",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 10,
    }
    consumer = kafka.Consumer(settings)
    consumer.assign([kafka.TopicPartition(plan["topic"], number, 0) for number in range(plan["partitions"])])
    states: dict[str, list[Any]] = {}
    seen: set[str] = set()
    records = 0
    while records < plan["records"]:
        results = []
        for message in consumer.consume(CONSUME, 1.0):
            work.begin()
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            records += 1
            record = driver.decode(message.value())
            if record.event_id in seen:
                work.copies += 1
                continue
            seen.add(record.event_id)
            state = states.setdefault(record.instrument, [0, 0.0, 0.0])
            results.append((record.instrument, record.event_id, driver.next_ema(state, work.length, record.close)))
        work.write(results)
    work.end()
    consumer.close()
