"""Kernels of the ops over changes and spreads: `returns`, `rsi`, `atr`, `zscore`.

The same form as in `ops_averages`, whose docstring says what must stay true: one step per op, a fold that only loops over it,
windows by blocks and tails, a finite state always.
"""

import math

from domain.market.compiled import Floats, compiled, compiled_step, slot
from domain.market.ops_averages import NULL

# ---------------------------------------------------------------------------------------------------------------- returns


@compiled_step
def returns_step(scalars: tuple[int, int], ring: Floats, n: int, p: float, x: float) -> tuple[tuple[int, int], float]:
    """(seen up to n, place). Against the value `n` ticks ago: (x - old)/old, or log(x/old) where `p` is 1."""
    seen, place = scalars
    old = ring[slot(place)]
    ring[slot(place)] = x
    place = place + 1
    if place == n:
        place = 0
    if seen < n:
        if x - x != 0.0:
            return (0, 0), NULL
        return (seen + 1, place), NULL
    y = math.log(x / old) if p == 1.0 else (x - old) / old
    if y - y != 0.0:
        return (0, 0), NULL
    return (seen, place), y


@compiled
def returns_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `returns_step` over a column, from and into `state`."""
    x, ring = xs[0], state[2:]
    scalars = (int(state[0]), int(state[1]))
    for i in range(x.shape[0]):
        scalars, out[i] = returns_step(scalars, ring, n, p, x[i])
    state[0], state[1] = scalars


# ---------------------------------------------------------------------------------------------------------------- rsi


@compiled_step
def rsi_step(
    scalars: tuple[int, float, float, float], ring: Floats, n: int, p: float, x: float
) -> tuple[tuple[int, float, float, float], float]:
    """(values seen up to n+1, previous value, average gain, average loss). Wilder: the first `n` changes give the simple means,
    then p*change + (1-p)*average with `p` = 1/n; 100*gain/(gain+loss), and 0 where nothing has moved, as TA-Lib has it."""
    seen, previous, gain, loss = scalars
    if seen == 0:
        if x - x != 0.0:
            return (0, 0.0, 0.0, 0.0), NULL
        return (1, x, 0.0, 0.0), NULL
    change = x - previous
    up = change if change > 0.0 else 0.0
    down = up - change
    if seen > n:
        gain = p * up + (1.0 - p) * gain
        loss = p * down + (1.0 - p) * loss
    else:
        seen = seen + 1
        gain = gain + up
        loss = loss + down
        if seen > n:
            gain = gain / n
            loss = loss / n
    moved = gain + loss
    if moved - moved != 0.0:
        return (0, 0.0, 0.0, 0.0), NULL
    if seen <= n:
        return (seen, x, gain, loss), NULL
    return (seen, x, gain, loss), (100.0 * (gain / moved) if moved != 0.0 else 0.0)


@compiled
def rsi_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `rsi_step` over a column, from and into `state`."""
    x, ring = xs[0], state[4:]
    scalars = (int(state[0]), state[1], state[2], state[3])
    for i in range(x.shape[0]):
        scalars, out[i] = rsi_step(scalars, ring, n, p, x[i])
    state[0], state[1], state[2], state[3] = scalars


# ---------------------------------------------------------------------------------------------------------------- atr


@compiled_step
def atr_step(
    scalars: tuple[int, float, float], ring: Floats, n: int, p: float, high: float, low: float, close: float
) -> tuple[tuple[int, float, float], float]:
    """(bars seen up to n+1, previous close, average range). True range against the previous close; the first `n` give their
    simple mean, then p*range + (1-p)*average with `p` = 1/n (Wilder)."""
    seen, previous, average = scalars
    if seen == 0:
        if (high - high) + (low - low) + (close - close) != 0.0:
            return (0, 0.0, 0.0), NULL
        return (1, close, 0.0), NULL
    spread = high - low  # NaN if either is missing, and stays so: comparisons with NaN are false
    up, down = abs(high - previous), abs(low - previous)
    spread = up if up > spread else spread
    spread = down if down > spread else spread
    if seen > n:
        average = p * spread + (1.0 - p) * average
    else:
        seen = seen + 1
        average = average + spread
        if seen > n:
            average = average / n
    if (average - average) + (close - close) != 0.0:
        return (0, 0.0, 0.0), NULL
    if seen <= n:
        return (seen, close, average), NULL
    return (seen, close, average), average


@compiled
def atr_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `atr_step` over three columns, from and into `state`."""
    high, low, close, ring = xs[0], xs[1], xs[2], state[3:]
    scalars = (int(state[0]), state[1], state[2])
    for i in range(high.shape[0]):
        scalars, out[i] = atr_step(scalars, ring, n, p, high[i], low[i], close[i])
    state[0], state[1], state[2] = scalars


# ---------------------------------------------------------------------------------------------------------------- zscore

Spread = tuple[int, int, int, float, float, float, float]


@compiled
def turn_spreads(ring: Floats, n: int) -> float:
    """Make each slot of the two blocks the mean, and the sum of squares about it, from there to the block's end (Welford)."""
    mean, squares = 0.0, 0.0
    for j in range(n - 1, -1, -1):
        delta = ring[slot(j)] - mean
        mean = mean + delta / (n - j)
        squares = squares + delta * (ring[slot(j)] - mean)
        ring[slot(j)] = mean
        ring[slot(n + 1 + j)] = squares
    return squares


@compiled_step
def zscore_step(scalars: Spread, ring: Floats, n: int, p: float, x: float) -> tuple[Spread, float]:
    """(seen up to n, place, equal values in a row, last value, origin, mean and squares of the new block); `p` is ddof.

    (x - mean)/deviation over the last `n` values. Values are taken relative to the first since the start (exact for neighbours),
    and the spreads of two blocks are joined by Chan's formula, so nothing cancels. Equal values have no deviation: null.
    """
    seen, place, equal, last, origin, mean, squares = scalars
    if x - x != 0.0:
        return (0, 0, 0, 0.0, 0.0, 0.0, 0.0), NULL
    if seen == 0:
        origin = x
        last = x
    equal = min(equal + 1, n) if x == last else 1
    place = place + 1
    d = x - origin
    delta = d - mean
    mean = mean + delta / place
    squares = squares + delta * (d - mean)
    all_mean, all_squares = mean, squares
    if seen >= n:
        delta = mean - ring[slot(place)]
        all_mean = ring[slot(place)] + delta * (place / n)
        all_squares = (ring[slot(n + 1 + place)] + squares) + delta * delta * ((n - place) * (place / n))
    else:
        seen = seen + 1
    ring[slot(place - 1)] = d
    if all_squares - all_squares != 0.0 or squares - squares != 0.0 or all_mean - all_mean != 0.0:
        return (0, 0, 0, 0.0, 0.0, 0.0, 0.0), NULL
    if place == n:
        place, mean, squares = 0, 0.0, 0.0
        tail = turn_spreads(ring, n)
        if tail - tail != 0.0:
            return (0, 0, 0, 0.0, 0.0, 0.0, 0.0), NULL
    if seen < n:
        return (seen, place, equal, x, origin, mean, squares), NULL
    y = (d - all_mean) / math.sqrt(all_squares / (n - p))
    if equal >= n or y - y != 0.0:
        return (0, 0, 0, 0.0, 0.0, 0.0, 0.0), NULL
    return (seen, place, equal, x, origin, mean, squares), y


@compiled
def zscore_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `zscore_step` over a column, from and into `state`."""
    x, ring = xs[0], state[7:]
    scalars = (int(state[0]), int(state[1]), int(state[2]), state[3], state[4], state[5], state[6])
    for i in range(x.shape[0]):
        scalars, out[i] = zscore_step(scalars, ring, n, p, x[i])
    state[0], state[1], state[2], state[3], state[4], state[5], state[6] = scalars
