"""Publishing a replay: what is in the topic afterwards, whenever a publication died, at whatever pace."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import InputError
from domain.market.arrivals import ArrivalLog, arrival_log
from domain.market.faults import FaultKind, random_schedule
from domain.market.records import MarketEvent
from domain.stream.errors import BrokerUnavailableError
from domain.stream.publication import (
    LOADS_MAX,
    Pace,
    headers_of,
    load_ids,
    missing_records,
    outgoing,
    parse_pace,
    records_of,
    timed,
)
from domain.stream.records import StreamRecord
from domain.stream.worker_core import StreamCore, Treatment
from services import replay_publishing
from services.replay_publishing import TRIES_MAX, PublishedReplay, ReplayRequest, publish
from tests.support.market_strategies import events
from tests.support.memory_broker import MemoryBroker, MemoryPublisher
from tests.unit.domain.market.test_arrivals import AS_OF, SNAPSHOT, fixture_log
from tests.unit.domain.stream.test_worker_core import counts, fixture_flow

TOPIC = "replay"


class Clock:
    """Wall time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


class KilledError(Exception):
    """The process ends here."""


class MortalBroker(MemoryBroker):
    """Its publishers end after so many records, by whatever is planted; each partition may lose what was sent last."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**9
        self.error: Exception = KilledError()
        self.sent = 0

    def publisher(self) -> "MortalPublisher":
        return MortalPublisher(self)


class MortalPublisher(MemoryPublisher):
    """Dies at the send when no life is left."""

    def __init__(self, broker: MortalBroker) -> None:
        super().__init__(broker)
        self._mortal = broker

    def send(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Mapping[str, bytes]) -> None:
        if not self._mortal.left:
            self._mortal.left = 10**9
            raise self._mortal.error
        self._mortal.left -= 1
        self._mortal.sent += 1
        super().send(topic, partition, key, value, headers)


def published(broker: MemoryBroker, log: ArrivalLog, clock: Clock | None = None, **request: Any) -> PublishedReplay:
    clock = clock or Clock()
    return publish(broker, log, ReplayRequest(topic=TOPIC, **request), sleep=clock.sleep, monotonic=clock.monotonic)


def held(broker: MemoryBroker) -> list[list[StreamRecord]]:
    """The records of each partition."""
    return [[slot for slot in part.slots if slot is not None] for part in broker.topic(TOPIC).partitions]


def identities(records: list[StreamRecord]) -> list[tuple[bytes, int]]:
    return [(record.headers["load_id"], int(record.headers["index"])) for record in records]


def test_thirteen_loads_of_the_fixture() -> None:
    """299 records, partitions 0 and 3 at 78 and 221; the topic is made for it, to delete and not to compact."""
    broker = MemoryBroker()
    found = published(broker, fixture_log(), loads=13)
    assert (found.records, found.sent, found.present, found.created) == (299, 299, 0, True)
    assert found.high_water_marks == (78, 0, 0, 221)
    description = broker.describe(TOPIC)
    assert description is not None
    assert description.settings["cleanup.policy"] == "delete"
    core = StreamCore(fixture_flow(), 4)
    for partition in held(broker):
        for record in partition:
            core.process(record)
    assert counts(core) == (6, 195, 13, 85)


def test_records_have_their_identity_and_kind_in_headers() -> None:
    """And the instrument as key; an announcement is a tombstone that says for how long."""
    broker = MemoryBroker()
    published(broker, fixture_log(), base="b")
    kinds = Counter(record.headers["kind"] for partition in held(broker) for record in partition)
    assert kinds == {b"EVENT": 21, b"PAUSE": 1, b"SOURCE_FAILURE": 1}
    (pause,) = [r for partition in held(broker) for r in partition if r.headers["kind"] == b"PAUSE"]
    assert (pause.key, pause.value, pause.headers["milliseconds"]) == (b"fixture.fx-0", None, b"100")
    assert pause.load == ("b.0", int(pause.headers["index"]))
    assert held(broker)[0] == [r for r in records_of(fixture_log().arrivals, "b.0", 4) if r.partition == 0]


@settings(max_examples=60, deadline=None)
@given(
    made=events(instruments=("A", "B", "C", "D"), size_max=25),
    deaths=st.lists(st.integers(0, 40), max_size=4),
    lost=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=4),
    loads=st.integers(1, 3),
)
def test_however_often_it_dies_each_record_is_there_once_and_in_order(
    made: list[MarketEvent], deaths: list[int], lost: list[tuple[int, int]], loads: int
) -> None:
    """Killed after any number of records, the end of any partition lost with it: going on gives what one go would have given."""
    ordered = sorted(made, key=lambda event: (event.event_time, event.event_id))
    schedule = random_schedule(3, dict.fromkeys(FaultKind, 0.3), [event.event_id for event in ordered])
    log = arrival_log(ordered, AS_OF, schedule, SNAPSHOT)
    whole, broker = MemoryBroker(), MortalBroker()
    published(whole, log, loads=loads)
    for number, lives in enumerate(deaths):
        broker.left = lives
        try:
            published(broker, log, loads=loads)
        except KilledError:
            for partition, records in lost[number : number + 1]:
                part = broker.topic(TOPIC).partitions[partition]
                broker.lose(TOPIC, partition, max(part.low, part.high - records))
        broker.left = 10**9
    again = published(broker, log, loads=loads)
    assert again.present + again.sent == again.records
    assert held(broker) == held(whole)
    assert published(broker, log, loads=loads).sent == 0


def test_a_publisher_that_wakes_late_makes_copies_that_readers_skip() -> None:
    """Each (load, index) at most once more; the values are the same."""
    broker, log = MortalBroker(), fixture_log()
    broker.left = 11
    with pytest.raises(KilledError):
        published(broker, log)
    published(broker, log)
    late = MemoryPublisher(broker)
    for record in list(outgoing(log.arrivals, load_ids(log.log_hash.removeprefix("sha256:")[:16], 1), 4, {}))[11:]:
        late.send(TOPIC, record.partition, record.key, record.value, record.headers)
    seen = Counter(identity for partition in held(broker) for identity in identities(partition))
    assert max(seen.values()) == 2
    core = StreamCore(fixture_flow(), 4)
    for partition in held(broker):
        for one in partition:
            core.process(one)
    assert core.counts[Treatment.CONSUMED] == 6
    assert published(broker, log).sent == 0


def test_a_broker_that_is_away_for_a_while_is_asked_again() -> None:
    """After another look into the topic; one that stays away is an error, after so many tries."""
    broker, log, clock = MortalBroker(), fixture_log(), Clock()
    broker.left, broker.error = 9, BrokerUnavailableError("planted")
    found = published(broker, log, clock)
    assert (found.sent, found.present, sum(found.high_water_marks)) == (23, 0, 23)
    assert clock.slept[0] == replay_publishing.RETRY_SECONDS[0]
    broker.available = False
    clock = Clock()
    with pytest.raises(BrokerUnavailableError):
        published(broker, log, clock)
    assert len(clock.slept) == TRIES_MAX - 1


@pytest.mark.parametrize("foreign", [0, 63, 64, 65, 5000])
def test_the_last_record_is_found_behind_those_of_others(foreign: int) -> None:
    """However many somebody else has sent since, up to the limit."""
    broker, log = MortalBroker(), fixture_log()
    broker.left = 12
    with pytest.raises(KilledError):
        published(broker, log)
    for partition in range(4):
        for number in range(foreign):
            headers = {"load_id": b"other", "index": b"%d" % number}
            broker.append(TOPIC, partition, b"fixture.fx-1", b"{}", headers)
    found = published(broker, log)
    assert (found.present, found.sent) == (12, 11)


def test_a_publication_that_lies_too_deep_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of reading back is reached, and readers skip the copies."""
    broker, log = MortalBroker(), fixture_log()
    published(broker, log)
    for number in range(40):
        broker.append(TOPIC, 3, b"fixture.fx-0", b"{}", {"load_id": b"other", "index": b"%d" % number})
    monkeypatch.setattr(replay_publishing, "TAIL_RECORDS", 4)
    monkeypatch.setattr(replay_publishing, "TAIL_RECORDS_MAX", 41)
    assert published(broker, log).sent == 0
    monkeypatch.setattr(replay_publishing, "TAIL_RECORDS_MAX", 40)
    assert published(broker, log).sent == 17


def test_progress_goes_from_what_is_there_to_all_of_it() -> None:
    """Now and then, and at the end."""
    broker, told = MemoryBroker(), list[int]()
    publish(broker, fixture_log(), ReplayRequest(topic=TOPIC, loads=9), told.append, sleep=lambda seconds: None)
    assert told == [0, 1, 101, 201, 207]
    told.clear()
    publish(broker, fixture_log(), ReplayRequest(topic=TOPIC, loads=9), told.append)
    assert told == [207, 207]


def test_another_publication_is_another_load() -> None:
    """The same log under another name is sent again, and skipped by its identities."""
    broker = MemoryBroker()
    published(broker, fixture_log())
    assert published(broker, fixture_log(), base="again").sent == 23


def test_a_compacted_topic_and_wrong_names_are_refused() -> None:
    """Before anything is sent."""
    broker = MemoryBroker()
    broker.create(TOPIC, 4, {"cleanup.policy": "compact"})
    for request in ({}, {"base": "no\nname"}, {"base": "ä"}, {"loads": 0}, {"loads": LOADS_MAX + 1}):
        with pytest.raises(InputError):
            published(broker, fixture_log(), **request)
    assert held(broker) == [[], [], [], []]
    assert len(load_ids("b", LOADS_MAX)) == LOADS_MAX


def test_the_topics_own_partitions_are_taken() -> None:
    """A topic that exists has what it has."""
    broker = MemoryBroker()
    broker.create(TOPIC, 7, {})
    found = published(broker, fixture_log(), partitions=4)
    assert (found.partitions, found.created, len(found.high_water_marks)) == (7, False, 7)


# ------------------------------------------------------------------------------------------------ pace


def test_announced_pauses_really_pause() -> None:
    """100 and 300 ms by the wall clock, at full speed too, what stands before them being in the topic by then."""
    broker, clock = MemoryBroker(), Clock()
    there: list[int] = []

    def sleep(seconds: float) -> None:
        there.append(sum(map(len, held(broker))))
        clock.sleep(seconds)

    log = fixture_log()
    found = publish(broker, log, ReplayRequest(topic=TOPIC), sleep=sleep, monotonic=clock.monotonic)
    assert [round(seconds, 6) for seconds in clock.slept] == [0.1, 0.3]
    assert found.paused_seconds == 0.4
    announced = [arrival.index + 1 for arrival in log.arrivals if arrival.milliseconds]
    assert there == announced


def test_paces() -> None:
    """So many records a second, or the recorded gaps so many times as fast, each with the announced pauses on top."""
    log = fixture_log()
    by_rate, by_speed = Clock(), Clock()
    published(MemoryBroker(), log, by_rate, pace=Pace(records_per_second=10.0))
    assert by_rate.now - 100.0 == pytest.approx(22 * 0.1 + 0.4)
    published(MemoryBroker(), log, by_speed, pace=Pace(speed_multiplier=60.0))
    span = (log.arrivals[-1].at - log.arrivals[0].at) / 1_000_000
    assert by_speed.now - 100.0 == pytest.approx(span / 60 + 0.4)


def test_due_times_never_go_back() -> None:
    """Over loads, too, whose recorded gap would be negative."""
    log = fixture_log()
    records = list(outgoing(log.arrivals, load_ids("b", 3), 4, {}))
    for pace in (Pace(), Pace(records_per_second=3.0), Pace(speed_multiplier=2.0)):
        due = [seconds for seconds, _ in timed(records, pace)]
        assert due == sorted(due)
        assert due[0] == 0.0


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("max", Pace()),
        ("100/s", Pace(records_per_second=100.0)),
        ("0.5/s", Pace(records_per_second=0.5)),
        ("60x", Pace(speed_multiplier=60.0)),
    ],
)
def test_paces_are_written_like_this(text: str, pace: Pace) -> None:
    """With their unit, so that nobody takes one for the other."""
    assert parse_pace(text) == pace


@pytest.mark.parametrize("text", ["", "100", "0/s", "0x", "-1/s", "1e3/s", "nan/s", "inf/s", "fast"])
def test_other_paces_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_pace(text)


@given(st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2), st.integers(0, 22)), max_size=4))
def test_the_number_of_missing_records_is_that_of_those_to_be_sent(there: dict[int, tuple[int, int]]) -> None:
    """For any place in any partition."""
    arrivals, ids = fixture_log().arrivals, load_ids("b", 3)
    assert missing_records(arrivals, ids, 4, there) == len(list(outgoing(arrivals, ids, 4, there)))


def test_headers_of_an_event_have_no_milliseconds() -> None:
    """Only an announcement lasts."""
    assert set(headers_of(fixture_log().arrivals[0], "b")) == {"kind", "load_id", "index"}
