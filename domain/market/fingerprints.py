"""Fingerprints of texts, to find those that are equal or odd among millions without holding them.

Two 64-bit hashes of different make; together they tell apart whatever is not made to collide. What must stay true: they are used
to refuse, never to accept: a collision can refuse an odd import, it cannot let a contradiction through.
"""

from typing import Any, Final

import numpy as np

from domain.market.compiled import Bytes, Ints, compiled
from domain.market.text_columns import Texts

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_PRIMES: Final = np.array([0x100000001B3, 0x9E3779B97F4A7C15], dtype=np.uint64)
_SEEDS: Final = np.array([0xCBF29CE484222325, 0x2545F4914F6CDD1D], dtype=np.uint64)


def fingerprints(texts: Texts) -> tuple[Hashes, Hashes]:
    """Two hashes of each text."""
    first, second = np.empty(len(texts), dtype=np.uint64), np.empty(len(texts), dtype=np.uint64)
    _hash(texts.data, texts.starts, texts.sizes, _PRIMES, _SEEDS, first, second)
    return first, second


def unplain(texts: Texts, size_max: int) -> Ints:
    """Where the texts are empty, longer than `size_max` bytes, or anything but printable ASCII."""
    marks = np.zeros(len(texts), dtype=np.uint8)
    _mark_unplain(texts.data, texts.starts, texts.sizes, size_max, marks)
    return np.flatnonzero(marks)


@compiled
def _hash(data: Bytes, starts: Ints, sizes: Ints, primes: Hashes, seeds: Hashes, first: Hashes, second: Hashes) -> None:
    for i in range(starts.shape[0]):
        one, two = seeds[0], seeds[1]
        for j in range(starts[i], starts[i] + sizes[i]):
            byte = np.uint64(data[j])
            one = (one ^ byte) * primes[0]
            two = (two + byte) * primes[1]
            two = two ^ (two >> np.uint64(29))
        first[i] = (one ^ (one >> np.uint64(32))) * primes[1]
        second[i] = two


@compiled
def _mark_unplain(data: Bytes, starts: Ints, sizes: Ints, size_max: int, marks: Bytes) -> None:
    for i in range(starts.shape[0]):
        if sizes[i] == 0 or sizes[i] > size_max:
            marks[i] = 1
        for j in range(starts[i], starts[i] + sizes[i]):
            if data[j] < 32 or data[j] > 126:
                marks[i] = 1
