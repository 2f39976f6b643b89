"""Publishing an arrival log to a topic, at a pace, and going on where a publication died.

A job, not a daemon: it ends by itself. What must stay true: publishing the same log under the same load ids again sends only what
each partition lacks, behind its last record; a broker that is away is asked again a few times, each time after another look into
the topic. No database can fence a publisher that wakes late, so delivery is at-least-once, and readers skip a repeated (load id,
index). A crash half-way leaves in each partition a first part of its records, in order.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from domain.errors import InputError
from domain.market.arrivals import ArrivalLog
from domain.stream.errors import BrokerUnavailableError, TopicExistsError, TopicMissingError
from domain.stream.publication import (
    AS_FAST_AS_POSSIBLE,
    DEFAULT_PARTITIONS,
    DEFAULT_TOPIC,
    Outgoing,
    Pace,
    last_published,
    load_base,
    load_ids,
    missing_records,
    outgoing,
    partitions_of,
    timed,
)
from services.broker import Broker, Marks, Publisher, RecordSource, TopicDescription

FLUSH_SECONDS_MAX: Final = 60.0
"""Seconds that the broker may take to acknowledge what was sent."""

TRIES_MAX: Final = 5
"""Times that a publication is begun or taken up again while the broker is away."""

RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds to wait before the second, third, … of them."""

TAIL_RECORDS: Final = 64
"""Records first read back from a partition's end to find the publication's last one; then so many times `TAIL_GROWTH`, and on."""

TAIL_GROWTH: Final = 16

TAIL_RECORDS_MAX: Final = 1_000_000
"""Records read back from a partition's end at most; a publication that lies deeper is begun anew."""

POLL_RECORDS: Final = 500
POLL_SECONDS: Final = 1.0

SILENT_POLLS_MAX: Final = 30
"""Polls in a row without anything after which a partition's end counts as out of reach."""

SHOWN_PAUSE_SECONDS: Final = 0.05
"""A pause of at least this long begins when all that stands before it is in the topic."""

PROGRESS_RECORDS: Final = 100
"""Records between two reports of progress."""

TOPIC_SETTINGS: Final = {"cleanup.policy": "delete"}
"""Of a topic that is created: compaction would take away copies, and revisions with them."""

OnProgress = Callable[[int], None]
"""Told now and then how many records of the publication were sent, now or before; at the end all of them."""


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to publish and where. `base` names the publication ("": by the log's hash); `partitions` is for a new topic."""

    topic: str = DEFAULT_TOPIC
    base: str = ""
    loads: int = 1
    pace: Pace = AS_FAST_AS_POSSIBLE
    partitions: int = DEFAULT_PARTITIONS


class PublishedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What a publication came to: `records` in all, of which `present` stood in the topic when it began; `sent` now, repeats
    included. `high_water_marks` are the topic's at the end, by partition.
    """

    topic: str
    partitions: int
    created: bool
    load_ids: tuple[str, ...]
    records: int
    present: int
    sent: int
    high_water_marks: tuple[int, ...]
    paused_seconds: float
    seconds: float


def publish(
    broker: Broker,
    log: ArrivalLog,
    request: ReplayRequest,
    on_progress: OnProgress | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> PublishedReplay:
    """Send what the topic lacks of the log; returns when the broker has acknowledged all of it. Blocks.

    Raises `InputError` (load ids, a compacted topic), `BrokerRefusedError`, `TopicMissingError` (deleted meanwhile), and
    `BrokerUnavailableError` when the broker stayed away.
    """
    work = _Publication(broker, log, request, on_progress or _nobody, sleep, monotonic)
    for attempt in range(1, TRIES_MAX + 1):
        try:
            return work.attempt()
        except BrokerUnavailableError:
            if attempt == TRIES_MAX:
                raise
            sleep(RETRY_SECONDS[attempt - 1])
    raise AssertionError("a publication ends or raises")


def _nobody(done: int) -> None:
    """Nobody watches."""


class _Publication:
    """One call of `publish`, over all its attempts."""

    def __init__(
        self,
        broker: Broker,
        log: ArrivalLog,
        request: ReplayRequest,
        on_progress: OnProgress,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._arrivals = log.arrivals
        self._request = request
        self._ids = load_ids(request.base or load_base(log), request.loads)
        self._on_progress = on_progress
        self._sleep = sleep
        self._monotonic = monotonic
        self._began = monotonic()
        self._total = len(log.arrivals) * len(self._ids)
        self._present: int | None = None
        self._created = False
        self._sent = 0
        self._paused = 0.0

    def attempt(self) -> PublishedReplay:
        """Look what is there, and send the rest."""
        topic = self._topic()
        published = self._published(topic)
        present = self._total - missing_records(self._arrivals, self._ids, topic.partitions, published)
        self._present = present if self._present is None else self._present
        self._on_progress(present)
        publisher = self._broker.publisher()
        try:
            self._send(publisher, outgoing(self._arrivals, self._ids, topic.partitions, published), present)
            publisher.flush(FLUSH_SECONDS_MAX)
            self._on_progress(self._total)
        finally:
            publisher.close()
        return PublishedReplay(
            topic=topic.name,
            partitions=topic.partitions,
            created=self._created,
            load_ids=self._ids,
            records=self._total,
            present=self._present,
            sent=self._sent,
            high_water_marks=self._high_water_marks(topic.name),
            paused_seconds=round(self._paused, 3),
            seconds=round(self._monotonic() - self._began, 3),
        )

    def _topic(self) -> TopicDescription:
        """The topic, created if need be."""
        topics, name = self._broker.topics(), self._request.topic
        found = topics.describe(name)
        if found is None:
            with suppress(TopicExistsError):  # somebody else was quicker
                topics.create(name, self._request.partitions, TOPIC_SETTINGS)
                self._created = True
            found = topics.describe(name)
        if found is None:
            raise TopicMissingError("the topic was deleted as it was created", at=name, expected="a topic that stays")
        if "compact" in found.settings.get("cleanup.policy", ""):
            raise InputError("the topic is compacted", at=name, expected="cleanup.policy=delete")
        return found

    def _send(self, publisher: Publisher, records: Iterable[Outgoing], present: int) -> None:
        topic, start = self._request.topic, self._monotonic()
        for sent, (due, record) in enumerate(timed(records, self._request.pace)):
            wait = start + due - self._monotonic() if due else 0.0
            if wait >= SHOWN_PAUSE_SECONDS:
                publisher.flush(FLUSH_SECONDS_MAX)
            if wait > 0:
                self._wait(start + due)
            publisher.send(topic, record.partition, record.key, record.value, record.headers)
            self._sent += 1
            if sent % PROGRESS_RECORDS == 0:
                self._on_progress(present + sent + 1)

    def _wait(self, until: float) -> None:
        now = self._monotonic()
        if until > now:
            self._sleep(until - now)
            self._paused += until - now

    # ---------------------------------------------------------------- what is there already

    def _published(self, topic: TopicDescription) -> dict[int, tuple[int, int]]:
        """(load number, index) of the publication's last record in each partition that has one."""
        source = self._broker.source(topic.name)
        try:
            marks = source.marks()
            wanted = set(partitions_of(self._arrivals, topic.partitions).values())
            return self._looked_for(source, {p: mark for p, mark in marks.items() if p in wanted}, marks)
        finally:
            source.close()

    def _looked_for(
        self, source: RecordSource, wanted: Mapping[int, Marks], marks: Mapping[int, Marks]
    ) -> dict[int, tuple[int, int]]:
        """Read back from the ends, further and further, until each partition has shown the last one or all that it has."""
        found: dict[int, tuple[int, int]] = {}
        window = TAIL_RECORDS
        pending = dict(wanted)
        while pending:
            start = {p: max(mark.low, mark.high - window) for p, mark in pending.items()}
            found |= self._tail(source, start, marks)
            pending = {
                p: mark
                for p, mark in pending.items()
                if p not in found and start[p] > mark.low and window < TAIL_RECORDS_MAX
            }
            window = min(window * TAIL_GROWTH, TAIL_RECORDS_MAX)
        return found

    def _tail(
        self, source: RecordSource, start: Mapping[int, int], marks: Mapping[int, Marks]
    ) -> dict[int, tuple[int, int]]:
        reached = {p: start.get(p, mark.high) for p, mark in marks.items()}
        source.assign(reached)
        found: dict[int, tuple[int, int]] = {}
        silent = 0
        while any(reached[p] < marks[p].high for p in start):
            polled = source.poll(POLL_RECORDS, POLL_SECONDS)
            silent = 0 if polled.next_offsets else silent + 1
            if silent > SILENT_POLLS_MAX:
                raise BrokerUnavailableError("the topic's end cannot be read", at=self._request.topic)
            reached.update(polled.next_offsets)
            for partition, place in last_published(polled.records, self._ids).items():
                found[partition] = max(place, found.get(partition, place))
        return found

    def _high_water_marks(self, topic: str) -> tuple[int, ...]:
        source = self._broker.source(topic)
        try:
            marks = source.marks()
        finally:
            source.close()
        return tuple(marks[partition].high for partition in sorted(marks))
