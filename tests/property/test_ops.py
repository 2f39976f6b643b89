"""Ops: one step however the ticks are cut, gaps, restarts, agreement with TA-Lib, pandas and exact arithmetic."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import talib
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical, parse
from domain.market.compiled import Floats
from domain.market.errors import StateInvalidError
from domain.market.ops import OPS, Op, OpState

ALL = sorted(OPS)
EXTREMES = st.sampled_from([0.0, -1.0, 1e308, -1e308, 1.7e308, 5e-324, 1e16, 1.0, 1.0, 1.0])
VALUES = st.floats(0.1, 1e4) | st.just(math.nan) | EXTREMES | st.floats(allow_nan=False, allow_infinity=False)


def parameters_of(op: Op, length: int) -> dict[str, Any]:
    """All parameters of an op, the length given, the rest by default."""
    return {name: spec.default for name, spec in op.parameters.items()} | {"length": length}


def columns_of(op: Op, values: list[list[float]]) -> tuple[Floats, ...]:
    """One column per input."""
    return tuple(np.array([row[index] for row in values], dtype=np.float64) for index in range(len(op.inputs)))


def bits(values: Floats) -> list[bytes]:
    """The values to the bit, null as null."""
    return [b"null" if value != value else value.tobytes() for value in values]


@pytest.mark.parametrize("key", ALL)
@given(data=st.data())
def test_incremental_equals_batch_to_the_bit(key: tuple[str, int], data: st.DataObject) -> None:
    """Tick by tick, cut anywhere, written out and restored anywhere: the same values, and the same state to the byte."""
    op = OPS[key]
    parameters = parameters_of(op, data.draw(st.integers(2, 7)))
    rows = data.draw(st.lists(st.lists(VALUES, min_size=len(op.inputs), max_size=len(op.inputs)), max_size=60))
    whole = OpState(op, parameters)
    expected = bits(whole.fold(columns_of(op, rows)))
    state, found = OpState(op, parameters), []
    start = 0
    while start < len(rows):
        end = data.draw(st.integers(start + 1, len(rows)))
        found += bits(state.fold(columns_of(op, rows[start:end])))
        if data.draw(st.booleans()):
            stored = canonical(state.state_document())
            state = OpState(op, parameters)
            state.restore(parse(stored))
            assert canonical(state.state_document()) == stored
        start = end
    assert found == expected
    assert canonical(state.state_document()) == canonical(whole.state_document())


def test_what_a_start_left_behind_is_in_no_state() -> None:
    """A window turned before a gap leaves slots that are dead after it: a state shows nothing of them, in any of its blocks."""
    values = np.array([math.nan, 1.0, 2.0, math.nan, 1.0])
    for (name, version), op in OPS.items():
        whole, fresh = OpState(op, parameters_of(op, 2)), OpState(op, parameters_of(op, 2))
        whole.fold(tuple(values for _ in op.inputs))
        fresh.fold(tuple(values[-1:].copy() for _ in op.inputs))
        assert whole.state_document() == fresh.state_document(), (name, version)


@pytest.mark.parametrize("key", ALL)
@given(data=st.data())
def test_a_gap_is_a_start_from_nothing(key: tuple[str, int], data: st.DataObject) -> None:
    """What follows a gap is what the op gives when it begins there, and the gap itself is null."""
    op = OPS[key]
    parameters = parameters_of(op, data.draw(st.integers(2, 5)))
    row = st.lists(st.floats(0.5, 100.0), min_size=len(op.inputs), max_size=len(op.inputs))
    before, after = data.draw(st.lists(row, max_size=20)), data.draw(st.lists(row, max_size=20))
    gap = data.draw(row)
    gap[data.draw(st.integers(0, len(gap) - 1))] = math.nan
    joined = OpState(op, parameters).fold(columns_of(op, [*before, gap, *after]))
    fresh = OpState(op, parameters).fold(columns_of(op, after))
    assert math.isnan(joined[len(before)])
    assert bits(joined[len(before) + 1 :]) == bits(fresh)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 9))
def test_ema_is_its_formula_in_written_order(values: list[float], length: int) -> None:
    """Against the definition in plain Python, to the bit: simple mean, then a*x + (1-a)*previous."""
    expected: list[float | None] = []
    a = 2.0 / (length + 1)
    total, previous = 0.0, 0.0
    for index, x in enumerate(values):
        if index < length:
            total = total + x
            previous = total / length
        else:
            previous = a * x + (1.0 - a) * previous
        expected.append(previous if index >= length - 1 else None)
    found = OpState(OPS["ema", 1], {"length": length, "gap": "reject"}).fold((np.array(values),))
    assert [None if x != x else x for x in found.tolist()] == expected


@pytest.mark.parametrize("key", ALL)
@given(data=st.data())
def test_no_result_and_no_state_is_ever_infinite(key: tuple[str, int], data: st.DataObject) -> None:
    """Whatever finite values come, results are finite or null, and the state can be written as canonical JSON."""
    op = OPS[key]
    rows = data.draw(st.lists(st.lists(EXTREMES, min_size=len(op.inputs), max_size=len(op.inputs)), max_size=40))
    state = OpState(op, parameters_of(op, data.draw(st.integers(2, 4))))
    out = state.fold(columns_of(op, rows))
    assert not np.isinf(out).any()
    canonical(state.state_document())


def walk(size: int, offset: float, seed: int = 3) -> Floats:
    """A random walk, as prices go."""
    return offset + np.cumsum(np.random.default_rng(seed).normal(size=size)) * 0.01


def nearly(ours: Floats, theirs: Any, *, absolute: float = 0.0) -> None:
    """Null in the same places, and within 1e-9 elsewhere."""
    reference = np.asarray(theirs, dtype=np.float64)
    assert (np.isnan(ours) == np.isnan(reference)).all()
    np.testing.assert_allclose(ours, reference, rtol=1e-9, atol=absolute)


def scores(length: int, values: Floats, ddof: int) -> Floats:
    """Each window by itself, relative to its first value: what pandas gives, without the drift of its rolling deviation."""
    windows = np.lib.stride_tricks.sliding_window_view(values, length)
    windows = windows - windows[:, :1]
    found = np.full(len(values), np.nan)
    found[length - 1 :] = (windows[:, -1] - windows.mean(axis=1)) / windows.std(axis=1, ddof=ddof)
    return found


SIZE = 200_000
TALIB: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
    ("ema", {}, lambda n, x: talib.EMA(x, n)),
    ("sma", {}, lambda n, x: talib.SMA(x, n)),
    ("wma", {}, lambda n, x: talib.WMA(x, n)),
    ("rsi", {}, lambda n, x: talib.RSI(x, n)),
    ("returns", {"kind": "simple"}, lambda n, x: talib.ROCP(x, n)),
    ("returns", {"kind": "log"}, lambda n, x: np.log(pd.Series(x) / pd.Series(x).shift(n))),
    ("zscore", {"ddof": 1}, lambda n, x: scores(n, x, 1)),
    ("zscore", {"ddof": 0}, lambda n, x: scores(n, x, 0)),
    ("atr", {}, lambda n, h, low, c: talib.ATR(h, low, c, n)),
    ("vwap", {}, lambda n, p, v: (pd.Series(p) * v).rolling(n).sum() / pd.Series(v).rolling(n).sum()),
]


@pytest.mark.parametrize("length", [2, 14, 100])
@pytest.mark.parametrize(("name", "more", "reference"), TALIB, ids=[f"{name}{more}" for name, more, _ in TALIB])
def test_ops_agree_with_talib_and_pandas(
    name: str, more: dict[str, Any], reference: Callable[..., Any], length: int
) -> None:
    """On a long series, within 1e-9 relative, and null in the same places."""
    op = OPS[name, 1]
    close = walk(SIZE, 100.0)
    spread = np.random.default_rng(5).random((2, SIZE))
    volume = np.random.default_rng(6).integers(1, 1000, SIZE).astype(np.float64)
    columns = {1: (close,), 2: (close, volume), 3: (close + spread[0], close - spread[1], close)}[len(op.inputs)]
    ours = OpState(op, {"length": length, "gap": "reject", **more}).fold(columns)
    # A z-score or a return near zero is a small difference of large numbers: there the reference itself has no more digits.
    nearly(ours, reference(length, *columns), absolute=1e-9 if name in ("zscore", "returns") else 0.0)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
@pytest.mark.parametrize("name", ["sma", "wma", "zscore"])
def test_windows_do_not_drift(name: str, offset: float) -> None:
    """At the end of a long series with a large offset, and right after a huge value, windows agree with exact arithmetic."""
    length = 50
    values = walk(SIZE, offset)
    values[-length - 1] = 1e15  # just out of the last window
    ours = OpState(OPS[name, 1], {"length": length, "gap": "reject", "ddof": 1}).fold((values,))[-1]
    window = [Fraction(x) for x in values[-length:].tolist()]
    mean = sum(window) / length
    if name == "sma":
        expected = float(mean)
    elif name == "wma":
        expected = float(sum(weight * x for weight, x in enumerate(window, start=1)) / (length * (length + 1) // 2))
    else:
        variance = sum((x - mean) ** 2 for x in window) / (length - 1)
        expected = float(window[-1] - mean) / math.sqrt(float(variance))
    assert ours == pytest.approx(expected, rel=1e-9)


def test_a_constant_window_has_no_zscore() -> None:
    """No deviation, no score: null, and the op starts over rather than dividing noise by noise."""
    found = OpState(OPS["zscore", 1], {"length": 3, "ddof": 1}).fold((np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.3]),))
    assert [value != value for value in found.tolist()] == [True] * 5 + [False]


def test_rsi_of_a_series_that_stands_still_is_zero() -> None:
    """As TA-Lib has it."""
    flat = np.full(10, 5.0)
    np.testing.assert_array_equal(OpState(OPS["rsi", 1], {"length": 3}).fold((flat,)), talib.RSI(flat, 3))


def test_division_by_zero_is_null_and_a_new_start() -> None:
    """A return on zero is no number: null, and the next tick has nothing to compare with."""
    found = OpState(OPS["returns", 1], {"length": 1, "kind": "simple"}).fold((np.array([0.0, 5.0, 6.0, 9.0]),))
    assert [None if x != x else x for x in found.tolist()] == [None, None, None, 0.5]


@pytest.mark.parametrize(
    "change",
    [
        {"op": "sma"},
        {"version": 2},
        {"state": []},
        {"state": [0.0, 0.0, math.inf, 0.0, 0.0, 0.0, 0.0]},
        {"state": [0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0]},
        {"state": [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]},
        {"state": [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]},
        {"state": [0, 0, 0, 0, 0, 0, 0]},
        {"state": None},
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    """Another op or version, wrong size, counters that would lead out of the ring, no finite floats: typed, nothing taken."""
    op = OPS["wma", 1]
    state = OpState(op, {"length": 2})
    good = {"op": "wma", "version": 1, "state": [0.0] * 7}
    state.restore(good)
    with pytest.raises(StateInvalidError):
        state.restore(good | change)
