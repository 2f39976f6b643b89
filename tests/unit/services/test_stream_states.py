"""Stream runs whose last checkpoint is of an older version of this program."""

import pytest

from domain.checkpoints.manifest import parse_checkpoint
from domain.checkpoints.messages import CheckpointCommitted
from domain.market.contents import digest_of
from domain.runs.messages import ResultPublished
from domain.stream import identities, identity_blocks, worker_core
from domain.stream.worker_core import STATE_SCHEMA, STATE_SCHEMAS_READ
from services import checkpoint_appends
from services.stream_parts import StreamEnd
from tests.support.fixture_market import GOLDEN
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import THIRTEEN_COUNTS, TOPIC, StreamRig, fixture_log, publish_log


class BlockOfSchema2(identity_blocks.Block):
    """A block that writes itself as schema 2 did: row by row."""

    def document(self) -> list[list[object]]:
        super().document()
        return [list(row) for row in zip(*self.columns, strict=True)]


def schema_of(rig: StreamRig, run_id: str) -> str:
    """The schema of the state in the last checkpoint."""
    address = rig.of(run_id, CheckpointCommitted)[-1].manifest
    return parse_checkpoint(rig.blobs.get(address), address).state_schema


def test_a_run_goes_on_from_a_state_of_schema_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its identities stand by row and its contents are digests: copies are known all the same, and the result is the golden."""
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, fixture_log(), 13)
    run_id = rig.request(snapshot=rig.snapshot())
    with monkeypatch.context() as older:
        older.setattr(identities, "Block", BlockOfSchema2)
        older.setattr(identities, "content_of", digest_of)
        for module in (worker_core, checkpoint_appends):
            older.setattr(module, "STATE_SCHEMA", STATE_SCHEMAS_READ[0])
        assert rig.work(run_id, total_records=100).end is StreamEnd.TOTAL_REACHED
    assert schema_of(rig, run_id) == STATE_SCHEMAS_READ[0]
    assert rig.work(run_id).end is StreamEnd.FINISHED
    assert schema_of(rig, run_id) == STATE_SCHEMA
    assert rig.counts(run_id) == THIRTEEN_COUNTS
    assert [event.result.values_hash for event in rig.of(run_id, ResultPublished)] == [GOLDEN]
