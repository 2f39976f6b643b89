"""The client of the API, as far as it can be seen without one: reading server-sent events, and how long it tries."""

from hypothesis import given
from hypothesis import strategies as st

from deployment.api_client import RETRY_DELAY_SECONDS_MAX, TRIES_MAX, _delay, messages
from domain.canonical import canonical

TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=20)


def sent(kind: str, data: object, position: int) -> list[str]:
    return [f"id: {position}", f"event: {kind}", f"data: {canonical(data).decode()}", ""]


@given(st.lists(st.tuples(st.sampled_from(["a", "run.x.v1"]), st.dictionaries(TEXT, st.integers())), max_size=5))
def test_messages_come_out_as_they_went_in(events: list[tuple[str, dict[str, int]]]) -> None:
    """Every message sent is read, in order, whatever comments stand between."""
    lines: list[str] = [": watching", ""]
    for position, (kind, data) in enumerate(events):
        lines += [*sent(kind, data, position), ": keep-alive", ""]
    read = [(message.kind, message.data, message.event_id) for message in messages(iter(lines))]
    assert read == [(kind, data, str(position)) for position, (kind, data) in enumerate(events)]


def test_an_unfinished_message_is_dropped() -> None:
    """A stream that breaks inside a message yields the whole ones before it only."""
    lines = [*sent("a", {"n": 1}, 1), "id: 2", "event: a", 'data: {"n":']
    assert [message.data for message in messages(iter(lines))] == [{"n": 1}]


def test_waits_grow_to_a_limit() -> None:
    """The pause before each further try is no shorter than the one before, and bounded."""
    delays = [_delay(tries) for tries in range(TRIES_MAX)]
    assert delays == sorted(delays)
    assert max(delays) <= RETRY_DELAY_SECONDS_MAX
