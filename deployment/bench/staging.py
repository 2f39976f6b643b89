"""Staged rows per second, from artifacts in CAS through ClickHouse to the recorded position, against a bare columnar insert.

Ours: a projector's session stages what was published, as the API's process does. The bare insert: the same rows, as Arrow tables
that are ready in memory, into a table of the same definition in the same engine, in inserts of the same size, by the same client,
with nothing read, checked or recorded. In turns, in a process of its own, since a process opens one embedded ClickHouse only.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np

from deployment.bench.figures import aim, answer, figure, ratio
from domain.errors import InfrastructureError
from domain.identity import run_id_of, run_stream
from domain.market.batch_columns import OutputColumns
from domain.market.feature_batch import FeatureBatch, OutputSchema
from domain.market.lanes import LaneValues
from domain.market.text_columns import texts_of
from domain.runs.messages import Mode, ResultPublished, ResultRef, RunRequested, RunSpec

ROWS: Final = 1_000_000
SHAPES: Final = (("one run", 1), ("100 runs", 100), ("1000 runs", 1000))
"""Over how many runs the rows are spread, each with an artifact of its own."""

RUN_ROWS_MIN: Final = 50
"""Rows of a run, at least: with a small scale there are fewer runs."""

TRIAL_SECONDS_MAX: Final = 1800.0
RATIO_MIN: Final = 0.5

BARE: Final = 2
"""The generation, and so the partition, of the rows of bare inserts: nobody's, and dropped before staging would sweep them."""

_ADDRESS: Final = "sha256:" + "0" * 64


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure in a process of its own; a ratio is our rows per second to the bare insert's."""
    rows = max(1000, int(ROWS * scale))
    report(f"staging: {rows} rows, as {', '.join(label for label, _ in SHAPES)}")
    command = [sys.executable, "-m", "deployment.bench.staging", str(repeats), str(rows)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS_MAX, check=False)
    if ran.returncode:
        raise InfrastructureError(f"the trial failed: {ran.stderr[-1000:]}", at="deployment.bench.staging")
    measured: dict[str, tuple[list[float], list[float]]] = json.loads(ran.stdout)
    figures, aims = [], []
    for label, (ours, bare) in measured.items():
        share = ratio(ours, bare)
        figures.append(figure(f"staged, {label}", ours, "rows/s", against="a bare insert", theirs=bare, ratio=share))
        aims.append(aim(f"staged rows/s of {label} to a bare insert", share, at_least=RATIO_MIN))
    return answer(
        f"How fast are {rows} published rows staged in ClickHouse?",
        figures,
        aims,
        ["Both flush each insert to disk, and insert the same rows in inserts of the same size."],
        rows=rows,
        versions={name: version(name) for name in ("clickhouse-connect", "chdb-core", "pyarrow")},
    )


def trial(repeats: int, rows: int, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Rows per second of staging and of the bare insert, by shape, one for each repeat."""
    from deployment.embedded import EmbeddedPostgres
    from deployment.migrate import migrate
    from projections.inline import INLINE
    from services.cas import DirectoryBlobStore
    from services.store.application import Log

    with EmbeddedPostgres(folder / "postgres") as server:
        migrate(server.dsn())
        log = Log(server.dsn(), INLINE)
        try:
            stage = _Stage(log, DirectoryBlobStore(folder / "cas"), server.dsn(), f"chdb://{folder / 'clickhouse'}")
            stage.warm_up()
            shapes = [(label, min(runs, max(1, rows // RUN_ROWS_MIN))) for label, runs in SHAPES]
            return {label: stage.measured(runs, rows // runs, repeats) for label, runs in shapes}
        finally:
            log.close()


class _Stage:
    """Everything that staging needs, and the bare insert beside it."""

    def __init__(self, log: Any, blobs: Any, dsn: str, clickhouse: str) -> None:
        from projections.staging.clickhouse import FeatureValues
        from projections.staging.delivery import Stager

        self._log = log
        self._blobs = blobs
        self._dsn = dsn
        self._values = FeatureValues(clickhouse)
        self._stager = Stager(self._values, blobs.get)
        self._published = 0

    def warm_up(self) -> None:
        """Compile, open, and fill what is filled once."""
        self.measured(1, 1000, 1)

    def measured(self, runs: int, rows: int, repeats: int) -> tuple[list[float], list[float]]:
        """Rows per second of ours and of the bare insert, back to back."""
        batch, ours, bare = _batch(rows), [], []
        artifacts = [self._blobs.put(_named(batch, number).encode()) for number in range(runs)]
        for _ in range(repeats):
            self._publish(rows, artifacts)
            ours.append(runs * rows / _seconds(self._staged))
            inserts = list(self._tables(batch, runs))
            bare.append(runs * rows / _seconds(lambda: self._insert(inserts)))  # noqa: B023 - called at once
            self._values.drop_generation(BARE)
        return ours, bare

    def _publish(self, rows: int, artifacts: list[str]) -> None:
        from services.ports import Append, NewEvent

        for artifact in artifacts:
            self._published += 1
            run_id = run_id_of("bench", "runs.create", str(self._published), _ADDRESS)
            result = ResultRef(
                output="ema",
                artifact=artifact,
                values_hash=_ADDRESS,
                rows=rows,
                schema=_ADDRESS,
                flow=_ADDRESS,
                inputs=(),
            )
            events = (
                RunRequested(run_id=run_id, principal="bench", spec=_SPEC, body_hash=_ADDRESS),
                ResultPublished(run_id=run_id, token=1, result=result),
            )
            stream = run_stream(run_id)
            new = tuple(NewEvent(stream, place, event, uuid4()) for place, event in enumerate(events, 1))
            self._log.append_blocking(Append(events=new))

    def _staged(self) -> None:
        """Stage all that is published, as a runner's loop does."""
        from projections.runner import run_once
        from projections.staging.postgres import StagingSession
        from projections.staging.projection import MODEL

        session = StagingSession(self._dsn, self._stager, "bench")
        try:
            session.claim()
            while not run_once(session, MODEL).caught_up:
                pass
        finally:
            session.close()

    def _tables(self, batch: FeatureBatch, runs: int) -> Iterator[Any]:
        """The same rows as Arrow tables, one for each insert that staging makes."""
        from projections.staging.clickhouse import StagedSlice, arrow_of
        from projections.staging.delivery import INSERT_ROWS_MAX, grouped

        def slices() -> Iterator[StagedSlice]:
            lane = batch.lanes[0]
            ids = texts_of(lane.event_ids)
            for number in range(runs):
                attempt = uuid4()
                for start in range(0, len(lane), INSERT_ROWS_MAX):
                    part = slice(start, start + INSERT_ROWS_MAX)
                    columns = OutputColumns(lane.event_times[part], ids.rows(part), lane.outputs["ema"][part])
                    yield StagedSlice(attempt, BARE, f"run_{number:064x}", "ema", "fx", columns)

        for group in grouped(slices()):
            yield arrow_of(group)

    def _insert(self, tables: list[Any]) -> None:
        for table in tables:
            self._values.insert_table(table)


_SPEC: Final = RunSpec(
    mode=Mode.BATCH,
    flow=_ADDRESS,
    flow_name="bench",
    snapshot=_ADDRESS,
    as_of=datetime(2026, 1, 5, tzinfo=UTC),
    tags=(),
    priority=0,
    deadline_seconds=3600,
)


def _batch(rows: int) -> FeatureBatch:
    """Values as computations give them: of all lengths, a few missing."""
    values = 100.0 + np.cumsum(np.random.default_rng(7).normal(size=rows)) * 0.01
    values[:: max(2, rows // 20)] = np.nan
    times = np.arange(rows, dtype=np.int64) * 60_000_000 + 1_700_000_000_000_000
    ids = [f"bench.event.{row:09d}" for row in range(rows)]
    return FeatureBatch(_ADDRESS, (OutputSchema("ema", "fx"),), (LaneValues("fx", times, ids, {"ema": values}),))


def _named(batch: FeatureBatch, number: int) -> FeatureBatch:
    """The batch of another flow: other bytes, equal rows."""
    return FeatureBatch(f"sha256:{number:064x}", batch.schema, batch.lanes)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="finaz-bench-staging-") as temporary:
        print(json.dumps(trial(int(sys.argv[1]), int(sys.argv[2]), Path(temporary))))
