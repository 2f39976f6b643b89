"""Where a stream goes on behind a batch: the state that a core has after the batch's events, and where its lateness begins.

What must stay true: what the core releases for the batch's events is what the batch published, tick by tick; an event whose
place is at or before the batch's last tick is late, in every partition; a copy of an event that the batch took is known by its
identity as long as any identity is remembered. Pure.
"""

from collections.abc import Iterable, Sequence

from domain.market.flow import FlowSpec, IntervalClock
from domain.market.lanes import lanes_of
from domain.market.records import MarketEvent

_MICROS = 1_000_000


def taken_by_batch(flow: FlowSpec, events: Iterable[MarketEvent]) -> list[MarketEvent]:
    """Of available events those that a batch takes: the highest revision of each that an output needs, in clock order."""
    selected = {plan.instrument for plan in lanes_of(flow)}
    highest: dict[str, MarketEvent] = {}
    for event in events:
        held = highest.get(event.event_id)
        if event.instrument in selected and (held is None or event.revision > held.revision):
            highest[event.event_id] = event
    return sorted(highest.values(), key=lambda event: (event.event_time, event.event_id.encode("utf-8")))


def watermark_behind(flow: FlowSpec, taken: Sequence[MarketEvent]) -> int | None:
    """The watermark (microseconds) below which all is past after the batch: behind its last tick; None if it had none.

    A tick of an interval clock stands at its cell's end, which is where the next cell begins.
    """
    if not taken:
        return None
    last = taken[-1].event_time
    if isinstance(flow.clock, IntervalClock):
        length = flow.clock.length_seconds * _MICROS
        return (last // length + 1) * length
    return last + 1
