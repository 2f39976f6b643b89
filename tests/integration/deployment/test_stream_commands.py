"""Streams as a person runs them: a run that `finaz up` serves by itself, and one that is owned by `finaz stream-worker`."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF, GOLDEN, store_fixture_snapshot
from domain.canonical import canonical, parse
from projections.inline import INLINE
from services.adapters.kafka import KafkaBroker
from services.admission import Admissions
from services.cas import DirectoryBlobStore
from services.requests import parse_run_body
from services.store.application import Log
from tests.support.brokers import RunningBroker
from tests.support.command_line import CHECKOUT, COMMAND, environment, finaz, finaz_up
from tests.support.stream_rig import THIRTEEN_COUNTS, fixture_log, publish_log

FLOW = "flows/01_A_feature.json"


def test_a_stream_run_is_served_without_a_command() -> None:
    """Posted, and SUCCEEDED: the golden, published by the server of streams."""
    with finaz_up() as up:
        broker = KafkaBroker(up.announced["bootstrap"])
        publish_log(broker, "arrivals", fixture_log(), 13)
        broker.close()
        arguments = ("--mode", "STREAM", "--topic", "arrivals", "--flow", str(fixture_path(FLOW)), "--wait")
        ended = up.answer("run", "submit", *arguments)
        assert ended["state"] == "SUCCEEDED"
        assert [result["values_hash"] for result in ended["results"]] == [GOLDEN]


class Place:
    """A database, a blob store and a topic of thirteen loads, and a run over it that was admitted."""

    def __init__(self, dsn: str, bootstrap: str, folder: Path) -> None:
        self.topic = f"stream-{uuid4().hex}"
        self.folder = folder
        self.settings = {
            "FINAZ_POSTGRES_DSN": dsn,
            "FINAZ_CAS_DIR": str(folder / "cas"),
            "FINAZ_KAFKA_BOOTSTRAP": bootstrap,
        }
        broker = KafkaBroker(bootstrap)
        publish_log(broker, self.topic, fixture_log(), 13)
        broker.close()
        self.run_id = asyncio.run(self._admitted(dsn))

    async def _admitted(self, dsn: str) -> str:
        blobs = DirectoryBlobStore(self.folder / "cas")
        body: dict[str, Any] = {
            "mode": "STREAM",
            "flow": parse(fixture_path(FLOW).read_bytes()),
            "topic": self.topic,
            "snapshot": store_fixture_snapshot(blobs),
            "as_of": AS_OF,
        }
        with Log(dsn, INLINE) as log:
            return (await Admissions(log, blobs).submit_run("ana", "key", parse_run_body(body))).run_id

    def arguments(self, *more: str, topic: str = "", flow: Path | None = None) -> tuple[str, ...]:
        return (
            *("stream-worker", "--topic", topic or self.topic, "--group", "tests", "--run-id", self.run_id),
            *("--flow", str(flow or fixture_path(FLOW)), "--json", *more),
        )

    def work(self, *more: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return finaz(*self.arguments(*more, **options), **self.settings)


@pytest.fixture
def place(database: str, broker: RunningBroker, tmp_path: Path) -> Place:
    return Place(database, broker.bootstrap, tmp_path)


def test_a_run_is_owned_by_hand(place: Place) -> None:
    """Another flow or topic is refused; a total stops it and the emit says how far; the end is exported again when asked."""
    other = place.folder / "other.json"
    other.write_bytes(fixture_path(FLOW).read_bytes().replace(b'"length": 3', b'"length": 4'))
    emit = place.folder / "out.json"
    for options, where in (({"topic": "another"}, "--topic"), ({"flow": other}, "--flow")):
        refused = place.work("--emit", str(emit), **options)
        assert refused.returncode == 1
        assert json.loads(refused.stderr.splitlines()[-1])["at"] == where
    refused = place.work("--emit", str(place.folder / "nowhere" / "out.json"))
    assert (refused.returncode, json.loads(refused.stderr)["at"]) == (
        1,
        "--emit",
    )  # nothing was claimed: the token stays 1
    stopped = place.work("--once-n", "100", "--checkpoint-every", "30", "--emit", str(emit))
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout)["end"] == "TOTAL_REACHED"
    half = parse(emit.read_bytes())
    assert sum(half["counts"].values()) == sum(half["next_offsets"].values()) == 100
    assert half["verdict"] is None
    for token in (2, 2):
        done = place.work("--emit", str(emit))
        assert done.returncode == 0, done.stderr
        whole = parse(emit.read_bytes())
        assert emit.read_bytes() == canonical(whole) + b"\n"
        assert {name: count for name, count in whole["counts"].items() if count} == THIRTEEN_COUNTS
        assert [output["values_hash"] for output in whole["outputs"].values()] == [GOLDEN]
        assert (whole["fence_token"], whole["verdict"]["kind"]) == (token, "EQUAL_TO_BATCH_GOLDEN")
    assert {file.name for file in place.folder.iterdir()} == {"cas", "other.json", "out.json"}


def test_sigterm_commits_and_gives_the_lease_back(place: Place) -> None:
    """Status 0 in bounded time, and the next owner needs not wait for a lease to run out."""
    process = subprocess.Popen(
        [*COMMAND, *place.arguments("--pace", "30", "--checkpoint-every", "20")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**place.settings),
        cwd=CHECKOUT,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if '"stream.committed"' in line:
            break
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["end"] == "STOPPED"
    done = place.work()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fence_token"] == 2
