"""Reading whole streams: what many callers ask for at once is read in one round trip.

What must stay true: each caller gets all events of its streams as one snapshot of the database saw them, in order, and the clock of
that moment; an event that cannot be read fails only those who asked for its stream. Reads change nothing; a crash leaves nothing.
"""

from collections import deque
from collections.abc import Sequence
from datetime import UTC
from typing import Final, TypeAlias

from domain.errors import FinazError, InfrastructureError
from domain.events import Recorded
from projections.statements import statements
from services.ports import StreamsRead
from services.store.connections import Pool, Row
from services.store.group import Group, Ticket
from services.store.mapper import recorded

QUEUE_READS_MAX: Final = 10_000
"""Requests that may wait; one more is refused with `OverloadedError`."""

GROUP_STREAMS_MAX: Final = 256
"""Streams of one round trip; a larger request goes alone."""

ReadTicket: TypeAlias = Ticket[Sequence[str], StreamsRead]

_READ_STREAMS: Final = statements("services.store", "statements.sql")["read_streams"]


class Reader:
    """Reads streams: `read` blocks, `read_soon` gives a future of the running event loop and shares round trips."""

    def __init__(self, pool: Pool, *, queue_max: int = QUEUE_READS_MAX) -> None:
        self._pool = pool
        self._group: Group[Sequence[str], StreamsRead] = Group("reader", take, self._answer, queue_max=queue_max)
        self.read_soon = self._group.ask_soon

    def read(self, streams: Sequence[str]) -> StreamsRead:
        """All events of the streams, and the clock. Raises `UnknownTopicError`, `UndecodableEventError`."""
        ticket = ReadTicket(streams, None)
        self._answer([ticket])
        if ticket.error is not None:
            raise ticket.error
        assert ticket.answer is not None
        return ticket.answer

    def close(self) -> None:
        """Answer what has queued, then end."""
        self._group.close()

    def _answer(self, tickets: list[ReadTicket]) -> None:
        wanted = list(dict.fromkeys(stream for ticket in tickets for stream in ticket.request))
        try:
            rows = self._pool.rows(_READ_STREAMS, {"streams": wanted})
        except InfrastructureError as error:
            for ticket in tickets:
                ticket.error = error
            return
        now = rows[0][0].astimezone(UTC)
        by_stream = _by_stream(rows)
        read: dict[str, tuple[Recorded, ...]] = {}
        bad: dict[str, FinazError] = {}
        for stream in wanted:
            try:
                read[stream] = tuple(recorded(row[1:]) for row in by_stream.get(stream, ()))
            except FinazError as error:
                bad[stream] = error
        for ticket in tickets:
            ticket.error = next((bad[stream] for stream in ticket.request if stream in bad), None)
            if ticket.error is None:
                ticket.answer = StreamsRead(streams={stream: read[stream] for stream in ticket.request}, now=now)


def _by_stream(rows: Sequence[Row]) -> dict[str, list[Row]]:
    streams: dict[str, list[Row]] = {}
    for row in rows:
        if row[2] is not None:
            streams.setdefault(row[2], []).append(row)
    return streams


def take(queue: "deque[ReadTicket]") -> list[ReadTicket]:
    """The next group: in order, up to `GROUP_STREAMS_MAX` streams."""
    group: list[ReadTicket] = []
    streams = 0
    while queue:
        ticket = queue.popleft()
        streams += len(ticket.request)
        if group and streams > GROUP_STREAMS_MAX:
            queue.appendleft(ticket)
            break
        group.append(ticket)
    return group
