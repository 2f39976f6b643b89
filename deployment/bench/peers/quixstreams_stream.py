"""quixstreams with its state in RocksDB and its changelog topic, a checkpoint each second, at least once.

Identities are remembered by our code in its state, for it has no dedupe of its own: one entry of state and of changelog each.
"""

import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

driver: Any = importlib.import_module("stream_driver")
quixstreams: Any = importlib.import_module("quixstreams")
sinks: Any = importlib.import_module("quixstreams.sinks")

SEEN = "seen/"


def versions() -> dict[str, str]:
    """What was measured."""
    return {name: version(name) for name in ("quixstreams", "confluent-kafka", "msgspec")}


class Results(sinks.BaseSink):  # type: ignore[misc]
    """The file of results, safe when a checkpoint is committed."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.work = work
        self.results: list[Any] = []

    def add(self, value: Any, *_: Any, **__: Any) -> None:
        """One result, in memory."""
        self.results.append(value)

    def flush(self) -> None:
        """Called within a checkpoint's commit."""
        self.work.write(self.results)
        self.work.sync()
        self.results = []


def read(plan: dict[str, Any], work: Any) -> None:
    """Run the application until every record has given its result."""
    app = quixstreams.Application(
        broker_address=plan["bootstrap"],
        consumer_group=f"bench-{uuid4().hex}",
        auto_offset_reset="earliest",
        commit_interval=driver.COMMIT_SECONDS,
        consumer_extra_config={"fetch.queue.backoff.ms": 10},
        state_dir=Path(plan["folder"]) / "state",
        loglevel=None,
    )
    topic = app.topic(plan["topic"], key_deserializer="str", value_deserializer="bytes")

    def calculated(value: bytes, state: Any) -> Any:
        work.begin()
        record = driver.decode(value)
        if work.dedupe:
            name = SEEN + record.event_id
            if state.exists(name):
                work.copies += 1
                return None
            state.set(name, 1)
        ema = state.get("ema") or [0, 0.0, 0.0]
        result = driver.next_ema(ema, work.length, record.close)
        state.set("ema", ema)
        return record.instrument, record.event_id, result

    app.dataframe(topic).apply(calculated, stateful=True).sink(Results(work))
    app.run(count=plan["records"], collect=False)
    work.end()
