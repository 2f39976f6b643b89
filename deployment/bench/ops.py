"""Rows per second of each op's batch fold, against TA-Lib's C, or pandas where TA-Lib has no such function.

Each op and its reference run back to back over the same columns (10 million rows at scale 1), in one thread, out of memory that is
warm; the results are compared too, so that nobody is fast by being wrong.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pandas as pd
import talib

from deployment.bench.figures import aim, answer, figure, ratio
from domain.market.compiled import Floats
from domain.market.ops import OPS, OpState

ROWS: Final = 10_000_000
LENGTH: Final = 20
TIMES_OF_TALIB_MAX: Final = 2.0

Reference = tuple[str, Callable[..., Any]]


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure every op; a ratio is our time to theirs."""
    rows = max(1000, int(ROWS * scale))
    columns = _columns(rows)
    figures, aims = [], []
    for label, name, parameters, inputs, (library, reference) in _contests():
        report(f"ops: {label} against {library}")
        given = tuple(columns[column] for column in inputs)
        ours, theirs, difference = _measure(name, parameters, given, reference, repeats)
        times = ratio(ours, theirs)
        figures.append(
            figure(
                label,
                [rows / seconds for seconds in ours],
                "rows/s",
                against=library,
                theirs=[rows / seconds for seconds in theirs],
                ratio=times,
                largest_difference=difference,
            )
        )
        if library == "TA-Lib":
            aims.append(aim(f"time of {label} to TA-Lib's", times, at_most=TIMES_OF_TALIB_MAX))
    return answer(
        f"How fast is each batch fold over {rows} rows, length {LENGTH}?",
        figures,
        aims,
        [
            "A ratio is our time to theirs: below 1 we are faster.",
            "zscore: pandas' rolling deviation drifts on a random walk, ours does not; hence the difference.",
        ],
        rows=rows,
        versions={"TA-Lib": talib.__version__, "pandas": pd.__version__, "numpy": np.__version__},
    )


def _columns(rows: int) -> dict[str, Floats]:
    generator = np.random.default_rng(7)
    close = 100.0 + np.cumsum(generator.normal(size=rows)) * 0.01
    return {
        "close": close,
        "high": close + generator.random(rows),
        "low": close - generator.random(rows),
        "volume": generator.integers(1, 1000, rows).astype(np.float64),
    }


def _contests() -> list[tuple[str, str, dict[str, Any], tuple[str, ...], Reference]]:
    """Label, op, parameters, columns, and who else computes it."""
    n = LENGTH
    return [
        ("ema", "ema", {}, ("close",), ("TA-Lib", lambda x: talib.EMA(x, n))),
        ("sma", "sma", {}, ("close",), ("TA-Lib", lambda x: talib.SMA(x, n))),
        ("wma", "wma", {}, ("close",), ("TA-Lib", lambda x: talib.WMA(x, n))),
        ("rsi", "rsi", {}, ("close",), ("TA-Lib", lambda x: talib.RSI(x, n))),
        ("atr", "atr", {}, ("high", "low", "close"), ("TA-Lib", lambda h, low, c: talib.ATR(h, low, c, n))),
        ("returns simple", "returns", {"kind": "simple"}, ("close",), ("TA-Lib", lambda x: talib.ROCP(x, n))),
        ("returns log", "returns", {"kind": "log"}, ("close",), ("pandas", _log_returns)),
        ("zscore", "zscore", {"ddof": 1}, ("close",), ("pandas", _zscore)),
        ("vwap", "vwap", {}, ("close", "volume"), ("pandas", _vwap)),
    ]


def _log_returns(x: Floats) -> Any:
    series = pd.Series(x)
    return np.log(series / series.shift(LENGTH))


def _zscore(x: Floats) -> Any:
    series = pd.Series(x)
    rolling = series.rolling(LENGTH)
    return (series - rolling.mean()) / rolling.std()


def _vwap(price: Floats, volume: Floats) -> Any:
    amounts = pd.Series(volume)
    return (pd.Series(price) * amounts).rolling(LENGTH).sum() / amounts.rolling(LENGTH).sum()


def _measure(
    name: str, parameters: dict[str, Any], columns: tuple[Floats, ...], reference: Callable[..., Any], repeats: int
) -> tuple[list[float], list[float], float]:
    """Seconds of ours and of theirs per repeat, and the largest difference of a value."""
    op = OPS[name, 1]
    given = {"length": LENGTH, "gap": "reject", **parameters}
    OpState(op, given).fold(
        tuple(column[:100].copy() for column in columns)
    )  # compiled, or loaded, before the clock starts
    ours, theirs = [], []
    difference = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        found = OpState(op, given).fold(columns)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        expected = reference(*columns)
        theirs.append(time.perf_counter() - began)
        difference = float(np.nanmax(np.abs(found - np.asarray(expected))))
    return ours, theirs, difference
