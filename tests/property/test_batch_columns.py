"""Reading a FeatureBatch by column gives what reading it whole gives, in slices of any size, and refuses what is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import NotFoundError
from domain.market.batch_columns import output_columns, output_schema
from domain.market.errors import SnapshotInvalidError
from domain.market.feature_batch import FeatureBatch, OutputSchema, parse_feature_batch
from domain.market.lanes import LaneValues
from domain.market.line_reader import POWERS, read_float
from domain.market.text_columns import EARLIEST, LATEST

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=6)
VALUES = st.floats(allow_infinity=False) | st.sampled_from(
    [0.1 + 0.2, 5e-324, -0.0, 1e22, 123456789.123456789, float("nan")]
)


@st.composite
def batches(draw: st.DrawFn) -> FeatureBatch:
    """Batches of one to three lanes with one or two outputs each, ids with quotes and backslashes, instants of any age."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    lanes, schema = [], []
    for number in range(draw(st.integers(1, min(3, len(names))))):
        outputs, names = (names[:2], names[2:]) if len(names) > 3 else (names[:1], names[1:])
        rows = draw(st.integers(0, 12))
        times = np.sort(np.array([draw(st.integers(EARLIEST, LATEST)) for _ in range(rows)], dtype=np.int64))
        ids = [f"{number}.{row}.{draw(NAMES)}" for row in range(rows)]
        columns = {name: np.array([draw(VALUES) for _ in range(rows)], dtype=np.float64) for name in outputs}
        lanes.append(LaneValues(f"lane {number}", times, ids, columns))
        schema += [OutputSchema(name, f"lane {number}") for name in outputs]
    return FeatureBatch("sha256:" + "0" * 64, tuple(schema), tuple(lanes))


@given(batches(), st.integers(1, 15))
def test_columns_are_those_of_the_whole_batch(batch: FeatureBatch, rows_max: int) -> None:
    """For every output: times, ids and values are the same to the bit, no slice is longer than asked for, none is empty."""
    data = batch.encode()
    whole = parse_feature_batch(data)
    for described in batch.schema:
        assert output_schema(data, described.name) == described
        slices = list(output_columns(data, described.name, rows_max))
        lane = whole.lane_of(described.name)
        assert all(0 < len(one) <= rows_max for one in slices)
        assert [time for one in slices for time in one.event_times.tolist()] == lane.event_times.tolist()
        assert [text for one in slices for text in one.event_ids.strings()] == lane.event_ids
        values = np.concatenate([np.empty(0), *(one.values for one in slices)])
        expected = lane.outputs[described.name]
        assert np.array_equal(values, expected, equal_nan=True)
        assert np.array_equal(np.signbit(values), np.signbit(expected) & ~np.isnan(expected))


@given(batches(), st.data())
def test_damaged_bytes_are_refused_or_read_alike(batch: FeatureBatch, data: st.DataObject) -> None:
    """A byte cut off, or all from some place on: a typed error, never other rows than the strict reader's and never a hang."""
    whole = batch.encode()
    name = batch.schema[0].name
    place = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:place], whole[:place] + whole[place + 1 :]):
        try:
            read = sum(map(len, output_columns(damaged, name)))
        except SnapshotInvalidError:
            continue
        assert read <= batch.rows(name)


SIGNIFICANT = st.builds(
    lambda digits, scale, sign: (
        sign + (f"{digits // 10**scale}.{digits % 10**scale:0{scale}d}" if scale else f"{digits}")
    ),
    st.integers(0, 10**19),
    st.integers(0, 24),
    st.sampled_from(["", "-"]),
)
MIDDLE = st.builds(lambda odd, scale: f"{2 * odd + 1}" + ".0" * scale, st.integers(2**52, 2**53), st.integers(0, 1))


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False).map(repr) | SIGNIFICANT | MIDDLE, min_size=1, max_size=40)
)
def test_decimals_are_rounded_as_python_rounds_them(texts: list[str]) -> None:
    """Of any length and scale, next to the middle between two binary64 included: what is read is what `float` reads, to the bit."""
    for text in texts:
        data = np.frombuffer(text.encode() + b",", dtype=np.uint8)
        at, left, value = read_float(data, 0, len(data), POWERS)
        assert at == len(text)
        if not left:
            assert value.hex() == float(text).hex(), text


def test_an_unknown_output_is_named() -> None:
    """An output that the schema does not name is not found; bytes that are no batch are no batch."""
    batch = FeatureBatch("sha256:" + "0" * 64, (OutputSchema("a", "i"),), ())
    with pytest.raises(NotFoundError, match="no output 'b'"):
        output_schema(batch.encode(), "b")
    with pytest.raises(SnapshotInvalidError):
        output_schema(b"[]", "a")
