"""Results in every format: the same ticks and values, verified before they are served."""

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import address_of, canonical, parse
from domain.errors import BlobCorruptError, BlobMissingError, InputError, NotFoundError
from domain.instants import format_instant, from_micros
from domain.market.feature_batch import FeatureBatch, OutputSchema
from domain.market.lanes import LaneValues
from services.cas import DirectoryBlobStore
from services.results import MEDIA_TYPES, Results
from services.runs import PublishedResult

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn")), min_size=1, max_size=12)
VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
TICKS = st.lists(st.tuples(st.integers(-(10**15), 4 * 10**15), NAMES, VALUES), max_size=30)
FLOW = address_of("a flow")


def published(blobs: DirectoryBlobStore, ticks: list[tuple[int, str, float | None]]) -> PublishedResult:
    """Store a batch of these ticks; the reference to it."""
    lane = LaneValues(
        "A",
        np.array([time for time, _, _ in ticks], dtype=np.int64),
        [event_id for _, event_id, _ in ticks],
        {"ema": np.array([np.nan if value is None else value for _, _, value in ticks], dtype=np.float64)},
    )
    batch = FeatureBatch(FLOW, (OutputSchema("ema", "A"),), (lane,))
    return PublishedResult(
        run_id="run_1",
        output="ema",
        artifact=blobs.put(batch.encode()),
        values_hash=batch.values_hash("ema"),
        rows=len(ticks),
        schema="FEATURE_BATCH_V1",
        flow=FLOW,
        inputs=("sha256:input",),
        fence_token=1,
        published_at=datetime(2026, 1, 5, tzinfo=UTC),
    )


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path_factory.mktemp("cas"))


@given(ticks=TICKS)
def test_every_format_holds_the_same_ticks(
    blobs: DirectoryBlobStore, ticks: list[tuple[int, str, float | None]]
) -> None:
    """JSON (canonical), CSV, Arrow and Parquet, read back by other readers, give the ticks that went in, to the bit."""
    results = Results(blobs)
    result = published(blobs, ticks)
    instants = [from_micros(time) for time, _, _ in ticks]
    ids = [event_id for _, event_id, _ in ticks]
    values = [value for _, _, value in ticks]

    data = results.render(result, "json")
    document = parse(data)
    assert canonical(document) == data
    assert [tick["event_time"] for tick in document["ticks"]] == list(map(format_instant, instants))
    assert [tick["event_id"] for tick in document["ticks"]] == ids
    assert address_of([tick["value"] for tick in document["ticks"]]) == result.values_hash == document["values_hash"]

    rows = list(csv.DictReader(io.StringIO(results.render(result, "csv").decode(), newline="")))
    assert [row["event_id"] for row in rows] == ids
    assert [float(row["value"]) if row["value"] else None for row in rows] == values

    arrow = pa.ipc.open_file(results.render(result, "arrow")).read_all()
    table = pa.parquet.read_table(io.BytesIO(results.render(result, "parquet")))
    for found in (arrow, table):
        assert found.column("event_time").to_pylist() == instants
        assert found.column("event_id").to_pylist() == ids
        assert found.column("value").to_pylist() == values


def test_an_unknown_format_and_output(blobs: DirectoryBlobStore) -> None:
    """A format that isn't offered, an output that the artifact doesn't have."""
    result = published(blobs, [(0, "e", 1.0)])
    with pytest.raises(InputError) as caught:
        Results(blobs).render(result, "xml")
    assert all(name in str(caught.value) for name in MEDIA_TYPES)
    with pytest.raises(NotFoundError):
        Results(blobs).render(msgspec.structs.replace(result, output="other"), "json")


def test_what_is_not_what_was_published_is_refused(tmp_path: Path) -> None:
    """An artifact that is gone, damaged, or holds other values than were published: a typed error, nothing served."""
    blobs = DirectoryBlobStore(tmp_path)
    result = published(blobs, [(0, "e", 1.0), (1, "f", 2.0)])
    with pytest.raises(BlobCorruptError):
        Results(blobs).render(msgspec.structs.replace(result, values_hash=address_of([1.0])), "csv")
    (file,) = (path for path in tmp_path.glob("*/*/*") if path.is_file())
    file.write_bytes(b"{}")
    with pytest.raises(BlobCorruptError):
        Results(blobs).render(result, "json")
    file.unlink()
    with pytest.raises(BlobMissingError):
        Results(blobs).render(result, "json")
