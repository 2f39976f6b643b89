"""Treatments: what can become of a record, by the table of the stream.

What must stay true: every offset of a partition has exactly one current treatment, `ABSENT` where the log holds no record there;
so the counts add up to how far each partition was read. Pure.
"""

from enum import Enum
from typing import Final

import msgspec

from domain.market.records import MarketEvent


class Treatment(Enum):
    """What became of a record; the words of the specification's table."""

    CONSUMED = "consumed"
    REVISED = "revised"
    LATE = "late"
    FILTERED = "filtered"
    OMITTED = "omitted"
    DUPLICATE = "duplicates_skipped"
    ABSENT = "absent"
    """The log holds no record at this offset: a transaction's marker, or compaction."""

    __hash__ = object.__hash__
    """Members are single objects; Enum's own hashes the name anew, in Python, several times a record."""


ACCEPTED: Final = frozenset({Treatment.CONSUMED, Treatment.REVISED})
"""Treatments whose events take part in the values."""


class Treated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record's treatment. `event` where it could be read; `detail` why it was omitted; `alert` where copies differ."""

    treatment: Treatment
    partition: int
    offset: int
    event: MarketEvent | None = None
    detail: str = ""
    terminal: bool = False
    alert: bool = False
