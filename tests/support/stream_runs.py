"""A STREAM run without worker or broker: a lease, a log in memory, checkpoints, records by partition."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from domain.checkpoints.manifest import Plan
from domain.events import Event
from domain.identity import lease_stream
from domain.leases.messages import LeaseGranted
from domain.market.arrivals import Arrival, partition_of
from domain.market.flow import FlowSpec, flow_address
from domain.stream.messages import SourceOpened
from domain.stream.progress import Progress
from domain.stream.records import StreamRecord
from domain.stream.worker_core import DEFAULT_LIMITS, StreamCore, StreamLimits
from services.checkpoint_appends import Committed, Standing
from services.checkpoints import CheckpointLog, Checkpoints, Restored
from services.ports import Append, BlobStore, Fence, NewEvent, Vacant

RUN = "run_" + "e" * 64
PARTITIONS = 4
SOURCE = "market"


def plan_of(flow: FlowSpec, limits: StreamLimits = DEFAULT_LIMITS, partitions: int = PARTITIONS) -> Plan:
    """The plan of a run of the flow over the topic."""
    return Plan(flow=flow_address(flow), limits=limits, partitions=partitions, source=SOURCE)


def records_of(
    arrivals: Sequence[Arrival], load: str, offsets: Counter[int], partitions: int = PARTITIONS
) -> list[StreamRecord]:
    """The records that publishing the arrivals makes, in order, behind those that are there already."""
    records = []
    for arrival in arrivals:
        key = arrival.instrument.encode()
        partition = partition_of(key, partitions)
        headers = {"load_id": load.encode(), "index": str(arrival.index).encode(), "kind": arrival.kind.encode()}
        records.append(
            StreamRecord(partition=partition, offset=offsets[partition], key=key, value=arrival.value, headers=headers)
        )
        offsets[partition] += 1
    return records


def lease(log: CheckpointLog, owner: str, token: int, run_id: str = RUN, ttl_seconds: float = 6.0) -> Fence:
    """Take the run's lease, which must be vacant; the fence of the new owner."""
    stream = lease_stream(run_id)
    version = len(log.read_streams_blocking([stream]).streams[stream])
    granted = LeaseGranted(resource=run_id, owner=owner, token=token, ttl_seconds=ttl_seconds)
    news = (NewEvent(stream, version + 1, granted, uuid4()),)
    log.append_blocking(Append(events=news, guard=Vacant(run_id, token - 1)))
    return Fence(run_id, owner, token)


def opened(fence: Fence, marks: Mapping[int, int] | None = None, partitions: int = PARTITIONS) -> SourceOpened:
    """The source is read from the beginning."""
    return SourceOpened(
        run_id=fence.resource,
        source=SOURCE,
        partitions=partitions,
        start_offsets={str(partition): 0 for partition in range(partitions)},
        marks=None if marks is None else {str(partition): marks.get(partition, 0) for partition in range(partitions)},
        owner=fence.owner,
        token=fence.token,
    )


class Owner:
    """One owner of the run: restores, takes records, commits. Nothing of it survives but log and blobs."""

    def __init__(
        self,
        log: CheckpointLog,
        blobs: BlobStore,
        fence: Fence,
        flow: FlowSpec,
        limits: StreamLimits = DEFAULT_LIMITS,
        marks: Mapping[int, int] | None = None,
    ) -> None:
        self.checkpoints = Checkpoints(log, blobs, store_threads=1)  # in an order that tests can count on
        self.fence = fence
        self.marks = marks
        self.restored: Restored = self.checkpoints.restore(fence.resource, plan_of(flow, limits))
        self.standing: Standing = self.restored.standing
        core = StreamCore(flow, PARTITIONS, limits)
        if self.restored.state is not None:
            core.restore(self.restored.state)
        start = dict.fromkeys(range(PARTITIONS), 0)
        self.progress = Progress(core, start, self.restored.next_offsets or start, marks)

    def commit(self, **more: Any) -> Committed:
        """Commit what was taken; the first commit opens the source."""
        journal: list[Event] = [] if self.standing.journal.source else [opened(self.fence, self.marks)]
        cut = more.pop("cut", None) or self.progress.cut()
        committed = self.checkpoints.commit(
            cut, self.fence, self.standing, journal=[*journal, *more.pop("journal", ())], **more
        )
        self.standing = committed.standing
        return committed
