"""The verdict on a STREAM run that has ended, from its topic, its journal and its source; independent of the worker's own core.

The topic is read a second time from the run's start to its marks, and what must have been accepted is worked out anew. Where the
topic cannot be read any more (retention, a broker that is away, none configured), the verdict is over what the run recorded as
accepted, and says that the topic was not looked into: never a silent "equal".

What must stay true: everything read here was committed; nothing is written; a difference between what the topic holds and what
the run recorded is a finding of its own. Blocks: call it in a thread.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from domain.canonical import parse
from domain.checkpoints.manifest import Manifest
from domain.errors import FinazError, NotFoundError, RefusedError, RunNotFoundError, RunNotReadyError
from domain.events import Recorded
from domain.identity import journal_stream, run_stream
from domain.instants import to_micros
from domain.market.chunks import events_of, read_chunk
from domain.market.errors import RunTooLargeError
from domain.market.feature_batch import parse_feature_batch
from domain.market.flow import FlowSpec, parse_flow
from domain.market.lanes import lanes_of
from domain.market.records import MarketEvent
from domain.market.snapshot import parse_manifest
from domain.runs.aggregate import Run
from domain.runs.messages import Mode, RunSpec
from domain.stream.errors import BrokerUnavailableError, PartitionsChangedError, RecoveryBlockedError, TopicMissingError
from domain.stream.messages import RecordsLate, RecordsOmitted, RecordsRetried, SourceOpened
from domain.stream.records import StreamRecord
from domain.stream.reread import EVENTS_MAX, Reread
from domain.stream.treatment import Treatment
from domain.stream.verdict import Verdict, verdict
from services.broker import Broker, RecordSource
from services.checkpoints import CheckpointLog, Checkpoints
from services.ports import BlobStore
from services.runs import fold_run
from services.stream_documents import last_manifest

POLL_RECORDS: Final = 500
POLL_SECONDS: Final = 1.0

SILENT_POLLS_MAX: Final = 30
"""Polls in a row without a record or a moved offset after which the topic counts as out of reach."""

DIFFERENCES_MAX: Final = 20
"""Events that a judgement names where topic and record disagree."""

_OUT_OF_REACH = (RecoveryBlockedError, TopicMissingError, PartitionsChangedError, BrokerUnavailableError)


class TopicLook(Enum):
    """Whether the topic was read a second time."""

    CHECKED = "CHECKED"
    COULD_NOT_CHECK = "COULD_NOT_CHECK"


class TopicFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the second look found. `reason` says why there was none. `differing` are event ids that only one of the two has
    accepted, or with another content; `unexplained` are records that cannot be read and are not in the quarantine."""

    look: TopicLook
    reason: str = ""
    records: int = 0
    differing: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the topic was looked into and says what the run recorded."""
        return self.look is TopicLook.CHECKED and not self.differing and not self.unexplained


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a run: over what its topic holds where that could be read, else over what the run recorded."""

    run_id: str
    topic: str
    verdict: Verdict
    findings: TopicFindings


def source_events(blobs: BlobStore, snapshot: str, as_of: int, flow: FlowSpec) -> Iterator[MarketEvent]:
    """The events of a snapshot, revisions included, that the flow selects and that were available.

    Raises `BlobMissingError`, `BlobCorruptError`, `SnapshotInvalidError`.
    """
    manifest = parse_manifest(blobs.get(snapshot))
    selected = {plan.instrument for plan in lanes_of(flow)}
    for ref in manifest.chunks:
        for event in events_of(read_chunk(blobs.get(ref.address), ref, manifest), manifest.columns):
            if event.instrument in selected and event.available_at <= as_of:
                yield event


def late_identities(journal: Iterable[Recorded]) -> list[tuple[str, int]]:
    """(event_id, revision) of what came too late, from a journal's events."""
    return [
        (item.event_id, item.revision)
        for recorded in journal
        if isinstance(recorded.event, RecordsLate)
        for item in recorded.event.items
    ]


class StreamParity:
    """Judges runs. `broker` opens the broker of their topics; None: there is none to be asked."""

    def __init__(self, log: CheckpointLog, blobs: BlobStore, broker: Callable[[], Broker] | None) -> None:
        self._log = log
        self._blobs = blobs
        self._broker = broker
        self._checkpoints = Checkpoints(log, blobs)

    def judge(self, run_id: str) -> Judgement:
        """Judge a STREAM run that has published.

        Raises `RunNotFoundError`, `RunNotReadyError`, `NotFoundError` for a run of another mode, `BlobMissingError` and the like
        for what CAS has lost, `CheckpointInvalidError`, `RunTooLargeError`.
        """
        streams = (run_stream(run_id), journal_stream(run_id))
        read = self._log.read_streams_blocking(streams)
        run, journal = fold_run(run_id, read.streams[streams[0]]), read.streams[streams[1]]
        self._check(run)
        assert run.spec is not None
        flow = parse_flow(parse(self._blobs.get(run.spec.flow)))
        manifest = last_manifest(self._log, self._blobs, run_id)
        if manifest.sink.accepted > EVENTS_MAX:
            raise RunTooLargeError(f"{manifest.sink.accepted} events", at=run_id, expected=f"at most {EVENTS_MAX}")
        recorded = list(self._checkpoints.accepted(manifest))
        looked = Reread(flow, manifest.plan.partitions, manifest.plan.limits, *places_of(journal))
        for event in self._continued(run.spec, flow):
            looked.begin_with(event)
        findings, accepted = self._second_look(run.spec.topic, looked, manifest, recorded, identity_in(journal))
        source = None
        if run.spec.snapshot:
            source = source_events(self._blobs, run.spec.snapshot, to_micros(run.spec.as_of), flow)
        batch = parse_feature_batch(self._blobs.get(run.results[0].artifact))
        found = verdict(flow, accepted, batch, source, late_identities(journal))
        return Judgement(run_id=run_id, topic=run.spec.topic, verdict=found, findings=findings)

    def _check(self, run: Run) -> None:
        if run.spec is None:
            raise RunNotFoundError("there is no such run", at=run.run_id)
        if run.spec.mode is not Mode.STREAM:
            raise NotFoundError(f"the run is {run.spec.mode.value}", at=run.run_id, expected="a STREAM run")
        if not run.results:
            raise RunNotReadyError(
                f"the run is {run.state.value} and has published nothing",
                at=run.run_id,
                expected="SUCCEEDED",
                state=run.state,
            )

    # ---------------------------------------------------------------- the second look

    def _continued(self, spec: RunSpec, flow: FlowSpec) -> Iterator[MarketEvent]:
        """What the BATCH run took behind which this one goes on, if there is one."""
        if not spec.continues:
            return
        stream = run_stream(spec.continues)
        before = fold_run(spec.continues, self._log.read_streams_blocking([stream]).streams[stream]).spec
        assert before is not None
        yield from source_events(self._blobs, before.snapshot, to_micros(before.as_of), flow)

    def _second_look(
        self, topic: str, reread: Reread, manifest: Manifest, recorded: Sequence[MarketEvent], identity: str
    ) -> tuple[TopicFindings, Sequence[MarketEvent]]:
        records = 0
        try:
            for record in self._records(topic, manifest, identity):
                reread.take(record)
                records += 1
        except _OUT_OF_REACH as error:
            return _not_looked_into(error), recorded
        accepted = reread.accepted()
        unexplained = tuple(
            f"partition {partition}, offset {offset}: {detail}"
            for partition, offset, detail in reread.unexplained[:DIFFERENCES_MAX]
        )
        findings = TopicFindings(
            look=TopicLook.CHECKED,
            records=records,
            differing=tuple(differing(recorded, accepted)[:DIFFERENCES_MAX]),
            unexplained=unexplained,
        )
        return findings, accepted

    def _records(self, topic: str, manifest: Manifest, identity: str) -> Iterator[StreamRecord]:
        """The records from the run's start to the end of its last cut, each partition's in order."""
        if self._broker is None:
            raise TopicMissingError("no broker is configured here", at=topic, expected="FINAZ_KAFKA_BOOTSTRAP")
        broker = self._broker()
        try:
            source = broker.source(topic)
            try:
                if identity and source.identity() not in ("", identity):
                    raise TopicMissingError("it was deleted and made again", at=topic, expected=f"topic {identity}")
                yield from records_between(source, _numbered(manifest.start_offsets), _numbered(manifest.next_offsets))
            finally:
                source.close()
        finally:
            broker.close()


def identity_in(journal: Iterable[Recorded]) -> str:
    """What the broker called the topic that the run opened; empty if that is not known."""
    opened = (recorded.event for recorded in journal if isinstance(recorded.event, SourceOpened))
    return next((event.source_identity for event in opened), "")


def places_of(journal: Iterable[Recorded]) -> tuple[set[tuple[int, int]], set[tuple[int, int]], set[tuple[int, int]]]:
    """The places that are omitted, late, and retried (to something else than omitted), as of the journal's end."""
    omitted: set[tuple[int, int]] = set()
    late: set[tuple[int, int]] = set()
    retried: set[tuple[int, int]] = set()
    for recorded in journal:
        event = recorded.event
        if isinstance(event, RecordsOmitted):
            omitted |= {(item.partition, item.offset) for item in event.items}
        elif isinstance(event, RecordsLate):
            late |= {(item.partition, item.offset) for item in event.items}
        elif isinstance(event, RecordsRetried):
            retried |= {
                (item.partition, item.offset) for item in event.items if item.treatment is not Treatment.OMITTED
            }
    return omitted - retried, late, retried


def records_between(source: RecordSource, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[StreamRecord]:
    """The records of each partition from `start` up to `end`, exclusive.

    Raises `RecoveryBlockedError` if some are gone, `BrokerUnavailableError` if nothing comes any more, and as `RecordSource`.
    """
    if set(start) != set(range(source.partitions)):
        raise PartitionsChangedError("the topic has other partitions now", at="topic", expected=f"{len(start)}")
    reached = dict(start)
    source.assign(reached)
    silent = 0
    while any(reached[partition] < last for partition, last in end.items()):
        polled = source.poll(POLL_RECORDS, POLL_SECONDS)
        silent = 0 if polled.next_offsets else silent + 1
        if silent > SILENT_POLLS_MAX:
            raise BrokerUnavailableError("the topic gives nothing more", at="topic", expected="its records")
        yield from (record for record in polled.records if record.offset < end[record.partition])
        reached.update(polled.next_offsets)


def differing(recorded: Iterable[MarketEvent], reread: Iterable[MarketEvent]) -> list[str]:
    """The ids of events whose highest revision is not the same on both sides."""
    one = {event.event_id: event for event in sorted(recorded, key=lambda event: event.revision)}
    other = {event.event_id: event for event in reread}
    return sorted(name for name in one.keys() | other.keys() if _content(one.get(name)) != _content(other.get(name)))


def _content(event: MarketEvent | None) -> object:
    """What two records of one event must share; a value that is null need not be there."""
    if event is None:
        return None
    values = sorted((column, repr(value)) for column, value in event.values.items() if value is not None)
    return event.instrument, event.event_time, event.revision, values


def _numbered(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}


def _not_looked_into(error: FinazError | RefusedError) -> TopicFindings:
    return TopicFindings(look=TopicLook.COULD_NOT_CHECK, reason=str(error))
