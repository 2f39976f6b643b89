"""The audit's look at blobs: it follows what events name to the last blob that somebody might read."""

import pytest

from services.audit.blobs import NAMING, BlobsCheck
from services.audit.findings import FindingKind, Findings
from services.audit.streams import Part, StreamsCheck
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import TOPIC, StreamRig, fixture_log, publish_log


@pytest.fixture(scope="module")
def rig() -> StreamRig:
    """A stream run that committed many epochs and published, beside a snapshot."""
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    run_id = rig.request(snapshot=rig.snapshot())
    rig.work(run_id, checkpoint_records=17, checkpoint_seconds=3600.0)
    return rig


def found(rig: StreamRig, blobs: MemoryBlobs) -> list[tuple[FindingKind, str]]:
    """What the look at blobs finds."""
    findings = Findings()
    streams, check = StreamsCheck(findings, Part()), BlobsCheck(findings, blobs, frozenset(), set())
    for recorded, state in streams.events(rig.log.read_log(0, 1_000_000), NAMING):
        check.event(recorded, state)
    told = list(check.check())
    assert told == list(range(1, len(told) + 1))  # a sign of life with every blob, however long a chain is
    return [(finding.kind, finding.subject) for finding in findings.listed]


def test_every_blob_of_a_stream_is_looked_at(rig: StreamRig) -> None:
    """Whichever blob goes - state, block of identities, segment, record, input, chunk -, it is named, and nothing else."""
    assert isinstance(rig.blobs, MemoryBlobs)
    whole = rig.blobs.blobs
    assert len(whole) > 40
    assert found(rig, rig.blobs) == []
    for lost in whole:
        left = MemoryBlobs()
        left.blobs = {address: data for address, data in whole.items() if address != lost}
        assert (FindingKind.BLOB_MISSING, lost) in found(rig, left)
        assert {subject for _, subject in found(rig, left)} == {lost}
