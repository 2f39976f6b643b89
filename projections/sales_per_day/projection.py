"""Sales per day (UTC, by the business clock), show and currency: made of notices alone, so it is told what any other would be.

What must stay true: no purchase waits for it; stopped and started again, it catches up from its position and converges.
"""

from datetime import UTC, date
from typing import Final, TypeAlias

import msgspec

from domain.events import Event, Recorded
from domain.purchases.deal import PAYMENT_SUCCEEDED
from domain.purchases.messages import NoticePosted
from projections.folding import ReadModel

NAME: Final = "sales_per_day"

SalesKey: TypeAlias = tuple[date, str, str]
"""day, show_id and currency"""


class SalesRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one day sold of one show; `cancelled` counts purchases that came to nothing."""

    day: date
    show_id: str
    currency: str
    purchases: int = 0
    seats: int = 0
    revenue_minor: int = 0
    cancelled: int = 0
    position: int = 0


def key_of(event: Event) -> SalesKey | None:
    """The day, show and currency that a notice counts for, or None."""
    if not isinstance(event, NoticePosted):
        return None
    return event.decided_at.astimezone(UTC).date(), event.show_id, event.currency


def apply(row: SalesRow | None, recorded: Recorded) -> SalesRow:
    """The row after a notice."""
    event = recorded.event
    assert isinstance(event, NoticePosted)
    key = key_of(event)
    assert key is not None
    before = SalesRow(day=key[0], show_id=key[1], currency=key[2]) if row is None else row
    if event.name != PAYMENT_SUCCEEDED:
        return msgspec.structs.replace(before, cancelled=before.cancelled + 1, position=recorded.position)
    return msgspec.structs.replace(
        before,
        purchases=before.purchases + 1,
        seats=before.seats + len(event.seats),
        revenue_minor=before.revenue_minor + event.amount_minor,
        position=recorded.position,
    )


MODEL: Final = ReadModel[SalesKey, SalesRow](NAME, ("notice",), key_of, apply)
