"""Python's collector of cycles in a process through which records pass by the hundred thousand.

Records have no cycles, and what was imported stays for ever; looking through all of it again and again costs a stream worker a
seventh of its time. What must stay true: cycles are still collected, only more rarely; behind the block all is as it was before.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ALLOCATIONS_MAX: Final = 20_000
"""Objects allocated beyond those freed before the youngest are looked through for cycles."""

GENERATIONS: Final = (20, 20)
"""Collections of a generation before the next older one is looked through."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """What is in memory now is not looked at within the block, and what comes is looked at rarely."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_MAX, *GENERATIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
