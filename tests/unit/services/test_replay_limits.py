"""Limits of replays, parity and verdicts: each is reached, and what is beyond it is refused, cut, or waits."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api import parity as parity_api
from deployment import replaying
from deployment.fixture_files import fixture_path
from deployment.replaying import snapshot_of_file
from domain.market.errors import RunTooLargeError, ScheduleInvalidError, SnapshotInvalidError
from domain.stream.errors import BrokerUnavailableError
from services import parity, provenance, replay_publishing, schedules, stream_parity
from services.broker import Polled
from services.parity import Parity
from services.provenance import Provenance
from services.replay_publishing import ReplayRequest, publish
from services.schedules import read_schedule
from services.stream_parity import StreamParity, records_between
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker, MemorySource
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import TOPIC, StreamRig, fixture_log, publish_log
from tests.unit.api.test_limits import Crowd, call

SCHEDULE = fixture_path("schedules/fixture.faults.01.json").read_bytes()


def test_a_schedule_has_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as may be are read, one more is refused."""
    monkeypatch.setattr(schedules, "SCHEDULE_BYTES_MAX", len(SCHEDULE))
    assert len(read_schedule(SCHEDULE).schedule.faults) == 7
    with pytest.raises(ScheduleInvalidError):
        read_schedule(SCHEDULE + b" ")


def test_a_snapshot_in_a_file_has_a_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A longer one is imported first; a manifest without its chunks is refused with what is missing."""
    file = fixture_path("snapshots/fixture.snapshot.01.jsonl")
    size = file.stat().st_size
    monkeypatch.setattr(replaying, "SNAPSHOT_BYTES_MAX", size)
    with snapshot_of_file(file):
        pass
    monkeypatch.setattr(replaying, "SNAPSHOT_BYTES_MAX", size - 1)
    with pytest.raises(SnapshotInvalidError), snapshot_of_file(file):
        pass
    alone = tmp_path / "alone.manifest.json"
    alone.write_bytes(fixture_path("snapshots/fixture.snapshot.01.manifest.json").read_bytes())
    with pytest.raises(SnapshotInvalidError, match=r"\.jsonl beside"), snapshot_of_file(alone):
        pass


def test_a_topic_that_gives_nothing_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a second look and by a publication that looks for its end, after so many polls without anything."""
    broker = MemoryBroker()
    publish_log(broker, TOPIC, fixture_log())
    polls: list[int] = []

    def silent(self: MemorySource, limit: int, timeout_seconds: float) -> Polled:
        polls.append(limit)
        return Polled((), {})

    monkeypatch.setattr(MemorySource, "poll", silent)
    source = broker.source(TOPIC)
    start = dict.fromkeys(range(4), 0)
    with pytest.raises(BrokerUnavailableError):
        list(records_between(source, start, {0: 6, 1: 0, 2: 0, 3: 17}))
    assert len(polls) == stream_parity.SILENT_POLLS_MAX + 1
    polls.clear()
    with pytest.raises(BrokerUnavailableError):
        publish(broker, fixture_log(), ReplayRequest(topic=TOPIC), sleep=lambda seconds: None)
    assert len(polls) == (replay_publishing.SILENT_POLLS_MAX + 1) * replay_publishing.TRIES_MAX


def test_a_judgement_names_so_many_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them by id."""
    monkeypatch.setattr(stream_parity, "DIFFERENCES_MAX", 2)
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, fixture_log())
    run_id = rig.request()
    rig.work(run_id)
    assert isinstance(rig.broker, MemoryBroker)
    partition = rig.broker.topic(TOPIC).partitions[3]
    partition.slots = [None] * len(partition.slots)
    found = StreamParity(rig.log, rig.blobs, lambda: rig.broker).judge(run_id)
    assert found.findings.differing == ("fixture.event.0.0", "fixture.event.0.1")


def test_a_run_that_accepted_too_much_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events as may be are, one more is refused before anything is loaded."""
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, fixture_log())
    run_id = rig.request()
    rig.work(run_id)
    judges = StreamParity(rig.log, rig.blobs, lambda: rig.broker)
    monkeypatch.setattr(stream_parity, "EVENTS_MAX", 6)
    assert judges.judge(run_id).verdict.accepted == 6
    monkeypatch.setattr(stream_parity, "EVENTS_MAX", 5)
    with pytest.raises(RunTooLargeError):
        judges.judge(run_id)


async def test_a_look_at_a_replay_shows_so_many_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts all, and the report has them."""
    from domain.runs.messages import Mode
    from services.batch_execution import FlowComputation
    from tests.support.fixture_market import store_snapshot
    from tests.unit.services.test_replay_execution import spec

    blobs = MemoryBlobs()
    wanted = spec(blobs, store_snapshot(blobs), blobs.put(SCHEDULE))  # type: ignore[arg-type]
    computed = (await FlowComputation(blobs, 10**6, 10**6).prepare(wanted, lambda: None)).compute(
        lambda stage: None, lambda: None
    )
    stored = [blobs.put(data) for data in computed.inputs]
    result = SimpleNamespace(inputs=(wanted.snapshot, *stored))
    run = SimpleNamespace(results=(result,), spec=SimpleNamespace(mode=Mode.REPLAY), state="SUCCEEDED")

    async def folded(*_: Any) -> Any:
        return run

    monkeypatch.setattr(provenance, "APPLIED_MAX", 3)
    view = await Provenance(SimpleNamespace(folded=folded), blobs).replay("r", "ana")  # type: ignore[arg-type]
    assert (view.faults, len(view.applied)) == (7, 3)


async def test_runs_compared_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for, each holds two results in memory."""
    crowd = Crowd(parity.COMPARED_AT_ONCE_MAX)
    run = SimpleNamespace(results=("any",), run_id="r", state="SUCCEEDED")

    async def folded(*_: Any) -> Any:
        return run

    compares = Parity(SimpleNamespace(folded=folded), MemoryBlobs())  # type: ignore[arg-type]
    monkeypatch.setattr(compares, "_compared", lambda *_: crowd.visit())
    await asyncio.gather(*(compares.compare("a", "b", "ana") for _ in range(3 * parity.COMPARED_AT_ONCE_MAX)))
    assert crowd.most == parity.COMPARED_AT_ONCE_MAX


async def test_verdicts_at_once_are_bounded() -> None:
    """Each reads a whole topic."""
    crowd = Crowd(parity_api.JUDGED_AT_ONCE_MAX)

    def judge(run_id: str) -> Any:
        crowd.visit()
        return {}

    async def folded(*_: Any) -> None: ...

    parts = SimpleNamespace(runs=SimpleNamespace(folded=folded), blobs=None, stream_parity=SimpleNamespace(judge=judge))
    handlers = parity_api._Handlers(parts)  # type: ignore[arg-type]
    asked = [handlers.judge(call(run_id="r")) for _ in range(3 * parity_api.JUDGED_AT_ONCE_MAX)]
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    assert crowd.most == parity_api.JUDGED_AT_ONCE_MAX
