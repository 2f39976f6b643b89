"""Ids of new events: random version-4 UUIDs, without a system call for each.

What must stay true: two events never get one id, in one process, in two, or after a fork: a repeated id would make the log take a
new event for a repetition of an old one. So the generator is our own, which nobody else can seed (tests and libraries seed the
global one), with 19 937 bits of state from the operating system, drawn anew in every forked child. Ids are no secrets. (`uuid4`
asks the kernel each time and gives up the interpreter's lock for it: ten times the price under load.)
"""

import os
import random
from typing import Final
from uuid import UUID

_VERSION_4: Final = 0x4 << 76
_VARIANT: Final = 0x8 << 60
_KEPT: Final = ~((0xF << 76) | (0xC << 60)) & ((1 << 128) - 1)

_generator: Final = random.Random()
os.register_at_fork(after_in_child=_generator.seed)


def new_event_id() -> UUID:
    """A fresh id."""
    return UUID(int=_generator.getrandbits(128) & _KEPT | _VERSION_4 | _VARIANT)
