"""Parity: equal to the bit, or where two batches part, with what is missing, extra and mismatched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import NotFoundError
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec, parse_flow
from domain.market.parity import SAMPLES_MAX, Difference, DifferenceKind, compared
from domain.market.pipeline import execute_events
from domain.market.records import MarketEvent


def flow(name: str = "sma") -> FlowSpec:
    """An SMA of length 1: each value is its event's close, so that a change of one event changes one tick."""
    return parse_flow(
        {
            "version": 1,
            "name": "closes",
            "source": {"instruments": ["i"]},
            "clock": {"kind": "event"},
            "nodes": [{"id": "n", "op": "sma", "inputs": [{"column": "close"}], "parameters": {"length": 1}}],
            "outputs": [{"name": name, "node": "n"}],
        }
    )


def batch(closes: dict[int, float | None], name: str = "sma") -> FeatureBatch:
    """The batch over events `e<n>` at second n."""
    events = [
        MarketEvent(
            event_id=f"e{n}",
            instrument="i",
            event_time=n * 1_000_000,
            available_at=0,
            revision=0,
            values={"close": close},
        )
        for n, close in closes.items()
    ]
    return execute_events(flow(name), events)


CLOSES = st.dictionaries(st.integers(0, 60), st.none() | st.floats(-1e6, 1e6, allow_nan=False), max_size=40)


@given(CLOSES)
def test_equal_batches_are_equal(closes: dict[int, float | None]) -> None:
    """No difference, equal hashes."""
    (parity,) = compared(batch(closes), batch(closes))
    assert parity.equal
    assert parity.first is None
    assert parity.reference_values_hash == parity.other_values_hash
    assert (parity.reference_rows, parity.missing, parity.extra, parity.mismatched) == (len(closes), 0, 0, 0)


@given(CLOSES, CLOSES)
def test_every_difference_is_counted_once_and_the_first_is_the_first(
    one: dict[int, float | None], other: dict[int, float | None]
) -> None:
    """Missing, extra and mismatched are what sets say; the first one comes first in clock order."""
    (parity,) = compared(batch(one), batch(other))
    values = dict(zip(sorted(one), batch(one).values("sma"), strict=True))
    others = dict(zip(sorted(other), batch(other).values("sma"), strict=True))
    mismatched = [n for n in values.keys() & others.keys() if values[n] != others[n]]
    assert (parity.missing, parity.extra) == (len(one.keys() - other.keys()), len(other.keys() - one.keys()))
    assert parity.mismatched == len(mismatched)
    different = sorted({*(one.keys() ^ other.keys()), *mismatched})
    assert parity.equal is not bool(different)
    if different:
        assert parity.first is not None
        assert parity.first.event_id == f"e{different[0]}"
    assert len(parity.samples) <= 3 * SAMPLES_MAX


def test_a_difference_says_what_each_side_has() -> None:
    """One value off in its last bit, one tick missing, one too many."""
    (parity,) = compared(batch({1: 1.0, 2: 2.0, 3: None}), batch({2: 2.0000000000000004, 3: None, 4: 4.0}))
    assert parity.samples == (
        Difference(kind=DifferenceKind.MISSING, event_time="1970-01-01T00:00:01Z", event_id="e1", reference=1.0),
        Difference(kind=DifferenceKind.EXTRA, event_time="1970-01-01T00:00:04Z", event_id="e4", other=4.0),
        Difference(
            kind=DifferenceKind.MISMATCHED,
            event_time="1970-01-01T00:00:02Z",
            event_id="e2",
            reference=2.0,
            other=2.0000000000000004,
        ),
    )
    assert parity.first == parity.samples[0]


def test_an_output_that_the_other_lacks_is_an_error_and_no_difference() -> None:
    """Other outputs are another computation."""
    with pytest.raises(NotFoundError):
        compared(batch({1: 1.0}), batch({1: 1.0}, "other"))
