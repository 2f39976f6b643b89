"""Ids of new events: version-7 UUIDs, the millisecond first and 74 random bits behind it, without a system call for each.

They grow with time so that the log's indexes by event id grow at their end: a random id touches any page of them, in a long log one
that is not in memory. Nothing depends on the order: a clock set back only costs that.

What must stay true: two events never get one id, in one process, in two, or after a fork: a repeated id would make the log take a
new event for a repetition of an old one. So the generator is our own, which nobody else can seed (tests and libraries seed the
global one), with 19 937 bits of state from the operating system, drawn anew in every forked child. Ids are no secrets. (`uuid4`
asks the kernel each time and gives up the interpreter's lock for it: ten times the price under load.)
"""

import os
import random
import time
from typing import Final
from uuid import UUID

_NANOSECONDS: Final = 1_000_000
"""Of a millisecond."""

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0x8 << 60
_RANDOM: Final = (0xFFF << 64) | ((1 << 62) - 1)

_generator: Final = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_event_id() -> UUID:
    """A fresh id."""
    milliseconds = time.time_ns() // _NANOSECONDS & 0xFFFF_FFFF_FFFF
    return UUID(int=milliseconds << 80 | _generator.getrandbits(128) & _RANDOM | _VERSION_7 | _VARIANT)
