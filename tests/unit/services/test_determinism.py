"""What decides a result and what does not: conditions of docs/determinism.md that no other test is about."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.instants import parse_instant, to_micros
from domain.market.arrivals import arrival_log
from domain.market.faults import FaultKind, random_schedule
from domain.market.flow import parse_flow
from domain.market.records import MarketEvent
from domain.runs.aggregate import RunState
from domain.stream.replayed import replayed
from services import code_version
from tests.support.fixture_market import AS_OF
from tests.support.market_strategies import events, flow
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_log import MemoryLog
from tests.support.stream_rig import TOPIC, StreamRig, publish_log

INSTANT = to_micros(parse_instant(AS_OF))
ROOT = Path(__file__).parents[3]

SCRIPT = """
import json
from deployment.fixture_files import fixture_path
from deployment.replaying import snapshot_of_file
from domain.canonical import address, parse
from domain.instants import parse_instant, to_micros
from domain.market.faults import FaultKind, schedule_address
from domain.market.flow import parse_flow
from domain.stream.replayed import replayed
from services.code_version import code_version
from services.replay import drawn_schedule, made_log

as_of = to_micros(parse_instant("2026-01-06T00:00:00Z"))
with snapshot_of_file(fixture_path("snapshots/fixture.snapshot.01.manifest.json")) as (blobs, snapshot):
    schedule = drawn_schedule(blobs, snapshot, as_of, 11, dict.fromkeys(FaultKind, 0.3))
    log = made_log(blobs, snapshot, as_of, schedule)
flow = parse_flow(parse(fixture_path("flows/01_A_feature.json").read_bytes()))
batch = replayed(flow, log, lambda: None).batch
print(json.dumps([schedule_address(schedule), log.log_hash, address(batch.encode()), code_version()]))
"""


def test_a_process_and_its_surroundings_decide_nothing(tmp_path: Path) -> None:
    """Another seed of hashes, another time zone, locale and folder: the same schedule, log, artifact and code."""
    found = set()
    for seed, zone, locale in (("1", "Asia/Kolkata", "C"), ("2", "America/St_Johns", "C.UTF-8")):
        surroundings = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=surroundings, cwd=tmp_path, check=True
        )
        found.add(tuple(json.loads(done.stdout)))
    assert len(found) == 1


@settings(max_examples=20, deadline=None)
@given(
    made=events(revisions_max=1, size_max=25),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.0, 0.6),
    chunk=st.integers(1, 30),
    clock=st.sampled_from([{"kind": "event"}, {"kind": "interval", "length_seconds": 7}]),
)
def test_a_replay_is_a_stream_over_its_own_log(
    made: list[MarketEvent], seed: int, rate: float, chunk: int, clock: dict[str, Any]
) -> None:
    """Whatever the faults, the checkpoints, the clock: the very same artifact."""
    of = parse_flow(flow(instruments=("A", "B"), clock=clock))
    ordered = sorted(made, key=lambda event: (event.event_time, event.event_id, event.revision))
    schedule = random_schedule(seed, dict.fromkeys(FaultKind, rate), dict.fromkeys(e.event_id for e in ordered))
    log = arrival_log(ordered, INSTANT, schedule, "sha256:" + "5" * 64)
    rig = StreamRig(MemoryLog(), MemoryBlobs(), MemoryBroker())
    publish_log(rig.broker, TOPIC, log)
    run_id = rig.request(spec_flow=of)
    assert rig.work(run_id, checkpoint_records=chunk).state is RunState.SUCCEEDED
    done = replayed(of, log, lambda: None)
    assert rig.batch(run_id).encode() == done.batch.encode()
    assert rig.counts(run_id) == {name: count for name, count in done.treatments.items() if count}


def test_the_name_of_the_code_says_which_modules_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same modules, the same name; others, another: two builds that could differ have two names."""
    code_version.code_version.cache_clear()
    digest = code_version.sources_digest()
    assert code_version.sources_digest() == digest
    assert code_version.code_version() == f"{code_version.code_version().partition('+')[0]}+{digest[:16]}"
    monkeypatch.setattr(code_version, "PACKAGES", ("domain.market",))
    assert code_version.sources_digest() != digest
