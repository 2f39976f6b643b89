"""The journal: what is omitted now, what operators asked for, and the bytes that are kept."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical, parse
from domain.errors import IllegalTransitionError, RefusedError
from domain.events import Event, decode, encode
from domain.stream.errors import CheckpointInvalidError, QuarantineFullError
from domain.stream.journal import (
    QUARANTINE_MAX,
    Journal,
    JournalState,
    Kept,
    PendingRetry,
    decide,
    evolve,
    journal_document,
    journal_of,
    omitted_now,
    pending_retries,
    place_of,
)
from domain.stream.messages import (
    ITEMS_MAX,
    BoundedSourceEnded,
    OmittedItem,
    Place,
    Pressure,
    PressureEntered,
    RecordsOmitted,
    RecordsRetried,
    RequestRetry,
    RetriedItem,
    SourceOpened,
    StreamHandedOff,
)
from domain.stream.quarantine import encode_quarantined, parse_quarantined
from domain.stream.records import StreamRecord
from domain.stream.treatment import Treatment

RUN = "run_" + "a" * 64
OPENED = SourceOpened(
    run_id=RUN, source="t", partitions=2, start_offsets={"0": 0, "1": 5}, marks=None, owner="a", token=1
)


def omitted(*places: tuple[int, int], terminal: bool = False) -> RecordsOmitted:
    """These offsets were set aside."""
    items = tuple(
        OmittedItem(partition=p, offset=o, detail="x", terminal=terminal, quarantine=None if terminal else f"q{p}.{o}")
        for p, o in places
    )
    return RecordsOmitted(run_id=RUN, epoch=1, items=items)


def retried(partition: int, offset: int, treatment: Treatment = Treatment.CONSUMED) -> RecordsRetried:
    """One offset was judged again."""
    return RecordsRetried(
        run_id=RUN, epoch=2, items=(RetriedItem(partition=partition, offset=offset, treatment=treatment),)
    )


def after(*events: Event) -> Journal:
    """The journal of an open source after the events."""
    journal = Journal(RUN)
    for event in (OPENED, *events):
        journal = evolve(journal, event)
    return journal


def request(*places: tuple[int, int]) -> RequestRetry:
    """Ana asks for these."""
    return RequestRetry(principal="ana", items=tuple(Place(partition=p, offset=o) for p, o in places))


def test_what_is_omitted_can_be_asked_for_once_and_is_settled_by_a_retry() -> None:
    """A request for what is not omitted, or was asked for already, decides nothing; a retry that fails settles the request."""
    journal = after(omitted((0, 3), (1, 7)), omitted((1, 8), terminal=True))
    assert omitted_now(journal) == (PendingRetry(0, 3, "q0.3"), PendingRetry(1, 7, "q1.7"))
    assert decide(journal, request((1, 8), (0, 4))) == ()
    (asked,) = decide(journal, request((1, 7), (1, 8)))
    journal = evolve(journal, asked)
    assert pending_retries(journal) == (PendingRetry(1, 7, "q1.7", True),)
    assert decide(journal, request((1, 7))) == ()
    still = evolve(journal, retried(1, 7, Treatment.OMITTED))
    assert (pending_retries(still), len(omitted_now(still))) == ((), 2)
    gone = evolve(journal, retried(1, 7))
    assert (pending_retries(gone), omitted_now(gone)) == ((), (PendingRetry(0, 3, "q0.3"),))
    assert decide(gone, request((1, 7))) == ()
    everything = decide(gone, request())
    assert [item.offset for event in everything for item in event.items] == [3]  # type: ignore[attr-defined]


def test_an_offset_is_omitted_once_and_retried_only_while_it_is() -> None:
    """A journal that says otherwise is refused where it is made, not read as something else later."""
    with pytest.raises(RefusedError, match="omitted already"):
        after(omitted((0, 3)), omitted((0, 3)))
    with pytest.raises(RefusedError, match="not omitted"):
        after(omitted((0, 3)), retried(0, 4))
    with pytest.raises(RefusedError, match="not omitted"):
        after(omitted((0, 3)), retried(0, 3), retried(0, 3))


def test_the_table_of_a_journal() -> None:
    """Opened once; handed off before or after that; nothing after its end."""
    handed = StreamHandedOff(
        run_id=RUN,
        previous_owner="a",
        previous_token=1,
        owner="b",
        token=2,
        epoch=0,
        manifest="",
        manifest_hash="",
        next_offsets={},
    )
    ended = BoundedSourceEnded(run_id=RUN, epoch=1, token=1, marks={})
    paused = PressureEntered(run_id=RUN, token=1, state=Pressure.SOURCE_PAUSED, reason="full")
    assert evolve(Journal(RUN), handed).state is JournalState.CLOSED
    assert after(handed, paused).pressure is Pressure.SOURCE_PAUSED
    assert after(ended).state is JournalState.ENDED
    for bad in ((OPENED,), (ended, paused), (ended, omitted((0, 1)))):
        with pytest.raises(IllegalTransitionError):
            after(*bad)
    with pytest.raises(IllegalTransitionError):
        evolve(Journal(RUN), omitted((0, 1)))
    with pytest.raises(IllegalTransitionError):
        decide(after(omitted((0, 1)), ended), request((0, 1)))


def test_a_full_quarantine_is_refused_and_a_large_request_is_several_events() -> None:
    """Limits are reached by name: the records in the quarantine, the items of one event."""
    places = [(0, offset) for offset in range(QUARANTINE_MAX)]
    journal = msgspec.structs.replace(after(), omitted=dict.fromkeys((place_of(*place) for place in places), Kept("q")))
    with pytest.raises(QuarantineFullError):
        evolve(journal, omitted((1, 1)))
    few = msgspec.structs.replace(
        after(), omitted=dict.fromkeys((place_of(*place) for place in places[: 2 * ITEMS_MAX + 1]), Kept("q"))
    )
    assert [len(event.items) for event in decide(few, request())] == [ITEMS_MAX, ITEMS_MAX, 1]  # type: ignore[attr-defined]


@given(st.integers(0, 2**32))
def test_a_journal_survives_its_document(seed: int) -> None:
    """State → canonical JSON → state is the identity, whatever has happened."""
    dice = random.Random(seed)
    journal, kept = after(), set[tuple[int, int]]()
    for offset in range(dice.randrange(30)):
        journal = evolve(journal, omitted((dice.randrange(2), offset), terminal=dice.random() < 0.2))
        kept = {(pending.partition, pending.offset) for pending in omitted_now(journal)}
        if kept and dice.random() < 0.5:
            for asked in decide(journal, request(dice.choice(sorted(kept)))):
                journal = evolve(journal, decode(asked.topic, encode(asked)))
        if kept and dice.random() < 0.3:
            journal = evolve(journal, retried(*dice.choice(sorted(kept)), dice.choice(list(Treatment))))
    assert journal_of(parse(canonical(journal_document(journal)))) == journal
    assert set(pending_retries(journal)) <= set(omitted_now(journal))


BYTES = st.none() | st.binary(max_size=40)


@given(BYTES, BYTES, st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3))
def test_any_record_can_be_kept_and_comes_back_as_it_was(
    key: bytes | None, value: bytes | None, headers: dict[str, bytes]
) -> None:
    """Key, value and headers are bytes; whatever they are, they fit into canonical JSON and are the same afterwards."""
    record = StreamRecord(partition=1, offset=2**40, key=key, value=value, headers=headers)
    kept = encode_quarantined("market", record)
    assert parse_quarantined(kept, "here") == ("market", record)
    assert encode_quarantined("market", record) == kept


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b'{"format":"x"}', b"\xff"])
def test_what_is_no_quarantined_record_is_refused_by_name(bad: bytes) -> None:
    """Typed, with the address."""
    with pytest.raises(CheckpointInvalidError) as refused:
        parse_quarantined(bad, "sha256:x")
    assert refused.value.at == "sha256:x"
