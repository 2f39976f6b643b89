"""bytewax with recovery: its Kafka source, batches by key, state and offsets in its SQLite store at each epoch of a second.

Identities are remembered by our code in its state, for it has no dedupe of its own; it writes a key's whole state at each epoch.
"""

import importlib
from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

driver: Any = importlib.import_module("stream_driver")
bytewax: Any = importlib.import_module("bytewax")
connectors: Any = importlib.import_module("bytewax.connectors.kafka")
dataflows: Any = importlib.import_module("bytewax.dataflow")
operators: Any = importlib.import_module("bytewax.operators")
outputs: Any = importlib.import_module("bytewax.outputs")
recovery: Any = importlib.import_module("bytewax.recovery")
running: Any = importlib.import_module("bytewax._bytewax")

BATCH = 1000
"""Its default, and the fastest found."""


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("bytewax", "confluent-kafka", "msgspec")}


class Keyed(operators.StatefulBatchLogic):  # type: ignore[misc]
    """The state of one instrument: its EMA and the identities seen."""

    def __init__(self, work: Any, state: Any) -> None:
        self.work = work
        self.ema, self.seen = (list(state[0]), set(state[1])) if state else ([0, 0.0, 0.0], set())

    def on_batch(self, values: list[Any]) -> tuple[Iterable[Any], bool]:
        """Results of one key's records."""
        results = []
        for record in values:
            if self.work.dedupe:
                if record.event_id in self.seen:
                    self.work.copies += 1
                    continue
                self.seen.add(record.event_id)
            value = driver.next_ema(self.ema, self.work.length, record.close)
            results.append((record.instrument, record.event_id, value))
        return results, False

    def snapshot(self) -> Any:
        """The whole state, copied."""
        return tuple(self.ema), tuple(self.seen)


class Results(outputs.StatelessSinkPartition):  # type: ignore[misc]
    """The file of results."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def write_batch(self, items: list[Any]) -> None:
        """Write them at once."""
        self.work.write([result for _, result in items])


class ResultsSink(outputs.DynamicSink):  # type: ignore[misc]
    """One file, for there is one worker."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        """The one partition."""
        return Results(self.work)


def read(plan: dict[str, Any], work: Any) -> None:
    """Run the dataflow to the end of all partitions, in this thread."""
    store = Path(plan["folder"]) / "recovery"
    store.mkdir()
    recovery.init_db_dir(store, 1)

    def keyed(messages: list[Any]) -> list[Any]:
        work.begin()
        records = [driver.decode(message.value) for message in messages]
        return [(record.instrument, record) for record in records]

    flow = dataflows.Dataflow("bench")
    source = connectors.KafkaSource(
        [plan["bootstrap"]],
        [plan["topic"]],
        tail=False,
        add_config={"fetch.queue.backoff.ms": "10"},
        batch_size=BATCH,
    )
    messages = operators.input("read", flow, source)
    records = operators.flat_map_batch("decode", messages, keyed)
    results = operators.stateful_batch("ema", records, lambda state: Keyed(work, state))
    operators.output("results", results, ResultsSink(work))
    running.run_main(
        flow,
        epoch_interval=timedelta(seconds=driver.COMMIT_SECONDS),
        recovery_config=recovery.RecoveryConfig(store),
    )
    work.end()
