"""Ids of new events: random version-4 UUIDs, without a system call for each.

What must stay true: two events never get one id, in one process, in two, or after a fork. The generator of `random` has 19 937 bits
of state, seeded from the operating system at start and again in every forked child; ids are no secrets, so it need not be
unpredictable. (`uuid4` asks the kernel each time and gives up the interpreter's lock for it: ten times the price under load.)
"""

import random
from uuid import UUID

_VERSION_4 = 0x4 << 76
_VARIANT = 0x8 << 60
_KEPT = ~((0xF << 76) | (0xC << 60)) & ((1 << 128) - 1)


def new_event_id() -> UUID:
    """A fresh id."""
    return UUID(int=random.getrandbits(128) & _KEPT | _VERSION_4 | _VARIANT)
