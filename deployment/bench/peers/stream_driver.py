"""One reading of a topic by one contender, as a script: `stream_driver.py FILE PLAN`, run by the contender's own Python.

FILE is a `*_stream.py` beside this one, PLAN a JSON object: `bootstrap`, `topic`, `partitions`, `records` (how many the topic
holds), `folder` (empty, the contender's own), `length` (of the EMA), `dedupe` (whether it remembers identities). It imports
nothing but msgspec and FILE. Decoding, the EMA and the file of results are here, so that they cost every contender the same.

A contender's file has `versions()` and `read(plan, work)`: make what is needed, read every record once, call `work.begin()` before
the first one is worked at, and `work.end()` when all results and all state are safe in the contender's own sense. The answer is
one JSON line. What must stay true: a reading that lost, repeated or miscalculated something can be told by that line.
"""

import hashlib
import importlib.util
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

COMMIT_SECONDS: Final = 1.0
"""Seconds between two commits of whoever commits: as our worker does."""


class Record(msgspec.Struct):
    """A record as it stands in the topic; unknown members are passed over."""

    event_id: str
    instrument: str
    event_time: datetime
    revision: int
    close: float | None = None


decode = msgspec.json.Decoder(Record).decode


def next_ema(state: list[Any], length: int, value: float) -> float | None:
    """The EMA with this value; `state` is [values seen up to `length`, their sum, previous EMA], and is changed."""
    if state[0] >= length:
        weight = 2.0 / (length + 1)
        state[2] = weight * value + (1.0 - weight) * state[2]
    else:
        state[0] += 1
        state[1] += value
        if state[0] < length:
            return None
        state[2] = state[1] / length
    return float(state[2])


class Work:
    """What a contender does with the records: clock, file of results, and what it found."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.length: int = plan["length"]
        self.dedupe: bool = plan["dedupe"]
        self.began = self.ended = self.cpu_seconds = 0.0
        self.results = 0
        self.copies = 0
        self.last: dict[str, str] = {}
        self._file = (Path(plan["folder"]) / "results").open("w")

    def begin(self) -> None:
        """The first record is there; later calls change nothing."""
        if not self.began:
            self.began = time.perf_counter()
            self.cpu_seconds = -time.process_time()

    def end(self) -> None:
        """All is done."""
        self.sync()
        self.ended = time.perf_counter()
        self.cpu_seconds += time.process_time()

    def write(self, results: list[tuple[str, str, float | None]]) -> None:
        """Results (instrument, event, EMA or None while there is none yet), to the file of results."""
        self.results += len(results)
        for instrument, _, value in results:
            self.last[instrument] = repr(value)
        self._file.writelines(f"{instrument} {event_id} {value!r}\n" for instrument, event_id, value in results)

    def sync(self) -> None:
        """Make the results so far safe."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def digest(self) -> str:
        """The last result of every instrument, as a hash: equal for all who calculated the same."""
        return hashlib.sha256(json.dumps(sorted(self.last.items())).encode()).hexdigest()


def main(file: str, plan: dict[str, Any]) -> None:
    """Load the contender, let it read, say what came out."""
    spec = importlib.util.spec_from_file_location("contender", file)
    assert spec is not None
    assert spec.loader is not None
    contender = importlib.util.module_from_spec(spec)
    sys.modules["contender"] = contender
    spec.loader.exec_module(contender)
    work = Work(plan)
    contender.read(plan, work)
    answer = {
        "seconds": work.ended - work.began,
        "cpu_seconds": work.cpu_seconds,
        "results": work.results,
        "copies": work.copies,
        "digest": work.digest(),
        "versions": {"python": sys.version.split()[0], **contender.versions()},
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    # contenders import `decode`, `next_ema` and `COMMIT_SECONDS` from this very module
    sys.modules["stream_driver"] = sys.modules["__main__"]
    main(sys.argv[1], json.loads(sys.argv[2]))
