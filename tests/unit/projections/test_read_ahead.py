"""Reading ahead gives what reading gives, whatever is asked for and whatever arrives meanwhile."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import StoreUnavailableError, UnknownTopicError
from projections.log import DecodedEvents, StoredEvent, decoded
from projections.rebuilding.ahead import ReadAhead
from tests.support.histories import History, histories, seeded_history
from tests.support.stored_events import stored_event


def reader_of(log: list[StoredEvent]) -> ReadAhead:
    """A reader ahead over a growing list."""

    def read(after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        return [event for event in list(log) if after < event.position <= up_to][:limit]

    return ReadAhead(read, lambda: None)


@given(histories(moves_max=30), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(1, 9))))
def test_any_sequence_of_reads_gives_what_is_there(history: History, reads: list[tuple[int, int, int]]) -> None:
    """Read on from anywhere with any limit, while the log grows: each read is what a plain read gives at that moment."""
    log: list[StoredEvent] = []
    coming = [stored_event(recorded) for recorded in history.events]
    reader = reader_of(log)
    after = 0
    try:
        for new, jump, limit in reads:
            log += coming[:new]
            del coming[:new]
            after = after if jump % 3 else min(jump, len(log))
            found = reader.read(after, len(log), limit)
            assert [e.position for e in found] == [e.position for e in log if after < e.position][:limit]
            assert [e.recorded() for e in found] == [e.recorded() for e in log if after < e.position][:limit]
            after = found[-1].position if found else after
    finally:
        reader.close()


def test_what_cannot_be_decoded_fails_where_it_is_used() -> None:
    """Reading ahead over a bad event raises nothing; the event does, when it is its turn."""
    good = stored_event(seeded_history(1, 3).events[0])
    bad = StoredEvent(2, "run/x", 1, good.event_id, good.recorded_at, "run.exploded.v9", "{}")
    reader = reader_of([good, bad])
    found = reader.read(0, 2, 5)
    assert isinstance(found, DecodedEvents)
    events, failure = decoded(found)
    assert events == [good.recorded()]
    assert failure is not None
    assert (failure.position, failure.code) == (2, UnknownTopicError.code)
    with pytest.raises(UnknownTopicError):
        found[1].recorded()
    reader.close()


def test_a_read_that_fails_ahead_fails_when_it_is_asked_for() -> None:
    """The database goes away while nobody waits for it: whoever asks next is told, and may ask again."""
    log = [stored_event(recorded) for recorded in seeded_history(1, 6).events]
    answers: list[Sequence[StoredEvent] | Exception] = [log[:2], StoreUnavailableError("away"), log[2:4], []]

    def read(after: int, up_to: int, limit: int) -> Sequence[StoredEvent]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reader = ReadAhead(read, lambda: None)
    assert len(reader.read(0, 9, 2)) == 2
    with pytest.raises(StoreUnavailableError):
        reader.read(log[1].position, 9, 2)
    assert [e.position for e in reader.read(log[1].position, 9, 2)] == [3, 4]
    reader.close()
