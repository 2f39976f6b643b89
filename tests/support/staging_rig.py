"""What the tests of staging share: publications in a real log, a real ClickHouse engine, and what readers see."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import numpy as np

from domain.identity import run_id_of, run_stream
from domain.market.batch_columns import OutputColumns, output_columns
from domain.market.feature_batch import FeatureBatch, OutputSchema, parse_feature_batch
from domain.market.lanes import LaneValues
from domain.market.text_columns import Texts, texts_of
from domain.runs.messages import Mode, ResultPublished, ResultRef, RunRequested, RunSpec, RunStarted, RunSucceeded
from projections.position import CopyRole, CopyState, Progress
from projections.runner import Point, nowhere, run_once
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import START, FeatureValues, Place, StagedSlice
from projections.staging.delivery import Stager
from projections.staging.postgres import StagedAttempts, StagingRepairs, StagingSession
from projections.staging.projection import MODEL, Delivery
from services.ports import Append, NewEvent
from services.store.application import Log
from tests.support.memory_blobs import MemoryBlobs
from tests.support.read_models import CrashError

ADDRESS = "sha256:" + "0" * 64
Row = tuple[int, str, str, str, str, float | None]
"""event_time in microseconds, event_id, run_id, output, instrument, value."""


def batch_of(rows: int, outputs: Sequence[str] = ("ema",), instrument: str = "fx-0", first: int = -3) -> FeatureBatch:
    """A batch with nulls, repeated instants and instants before 1970."""
    times = np.arange(first, first + rows, dtype=np.int64) // 2 * 1_000_001
    ids = [f"e'{row:07d}é" for row in range(rows)]
    columns = {
        name: np.where(np.arange(rows) % 5 == 1, np.nan, (np.arange(rows) + place) / 3)
        for place, name in enumerate(outputs)
    }
    schema = tuple(OutputSchema(name, instrument) for name in outputs)
    return FeatureBatch(ADDRESS, schema, (LaneValues(instrument, times, ids, columns),))


class Market:
    """A log and a CAS in which runs are published, and the staging of them."""

    def __init__(self, dsn: str, log: Log, values: FeatureValues) -> None:
        self.dsn = dsn
        self.log = log
        self.values = values
        self.blobs = MemoryBlobs()
        self.attempts = StagedAttempts(log.pool)

    def publish(self, number: int, batch: FeatureBatch, principal: str = "ana", *, rows: int | None = None) -> str:
        """A run that succeeds with this batch; all its outputs in one append. `rows` is what the publication claims."""
        run_id = run_id_of(principal, "runs.create", str(number), ADDRESS)
        artifact = self.blobs.put(batch.encode())
        spec = RunSpec(
            mode=Mode.BATCH,
            flow=ADDRESS,
            flow_name="f",
            snapshot=ADDRESS,
            as_of=datetime(2026, 1, 5, tzinfo=UTC),
            tags=(),
            priority=0,
            deadline_seconds=3600,
        )
        events = [
            RunRequested(run_id=run_id, principal=principal, spec=spec, body_hash=ADDRESS),
            RunStarted(run_id=run_id, owner="w", token=1, attempt=1),
            *(
                ResultPublished(
                    run_id=run_id,
                    token=1,
                    result=ResultRef(
                        output=described.name,
                        artifact=artifact,
                        values_hash=ADDRESS,
                        rows=batch.rows(described.name) if rows is None else rows,
                        schema=ADDRESS,
                        flow=batch.flow,
                        inputs=(),
                    ),
                )
                for described in batch.schema
            ),
            RunSucceeded(run_id=run_id, token=1),
        ]
        stream = run_stream(run_id)
        new = tuple(NewEvent(stream, version, event, uuid4()) for version, event in enumerate(events, 1))
        self.log.append_blocking(Append(events=new))
        return run_id

    def stager(self, point: Point = nowhere) -> Stager:
        """A stager on this market's CAS."""
        return Stager(self.values, self.blobs.get, point)

    def slices(self, delivery: Delivery) -> list[StagedSlice]:
        """The rows of a delivery under an attempt that nobody knows."""
        columns = output_columns(self.blobs.get(delivery.artifact), delivery.output)
        return [StagedSlice(uuid4(), 1, delivery.run_id, delivery.output, "fx-0", one) for one in columns]

    @contextmanager
    def session(self, role: CopyRole = CopyRole.ACTIVE, point: Point = nowhere) -> Iterator[StagingSession]:
        """A session, as the projector of a process has one."""
        session = StagingSession(self.dsn, self.stager(point), f"test_{uuid4().hex}", role)
        try:
            yield session
        finally:
            session.close()

    def catch_up(self, limit: int = 1000, point: Point = nowhere, role: CopyRole = CopyRole.ACTIVE) -> Progress:
        """Stage until nothing is left, in batches; a `CrashError` from `point` is a process that died there."""
        while True:
            try:
                with self.session(role, point) as session:
                    session.claim()
                    progress = run_once(session, MODEL, limit, point)
                    while not progress.caught_up and progress.state is CopyState.RUNNING:
                        progress = run_once(session, MODEL, limit, point)
                    return progress
            except CrashError:
                continue

    def seen(self, run_id: str | None = None) -> list[Row]:
        """All rows that readers see (of one run), in clock order."""
        found = self.attempts.visible(1000, run_id=run_id)
        return rows_of(self.values, [one.attempt for one in found], found[0].generation) if found else []

    def published(self) -> list[Row]:
        """All rows of the artifacts of everything that was published, in clock order, read the plain way."""
        rows: list[Row] = []
        for recorded in self.log.read_log(0, 10**6, (ResultPublished.topic,)):
            event = recorded.event
            assert isinstance(event, ResultPublished)
            batch = parse_feature_batch(self.blobs.get(event.result.artifact))
            lane = batch.lane_of(event.result.output)
            of = (event.run_id, event.result.output, lane.instrument)
            rows += [
                (time, event_id, *of, value)
                for time, event_id, value in zip(
                    lane.event_times.tolist(), lane.event_ids, batch.values(event.result.output), strict=True
                )
            ]
        return sorted(rows, key=lambda row: (row[0], row[1].encode(), row[2], row[3]))

    def restage_all(self) -> None:
        """Put a fresh attempt in the place of every one that readers see, as repairs do."""
        repairs = StagingRepairs(self.dsn, self.stager())
        for attempt in self.attempts.visible(1000):
            assert repairs.restage(attempt.delivery, attempt.generation, attempt)

    def damage(self, attempt: Attempt, kind: str, row: int = 0) -> None:
        """Change rows of an attempt as somebody with access to ClickHouse could: its attempt and everything else stay."""
        page = self.values.page([attempt.attempt], attempt.generation, limit=100_000)
        times, ids, values = page.event_times.copy(), page.event_ids.strings(), page.values.copy()
        match kind:
            case "value":
                values[row] = -1.0
            case "infinite":
                values[row] = -np.inf
            case "time":
                times[row] += 1
            case "id":
                ids[row] += "x"
            case "null":
                values[row] = np.nan if values[row] == values[row] else 0.0
            case "removed":
                times, values = np.delete(times, row), np.delete(values, row)
                del ids[row]
            case "inserted":
                times, values, ids = np.append(times, 10**15), np.append(values, 1.0), [*ids, "more"]
            case "twice":
                times, values, ids = np.append(times, times[row]), np.append(values, values[row]), [*ids, ids[row]]
        self.values.delete([attempt.attempt])
        texts = texts_of(ids)
        if kind == "bytes":  # an id that is no UTF-8 and has a zero byte, as ClickHouse takes it
            texts = Texts(texts.data.copy(), texts.starts, texts.sizes)
            texts.data[texts.starts[row] : texts.starts[row] + 2] = 0xFF, 0
        columns = OutputColumns(times, texts, values)
        instrument = "other" if kind == "instrument" else attempt.instrument
        run_id = "run_other" if kind == "run" else attempt.run_id
        made = StagedSlice(attempt.attempt, attempt.generation, run_id, attempt.output, instrument, columns)
        self.values.insert([made])

    def stray_attempts(self) -> set[UUID]:
        """Attempts with rows in ClickHouse that readers don't see."""
        held = {attempt for page in self.values.attempts() for attempt in page}
        return held - {one.attempt for one in self.attempts.visible(10_000)}


def rows_of(values: FeatureValues, attempts: Sequence[UUID], generation: int, limit: int = 1000) -> list[Row]:
    """Every row of these attempts, read page by page."""
    rows: list[Row] = []
    place: Place = START
    while page := values.page(attempts, generation, place, limit):
        column = page.table.column("value").to_pylist()
        assert not any(value != value for value in column)  # NaN is never stored
        of = (page.run_ids, page.outputs, page.instruments)
        rows += list(zip(page.event_times.tolist(), page.event_ids.strings(), *of, column, strict=True))
        place = page.last
    return rows
