"""Kernels of the averaging ops: `ema`, `sma`, `wma`, `vwap`.

Each op is one `…_step(scalars, ring, n, p, x…) -> (scalars, y)`. The fold beside it does nothing but loop over the step: the
batch calls it with a whole column, the stream with the ticks just released, so both agree to the bit however the ticks are cut.
`scalars` are the first slots of the state array, `ring` is the rest; NaN stands for null, and inputs are finite or NaN.

Windows are summed by blocks, never by subtraction. The ring is a block of `n` slots and one more that stays zero. While a block
is filled, slot `k` goes from "sum of the previous block from `k` to its end" to "the new value", and the window's sum is
(previous block behind `k`) + (new block up to `k`). A full block is turned: its values become such tail sums, added from the
newest back. Hence amortised O(1) per tick; no drift however long the series; a large value leaves nothing behind once it is out
of the window.

What must stay true: a state is finite. A gap, or any result or accumulator that isn't finite, gives null and the initial state:
the scalars go to zero, and slots of the ring not written since are dead: what they hold reaches no result and no checkpoint.
"""

from domain.market.compiled import Floats, compiled, compiled_step, slot

NULL = float("nan")


# ---------------------------------------------------------------------------------------------------------------- ema


@compiled_step
def ema_step(
    scalars: tuple[int, float, float], ring: Floats, n: int, p: float, x: float
) -> tuple[tuple[int, float, float], float]:
    """(seen up to n, seed sum, previous); `p` is 2/(n+1). The first `n` values give their simple mean, then
    p*x + (1-p)*previous."""
    seen, total, previous = scalars
    if seen >= n:
        y = p * x + (1.0 - p) * previous
    else:
        seen = seen + 1
        total = total + x
        if total - total != 0.0:
            return (0, 0.0, 0.0), NULL
        if seen < n:
            return (seen, total, 0.0), NULL
        y = total / n
    if y - y != 0.0:
        return (0, 0.0, 0.0), NULL
    return (seen, 0.0, y), y


@compiled
def ema_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `ema_step` over a column, from and into `state`."""
    x, ring = xs[0], state[3:]
    scalars = (int(state[0]), state[1], state[2])
    for i in range(x.shape[0]):
        scalars, out[i] = ema_step(scalars, ring, n, p, x[i])
    state[0], state[1], state[2] = scalars


# ---------------------------------------------------------------------------------------------------------------- sma


@compiled
def turn_sums(ring: Floats, start: int, n: int) -> float:
    """Make each of the `n` slots from `start` the sum from there to the block's end; returns the sum of all."""
    tail = 0.0
    for j in range(start + n - 1, start - 1, -1):
        tail = tail + ring[slot(j)]
        ring[slot(j)] = tail
    return tail


@compiled_step
def sma_step(
    scalars: tuple[int, int, float], ring: Floats, n: int, p: float, x: float
) -> tuple[tuple[int, int, float], float]:
    """(seen up to n, place in the block, sum of the new block). The mean of the last `n` values."""
    seen, place, running = scalars
    running = running + x
    total = ring[slot(place + 1)] + running
    ring[slot(place)] = x
    place = place + 1
    if seen < n:
        seen = seen + 1
        if running - running != 0.0:
            return (0, 0, 0.0), NULL
        if seen < n:
            return (seen, place, running), NULL
    y = total / n
    if y - y != 0.0:
        return (0, 0, 0.0), NULL
    if place == n:
        place, running = 0, 0.0
        tail = turn_sums(ring, 0, n)
        if tail - tail != 0.0:
            return (0, 0, 0.0), NULL
    return (seen, place, running), y


@compiled
def sma_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `sma_step` over a column, from and into `state`."""
    x, ring = xs[0], state[3:]
    scalars = (int(state[0]), int(state[1]), state[2])
    for i in range(x.shape[0]):
        scalars, out[i] = sma_step(scalars, ring, n, p, x[i])
    state[0], state[1], state[2] = scalars


# ---------------------------------------------------------------------------------------------------------------- wma


@compiled
def turn_weighted(ring: Floats, n: int) -> float:
    """Make each slot the weighted sum from there to the block's end, with weights 1, 2, … from there on."""
    plain, tail = 0.0, 0.0
    for j in range(n - 1, -1, -1):
        plain = plain + ring[slot(j)]
        tail = tail + plain
        ring[slot(j)] = tail
    return tail


@compiled_step
def wma_step(
    scalars: tuple[int, int, float, float], ring: Floats, n: int, p: float, x: float
) -> tuple[tuple[int, int, float, float], float]:
    """(seen up to n, place, sum and weighted sum of the new block). Weights 1 (oldest) to n (newest), over `p`, n(n+1)/2."""
    seen, place, plain, weighted = scalars
    plain = plain + x
    place = place + 1
    weighted = weighted + place * x
    total = ring[slot(place)] + ((n - place) * plain + weighted)
    ring[slot(place - 1)] = x
    if seen < n:
        seen = seen + 1
        if weighted - weighted != 0.0 or plain - plain != 0.0:
            return (0, 0, 0.0, 0.0), NULL
        if seen < n:
            return (seen, place, plain, weighted), NULL
    y = total / p
    if y - y != 0.0:
        return (0, 0, 0.0, 0.0), NULL
    if place == n:
        place, plain, weighted = 0, 0.0, 0.0
        tail = turn_weighted(ring, n)
        if tail - tail != 0.0:
            return (0, 0, 0.0, 0.0), NULL
    return (seen, place, plain, weighted), y


@compiled
def wma_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `wma_step` over a column, from and into `state`."""
    x, ring = xs[0], state[4:]
    scalars = (int(state[0]), int(state[1]), state[2], state[3])
    for i in range(x.shape[0]):
        scalars, out[i] = wma_step(scalars, ring, n, p, x[i])
    state[0], state[1], state[2], state[3] = scalars


# ---------------------------------------------------------------------------------------------------------------- vwap


@compiled_step
def vwap_step(
    scalars: tuple[int, int, float, float], ring: Floats, n: int, p: float, price: float, volume: float
) -> tuple[tuple[int, int, float, float], float]:
    """(seen up to n, place, money and volume of the new block). Sum of price*volume over sum of volume, of the last `n` values.

    The ring holds two blocks, each with its zero slot: money, then volume.
    """
    seen, place, money, amount = scalars
    worth = price * volume
    money = money + worth
    amount = amount + volume
    all_money = ring[slot(place + 1)] + money
    all_amount = ring[slot(n + place + 2)] + amount
    ring[slot(place)] = worth
    ring[slot(n + 1 + place)] = volume
    place = place + 1
    if seen < n:
        seen = seen + 1
        if money - money != 0.0 or amount - amount != 0.0:
            return (0, 0, 0.0, 0.0), NULL
        if seen < n:
            return (seen, place, money, amount), NULL
    y = all_money / all_amount
    if y - y != 0.0 or all_amount - all_amount != 0.0:
        return (0, 0, 0.0, 0.0), NULL
    if place == n:
        place, money, amount = 0, 0.0, 0.0
        tail = turn_sums(ring, 0, n)
        tail_amount = turn_sums(ring, n + 1, n)
        if tail - tail != 0.0 or tail_amount - tail_amount != 0.0:
            return (0, 0, 0.0, 0.0), NULL
    return (seen, place, money, amount), y


@compiled
def vwap_fold(state: Floats, n: int, p: float, xs: tuple[Floats, ...], out: Floats) -> None:
    """Loop `vwap_step` over two columns, from and into `state`."""
    price, volume, ring = xs[0], xs[1], state[4:]
    scalars = (int(state[0]), int(state[1]), state[2], state[3])
    for i in range(price.shape[0]):
        scalars, out[i] = vwap_step(scalars, ring, n, p, price[i], volume[i])
    state[0], state[1], state[2], state[3] = scalars
