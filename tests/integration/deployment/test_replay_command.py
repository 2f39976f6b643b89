"""`finaz replay` with a real broker: what stands in the topic, also when the command is killed in the middle."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployment.brokers.process import BrokerProcess
from deployment.cli import main
from deployment.fixture_files import fixture_path
from deployment.replaying import snapshot_of_file
from domain.canonical import address, parse
from domain.instants import parse_instant, to_micros
from domain.market.faults import NO_FAULTS
from domain.stream.records import StreamRecord
from domain.stream.worker_core import StreamCore
from services.adapters.kafka import KafkaBroker
from services.replay import made_log
from services.replay_publishing import ReplayRequest, publish
from services.stream_parity import records_between
from tests.support.brokers import RunningBroker
from tests.unit.domain.stream.test_worker_core import counts, fixture_flow

MANIFEST = str(fixture_path("snapshots/fixture.snapshot.01.manifest.json"))
EVENTS = str(fixture_path("snapshots/fixture.snapshot.01.jsonl"))
FAULTS = str(fixture_path("schedules/fixture.faults.01.json"))
LOG_HASH = "sha256:1db7f4440d7ea95d1da82ba5b11fb564ce4983bc3730674830c739893662a250"


def command(*arguments: str, snapshot: str = MANIFEST) -> list[str]:
    given = ("--snapshot", snapshot, "--as-of", "2026-01-06T00:00:00Z", *arguments)
    return [sys.executable, "-m", "deployment", "replay", *given]


@pytest.fixture
def replayed(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What the command, run in this process, answers with `--json`, or the problem that it ends with."""

    def run(*arguments: str, snapshot: str = MANIFEST, status: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(command(*arguments, "--json", snapshot=snapshot)[3:])
        out, err = capfd.readouterr()
        assert ended.value.code == status, err
        return json.loads(out if status == 0 else err.splitlines()[-1])

    return run


def in_topic(broker: RunningBroker, topic: str) -> list[list[StreamRecord]]:
    """The records of each partition."""
    opened = KafkaBroker(broker.bootstrap)
    source = opened.source(topic)
    marks = source.marks()
    held: list[list[StreamRecord]] = [[] for _ in marks]
    for record in records_between(
        source, {p: mark.low for p, mark in marks.items()}, {p: mark.high for p, mark in marks.items()}
    ):
        held[record.partition].append(record)
    source.close()
    opened.close()
    return held


def test_the_log_goes_to_a_file_under_its_hash(tmp_path: Path, replayed: Callable[..., Any]) -> None:
    """The file's address is the log's hash; nothing is published without a broker; all seven faults are shown."""
    file = tmp_path / "arrivals.jsonl"
    found = replayed("--schedule", FAULTS, "--log", str(file), "--dry-run")
    assert (found["log_hash"], found["arrivals"], len(found["applied"])) == (LOG_HASH, 23, 7)
    assert address(file.read_bytes()) == LOG_HASH
    assert found["publication"] is None


def test_random_faults_can_be_kept_and_used_again(tmp_path: Path, replayed: Callable[..., Any]) -> None:
    """The schedule that a seed draws is a schedule as any other."""
    file = tmp_path / "faults.json"
    drawn = replayed(
        "--random-faults", "5", "--rate", "DELAY=0.5", "--save-schedule", str(file), "--dry-run", snapshot=EVENTS
    )
    assert 0 < len(drawn["applied"]) < 18
    assert parse(file.read_bytes())["seed"] == 5
    again = replayed("--schedule", str(file), "--dry-run", snapshot=EVENTS)
    assert (again["log_hash"], again["schedule"]) == (drawn["log_hash"], drawn["schedule"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--schedule", EVENTS), "JSON_INVALID"),
        (("--schedule", MANIFEST), "SCHEDULE_INVALID"),
        (("--random-faults", "1", "--rate", "RAIN=0.5"), "SCHEDULE_INVALID"),
        (("--random-faults", "1", "--rate", "GAP=1.5"), "SCHEDULE_INVALID"),
        (("--pace", "fast"), "INPUT_INVALID"),
        (("--topic", "no topic"), "BODY_INVALID"),
        (("--load-id", "no id"), "INPUT_INVALID"),
        (("--topic", "replay"), "SETTINGS_INVALID"),
    ],
)
def test_what_cannot_be_replayed_is_said(replayed: Callable[..., Any], arguments: tuple[str, ...], code: str) -> None:
    """A problem document with its code, and nothing published."""
    assert replayed(*arguments, status=1)["code"] == code


def test_thirteen_loads_are_299_records_and_the_same_again_sends_nothing(
    broker: RunningBroker, replayed: Callable[..., Any]
) -> None:
    """Partitions 0 and 3 at 78 and 221; a stream over them counts what it should."""
    topic = f"replay-{uuid4().hex}"
    arguments = ("--schedule", FAULTS, "--bootstrap", broker.bootstrap, "--topic", topic, "--loads", "13")
    first = replayed(*arguments)["publication"]
    assert (first["sent"], first["high_water_marks"]) == (299, [78, 0, 0, 221])
    assert first["paused_seconds"] == pytest.approx(13 * 0.4, rel=0.5)
    again = replayed(*arguments)["publication"]
    assert (again["sent"], again["present"], again["high_water_marks"]) == (0, 299, [78, 0, 0, 221])
    core = StreamCore(fixture_flow(), 4)
    for partition in in_topic(broker, topic):
        for record in partition:
            core.process(record)
    assert counts(core) == (6, 195, 13, 85)


def test_a_publication_that_was_killed_goes_on_behind_its_last_record(
    broker: RunningBroker, replayed: Callable[..., Any]
) -> None:
    """SIGKILL in the middle: afterwards each record is there once, in order, or at most once more, which readers skip."""
    topic = f"replay-{uuid4().hex}"
    arguments = ("--bootstrap", broker.bootstrap, "--topic", topic, "--loads", "4", "--load-id", "load")
    killed = subprocess.Popen(
        command(*arguments, "--pace", "30/s"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    opened = KafkaBroker(broker.bootstrap)
    try:
        while opened.topics().describe(topic) is None:
            assert killed.poll() is None
        source = opened.source(topic)
        while sum(mark.high for mark in source.marks().values()) < 25:
            assert killed.poll() is None
        killed.kill()
        killed.wait()
        source.close()
    finally:
        killed.kill()
        killed.wait()
        opened.close()
    done = replayed(*arguments)["publication"]
    assert 25 <= done["present"] < 72
    assert done["present"] + done["sent"] == 72
    held = in_topic(broker, topic)
    seen = Counter(record.load for partition in held for record in partition)
    assert set(seen) == {(f"load.{load}", index) for load in range(4) for index in range(18)}
    assert set(seen.values()) <= {1, 2}
    core = StreamCore(fixture_flow(), 4)
    for partition in held:
        for record in partition:
            core.process(record)
    assert core.counts.total() == sum(map(len, held))
    assert counts(core)[0] == 6


def test_a_broker_that_is_restarted_in_the_middle_loses_nothing(mortal_broker: BrokerProcess) -> None:
    """The publication waits for it and ends by itself; each record is there, at most once more."""
    with snapshot_of_file(Path(EVENTS)) as (blobs, snapshot):
        log = made_log(blobs, snapshot, to_micros(parse_instant("2026-01-06T00:00:00Z")), NO_FAULTS)
    client = KafkaBroker(mortal_broker.bootstrap)
    restarted: list[int] = []

    def on_progress(done: int) -> None:
        if done > 100 and not restarted:
            restarted.append(done)
            mortal_broker.restart()

    try:
        request = ReplayRequest(topic="replay", base="load", loads=20)
        done = publish(client, log, request, on_progress)
        assert (restarted, done.records) == ([101], 360)
        held = in_topic(RunningBroker(mortal_broker.name, mortal_broker.bootstrap), "replay")
    finally:
        client.close()
    seen = Counter(record.load for partition in held for record in partition)
    assert set(seen) == {(f"load.{load}", index) for load in range(20) for index in range(18)}
    assert set(seen.values()) <= {1, 2}
