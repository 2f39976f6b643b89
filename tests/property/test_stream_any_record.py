"""No record ends a stream, whatever its bytes: it gets a treatment, the state can be written and read, and its neighbours stand."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.canonical import canonical, parse
from domain.market.arrivals import partition_of
from domain.stream.progress import Cut, Progress
from domain.stream.quarantine import encode_quarantined, parse_quarantined
from domain.stream.records import INDEX_MAX, StreamRecord
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamCore
from tests.unit.domain.stream.test_worker_core import flow_over

KEY = b"a"
LIMIT = "2026-01-05T09:30:00Z"
DEEP = 100_000
"""Levels at which every parser gives up."""


def value_at(minute: int, **changes: object) -> bytes:
    instant = f"2026-01-05T09:{minute:02d}:00Z"
    members = {"event_id": f"e.{minute}", "instrument": "a", "event_time": instant, "available_at": instant}
    return json.dumps(members | {"revision": 0, "close": 1.0} | changes).encode()


def plain(minute: int) -> StreamRecord:
    headers = {"load_id": b"plain", "index": str(minute).encode()}
    return StreamRecord(partition=0, offset=0, key=KEY, value=value_at(minute), headers=headers)


def odd(value: bytes | None = None, key: bytes | None = KEY, headers: dict[str, bytes] | None = None) -> StreamRecord:
    return StreamRecord(partition=0, offset=0, key=key, value=value, headers=headers or {})


ODD = {
    "an index of 5000 digits": odd(value_at(40), headers={"load_id": b"l", "index": b"9" * 5000}),
    "an index beyond 64 bits": odd(value_at(40), headers={"load_id": b"l", "index": str(INDEX_MAX + 1).encode()}),
    "a NUL in the load": odd(value_at(40), headers={"load_id": b"l\0", "index": b"1"}),
    "a load that is no text": odd(value_at(40), headers={"load_id": b"\xff", "index": b"1"}),
    "a load of a megabyte": odd(value_at(40), headers={"load_id": b"l" * 2**20, "index": b"1"}),
    "a gap of a NUL": odd(key=b"\0", headers={"kind": b"GAP_OPEN", "instant": LIMIT.encode()}),
    "a gap of no text": odd(key=b"\xff", headers={"kind": b"GAP_OPEN", "instant": LIMIT.encode()}),
    "a gap of nobody": odd(key=None, headers={"kind": b"GAP_OPEN", "instant": LIMIT.encode()}),
    "a deep array": odd(b"[" * DEEP),
    "a deep object": odd(b'{"a":' * DEEP),
    "a deep member": odd(value_at(40)[:-1] + b', "low": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "a number of 6000 digits": odd(value_at(40)[:-1] + b', "low": ' + b"9" * 6000 + b"}"),
    "a revision of 6000 digits": odd(value_at(40).replace(b'"revision": 0', b'"revision": ' + b"9" * 6000)),
    "a NUL in the id": odd(value_at(40, event_id="\0")),
    "a surrogate in the id": odd(value_at(40, event_id="\ud800")),
    "a surrogate in a column": odd(value_at(40, **{"\ud800": 1})),
    "the first instant": odd(value_at(40, event_time="0001-01-01T00:00:00Z")),
    "the last available_at": odd(value_at(40, available_at="9999-12-31T23:59:59.999999Z")),
}
NAMES = ("load_id", "index", "kind", "instant", "other")
BYTES = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")))
HEADERS = st.dictionaries(
    st.sampled_from(NAMES), BYTES | st.sampled_from([b"GAP_OPEN", b"GAP_CLOSED", b"IDLE_CONFIRMED", LIMIT.encode()])
)
CUT_SHORT = st.builds(lambda text, end: text[:end], st.just(value_at(40)), st.integers(0, len(value_at(40))))
ANY = st.builds(odd, st.none() | BYTES | CUT_SHORT | st.just(value_at(40)), st.none() | BYTES | st.just(KEY), HEADERS)


def placed(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    return [
        StreamRecord(partition=0, offset=offset, key=one.key, value=one.value, headers=one.headers)
        for offset, one in enumerate(records)
    ]


def check(cut: Cut, core: StreamCore) -> None:
    """What a commit does with a cut, without a store."""
    state = parse(canonical(cut.state))
    blocks = {name: json.loads(data) for name, data in cut.blocks.items()}
    for identities in state["identities"]:
        identities["blocks"] = [blocks[name] for name in identities["blocks"]]
    again = StreamCore(flow_over("a", interval=False), core.partitions)
    again.restore(state)
    assert canonical(again.state_document()) == canonical(core.state_document())
    for omitted in cut.omitted:
        canonical(omitted.detail)
        kept = encode_quarantined("topic", omitted.record)
        assert parse_quarantined(kept, "blob") == ("topic", omitted.record)


def survive(record: StreamRecord, neighbours: int) -> None:
    assert partition_of(KEY, 1) == 0
    core = StreamCore(flow_over("a", interval=False), 1)
    progress = Progress(core, {0: 0})
    minutes = [*range(neighbours), *range(59 - neighbours, 59)]
    records = [plain(minute) for minute in minutes]
    progress.take_all(placed([*records[:neighbours], record, *records[neighbours:]]))
    check(progress.cut(), core)
    assert sum(core.counts.values()) == 2 * neighbours + 1
    assert core.counts[Treatment.CONSUMED] + core.counts[Treatment.LATE] >= 2 * neighbours


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("neighbours", [1, 16])
def test_records_of_every_odd_kind_end_nothing(name: str, neighbours: int) -> None:
    """By one and among many, which are read at once: one treatment, a state that can be kept, neighbours as they were."""
    survive(ODD[name], neighbours)


@given(record=ANY, neighbours=st.sampled_from([1, 16]))
def test_no_bytes_end_a_stream(record: StreamRecord, neighbours: int) -> None:
    """Key, value and headers may be anything."""
    survive(record, neighbours)


def test_loads_that_are_no_text_are_not_taken_for_one() -> None:
    """Two publications whose ids cannot be read do not hide each other's events."""
    records = [plain(minute) for minute in range(4)]
    loads = [b"\xff", b"\xfe", b"\xff\0", b"l\0"]
    core = StreamCore(flow_over("a", interval=False), 1)
    made = [odd(one.value, headers={"load_id": load, "index": b"0"}) for one, load in zip(records, loads, strict=True)]
    Progress(core, {0: 0}).take_all(placed(made))
    assert core.counts[Treatment.CONSUMED] == len(made)
